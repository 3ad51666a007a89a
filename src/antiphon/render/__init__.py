"""Conversation → prompt: the inverse of `decode`."""
