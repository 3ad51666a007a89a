"""The items of histories, read once.

A history grows by a few items with each turn, but all of them make the prompt. What is made of an item alone,
its JSON, its hash and what the model is shown of it, is kept by the item's payload, so that a turn costs what
its new items cost. Everything is there without it, too: it only takes longer.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from antiphon.apis.request_object import KeptObject
from antiphon.core.recent_values import RecentValues

ITEM_BYTES = 4096
"""About the memory of a kept item, besides its texts."""
VALUE_BYTES = 128
"""About the memory of a value within it: an object with one field has 200 bytes, and eight in JSON."""
COPIES = 3
"""How often its texts are in memory, about: as payload, as JSON, and as what the model is shown."""

_Key = tuple[str, str, bytes]


class KeptItems:
    """The items of histories that were read last: of `size` bytes of memory, about. Threads may share it."""

    def __init__(self, size: int) -> None:
        self._kept = RecentValues[_Key, KeptObject](size // 2)

    def read(self, owner: str, payloads: Iterable[bytes], source: str) -> list[KeptObject]:
        """Items of an owner. Errors in them name the `source`, the parameter that names the history."""
        return [self._kept.get(key) or self._read(key) for key in ((owner, source, p) for p in payloads)]

    def _read(self, key: _Key) -> KeptObject:
        """An item that is not kept, and is from now on."""
        _, source, payload = key
        item = KeptObject(msgspec.json.decode(payload), source)
        size = ITEM_BYTES + VALUE_BYTES * _values(item.value) + COPIES * len(payload)
        self._kept.put(key, item, size)
        return item


def _values(item: Any) -> int:
    """How many values a JSON value is made of."""
    count, left = 0, [item]
    while left:
        value = left.pop()
        count += 1
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
    return count


NO_ITEMS = KeptItems(0)
"""Keeps none."""
