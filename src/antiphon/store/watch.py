"""Watches by topic: the backend calls `wake`, readers wait. Independent of the database."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Signal:
    """A `Watch`: set from a change until `changed` has returned it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def changed(self, within: float | None = None) -> bool:
        """Wait for a change; see `Watch`."""
        try:
            async with asyncio.timeout(within):
                await self._event.wait()
        except TimeoutError:
            return False
        # Cleared before the caller reads: a change during the read sets it again, and is not missed.
        self._event.clear()
        return True

    def set(self) -> None:
        """Something changed."""
        self._event.set()


class Notifier:
    """The watches of one store, by topic."""

    def __init__(self) -> None:
        self._signals: dict[str, dict[Signal, None]] = {}  # in the order of their coming

    @contextmanager
    def watch(self, topic: str) -> Iterator[Signal]:
        """A signal that is set when `wake` is called for `topic`."""
        signal = Signal()
        self._signals.setdefault(topic, {})[signal] = None
        try:
            yield signal
        finally:
            del self._signals[topic][signal]
            if not self._signals[topic]:
                del self._signals[topic]

    def wake(self, topics: Iterable[str]) -> None:
        """Something changed under these topics."""
        for topic in topics:
            for signal in self._signals.get(topic, ()):
                signal.set()

    def wake_all(self) -> None:
        """Anything may have changed."""
        self.wake(self._signals)
