"""What a pool knows of the cache of a replica: `CacheView`, by which it estimates what a prompt costs there.

`ApproximateView` remembers the prompts that the replica was sent from here, no more than its cache holds.
`EventsView` follows the events of the replica, which tell what it really holds, whoever sent the prompts.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

from antiphon.engines.block_index import BlockIndex, PromptBlocks
from antiphon.engines.kv_events import CacheEvents

BLOCK = 32
"""Tokens in a block of a prompt, where that of the engine is unknown."""
REMEMBERED_TOKENS = 2_097_152
"""Tokens that are remembered of a replica that does not say how many its cache holds."""
EXPECTED_SECONDS = 2.0
"""How long a prompt that was sent is expected in the cache, until events tell of it."""
SILENT_SECONDS = 5.0
"""A replica that has got new prompts for so long, without an event, is not believed to have none."""
SILENT_WEIGHT = 0.5
"""What is remembered of a replica whose events do not come is worth so much."""


class CacheView(Protocol):
    """What is known of the cache of a replica."""

    @property
    def size(self) -> int:
        """How many tokens it is known to hold."""
        ...

    def cached_tokens(self, prompt: PromptBlocks) -> float:
        """How many tokens of the beginning of a prompt it holds; those in slower memory count less."""
        ...

    def read(self, prompt: PromptBlocks) -> None:
        """The replica gets this prompt."""
        ...

    def resize(self, tokens: int) -> None:
        """Its engine has room for so many tokens."""
        ...

    def forget(self) -> None:
        """The replica failed: its cache may be empty now."""
        ...


class ApproximateView:
    """The blocks of the prompts that were sent last.

    Of a prompt, its end is forgotten first: so where a block is remembered, all before it are, too.
    """

    def __init__(self) -> None:
        self._read: dict[int, None] = {}  # the last read last
        self._most = REMEMBERED_TOKENS // BLOCK

    @property
    def size(self) -> int:
        return len(self._read) * BLOCK

    def cached_tokens(self, prompt: PromptBlocks) -> float:
        return BLOCK * known_count(prompt.chain(BLOCK), lambda block: block in self._read)

    def read(self, prompt: PromptBlocks) -> None:
        for block in reversed(prompt.chain(BLOCK)):
            self._read.pop(block, None)
            self._read[block] = None
        self._shrink()

    def resize(self, tokens: int) -> None:
        self._most = max(1, tokens // BLOCK)
        self._shrink()

    def forget(self) -> None:
        self._read.clear()

    def _shrink(self) -> None:
        while len(self._read) > self._most:
            del self._read[next(iter(self._read))]


class EventsView:
    """The blocks that the events of a replica tell of, in an index for all replicas.

    A prompt that was just sent is expected there. Which of the `ranks` gets a prompt is the replica's choice:
    so what one of several has counts for that part. `clock` returns seconds.
    """

    def __init__(self, index: BlockIndex, clock: Callable[[], float]) -> None:
        self._index = index
        self._clock = clock
        self._sent = ApproximateView()
        self._expected: dict[int, float] = {}  # until when, in this order
        self._silent_since: float | None = None  # the first prompt after the last event
        self._tokens: int | None = None
        self.ranks: list[CacheEvents] = []

    @property
    def size(self) -> int:
        return sum(len(rank) * rank.block_size for rank in self.ranks)

    def add_rank(self) -> CacheEvents:
        """The events of one more publisher of the replica."""
        rank = CacheEvents(self._index)
        self.ranks.append(rank)
        return rank

    def heard(self) -> None:
        """An event came."""
        self._silent_since = None
        if self._tokens is not None:
            self.resize(self._tokens)

    def cached_tokens(self, prompt: PromptBlocks) -> float:
        now = self._clock()
        if self._silent_since is not None and now - self._silent_since > SILENT_SECONDS:
            return self._sent.cached_tokens(prompt) * SILENT_WEIGHT
        return max(self._told(prompt), self._expected_tokens(prompt, now))

    def read(self, prompt: PromptBlocks) -> None:
        now = self._clock()
        if self._silent_since is None and len(prompt.chain(self._block)) * self._block > self._told(prompt):
            self._silent_since = now
        self._sent.read(prompt)
        for block in reversed(prompt.chain(self._block)):
            self._expected.pop(block, None)
            self._expected[block] = now + EXPECTED_SECONDS
        while self._expected and self._expected[first := next(iter(self._expected))] <= now:
            del self._expected[first]

    def resize(self, tokens: int) -> None:
        self._tokens = tokens
        self._sent.resize(tokens)
        for rank in self.ranks:
            if rank.block_size:
                rank.resize(max(1, tokens // rank.block_size // len(self.ranks)))

    def forget(self) -> None:
        self._sent.forget()
        self._expected.clear()
        for rank in self.ranks:
            rank.forget()

    @property
    def _block(self) -> int:
        return max((rank.block_size for rank in self.ranks), default=0) or BLOCK

    def _told(self, prompt: PromptBlocks) -> float:
        """The tokens of which events tell; a mean over the ranks."""
        counts = [
            prompt.blocks_in(self._index, rank.block_size).get(rank.bit, 0.0) * rank.block_size
            for rank in self.ranks
            if rank.block_size
        ]
        return sum(counts) / len(self.ranks) if counts else 0.0

    def _expected_tokens(self, prompt: PromptBlocks, now: float) -> float:
        if not self._expected:
            return 0.0
        size = self._block
        return size * known_count(prompt.chain(size), lambda block: self._expected.get(block, 0.0) > now)


def known_count(chain: Sequence[int], known: Callable[[int], bool]) -> int:
    """How many blocks of the beginning are known; where one is, all before it are."""
    return bisect_left(chain, True, key=lambda block: not known(block))
