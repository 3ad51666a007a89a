"""Which replicas have which blocks of prompts in their caches: one index for all of them.

A block is known by a hash of its tokens and of all before them, the size of blocks, the cache salt and the
adapters. It is computed here, because those of engines depend on their settings. The index has a mask for
each block, with a bit for each cache: so a prompt is looked up in all caches by one walk over its blocks.
A prompt that was just sent is expected in a cache, as if it were there.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from operator import or_
from time import monotonic

MAX_TOKENS = 32_768
"""Tokens of a prompt that are compared; what follows them is new in any case."""
TIERS = (1.0, 0.75, 0.25)
"""What a block is worth in the memory of the GPU, in that of the CPU, and in storage."""
MANY = 16
"""With so many bits, all digits of a mask are read faster than one bit after the other."""
EXPECTED_SECONDS = 2.0
"""How long a prompt that was sent is expected in a cache, until events tell of it."""


def root(size: int, salt: str | None, adapters: Hashable) -> int:
    """The hash before the first block, with blocks of so many tokens."""
    return hash((size, salt, adapters))


def chained(before: int, tokens: tuple[int, ...]) -> int:
    """The hash of a block of these tokens that follows another one."""
    return hash((before, tokens))


class PromptBlocks:
    """A prompt whose blocks are hashed when they are first needed, once for each size of blocks."""

    def __init__(self, ids: Sequence[int], salt: str | None = None, adapters: Hashable = ()) -> None:
        self.ids = tuple(ids)
        self._salt = salt
        self._adapters = adapters
        self._chains: dict[int, list[int]] = {}
        self._walks: dict[int, Mapping[int, float]] = {}

    def chain(self, size: int) -> list[int]:
        """The hashes of its blocks of so many tokens."""
        if size not in self._chains:
            before = root(size, self._salt, self._adapters)
            blocks = zip(*[iter(self.ids[:MAX_TOKENS])] * size, strict=False)
            self._chains[size] = [before := hash((before, tokens)) for tokens in blocks]  # see `chained`
        return self._chains[size]

    def blocks_in(self, index: "BlockIndex", size: int) -> Mapping[int, float]:
        """For each bit of the index, how many blocks its cache has; looked up once."""
        walk = self._walks.get(size)
        if walk is None:
            walk = self._walks[size] = index.look_up(self.chain(size))
        return walk


class BlockIndex:
    """The blocks in caches, each of which has a bit, in several tiers of memory. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._tiers: tuple[dict[int, int], ...] = tuple({} for _ in TIERS)
        self._expected: dict[int, int] = {}  # masks, too
        self._until: list[dict[int, float]] = []  # for each bit, how long its blocks are expected
        self._expectations: deque[tuple[float, int, Sequence[int]]] = deque()

    def new_bit(self) -> int:
        """The number of the bit of one more cache."""
        self._until.append({})
        return len(self._until) - 1

    def __len__(self) -> int:
        return len(set().union(*self._tiers))

    def add(self, bit: int, block: int, tier: int) -> None:
        """The cache has this block."""
        _set(self._tiers[tier], bit, block)

    def remove(self, bit: int, block: int, tier: int) -> None:
        """The cache has this block no more."""
        _unset(self._tiers[tier], bit, block)

    def has(self, bit: int, block: int) -> bool:
        """Whether the cache has this block."""
        return any(masks.get(block, 0) >> bit & 1 for masks in self._tiers)

    def expect(self, bit: int, chain: Sequence[int]) -> None:
        """The cache will have these blocks."""
        until, times = self.clock() + EXPECTED_SECONDS, self._until[bit]
        for block in chain:
            if block not in times:
                _set(self._expected, bit, block)
        times.update(dict.fromkeys(chain, until))
        self._expectations.append((until, bit, chain))

    def expect_nothing(self, bit: int) -> None:
        """The cache will have none of the blocks that were expected."""
        for block in self._until[bit]:
            _unset(self._expected, bit, block)
        self._until[bit].clear()

    def _expire(self) -> None:
        now = self.clock()
        while self._expectations and self._expectations[0][0] <= now:
            _, bit, chain = self._expectations.popleft()
            times = self._until[bit]
            for block in chain:
                if times.get(block, now + 1) <= now:
                    del times[block]
                    _unset(self._expected, bit, block)

    def look_up(self, chain: Sequence[int]) -> Mapping[int, float]:
        """How many blocks of a prompt's beginning each cache has, by bits; slower memory counts less.

        Blocks that follow one another are mostly in the same caches: they are looked at together.
        """
        self._expire()
        first, *slower = self._tiers
        masks: Iterable[int] = map(first.get, chain, repeat(0))
        if self._expected:
            masks = map(or_, masks, map(self._expected.get, chain, repeat(0)))
        lost: dict[int, float] = {}
        if any(slower):
            masks = self._with_slower(chain, masks, lost)
        counts: dict[int, float] = {}
        left, depth = (1 << len(self._until)) - 1, 0
        for mask, run in groupby(masks):
            if left & ~mask:
                if depth:
                    counts.update(dict.fromkeys(_bits_of(left & ~mask), depth))
                left &= mask
                if not left:
                    break
            depth += len([*run])
        if depth:
            counts.update(dict.fromkeys(_bits_of(left), depth))
        return {bit: count - lost.get(bit, 0.0) for bit, count in counts.items()} if lost else counts

    def _with_slower(
        self, chain: Sequence[int], masks: Iterable[int], lost: dict[int, float]
    ) -> Iterator[int]:
        """The masks of caches that have blocks in any tier. Counts what is `lost` by slower ones."""
        left = (1 << len(self._until)) - 1
        for block, near in zip(chain, masks, strict=True):
            mask = near
            for tier, worth in zip(self._tiers[1:], TIERS[1:], strict=True):
                more = left & tier.get(block, 0) & ~mask
                for bit in _bits_of(more):
                    lost[bit] = lost.get(bit, 0.0) + 1 - worth
                mask |= more
            left &= mask
            yield mask


def _set(masks: dict[int, int], bit: int, block: int) -> None:
    masks[block] = masks.get(block, 0) | 1 << bit


def _unset(masks: dict[int, int], bit: int, block: int) -> None:
    left = masks.get(block, 0) & ~(1 << bit)
    if left:
        masks[block] = left
    else:
        masks.pop(block, None)


def _bits_of(mask: int) -> Sequence[int]:
    """The numbers of the bits of a mask."""
    if mask.bit_count() >= MANY:
        return [bit for bit, digit in enumerate(reversed(f"{mask:b}")) if digit == "1"]
    bits = []
    while mask:
        last = mask & -mask
        bits.append(last.bit_length() - 1)
        mask ^= last
    return bits
