"""The name that is nearest to one that is unknown, for messages."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the most similar name, after a space; empty if none is similar."""
    close = difflib.get_close_matches(name, [*known], n=1)
    return f" Did you mean {close[0]}?" if close else ""
