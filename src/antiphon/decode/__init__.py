"""Tokens → events. Sans-IO: no clock, no network, no threads."""
