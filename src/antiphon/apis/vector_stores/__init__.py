"""OpenAI Vector Stores: files that are searched."""
