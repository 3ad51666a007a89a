"""OpenAI Completions, the API before Chat Completions: text in, text out."""
