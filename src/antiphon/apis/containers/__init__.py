"""Containers, in their wire form."""
