"""OpenAI Decisions."""
