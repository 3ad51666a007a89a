"""What a pool knows of the cache of a replica: `CacheView`, by which it estimates what a prompt costs there.

`ApproximateView` remembers the prompts that the replica was sent from here, no more than its cache holds.
`EventsView` follows the events of the replica, which tell what it really holds, whoever sent the prompts.
Both have their blocks in one index of all replicas: a prompt is looked up there once.
"""

from collections.abc import Sequence
from typing import Protocol

from antiphon.engines.block_index import BlockIndex, PromptBlocks
from antiphon.engines.kv_events import CacheEvents
from antiphon.engines.kv_sources import Source

BLOCK = 32
"""Tokens in a block of a prompt, where that of the engine is unknown."""
REMEMBERED_TOKENS = 2_097_152
"""Tokens that are remembered of a replica that does not say how many its cache holds."""
SILENT_SECONDS = 5.0
"""A replica that has got new prompts for so long, without an event, is not believed to have none."""
TOLD_SECONDS = 60.0
"""For so long, a server tells of all blocks of prompts again, after its cache became unknown."""
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

    def read(self, prompt: PromptBlocks, rank: int | None = None) -> None:
        """The replica gets this prompt; the `rank`, if it is chosen here."""
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

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self._bit = index.new_bit()
        self._read: dict[int, None] = {}  # the last read last
        self._most = REMEMBERED_TOKENS // BLOCK

    @property
    def size(self) -> int:
        return len(self._read) * BLOCK

    def cached_tokens(self, prompt: PromptBlocks) -> float:
        return BLOCK * prompt.blocks_in(self._index, BLOCK).get(self._bit, 0.0)

    def read(self, prompt: PromptBlocks, rank: int | None = None) -> None:
        for block in reversed(prompt.chain(BLOCK)):
            if block in self._read:
                del self._read[block]
            else:
                self._index.add(self._bit, block, 0)
            self._read[block] = None
        self._shrink()

    def resize(self, tokens: int) -> None:
        self._most = max(1, tokens // BLOCK)
        self._shrink()

    def forget(self) -> None:
        for block in self._read:
            self._index.remove(self._bit, block, 0)
        self._read.clear()

    def _shrink(self) -> None:
        while len(self._read) > self._most:
            self._index.remove(self._bit, block := next(iter(self._read)), 0)
            del self._read[block]


class EventsView:
    """The blocks that the events of a replica tell of.

    A prompt that was just sent is expected there. Each of the `ranks` has a cache: if requests name the one
    that generates, the best counts, else a mean.
    """

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self._sent = ApproximateView(index)
        self._silent_since: float | None = None  # the first prompt after the last event
        self._tokens: int | None = None
        self._all_ranks: list[CacheEvents] = []  # those that it had, too: their bits are used again
        self.ranks: Sequence[CacheEvents] = ()
        self.take_ranks = self._tell_again = False
        self._unknown = 0  # how often its cache had become unknown, and until when events tell of it again
        self._told_until = 0.0
        self._bits: Sequence[int] = ()
        self._block = BLOCK

    @property
    def size(self) -> int:
        return self._block * sum(map(len, self.ranks))

    def begin(self, sources: Sequence[Source]) -> Sequence[CacheEvents]:
        """The events of these publishers of the replica follow; nothing is known."""
        self.forget()
        self.take_ranks = len(sources) > 1 and all(source.take_ranks for source in sources)
        self._tell_again = all(source.tell_again for source in sources)
        self._all_ranks += [CacheEvents(self._index) for _ in sources[len(self._all_ranks) :]]
        self.ranks = self._all_ranks[: len(sources)]
        self._bits = [rank.bit for rank in self.ranks]
        return self.ranks

    def heard(self) -> None:
        """An event came."""
        self._silent_since = None
        self._block = next((rank.block_size for rank in self.ranks if rank.block_size), BLOCK)
        if self._tokens is not None:
            self.resize(self._tokens)

    def cached_tokens(self, prompt: PromptBlocks) -> float:
        if self._silent_since is not None and self._index.clock() - self._silent_since > SILENT_SECONDS:
            return self._sent.cached_tokens(prompt) * SILENT_WEIGHT
        blocks, bits = prompt.blocks_in(self._index, self._block), self._bits
        if len(bits) == 1:
            return blocks.get(bits[0], 0.0) * self._block
        counts = [blocks.get(bit, 0.0) for bit in bits]
        return self._block * (max(counts) if self.take_ranks else sum(counts) / max(1, len(counts)))

    def rank_tokens(self, prompt: PromptBlocks) -> Sequence[float]:
        """How many tokens of the beginning of a prompt each rank holds."""
        blocks = prompt.blocks_in(self._index, self._block)
        return [blocks.get(bit, 0.0) * self._block for bit in self._bits]

    @property
    def tell_again(self) -> bool:
        """Whether events are to tell of all blocks of prompts again: for a while after some were missed."""
        if not self._tell_again:
            return False
        now, unknown = self._index.clock(), sum(rank.unknown for rank in self.ranks)
        if unknown != self._unknown:
            self._unknown, self._told_until = unknown, now + TOLD_SECONDS
        return now < self._told_until

    def read(self, prompt: PromptBlocks, rank: int | None = None) -> None:
        chain = prompt.chain(self._block)
        if self._silent_since is None and len(chain) * self._block > self.cached_tokens(prompt):
            self._silent_since = self._index.clock()
        self._sent.read(prompt)
        for bit in self._bits if rank is None else [self._bits[rank]]:
            self._index.expect(bit, chain)

    def resize(self, tokens: int) -> None:
        self._tokens = tokens
        self._sent.resize(tokens)
        for rank in self.ranks:
            if rank.block_size:
                rank.resize(max(1, tokens // rank.block_size // len(self.ranks)))

    def forget(self) -> None:
        self._sent.forget()
        for rank in self.ranks:
            rank.forget()
            self._index.expect_nothing(rank.bit)
