"""What the end of an answer adds to its notes, in every API."""

from antiphon.core.events import Finished
from antiphon.core.hosts import Note


def notes_at_end(end: Finished | None, param: str) -> tuple[Note, ...]:
    """The notes of an end; `param` is the API's limit of tokens. See `run/closing.py`."""
    if end is None or not end.closed:
        return ()
    what = "The answer was cut, and the form that it has to have was ended by a short way"
    return (Note(param, f"{what}: its last {end.closed} tokens."),)
