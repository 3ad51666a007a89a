"""What another process needs of a stream to write on where its process has died.

Several processes of a server keep such a record for each stream (`http/resuming.py`). It has the chunks of
each choice of the answer, and makes the random ids and the time that the answer is made with, so that the
same request is answered with the same again. With one process, requests have none.

A record takes chunks together with the bytes that they became: `pending` are those since bytes were written
last. If bytes were written that a replay of chunks would not make at the same place, the stream cannot be
resumed any more, and says so by its `state`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from enum import IntEnum
from random import Random

from msgspec import Struct

from antiphon.core.chunks import Chunk

Entry = tuple[int, list[Chunk] | bytes | int | None]
"""A choice, and what is recorded of it.

Chunks; or, encoded, other entries of its log; or how many of its last events are left, if these are sent one
by one; or None for an event that was not made of chunks.
"""
CALLS = -1
"""In place of a choice, before the number of calls of the server's tools that have begun."""


class StreamState(IntEnum):
    """Whether a stream can be resumed."""

    RESUMABLE = 0
    """Its chunks are recorded up to the last byte."""
    ANNOUNCED = 1
    """It has begun, and has no chunk yet that would begin it again."""
    LOST = 2
    """Its bytes have something that chunks do not tell."""
    COMPLETE = 3
    """Its last byte is recorded."""


class StreamRecord:
    """The record of one stream. `recorded` is what another process has recorded."""

    def __init__(self, seed: bytes, created: float, recorded: Sequence[Entry] | None = None) -> None:
        self.seed = seed
        self.created = created
        """The time of the answer, in seconds since 1970."""
        self.reserved = 0
        """Tokens that were reserved for the answer, of the account of its key."""
        self.resumed = recorded is not None
        """The stream was begun by another process."""
        self.pending: list[Entry] = []
        """What nothing was written for yet."""
        self.state = StreamState.RESUMABLE
        self.goes_on = False
        """Nothing but the next entry is new: the stream has begun, and can be resumed."""
        self.events = False
        """Events were written since the transport was asked last, not only a comment."""
        self.logged = False
        """Its chunks are recorded."""
        self.replaying: set[int] = set()
        """Choices whose recorded chunks are being decoded again: their events were sent."""
        self.keep: Callable[[Entry], None] | None = None
        """Keeps an entry at once, if the stream has begun."""
        self.early: list[Entry] = []
        """Those for `keep` before."""
        self.details_types: Mapping[str, type[Struct]] = {}
        """Tag → the type of details of the results of tools."""
        self._recorded: dict[int, list[Chunk | bytes]] = {}
        self._last: dict[int, int] = {}
        self._shown = Counter[int]()
        for choice, entry in recorded or ():
            if isinstance(entry, int):
                self._last[choice] = entry
            elif entry is None:
                self._shown[choice] += 1
            else:
                pieces = [entry] if isinstance(entry, bytes) else entry
                self._recorded.setdefault(choice, []).extend(pieces)
        self._begun = self.resumed and bool(recorded)
        self._random = Random(seed)  # noqa: S311 - the seed is as random as the ids
        self._choices: set[int] = set()

    def hex(self, digits: int) -> str:
        """The next random hexadecimal digits, an even number of them."""
        return self._random.randbytes(digits // 2).hex()

    def entries_of(self, choice: int) -> list[Chunk | bytes]:
        """What was recorded of a choice, which is generated now, once."""
        if choice in self._choices:
            self.give_up()
        self._choices.add(choice)
        self.logged = True
        return self._recorded.get(choice, [])

    def last_of(self, choice: int) -> int | None:
        """How many of the last events of a choice were left, if some were sent one by one."""
        return self._last.get(choice)

    def shown_of(self, choice: int) -> int:
        """How many events of a choice were sent that were not made of chunks."""
        return self._shown[choice]

    @property
    def calls_begun(self) -> int:
        """How many calls of the server's tools may have begun."""
        return self._last.get(CALLS, 0)

    def note(self, entry: Entry) -> None:
        """Record what is true whether or not more bytes are written."""
        if self.keep is None:
            self.early.append(entry)
        else:
            self.keep(entry)

    def random_of(self, choice: int) -> Random:
        """Makes the ids of the calls of a choice."""
        return Random(b"%d %s" % (choice, self.seed))  # noqa: S311

    def give_up(self) -> None:
        """The stream cannot be resumed any more."""
        self.state, self.goes_on = StreamState.LOST, False

    def end(self) -> None:
        """What is written next ends the stream."""
        if self.state is not StreamState.LOST:
            self.state, self.goes_on = StreamState.COMPLETE, False

    def take(self) -> list[Entry]:
        """What is pending, for bytes that are written now; the state is that after them."""
        pending, events = self.pending, self.events
        self.pending, self.events = [], False
        if self.state is StreamState.COMPLETE or self.state is StreamState.LOST:
            return pending
        if pending:
            self.state, self._begun, self.goes_on = StreamState.RESUMABLE, True, True
        elif events:
            self.state = StreamState.LOST if self._begun else StreamState.ANNOUNCED
            self.goes_on = False
            self._begun = True
        return pending


STREAM_RECORD: ContextVar[StreamRecord | None] = ContextVar("stream_record", default=None)
"""The record of the stream that is the answer to the current request, if it is kept."""
