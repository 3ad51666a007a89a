"""Permits: so many pieces of work run at a time; the others wait for a permit, in fair shares.

A permit that becomes free goes to the owner that has the fewest (a slot of an engine, to the one that was
served the fewest tokens, see `engines/admission.py`); among equals, owners take turns, so that one with much
work does not delay the others. Within an owner, the first to come goes first. A lower priority goes
before all of this. Work that nobody waits for has the priority `LAST`: it is last for every permit that it
needs, and while others wait it gives permits back, if it can (`GIVE_BACK`).

A permit is given by a plain call, not by the result of a future, and whoever enters has to `leave` once,
whatever has happened meanwhile: so a permit that is given in the turn of the event loop in which its owner is
cancelled comes back, too. Use this for all work that waits its turn.

To add work of which only so much may be done at a time: its `Permits`, and its name in `Metrics.permits`
(`app/metrics.py`). Tests: its bound, and that all are free in the end if its callers are cancelled together;
the table in `docs/observability.md`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, TypeVar

from antiphon.core.errors import AntiphonError, ClientBusyError
from antiphon.core.limits import CLIENT

T = TypeVar("T")

LAST = 2**62
"""The priority of work that nobody waits for, such as that of batches."""
PRIORITY: ContextVar[int] = ContextVar("priority", default=-(2**63))
"""The priority of this work is at least this, whatever is asked for."""
FIRST = -(2**62)
"""The priority of an answer that goes on, whose permit was lost with its process: it may wait in any case."""
GIVE_BACK: ContextVar[Callable[[], object] | None] = ContextVar("give_back", default=None)
"""Called at most once for a permit of this work, if somebody with a lower priority waits for one.

Then the work soon leaves its permit, and later asks for another to continue.
"""


def own_priority(asked: int) -> int:
    """The priority of work for which this one is asked."""
    least = PRIORITY.get()
    return FIRST if least == FIRST else max(asked, least, FIRST + 1)


class Elsewhere(Protocol):
    """The same permits in other processes, which share the capacity."""

    @property
    def running(self) -> int:
        """How many permits are given there."""
        ...

    @property
    def waiting(self) -> int:
        """How many wait there for one."""
        ...


class Nowhere:
    """There are no other processes."""

    running = waiting = 0


class Permit:
    """A permit, or a place among those who wait for one. `leave` gives it up, once."""

    def __init__(self, permits: "Permits", start: Callable[[], object], owner: str, priority: int) -> None:
        self._permits = permits
        self.start: Callable[[], object] | None = start
        self.owner = owner
        self.priority = priority
        self.give_back = GIVE_BACK.get()
        self.given = self.left = False

    def leave(self) -> None:
        """Give up the permit, or the place. The next who waits gets the permit."""
        if not self.left:
            self.left, self.start = True, None
            self._permits.leave(self)


class Permits:
    """At most `capacity` permits, and `owner_capacity` of one owner, are given at a time.

    So many may wait: `queue`, and `owner_queue` of one owner. Without a number there is no bound. The owner
    is the client of the current request.
    """

    def __init__(
        self,
        capacity: int,
        *,
        owner_capacity: int | None = None,
        queue: int | None = None,
        owner_queue: int | None = None,
    ) -> None:
        self.capacity = capacity
        self.running = 0
        """How many permits are given."""
        self.waiting = 0
        """How many wait for one."""
        self._owner_capacity = capacity if owner_capacity is None else owner_capacity
        self._queue = queue
        self._owner_queue = owner_queue
        self._running: dict[str, int] = {}  # by owner
        self._waiting: dict[str, int] = {}
        self._last_waiting = 0  # those with the priority `LAST`
        self._returnable: dict[Permit, None] = {}  # given permits that can be asked back, oldest first
        # By priority and owner: who waits, in the order of coming. Which line was served last is the last.
        self._lines: dict[tuple[int, str], dict[Permit, None]] = {}

    def enter(self, start: Callable[[], object], priority: int = 0) -> Permit:
        """Call `start` when there is a permit, now or later.

        Raises ClientBusyError, or what `refusal` returns, if too many wait already.
        """
        permit = Permit(self, start, CLIENT.get(), own_priority(priority))
        self._admit(permit)
        return permit

    def _admit(self, permit: Permit) -> None:
        """Give it now, or let it wait. Raises as `enter` does."""
        if self._is_free and self._may_run(permit.owner):
            self._give(permit)
        else:
            self._line_up(permit)

    def _line_up(self, permit: Permit) -> None:
        """Let it wait. Raises as `enter` does."""
        last = permit.priority >= LAST  # it takes no place in the queue from others
        bound = self._queue if permit.priority > FIRST else None
        if bound is not None and self.waiting - (0 if last else self._last_waiting) >= bound:
            raise self.refusal(of_owner=False)
        waiting = self._waiting.get(permit.owner, 0)
        bound = self._owner_queue if permit.priority > FIRST else None
        if bound is not None and waiting >= bound:
            raise self.refusal(of_owner=True)
        self._lines.setdefault((permit.priority, permit.owner), {})[permit] = None
        self._waiting[permit.owner] = waiting + 1
        self.waiting += 1
        self._last_waiting += last
        if self._returnable and not self._is_free:
            self._ask_back(permit.priority)

    async def acquire(self, priority: int = 0) -> Permit:
        """Wait for a permit. Who gets it has to `leave` it. Raises as `enter` does."""
        turn = asyncio.Event()
        permit = self.enter(turn.set, priority)
        try:
            if not permit.given:
                await turn.wait()
        except BaseException:
            permit.leave()
            raise
        return permit

    @asynccontextmanager
    async def hold(self, priority: int = 0) -> AsyncIterator[None]:
        """Hold a permit while the block runs. Raises as `enter` does."""
        permit = await self.acquire(priority)
        try:
            yield
        finally:
            permit.leave()

    async def run(self, begin: Callable[[], asyncio.Future[T]], priority: int = 0) -> T:
        """The result of work that cannot be cancelled, such as that of a thread. Raises as `enter` does.

        It holds its permit until it has ended, also if the caller is cancelled.
        """
        permit = await self.acquire(priority)
        try:
            working = begin()
        except BaseException:
            permit.leave()
            raise
        working.add_done_callback(partial(_leave, permit))
        return await asyncio.shield(working)

    def refusal(self, *, of_owner: bool) -> AntiphonError:
        """The error for one more who would wait: too many of all do, or `of_owner`."""
        return ClientBusyError()

    def leave(self, permit: Permit) -> None:
        """Take back a permit, or a place. Only `Permit.leave` calls it."""
        if not permit.given:
            self._leave_line(permit)
            return
        self.running -= 1
        self._returnable.pop(permit, None)
        _count_down(self._running, permit.owner)
        self._fill()

    @property
    def _is_free(self) -> bool:
        return self.running < self.capacity

    def _fill(self) -> None:
        """Give free permits to those who wait."""
        while self._lines and self._is_free and (first := self._first()) is not None:
            self._leave_line(first)
            self._give(first)

    def _ask_back(self, priority: int) -> None:
        """Ask for the newest permit with a higher priority: the least work has been done for it."""
        for permit in reversed(self._returnable):
            if permit.priority > priority:
                del self._returnable[permit]
                assert permit.give_back is not None
                permit.give_back()
                return

    def _may_run(self, owner: str) -> bool:
        return self._running.get(owner, 0) < self._owner_capacity

    def _share(self, owner: str) -> tuple[float, ...]:
        """What an owner has of the permits: who has the least is the next."""
        return (self._running.get(owner, 0),)

    def _first(self) -> Permit | None:
        """Who gets the permit that is free."""
        lines = [line for line in self._lines if self._may_run(line[1])]
        if not lines:
            return None
        # `min` returns the first of equals: the line that was served the longest ago.
        line = min(lines, key=lambda line: (line[0], *self._share(line[1])))
        permits = self._lines[line] = self._lines.pop(line)
        return next(iter(permits))

    def _give(self, permit: Permit) -> None:
        self.running += 1
        self._running[permit.owner] = self._running.get(permit.owner, 0) + 1
        permit.given = True
        if permit.give_back is not None:
            self._returnable[permit] = None
        start, permit.start = permit.start, None  # the code that starts holds this permit: break the cycle
        assert start is not None
        try:
            start()
        except BaseException:  # a fault, which must not cost a permit
            permit.leave()
            raise

    def _leave_line(self, permit: Permit) -> None:
        line = (permit.priority, permit.owner)
        del self._lines[line][permit]
        if not self._lines[line]:
            del self._lines[line]
        self.waiting -= 1
        self._last_waiting -= permit.priority >= LAST
        _count_down(self._waiting, permit.owner)


def _leave(permit: Permit, working: asyncio.Future[Any]) -> None:
    permit.leave()
    if not working.cancelled():
        working.exception()  # marks it as retrieved: the caller may have left


def _count_down(counts: dict[str, int], owner: str) -> None:
    count = counts.pop(owner) - 1
    if count:
        counts[owner] = count
