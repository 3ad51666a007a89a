"""Batches: many requests of OpenAI's APIs in one file, answered in the background."""
