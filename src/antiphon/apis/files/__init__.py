"""OpenAI's Files API: uploaded files."""
