"""Who may use an engine now, and who waits: first come, first served, with a named limit.

Engines of ours never hold more requests than they can work on: what waits
inside an engine cannot be cancelled, what waits here can.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.core.errors import EngineBusyError

MAX_WAITING = 1024
"""Requests that may wait for a slot before new ones are refused."""


class Admission:
    """`slots` places to work in, and at most `max_waiting` requests in front of them."""

    def __init__(self, slots: int, max_waiting: int = MAX_WAITING) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._max_waiting = max_waiting
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return self._waiting

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it. Raises EngineBusyError if too many wait already."""
        if self._slots.locked() and self._waiting >= self._max_waiting:
            raise EngineBusyError
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()
