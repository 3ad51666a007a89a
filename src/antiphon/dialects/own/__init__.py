"""Dialects that are no modules of this package: read from files, or derived from a template."""
