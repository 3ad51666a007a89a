"""Chooses the generations that run now; the others wait: by priority, then in fair shares, then in order.

A free slot goes to the client that has the fewest: a client with many requests does not delay the others. A
client also cannot take all places in the queue. Engines never hold more requests than they can work on: a
request that waits inside an engine cannot be cancelled, one that waits here can.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from antiphon.core.errors import EngineBusyError
from antiphon.core.limits import CLIENT, DEFAULTS, Limits
from antiphon.engines.engine import Load


class Ticket:
    """A slot, or a place in the queue. `leave` gives it up, once."""

    __slots__ = ("_admission", "admitted", "client", "priority", "released", "start")

    def __init__(self, admission: "Admission", start: Callable[[], object], priority: int) -> None:
        self._admission = admission
        self.start: Callable[[], object] | None = start
        self.client = CLIENT.get()
        self.priority = priority
        self.admitted = False
        self.released = False

    def leave(self) -> None:
        """Give up the slot, or the place."""
        if not self.released:
            self.released, self.start = True, None
            self._admission.leave(self)


class Admission:
    """`slots` generations run, and as many requests wait as the limits allow.

    A client is a key or, without keys, an address. All background work counts as one client.
    """

    def __init__(self, slots: int, limits: Limits = DEFAULTS) -> None:
        self._slots = slots
        self._limits = limits
        self._queue: dict[Ticket, None] = {}  # in the order of their coming
        self._running: dict[str, int] = {}  # by client
        self._queued: dict[str, int] = {}
        self.running = 0
        """How many hold a slot."""

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return len(self._queue)

    @property
    def load(self) -> Load:
        """How busy the engine is."""
        return Load(self.running, self.waiting, self._slots)

    def enter(self, start: Callable[[], object], priority: int = 0) -> Ticket:
        """Call `start` when a slot is free, now or later; a lower `priority` goes first.

        Raises EngineBusyError if too many wait already.
        """
        ticket = Ticket(self, start, priority)
        if self.running < self._slots:
            self._admit(ticket)
        elif self.waiting >= self._limits.waiting:
            raise EngineBusyError
        elif self._queued.get(ticket.client, 0) >= self._limits.client_waiting:
            raise EngineBusyError("Too many requests of this client are waiting. Try again in a moment.")
        else:
            self._queue[ticket] = None
            self._queued[ticket.client] = self._queued.get(ticket.client, 0) + 1
        return ticket

    @asynccontextmanager
    async def slot(self, priority: int = 0) -> AsyncIterator[None]:
        """Hold a slot while the block runs. Raises EngineBusyError as `enter` does."""
        free = asyncio.Event()
        ticket = self.enter(free.set, priority)
        try:
            await free.wait()
            yield
        finally:
            ticket.leave()

    def leave(self, ticket: Ticket) -> None:
        """Give up a slot or a place; a free slot goes to the next in the queue."""
        if not ticket.admitted:
            self._leave_queue(ticket)
            return
        self.running -= 1
        _count_down(self._running, ticket.client)
        if self._queue:
            # Among clients that hold equally many, the first to come: `min` returns the first of equals.
            first = min(self._queue, key=lambda each: (each.priority, self._running.get(each.client, 0)))
            self._leave_queue(first)
            self._admit(first)

    def _admit(self, ticket: Ticket) -> None:
        self.running += 1
        self._running[ticket.client] = self._running.get(ticket.client, 0) + 1
        ticket.admitted = True
        start, ticket.start = ticket.start, None  # the code that starts holds this ticket: break the cycle
        assert start is not None
        start()

    def _leave_queue(self, ticket: Ticket) -> None:
        del self._queue[ticket]
        _count_down(self._queued, ticket.client)


def _count_down(counts: dict[str, int], client: str) -> None:
    left = counts.pop(client) - 1
    if left:
        counts[client] = left
