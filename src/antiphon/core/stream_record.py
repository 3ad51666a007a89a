"""What another process needs of a stream to write on where its process has died.

Several processes of a server keep such a record for each stream (`http/resuming.py`). It has the chunks of
each choice of the answer, and makes the random ids and the time that the answer is made with, so that the
same request is answered with the same again. With one process, requests have none.

A record takes chunks together with the bytes that they became: `pending` are those since bytes were written
last. If bytes were written that a replay of chunks would not make at the same place, the stream cannot be
resumed any more, and says so by its `state`.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from enum import IntEnum
from random import Random

from antiphon.core.chunks import Chunk

Entry = tuple[int, list[Chunk] | int]
"""A choice, and chunks of it; or how many of its last events are left, if these are sent one by one."""


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
        self._chunks: dict[int, list[Chunk]] = {}
        self._last: dict[int, int] = {}
        for choice, entry in recorded or ():
            if isinstance(entry, int):
                self._last[choice] = entry
            else:
                self._chunks.setdefault(choice, []).extend(entry)
        self._begun = self.resumed and bool(recorded)
        self._random = Random(seed)  # noqa: S311 - the seed is as random as the ids
        self._choices: set[int] = set()

    def hex(self, digits: int) -> str:
        """The next random hexadecimal digits, an even number of them."""
        return self._random.randbytes(digits // 2).hex()

    def chunks_of(self, choice: int) -> list[Chunk]:
        """The chunks that were recorded of a choice, which is generated now, once."""
        if choice in self._choices:
            self.give_up()
        self._choices.add(choice)
        self.logged = True
        chunks = self._chunks.get(choice, [])
        if chunks:
            self.replaying.add(choice)
        return chunks

    def last_of(self, choice: int) -> int | None:
        """How many of the last events of a choice were left, if some were sent one by one."""
        return self._last.get(choice)

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
