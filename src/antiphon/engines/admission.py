"""Who may use an engine now, and who waits: by priority, then first come, first served, with a named limit.

Engines of ours never hold more requests than they can work on: what waits
inside an engine cannot be cancelled, what waits here can.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from antiphon.core.errors import EngineBusyError

MAX_WAITING = 1024
"""Requests that may wait for a slot before new ones are refused."""


class Ticket:
    """A slot, or a place in front of them. `leave` gives up whichever it is, once."""

    __slots__ = ("_admission", "_start", "held", "left")

    def __init__(self, admission: "Admission", start: Callable[[], None]) -> None:
        self._admission = admission
        self._start: Callable[[], None] | None = start
        self.held = False
        self.left = False

    def admit(self) -> None:
        """The slot is free: hold it, and begin."""
        self.held = True
        start, self._start = self._start, None  # whoever starts holds this ticket: leave no cycle
        assert start is not None
        start()

    def leave(self) -> None:
        """Give up the slot, or the place."""
        if not self.left:
            self.left, self._start = True, None
            self._admission.leave(self)


class Admission:
    """`slots` places to work in, and at most `max_waiting` requests in front of them."""

    def __init__(self, slots: int, max_waiting: int = MAX_WAITING) -> None:
        self._slots = slots
        self._max_waiting = max_waiting
        self._queue: list[tuple[int, int, Ticket]] = []  # priority, number
        self._numbers = count()
        self.waiting = 0
        """How many requests wait for a slot."""
        self.running = 0
        """How many hold one."""

    def enter(self, start: Callable[[], None], priority: int = 0) -> Ticket:
        """Have `start` called when a slot is free: now, or later; a lower `priority` goes first.

        Raises EngineBusyError if too many wait already.
        """
        ticket = Ticket(self, start)
        if self.running < self._slots:
            self.running += 1
            ticket.admit()
        elif self.waiting >= self._max_waiting:
            raise EngineBusyError
        else:
            self.waiting += 1
            heappush(self._queue, (priority, next(self._numbers), ticket))
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """A slot or a place is given up; a slot goes to whoever is first."""
        if not ticket.held:
            self.waiting -= 1  # it stays in the queue, and is passed over
            self._forget_left()
            return
        while self._queue:
            _, _, first = heappop(self._queue)
            if not first.left:
                self.waiting -= 1
                first.admit()
                return
        self.running -= 1

    def _forget_left(self) -> None:
        """Drop places that were given up once they are the most: it costs each of them one look."""
        if len(self._queue) > 2 * self.waiting:
            self._queue = [place for place in self._queue if not place[2].left]
            heapify(self._queue)
