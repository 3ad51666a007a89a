"""Where an engine leaves chunks for the one task that awaits them.

Any number of `put`s between two looks of the reader cost one wake-up, and the
reader gets all that has piled up as one batch. An engine with a thread of its
own uses `Mailroom`: it wakes the event loop once per engine step, however many
mailboxes were filled in that step.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue for one reader, to be used inside the event loop only."""

    def __init__(self) -> None:
        self._waiting: list[T] = []
        self._failure: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None

    def put(self, value: T) -> None:
        """Leave a value and wake the reader, if it sleeps."""
        self._waiting.append(value)
        self._wake()

    def fail(self, failure: BaseException) -> None:
        """After what is waiting, `get` raises `failure`. The first failure counts."""
        if self._failure is None:
            self._failure = failure
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> list[T]:
        """Everything that waits, at least one value. Raises what was given to `fail`."""
        while not self._waiting:
            if self._failure is not None:
                raise self._failure
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        batch, self._waiting = self._waiting, []
        return batch


class Mailroom:
    """Carries work from other threads into the event loop, with one wake-up for all that waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deliveries: deque[Callable[[], None]] = deque()
        self._armed = False

    def post(self, delivery: Callable[[], None]) -> None:
        """Run `delivery` in the event loop soon. For any thread."""
        self._deliveries.append(delivery)
        if not self._armed:
            self._armed = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Disarmed first: a post that comes while we empty the queue is either seen
        # below or arms again. Both are right; losing it would not be.
        self._armed = False
        while self._deliveries:
            self._deliveries.popleft()()
