"""`antiphon check URL`: whether a server does what the specifications of its APIs say.

`checks.py` says what a check is. `chat.py`, `responses.py`, `messages.py` and `decisions.py` have the tables
of checks, each with the source that it cites; `client.py` sends their requests, and `runner.py` plays them,
and writes the reports. A check reads only what the server sends, whichever server it is.

To add a check: a function with `@TABLE.check(…)` in the module of its API, and in `FAULTS` of
`tests/check/faults.py` at least one change of an answer that it finds.
"""
