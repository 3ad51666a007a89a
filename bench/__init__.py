"""Benchmarks of Antiphon's own cost, without a model: see README.md."""
