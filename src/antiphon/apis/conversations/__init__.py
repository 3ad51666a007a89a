"""OpenAI Conversations: items that responses share."""
