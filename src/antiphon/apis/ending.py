"""What the end of an answer adds to its notes, in every API."""

from antiphon.core.events import Finished
from antiphon.core.hosts import Note


def notes_at_end(end: Finished | None, param: str) -> tuple[Note, ...]:
    """The notes of an end; `param` is the API's limit of tokens. See `run/closing.py`."""
    if end is None or not (end.closed or end.unused):
        return ()
    cut = "The answer was cut where the form that it has to have may end"
    return (Note(param, f"{cut}, and closed: its last {end.closed} tokens." if end.closed else f"{cut}."),)
