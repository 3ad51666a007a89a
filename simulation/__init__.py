"""Deterministic simulation: whole servers in one process, under a virtual clock, from one seed.

Begin reading with `world.py`. `docs/decisions/0017-deterministic-simulation.md` explains the design.

To add a fault or a law: `World._trouble` in `world.py`, `laws.py`; the behaviour of clients in `clients.py`,
of engines in `engine.py` and `model_server.py`, of tools in `tools.py` and `mcp_server.py`. A bug that it
finds, put into the source on purpose, in `FAULTS` of `faults.py`.
"""
