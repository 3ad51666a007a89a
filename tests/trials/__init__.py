"""Bugs that users reported of other servers, as data, and the promises of docs/ that were broken once.

`cases.jsonl` has a case per line: how the server is started, what the model writes, what a client sends, and
what must come back. `player.py` says what its fields mean and plays a case against a real server; `test_trials.py`
plays all of them. A case stands for its kind: what is behind it has to be mended in every dialect and API.
"""
