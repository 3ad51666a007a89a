"""The events by which engines tell which blocks come into their caches, and go: those of vLLM and SGLang.

`decoded` reads a message, whatever its bytes are, and a `CacheEvents` applies those of one publisher to the
index of all caches. It needs no socket, no clock and no thread: it returns from which message on a replay is
needed. Messages have numbers. One that is missing is asked for again; where it cannot be had, all that is
known of the cache is forgotten, because a block could have gone. The same where an engine starts again, which
counts from 0. That may not show in the numbers, if the first ones are missing: so a replay begins with the
last message that was applied, and if its engine has another one of this number, it has started again.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.engines.block_index import TIERS, BlockIndex, chained, root

MAX_PAYLOAD = 16 * 1024 * 1024
"""Bytes of a message; a longer one is one that is missing."""
MAX_BLOCK = 4096
"""Tokens of a block."""
DEFAULT_BLOCKS = 65_536
"""Blocks of a cache whose size is unknown."""
MARGIN = 1.25
"""So many times the blocks that an engine says it has are remembered."""
MAX_GROUPS = 64
"""Groups of layers of a cache whose blocks are left out."""
SEQUENCE_BYTES = 8
END = 2**64 - 1
"""The number of the message after a replay."""
KINDS = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Groups of layers that need all blocks of a prompt; what others have says nothing about the whole."""
MEDIA: Mapping[str | None, int] = {
    None: 0,
    "GPU": 0,
    "CPU": 1,
    "CPU_PINNED": 1,
    "STORAGE": 2,
    "DISK": 2,
    "EXTERNAL": 2,
}
"""Where a block is → its tier."""

Hash = int | bytes
"""An engine's own hash of a block, which says nothing here."""


class Stored(Struct, frozen=True):
    """These blocks came, after the `parent`. `extra` has a list of keys for each of them."""

    hashes: list[Hash]
    tokens: tuple[int, ...]
    size: int
    parent: Hash | None = None
    adapter: str | None = None
    tier: int = 0
    extra: tuple[tuple[Any, ...], ...] = ()
    salt: str | None = None
    group: int | None = None
    kind: str | None = None


class Removed(Struct, frozen=True):
    """These blocks went."""

    hashes: list[Hash]
    tier: int = 0
    group: int | None = None


class Cleared(Struct, frozen=True):
    """All blocks went."""


Event = Stored | Removed | Cleared


class _StoredFields(Struct):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None


class _RemovedFields(Struct):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


_ARRAY = {
    "BlockStored": _StoredFields.__struct_fields__[:-1],
    "BlockRemoved": _RemovedFields.__struct_fields__,
}
"""The fields of events that are arrays, as older versions send them, after the type."""


def decoded(payload: bytes) -> list[Event] | None:
    """The events of a message; None if it is none. An event of an unknown type is left out."""
    if len(payload) > MAX_PAYLOAD:
        return None
    try:
        batch = msgspec.msgpack.decode(payload)
        return [event for entry in batch[1] if (event := _event(entry)) is not None]
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, RecursionError):
        return None


def _event(entry: Any) -> Event | None:
    if isinstance(entry, list):
        kind, *values = entry
        fields = dict(zip(_ARRAY.get(kind, ()), values, strict=False))
    else:
        kind, fields = entry["type"], entry
    if kind == "AllBlocksCleared":
        return Cleared()
    if kind == "BlockRemoved":
        removed = msgspec.convert(fields, _RemovedFields)
        return Removed(removed.block_hashes, _tier(removed.medium), removed.group_idx)
    return _stored(msgspec.convert(fields, _StoredFields)) if kind == "BlockStored" else None


def _tier(medium: str | None) -> int:
    return MEDIA.get(medium.upper() if medium else None, len(TIERS) - 1)


def _stored(fields: _StoredFields) -> Stored:
    adapter = fields.lora_name
    if adapter is None and fields.lora_id is not None:
        adapter = f"#{fields.lora_id}"
    return Stored(
        hashes=fields.block_hashes,
        tokens=fields.token_ids,
        size=fields.block_size,
        parent=fields.parent_block_hash,
        adapter=adapter,
        tier=_tier(fields.medium),
        extra=tuple(tuple(keys or ()) for keys in fields.extra_keys or ()),
        salt=fields.cache_salt,
        group=fields.group_idx,
        kind=fields.kv_cache_spec_kind,
    )


class CacheEvents:
    """What the events of one publisher say: of a replica, or one of its data-parallel ranks."""

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self.bit = index.new_bit()
        self.block_size = 0
        """Tokens in its blocks; 0 until one came."""
        self.messages = self.gaps = self.losses = 0
        """How many were read, how often some were missing, and how often they could not be had again."""
        self.unknown = 1
        """How often it became unknown what the cache has: at the start, after losses, and after restarts."""
        self._most = int(DEFAULT_BLOCKS * MARGIN)
        self._blocks: dict[Hash, tuple[int, int]] = {}  # engine's hash → own hash and mask of tiers, by age
        self._other_groups: set[int] = set()
        self._last = -1  # the last message that was applied
        self._content = 0  # a hash of it
        self._live = -1  # the last that was not replayed
        self._replaying = False
        self._asked_after = -1  # the last message before the replay
        self._known: tuple[int, int] | None = None  # number and hash of it, until they are compared
        self._outdated = False  # the replay is not from the beginning of this engine

    def __len__(self) -> int:
        return len(self._blocks)

    def resize(self, blocks: int) -> None:
        """The engine has room for so many blocks."""
        self._most = max(1, int(blocks * MARGIN))
        self._shrink()

    def receive(self, frames: Sequence[bytes]) -> int | None:
        """Apply a message: topic, number, payload. The number of the first message to replay, if one is."""
        number = _number(frames)
        if number is None:
            return None
        self.messages += 1
        if number <= self._live:  # the engine has started again
            self.forget()
        self._live = number
        if number <= self._last:  # it was replayed before
            return None
        if number == self._last + 1:
            self._apply(number, frames[-1])
            return None
        if self._replaying:
            return None
        self.gaps += 1
        return self._ask()

    def connected(self) -> int:
        """A connection is new: the number of the first message to replay."""
        return self._ask()

    def receive_replayed(self, frames: Sequence[bytes]) -> int | None:
        """Apply a message of a replay. After the last one, the number from which another replay is needed."""
        number = _number(frames)
        if number == END:
            return self._end_replay()
        if number is not None:
            self._compare(number, frames[-1])
            if number > self._last and not self._outdated:
                if number > self._last + 1:
                    self._lose()
                self._apply(number, frames[-1])
        return None

    def _compare(self, number: int, payload: bytes) -> None:
        """The first message of a replay shows whether its engine is still the one that is known."""
        known, self._known = self._known, None
        if known is None:
            return
        if number != known[0]:  # it has not as many left
            self._lose()
            self._last = number - 1
        elif hash(payload) != known[1]:
            self._forget()
            self._outdated = True

    def cannot_replay(self) -> None:
        """There is no replay: what was missed is lost."""
        self._replaying = False
        if self._known is not None or self._live > self._last:
            self._known = None
            self._lose()
            self._last = max(self._live, self._last)

    def forget(self) -> None:
        """The cache is empty, and its engine begins to count again."""
        self._forget()
        self._replaying = self._outdated = False
        self._known = None

    def _forget(self) -> None:
        self.clear()
        self._last = self._live = -1
        self.unknown += 1

    def clear(self) -> None:
        """The cache is empty."""
        for own, tiers in self._blocks.values():
            for tier in range(len(TIERS)):
                if tiers >> tier & 1:
                    self._index.remove(self.bit, own, tier)
        self._blocks.clear()

    def apply(self, events: Sequence[Event]) -> None:
        """Apply events in their order."""
        for event in events:
            match event:
                case Stored():
                    self._store(event)
                case Removed():
                    self._remove(event)
                case Cleared():
                    self.clear()

    def _end_replay(self) -> int | None:
        self._replaying = False
        if self._known is not None:  # it has not even sent as many
            self._forget()
            return self._ask()
        if self._outdated:
            return self._ask()
        if self._live <= self._last:
            return None
        if self._last == self._asked_after:  # it had nothing
            self.cannot_replay()
            return None
        return self._ask()  # for what was missed meanwhile

    def _ask(self) -> int:
        self._replaying, self._outdated = True, False
        self._asked_after = self._last
        self._known = (self._last, self._content) if self._last >= 0 else None
        return max(self._last, 0)

    def _lose(self) -> None:
        if self._blocks:
            self.losses += 1
        self.unknown += 1
        self.clear()

    def _apply(self, number: int, payload: bytes) -> None:
        self._last, self._content = number, hash(payload)
        events = decoded(payload)
        if events is None:
            self._lose()
        else:
            self.apply(events)

    def _store(self, event: Stored) -> None:
        size, hashes, tokens = event.size, event.hashes, event.tokens
        if event.kind not in KINDS:
            if event.group is not None and len(self._other_groups) < MAX_GROUPS:
                self._other_groups.add(event.group)
            return
        if not 0 < size <= MAX_BLOCK or len(tokens) != size * len(hashes):
            return
        self.block_size = size
        before = self._before(event)
        for number, block in enumerate(hashes):
            keys = _keys(event, number)
            own = chained(before, tokens[number * size : (number + 1) * size])
            if keys:  # of media or embeddings, which a prompt's tokens do not tell
                own = hash((own, keys))
            self._put(block, own, event.tier)
            before = own
        self._shrink()

    def _before(self, event: Stored) -> int:
        """The hash of what precedes the blocks. That of an unknown parent is one that no prompt has."""
        if event.parent is None:
            adapters = () if event.adapter is None else (event.adapter,)
            return root(event.size, event.salt or _salt(event), adapters)
        known = self._blocks.get(event.parent)
        return known[0] if known else hash(("unknown", self.bit, event.parent))

    def _put(self, block: Hash, own: int, tier: int) -> None:
        before, tiers = self._blocks.pop(block, (own, 0))
        if before != own:  # it had an unknown parent
            self._take_out(before, tiers)
            tiers = 0
        self._blocks[block] = own, tiers | 1 << tier
        self._index.add(self.bit, own, tier)

    def _take_out(self, own: int, tiers: int) -> None:
        for tier in range(len(TIERS)):
            if tiers >> tier & 1:
                self._index.remove(self.bit, own, tier)

    def _remove(self, event: Removed) -> None:
        if event.group in self._other_groups:
            return
        for block in event.hashes:
            if (entry := self._blocks.get(block)) is None:
                continue
            own, tiers = entry
            self._index.remove(self.bit, own, event.tier)
            if tiers := tiers & ~(1 << event.tier):
                self._blocks[block] = own, tiers
            else:
                del self._blocks[block]

    def _shrink(self) -> None:
        while len(self._blocks) > self._most:
            self._take_out(*self._blocks.pop(next(iter(self._blocks))))


def _number(frames: Sequence[bytes]) -> int | None:
    """The number of a message; None if it is none."""
    if len(frames) < 3 or len(frames[-2]) != SEQUENCE_BYTES:
        return None
    return int.from_bytes(frames[-2], "big")


def _salt(event: Stored) -> str | None:
    """The cache salt: the key of the first block that is a text, after the name of the adapter."""
    texts = _texts(event, 0)
    return texts[0] if texts else None


def _texts(event: Stored, number: int) -> list[str]:
    keys = event.extra[number] if number < len(event.extra) else ()
    texts = [key for key in keys if isinstance(key, str)]
    return texts[1:] if event.adapter is not None else texts


def _keys(event: Stored, number: int) -> Hashable:
    """The keys of a block besides its adapter and the cache salt, which is in the first block only."""
    keys = event.extra[number] if number < len(event.extra) else ()
    texts = _texts(event, number)
    rest = texts[1:] if event.parent is None and not number else texts
    return (*rest, *(repr(key) for key in keys if not isinstance(key, str)))
