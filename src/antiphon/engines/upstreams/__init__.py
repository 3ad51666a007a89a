"""The kinds of server that `engines/upstream.py` supports, one module each: see `kind.py`."""
