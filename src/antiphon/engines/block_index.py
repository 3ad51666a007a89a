"""Which replicas have which blocks of prompts in their caches: one index for all of them.

A block is known by a hash of its tokens and of all before them, the size of blocks, the cache salt and the
adapters. It is computed here, because those of engines depend on their settings. The index has a mask for
each block, with a bit for each cache: so a prompt is looked up in all caches by one walk over its blocks.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence

MAX_TOKENS = 32_768
"""Tokens of a prompt that are compared; what follows them is new in any case."""
TIERS = (1.0, 0.75, 0.25)
"""What a block is worth in the memory of the GPU, in that of the CPU, and in storage."""


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
            self._chains[size] = [*self._hashes(size)]
        return self._chains[size]

    def _hashes(self, size: int) -> Iterator[int]:
        before, ids = root(size, self._salt, self._adapters), self.ids
        for start in range(0, min(len(ids), MAX_TOKENS) - size + 1, size):
            before = chained(before, ids[start : start + size])
            yield before

    def blocks_in(self, index: "BlockIndex", size: int) -> Mapping[int, float]:
        """For each bit of the index, how many blocks its cache has; looked up once."""
        if size not in self._walks:
            self._walks[size] = index.look_up(self.chain(size))
        return self._walks[size]


class BlockIndex:
    """The blocks in caches, each of which has a bit, in several tiers of memory."""

    def __init__(self) -> None:
        self._tiers: tuple[dict[int, int], ...] = tuple({} for _ in TIERS)
        self._bits = 0

    def new_bit(self) -> int:
        """The number of the bit of one more cache."""
        self._bits += 1
        return self._bits - 1

    def __len__(self) -> int:
        return len(set().union(*self._tiers))

    def add(self, bit: int, block: int, tier: int) -> None:
        """The cache has this block."""
        masks = self._tiers[tier]
        masks[block] = masks.get(block, 0) | 1 << bit

    def remove(self, bit: int, block: int, tier: int) -> None:
        """The cache has this block no more."""
        masks = self._tiers[tier]
        left = masks.get(block, 0) & ~(1 << bit)
        if left:
            masks[block] = left
        else:
            masks.pop(block, None)

    def has(self, bit: int, block: int) -> bool:
        """Whether the cache has this block."""
        return any(masks.get(block, 0) >> bit & 1 for masks in self._tiers)

    def look_up(self, chain: Sequence[int]) -> Mapping[int, float]:
        """How many blocks of a prompt's beginning each cache has, by bits; slower memory counts less."""
        first, *others = self._tiers
        slower = [(masks, 1 - worth) for masks, worth in zip(others, TIERS[1:], strict=True) if masks]
        lost: dict[int, float] = {}
        counts: dict[int, float] = {}
        left = (1 << self._bits) - 1
        depth = 0
        for block in chain:
            mask = left & first.get(block, 0)
            for masks, loss in slower:
                more = left & masks.get(block, 0) & ~mask
                for bit in _bits_of(more):
                    lost[bit] = lost.get(bit, 0.0) + loss
                mask |= more
            if mask != left:
                if depth:
                    counts.update(dict.fromkeys(_bits_of(left & ~mask), depth))
                left = mask
                if not left:
                    break
            depth += 1
        counts.update(dict.fromkeys(_bits_of(left), depth))
        return {bit: count - lost.get(bit, 0.0) for bit, count in counts.items()}


def _bits_of(mask: int) -> Iterator[int]:
    """The numbers of the bits of a mask."""
    while mask:
        last = mask & -mask
        yield last.bit_length() - 1
        mask ^= last
