"""The items of histories, read once.

A history grows by a few items with each turn, but all of them make the prompt. What is made of an item alone,
its JSON, its hash and what the model is shown of it, is kept by the item's payload, so that a turn costs what
its new items cost. Everything is there without it, too: it only takes longer.
"""

from collections.abc import Iterable

import msgspec

from antiphon.apis.request_object import KeptObject

ITEM_BYTES = 4096
"""About the memory of a kept item, besides its texts."""
COPIES = 3
"""How often its texts are in memory, about: as payload, as JSON, and as what the model is shown."""

_Key = tuple[str, str, bytes]


class KeptItems:
    """The items of histories that were read last: of `size` bytes of memory, about. Threads may share it."""

    def __init__(self, size: int) -> None:
        self._limit = size // 2
        # The older ones are forgotten together: so none of them needs to know when it was last used.
        self._recent: dict[_Key, KeptObject] = {}
        self._older: dict[_Key, KeptObject] = {}
        self._size = 0  # of the recent ones

    def read(self, owner: str, payloads: Iterable[bytes], source: str) -> list[KeptObject]:
        """Items of an owner. Errors in them name the `source`, the parameter that names the history."""
        return [self._recent.get(key) or self._read(key) for key in ((owner, source, p) for p in payloads)]

    def _read(self, key: _Key) -> KeptObject:
        """An item that is not a recent one, and is one from now on."""
        _, source, payload = key
        item = self._older.get(key) or KeptObject(msgspec.json.decode(payload), source)
        self._recent[key] = item
        self._size += ITEM_BYTES + COPIES * len(payload)
        if self._size > self._limit:
            self._older, self._recent, self._size = self._recent, {}, 0
        return item


NO_ITEMS = KeptItems(0)
"""Keeps none."""
