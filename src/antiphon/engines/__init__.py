"""Token sources, all behind one protocol: see `engine.py`."""
