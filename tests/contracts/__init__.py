"""Suites that every implementation of a protocol inherits."""
