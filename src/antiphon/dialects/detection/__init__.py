"""Which dialect a model speaks, found by votes."""
