"""The kinds of server that `engines/upstream.py` can ask, one module each: see `kind.py`."""
