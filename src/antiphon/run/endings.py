"""The ways in which an answer may end: one table, for every API, streamed or not, stored or not.

`docs/endings.md` explains it to users, and `tests/test_endings.py` checks it for every combination. In each
of these endings the engine has stopped working on the answer.

To add a way in which an answer may end: a reason, and its row of `ENDINGS`; the code that detects it calls
`Driver.stop` with it; a line of the table in `docs/endings.md`, which `tests/test_endings.py` reads.
"""

from enum import Enum, auto

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.errors import (
    EngineBusyError,
    EngineDiedError,
    EngineError,
    EngineNotReadyError,
    RequestError,
    StoreError,
)
from antiphon.core.limits import LIMIT_EXCEEDED

ENGINE_DEATHS = 3
"""After this number of deaths of its engine a background answer is not continued any more."""


class ClientLeftError(Exception):
    """The client closed the connection."""

    expected = True  # see `log_failure`


class ClientStalledError(ClientLeftError):
    """The client did not read for too long, or too much was held back for it."""


class CancelRequestedError(Exception):
    """A client requested the cancellation of this response."""

    expected = True


class DeadlineError(EngineError):
    """The answer took longer than its request, or the server, allows. Request less, or limit max_tokens."""

    status = 504
    code = "deadline_exceeded"


class OverLimitError(RequestError):
    """With this answer, more is stored than a limit of the server allows: it ends here."""

    code = LIMIT_EXCEEDED

    def __init__(self, limit: str) -> None:
        message = (
            f"With this answer, more is stored than the limit '{limit}' of this server allows: it ends here."
            " Delete what you no longer need, or send 'store: false'."
        )
        super().__init__(message, param="store")


class LostError(StoreError):
    """This response was deleted, or ended by another server, before its answer was whole."""

    code = "response_lost"

    def __init__(self, verdict: str) -> None:
        self.verdict = verdict
        super().__init__()


class ClientResult(Enum):
    """The end that the client gets."""

    RESULT = auto()
    """The answer's own end, or the full answer."""
    ERROR = auto()
    """An HTTP error if nothing was sent yet, else the error as the last event."""
    CANCELLED = auto()
    """The answer so far, as cancelled."""
    NOTHING = auto()


class Stored(Enum):
    """The end of a stored answer."""

    RESULT = auto()
    FAILED = auto()
    """With its items so far, and the error."""
    CANCELLED = auto()
    """With its items so far."""
    UNCHANGED = auto()
    """It is not changed. In the background, another server, or this one later, continues it."""


class Ending(Struct, frozen=True):
    """One way to end. `background` is the end of a background response, if that differs."""

    client: ClientResult
    stored: Stored
    background: Stored | None = None


FINISHED = Ending(ClientResult.RESULT, Stored.RESULT)
"""The ending without a reason: the source has ended."""

ENDINGS: dict[type[BaseException], Ending] = {
    ClientLeftError: Ending(ClientResult.NOTHING, Stored.CANCELLED),
    CancelRequestedError: Ending(ClientResult.CANCELLED, Stored.CANCELLED),
    LostError: Ending(ClientResult.ERROR, Stored.UNCHANGED),
    StoreError: Ending(ClientResult.ERROR, Stored.UNCHANGED),
    EngineNotReadyError: Ending(ClientResult.ERROR, Stored.FAILED, background=Stored.UNCHANGED),  # it stops
    EngineBusyError: Ending(ClientResult.ERROR, Stored.FAILED, background=Stored.UNCHANGED),
    EngineDiedError: Ending(ClientResult.ERROR, Stored.FAILED, background=Stored.UNCHANGED),
    BaseException: Ending(ClientResult.ERROR, Stored.FAILED),  # the engine failed, the deadline passed, a bug
}
"""Reason → ending. The first class that matches applies."""


def ending_of(reason: BaseException, *, has_begun: bool, background: bool) -> Ending:
    """The ending for this reason. Nothing is stored of an answer unless it `has_begun`."""
    ending = next(ending for kind, ending in ENDINGS.items() if isinstance(reason, kind))
    if background:
        return replace(ending, stored=ending.background or ending.stored)
    return ending if has_begun else replace(ending, stored=Stored.UNCHANGED)
