"""The name that is nearest to one that is unknown, for messages."""

import difflib
from collections.abc import Iterable

ALIKE = 0.65
"""How similar a name must be, of 1: a slip or two in a short word."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the most similar name, after a space; empty if none is similar."""
    close = difflib.get_close_matches(name, [*known], n=1, cutoff=ALIKE)
    return f" Did you mean {close[0]}?" if close else ""
