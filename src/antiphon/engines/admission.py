"""Who may use an engine now, and who waits: by priority, then first come, first served, with a named limit.

Engines of ours never hold more requests than they can work on: what waits
inside an engine cannot be cancelled, what waits here can.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heapify, heappop, heappush
from itertools import count

from antiphon.core.errors import EngineBusyError

MAX_WAITING = 1024
"""Requests that may wait for a slot before new ones are refused."""

_Place = tuple[int, int, asyncio.Future[None]]
"""A place in the queue: priority, number, and what is set when the slot is there."""


class Admission:
    """`slots` places to work in, and at most `max_waiting` requests in front of them."""

    def __init__(self, slots: int, max_waiting: int = MAX_WAITING) -> None:
        self._free = slots
        self._max_waiting = max_waiting
        self._queue: list[_Place] = []
        self._numbers = count()

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return len(self._queue)

    @asynccontextmanager
    async def slot(self, priority: int = 0) -> AsyncIterator[None]:
        """Wait for a slot and hold it; a lower `priority` goes first.

        Raises EngineBusyError if too many wait already.
        """
        if self._free:
            self._free -= 1
        else:
            await self._wait(priority)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, priority: int) -> None:
        if len(self._queue) >= self._max_waiting:
            raise EngineBusyError
        place = (priority, next(self._numbers), asyncio.get_running_loop().create_future())
        heappush(self._queue, place)
        try:
            await place[2]
        except asyncio.CancelledError:
            self._leave(place)
            raise

    def _leave(self, place: _Place) -> None:
        if not place[2].cancelled():  # admitted in the very moment of being cancelled
            self._release()
        elif place in self._queue:
            self._queue.remove(place)
            heapify(self._queue)

    def _release(self) -> None:
        """Hand the slot to whoever is first, or keep it for who comes next."""
        while self._queue:
            _, _, turn = heappop(self._queue)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
