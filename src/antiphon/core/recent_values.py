"""A cache of the values that were used last, bounded by their size."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentValues(Generic[K, V]):
    """Values by key: those used last, at least `size` of them if there are as many, and at most twice that.

    The size of a value is in any unit. Threads may share it: at worst, one looks for a value in vain.
    """

    def __init__(self, size: int) -> None:
        self._limit = size
        # The older ones are forgotten together: so none of them needs to know when it was last used.
        self._recent: dict[K, tuple[V, int]] = {}
        self._older: dict[K, tuple[V, int]] = {}
        self._size = 0  # of the recent ones

    def get(self, key: K) -> V | None:
        """The value of a key, which is used by that; None if there is none."""
        entry = self._recent.get(key)
        if entry is None:
            entry = self._older.get(key)
            if entry is None:
                return None
            self._keep(key, entry)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Remember a value, which is used by that."""
        self._keep(key, (value, size))

    def _keep(self, key: K, entry: tuple[V, int]) -> None:
        self._recent[key] = entry
        self._size += entry[1]
        if self._size > self._limit:
            self._older, self._recent, self._size = self._recent, {}, 0
