"""A replica as several servers see it: rates, slots, a cache of blocks, and failures.

Prompts are computed one after the other, at a rate; blocks that the cache has are not computed. Then answers
are written side by side. The cache holds so many blocks, and drops those that were used the longest ago, of a
prompt the last ones first, as vLLM does. The tokens of an answer are those of its number, so that everybody
can tell which one comes next, and whose it is.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.errors import AntiphonError, EngineBusyError, EngineDiedError
from simulation.fleet.bus import Bus, Publisher
from simulation.loop import Process, SimulatedLoop

if TYPE_CHECKING:
    from simulation.fleet.laws import FleetLaws

ANSWER_IDS = 2**40
"""Ids of the tokens of answers begin here, `ANSWER_ROOM` for each."""
ANSWER_ROOM = 2**16


class Speed(Struct, frozen=True):
    """What a replica can do. Tokens a second are those of one prompt after the other, and of each answer."""

    prefill: float = 12_000.0
    decode: float = 40.0
    step: int = 8
    """Tokens that arrive together."""
    slots: int = 16
    queue: int = 10_000
    """Requests that may wait in the replica."""
    block: int = 64
    """Tokens in a block of its cache."""
    blocks: int = 2_500
    """Blocks in its cache."""


def written_tokens(text: str) -> int:
    """How many tokens of an answer this text has."""
    return text.count(",")


def answer_token(number: int, place: int) -> int:
    """The id of a token of the answer of this number."""
    return ANSWER_IDS + number * ANSWER_ROOM + place


class Cache:
    """The blocks of a replica, by chained hashes; those used the longest ago come first."""

    def __init__(self, speed: Speed, publisher: Publisher) -> None:
        self._size, self._room = speed.block, speed.blocks
        self._publisher = publisher
        self.blocks: dict[int, None] = {}

    def hashes(self, ids: Sequence[int], first: Sequence[int] = ()) -> list[int]:
        """Those of the whole blocks of these tokens, of which the `first` are known."""
        size, hashes = self._size, [*first]
        before = hashes[-1] if hashes else 0
        for start in range(len(hashes) * size, len(ids) - size + 1, size):
            before = hash((before, ids[start : start + size]))
            hashes.append(before)
        return hashes

    def known(self, hashes: Sequence[int]) -> int:
        """How many of the first blocks are there."""
        blocks = self.blocks
        return next((place for place, block in enumerate(hashes) if block not in blocks), len(hashes))

    def use(self, hashes: Sequence[int]) -> None:
        """They are the last that were used, the first of them last."""
        blocks = self.blocks
        for block in reversed(hashes):
            if block in blocks:
                del blocks[block]
                blocks[block] = None

    def store(self, hashes: Sequence[int], ids: Sequence[int]) -> None:
        """Store the blocks of these tokens that are missing, and drop what there is no room for."""
        known = self.known(hashes)
        new = hashes[known:]
        self.blocks |= dict.fromkeys(new)
        self.use(hashes)
        dropped = [*islice(self.blocks, max(0, len(self.blocks) - self._room))]
        for block in dropped:
            del self.blocks[block]
        latest = {*new}
        if old := [block for block in dropped if block not in latest]:
            self._publisher.removed(old)  # first: their place is taken
        if kept := [block for block in new if block in self.blocks]:  # all, or the beginning
            parent = hashes[known - 1] if known else None
            self._publisher.stored(kept, parent, ids[known * self._size : (known + len(kept)) * self._size])

    def clear(self) -> None:
        """Drop all, as after an update of the model's weights."""
        self.blocks.clear()
        self._publisher.cleared()


class Stream:
    """An answer that a replica writes for a server: from `begin` tokens on, `length` in all.

    `chosen` is when the server chose the replica.
    """

    def __init__(
        self,
        number: int,
        chosen: float,
        prompt: tuple[int, ...],
        begin: int,
        length: int,
        push: Callable[[list[Chunk]], None],
        fail: Callable[[AntiphonError], None],
        process: Process,
    ) -> None:
        self.number = number
        self.chosen = chosen
        self.prompt = prompt
        self.block = 1
        """Tokens in a block of the cache."""
        self.hashes: list[int] = []
        """Those of the blocks of its prompt."""
        self.expected = 0
        """Tokens of the prompt that the server expects in the cache."""
        self.foreseen = False
        """All that the server has sent is computed before: none of it waits for a slot, in fair shares."""
        self.begin = self.written = begin
        self.length = length
        self.push = push
        self.fail = fail
        self.process = process
        self.context = process.context()
        self.over = False
        self.cached = 0


class Machine:
    """A replica. `slow` is how many times as long it takes for everything."""

    def __init__(self, name: str, speed: Speed, loop: SimulatedLoop, laws: "FleetLaws", bus: Bus) -> None:
        self.name = name
        self.speed = speed
        self.up = True
        self.slow = 1.0
        self.running: dict[Stream, None] = {}
        self.waiting: deque[Stream] = deque()
        self.publisher = Publisher(bus, name, speed.block)
        self.cache = Cache(speed, self.publisher)
        self._loop = loop
        self.laws = laws
        self._prompts: deque[Stream] = deque()  # of running ones that are to be computed
        self._computes = False

    @property
    def has_free_slots(self) -> bool:
        """It would begin with a request at once."""
        return self.up and len(self.running) < self.speed.slots

    @property
    def load(self) -> int:
        """Streams that it runs, or that wait."""
        return len(self.running) + len(self.waiting)

    def begin(self, stream: Stream) -> None:
        """A request has arrived from a server."""
        if not self.up:
            self._end(stream, EngineDiedError())
        elif len(self.waiting) >= self.speed.queue:
            self._end(stream, EngineBusyError())
        else:
            self.laws.begins(self, stream)
            self.waiting.append(stream)
            self._fill()

    def cancel(self, stream: Stream) -> None:
        """Its server does not want it any more."""
        if not stream.over:
            self._leave(stream)
            self._fill()

    def lose(self, process: Process) -> None:
        """The connections of a server break off."""
        for stream in [*self.running, *self.waiting]:
            if stream.process is process:
                self._leave(stream)
        self._fill()

    def crash(self) -> None:
        """End as after kill -9."""
        self.up = self.publisher.up = False
        for stream in [*self.running, *self.waiting]:
            self._leave(stream)
            self._end(stream, EngineDiedError())

    def restart(self) -> None:
        """Another process in its place, with an empty cache."""
        self.up, self.slow = True, 1.0
        self.cache.blocks.clear()
        self.publisher.restart()

    def _end(self, stream: Stream, error: AntiphonError) -> None:
        stream.over = True
        self._loop.call_soon(stream.fail, error, context=stream.context)

    def _leave(self, stream: Stream) -> None:
        """It is not worked on any more."""
        stream.over = True
        if stream in self.running:
            del self.running[stream]
        elif stream in self.waiting:
            self.waiting.remove(stream)
        self.laws.ends(stream)

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.speed.slots:
            stream = self.waiting.popleft()
            self.running[stream] = None
            self._prompts.append(stream)
        self._compute()

    def _compute(self) -> None:
        """Compute the next prompt, unless one is under way."""
        while self._prompts and not self._computes:
            stream = self._prompts.popleft()
            if stream.over:
                continue
            hashes = stream.hashes
            # The last token is computed in any case: its result is the first of the answer.
            known = min(self.cache.known(hashes), (len(stream.prompt) - 1) // self.speed.block)
            stream.cached = known * self.speed.block
            self.cache.use(hashes[:known])
            seconds = (len(stream.prompt) - stream.cached) / self.speed.prefill * self.slow
            self.laws.computes(stream)
            self._computes = True
            self._loop.call_later(seconds, self._computed, stream, context=Context())

    def _computed(self, stream: Stream) -> None:
        self._computes = False
        if not stream.over:
            self.cache.store(stream.hashes, stream.prompt)
            self._write(stream, 1)
        self._compute()

    def _write(self, stream: Stream, count: int) -> None:
        """Send the next tokens of an answer."""
        if stream.over:
            return
        begin, end = stream.written, min(stream.length, stream.written + count)
        stream.written = end
        cached, stream.cached = stream.cached, 0
        finish = Finish(FinishReason.STOP) if end == stream.length else None
        tokens = tuple(Token(answer_token(stream.number, place), f"{place},") for place in range(begin, end))
        chunk = Chunk("".join(token.text for token in tokens), tokens, finish, cached)
        self.laws.writes(stream, begin)
        self._loop.call_soon(stream.push, [chunk], context=stream.context)
        if finish is not None:
            self._leave(stream)
            self._store_answer(stream)
            self._fill()
        else:
            seconds = self.speed.step / self.speed.decode * self.slow
            self._loop.call_later(seconds, self._write, stream, self.speed.step, context=Context())

    def _store_answer(self, stream: Stream) -> None:
        """The blocks of an answer are in the cache, too."""
        places = range(stream.begin, stream.written - 1)  # the last token was not read any more
        text = stream.prompt + tuple(answer_token(stream.number, place) for place in places)
        self.cache.store(self.cache.hashes(text, stream.hashes), text)
