"""The Responses API without HTTP: create, retrieve, cancel, compact, and background work."""
