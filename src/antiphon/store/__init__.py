"""The database: responses, their event logs, conversations, stored completions, files. See `store.py`."""
