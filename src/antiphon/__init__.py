"""Antiphon: the serving layer between any language model and any client."""

__version__ = "0.1.0"
