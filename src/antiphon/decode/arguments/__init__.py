"""Parsers of call arguments in several formats, which write JSON."""
