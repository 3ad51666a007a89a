"""OpenAI Files: what clients upload."""
