"""Decisions: how a question is put to a model, and what its next token says of the options."""
