"""What must last: responses, their event logs, conversations, stored completions. See `store.py`."""
