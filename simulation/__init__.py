"""Deterministic simulation: whole servers in one process, under a virtual clock, from one seed.

`world.py` is where to begin to read. `docs/decisions/` says why it is made like this.
"""
