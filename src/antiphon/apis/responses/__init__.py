"""OpenAI Responses, which are Open Responses too."""
