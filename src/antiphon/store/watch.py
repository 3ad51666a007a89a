"""Watches by topic: the backend calls `wake` or `tell`, readers wait. Independent of the database."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


class WatchesElsewhere(Protocol):
    """The watches of the same store in other processes of the server."""

    on_change: Callable[[Iterable[str]], None]
    """Called when another process has changed something under these topics, which are watched here."""

    def begin(self, topic: str) -> None:
        """This process begins to watch a topic."""
        ...

    def end(self, topic: str) -> None:
        """It does no more."""
        ...

    def tell(self, topics: Iterable[str]) -> None:
        """This process has changed something under these topics."""
        ...


class _WatchedNowhere:
    """There are no other processes, or the database notifies them."""

    def __init__(self) -> None:
        self.on_change: Callable[[Iterable[str]], None] = lambda _: None

    def begin(self, topic: str) -> None:
        pass

    def end(self, topic: str) -> None:
        pass

    def tell(self, topics: Iterable[str]) -> None:
        pass


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
        self._elsewhere: WatchesElsewhere = _WatchedNowhere()

    def share(self, elsewhere: WatchesElsewhere) -> None:
        """Tell other processes, and be told by them."""
        self._elsewhere = elsewhere
        elsewhere.on_change = self.wake
        for topic in self._signals:
            elsewhere.begin(topic)

    @contextmanager
    def watch(self, topic: str) -> Iterator[Signal]:
        """A signal that is set when `wake` is called for `topic`."""
        signal = Signal()
        if topic not in self._signals:
            self._signals[topic] = {}
            self._elsewhere.begin(topic)
        self._signals[topic][signal] = None
        try:
            yield signal
        finally:
            del self._signals[topic][signal]
            if not self._signals[topic]:
                del self._signals[topic]
                self._elsewhere.end(topic)

    def tell(self, topics: Sequence[str]) -> None:
        """This process has changed something under these topics: wake those who wait here and elsewhere."""
        self.wake(topics)
        self._elsewhere.tell(topics)

    def wake(self, topics: Iterable[str]) -> None:
        """Something changed under these topics."""
        for topic in topics:
            for signal in self._signals.get(topic, ()):
                signal.set()

    def wake_all(self) -> None:
        """Anything may have changed."""
        self.wake(self._signals)
