"""Deterministic simulation: whole servers in one process, under a virtual clock, from one seed.

Begin reading with `world.py`. `docs/decisions/0017-deterministic-simulation.md` explains the design.
"""
