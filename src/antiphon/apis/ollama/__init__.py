"""Ollama's native API: pure projections between its lines of JSON and what is below."""
