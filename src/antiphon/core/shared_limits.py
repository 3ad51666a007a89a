"""Limits of a key that hold over all servers of one database: by leases, so that most requests ask nobody.

The limit per minute of a key is one time in the database, its theoretical arrival time (the generic cell
rate algorithm, GCRA). Each request or token takes an interval of `60 / limit` seconds, which begins at that
time or now, whichever is later, and moves it to its end; the time may be a minute ahead at most. A lease is
such an interval, for many requests at once: its server spends it without asking, and what lies in the past
cannot be spent any more. So whatever servers do, or die, the use of a key in any time `t` has room in `t`
and the minute after it: it is at most the limit, and what is refilled in `t`. A lease that is not used
costs nothing, because it expires as fast as the limit is refilled.

A server asks for the next lease when half of one is used, and asks once before it refuses a request. If the
database does not answer, each server goes on with its part of the limit: that divided by the number of
servers.

For answers at a time, servers hold places for some seconds, and renew them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Protocol

from msgspec import Struct

from antiphon.core.errors import StoreError

MINUTE = 60
SHARE = 8
"""A lease is this part of the limit, or what a request needs, if that is more."""
QUESTION_SECONDS = 1.0
"""How long a request waits for the database; after no answer, it is not asked for as long."""
FLUSH_SECONDS = 0.1
"""Seconds between the end of an answer and the report of its tokens, at most."""
PLACE_SECONDS = 15.0
"""How long a server holds its places without renewing them."""
_TINY = 1e-6
"""Seconds that are no difference."""
_SOON = 0.001
"""The least seconds to wait."""


class Question(Struct, frozen=True):
    """What a server asks for: a lease of an amount from `least` to `most`.

    `settle` was used already or, if it is negative, is given back.
    """

    owner: str
    kind: str
    limit: int
    settle: float = 0
    least: float = 0
    most: float = 0


class Taken(Struct, frozen=True):
    """A lease of an `amount`, 0 if there is less than was asked for; it begins in `start` seconds.

    `left` is what the limit has besides, `servers` the number of those that have asked lately.
    """

    amount: float
    start: float
    left: float
    servers: int = 1


class Held(Struct, frozen=True):
    """The places that a server has, and the number of servers that have asked lately."""

    places: int
    servers: int = 1


class Ledger(Protocol):
    """The database of the limits, for one server."""

    async def take(self, question: Question) -> Taken:
        """Settle, and take a lease. Raises StoreError."""
        ...

    async def hold(self, owner: str, limit: int, places: int, seconds: float) -> "Held":
        """Hold so many places from now on, in place of those before. Raises StoreError."""
        ...


class Lease:
    """The intervals that a server may spend; times are those of `monotonic`."""

    def __init__(self, limit: int) -> None:
        self._each = MINUTE / limit
        self._parts: deque[list[float]] = deque()

    @property
    def rest(self) -> float:
        """How much may be spent now."""
        now = monotonic()
        while self._parts and self._parts[0][1] <= now:
            self._parts.popleft()
        return sum(end - max(start, now) for start, end in self._parts) / self._each

    def add(self, start: float, amount: float) -> None:
        """Add an interval that begins at this time."""
        self._parts.append([start, start + amount * self._each])

    def spend(self, amount: float) -> float:
        """Spend an amount; returns what was not there."""
        now, needed = monotonic(), amount * self._each
        while self._parts and needed > 0:
            part = self._parts[0]
            part[0] = max(part[0], now)
            spent = min(needed, max(0.0, part[1] - part[0]))
            part[0] += spent
            needed -= spent
            if part[0] >= part[1]:
                self._parts.popleft()
        return max(0.0, needed) / self._each


class SharedBucket:
    """A limit per minute of an owner, which all servers share. See `Bucket` for the methods of both."""

    def __init__(self, ledger: Ledger, owner: str, kind: str, limit: int) -> None:
        self.limit = limit
        self._ledger = ledger
        self._owner = owner
        self._kind = kind
        self._each = MINUTE / limit
        self._lease = Lease(limit)
        self._owed = 0.0  # used and not yet settled, or negative
        self._granted = 0.0  # to the request that has asked: it takes it at once
        self._room, self._room_at = float(limit), monotonic()  # what the database had, and when
        self._servers = 1
        self._own_end = self._room_at  # of the part of the limit that is used while the database is away
        self._away_until = 0.0
        self._asking = asyncio.Lock()
        self._later: set[asyncio.Task[None]] = set()

    @property
    def left(self) -> float:
        """How much is left, as of the last answer of the database; negative if it is overdrawn."""
        room = min(self.limit, self._room + (monotonic() - self._room_at) / self._each)
        return min(self.limit, room + self._available - self._owed)

    def seconds(self, amount: float) -> float:
        """The seconds until the amount is available; 0 if it may be taken now."""
        if (self._available - amount) * self._each >= -_TINY:
            return 0.0
        return max((amount - self.left) * self._each, _SOON)

    def take(self, amount: float) -> None:
        """Take an amount, available or not; a negative one is given back."""
        if amount > 0:
            granted, self._granted = self._granted, 0.0
            used = min(granted, amount)
            self._owed += self._lease.spend(amount - used) - (granted - used)
        else:
            self._owed += amount
        if abs(self._owed) * self._each > _TINY:
            self._begin(self._flush)

    async def secure(self, amount: float) -> None:
        """Take a lease of this amount, if there is none and can be one. `take` has to follow at once."""
        if self._lease.rest < amount:
            async with self._asking:
                # What is left of a lease may expire while the database is asked.
                lasting = max(0.0, self._lease.rest - QUESTION_SECONDS / self._each)
                if (missing := amount - lasting) > 0:
                    await self._ask(missing, max(missing, self._share))
        elif self._lease.rest - amount < self._share / 2 and not self._away:
            self._begin(self._ask_ahead)

    @property
    def _available(self) -> float:
        return self._lease.rest + self._granted

    @property
    def _share(self) -> float:
        return float(self.limit // SHARE)

    @property
    def _away(self) -> bool:
        return monotonic() < self._away_until

    async def _ask(self, least: float, most: float) -> None:
        """Ask for a lease, or alone go on without the database."""
        if self._away:
            self._go_on_alone(least)
            return
        owed, self._owed = self._owed - self._granted, 0.0
        self._granted = 0.0
        asked = monotonic()  # the lease begins a little early, but never late
        try:
            taken = await self._ledger.take(Question(self._owner, self._kind, self.limit, owed, least, most))
        except StoreError:
            self._owed += max(0.0, owed)  # it may have been settled: what was used is rather counted twice
            self._away_until = monotonic() + QUESTION_SECONDS
            self._go_on_alone(least)
            return
        except BaseException:
            self._owed += max(0.0, owed)
            raise
        self._servers, self._room, self._room_at = taken.servers, taken.left, asked
        self._own_end = asked + MINUTE
        if taken.amount:
            self._granted = least  # of the request that has asked
            self._lease.add(asked + taken.start + least * self._each, taken.amount - least)

    async def _ask_ahead(self) -> None:
        async with self._asking:
            if self._lease.rest < self._share / 2:
                await self._ask(0, self._share)

    async def _flush(self) -> None:
        """Settle a little later, for several answers at once. While the database is away, try again."""
        while abs(self._owed) * self._each > _TINY:
            await asyncio.sleep(max(FLUSH_SECONDS, self._away_until - monotonic()))
            async with self._asking:
                await self._ask(0, 0)

    def _go_on_alone(self, amount: float) -> None:
        """Lend this server the amount of its own part of the limit, if that has as much, or is full."""
        now = monotonic()
        start, needed = max(self._own_end, now), amount * self._each * self._servers
        if amount and now + MINUTE - start >= min(needed, MINUTE) - _TINY:
            self._own_end = start + needed
            self._granted += amount
            self._owed += amount

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin work in the background, once at a time."""
        if not any(task.get_name() == work.__name__ and not task.done() for task in self._later):
            task = asyncio.get_running_loop().create_task(work(), name=work.__name__)
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def close(self) -> None:
        """Settle what is owed."""
        for task in [*self._later]:
            task.cancel()
        if self._owed or self._granted:
            await self._ask(0, 0)


class SharedPlaces:
    """The answers at a time of an owner, which all servers share."""

    def __init__(self, ledger: Ledger, owner: str, limit: int) -> None:
        self.limit = limit
        self.running = 0
        self._ledger = ledger
        self._owner = owner
        self._held = 0
        self._servers = 1
        self._until = 0.0
        self._asking = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def free(self) -> bool:
        """One more may run."""
        return self.running < self._held and monotonic() < self._until

    async def secure(self) -> None:
        """Hold a place for one more, if there is one."""
        if self.free:
            return
        async with self._asking:
            if not self.free:
                await self._hold(self.running + 1)

    async def _hold(self, places: int) -> None:
        asked = monotonic()
        try:
            held = await self._ledger.hold(self._owner, self.limit, places, PLACE_SECONDS)
        except StoreError:  # with its part of them
            self._held = max(self._held, self.limit // self._servers, 1)
            self._until = monotonic() + QUESTION_SECONDS
        else:
            self._held, self._servers = held.places, held.servers
            self._until = asked + PLACE_SECONDS
        if self._held and self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        while self._held:
            await asyncio.sleep(PLACE_SECONDS / 3)
            async with self._asking:
                await self._hold(self.running)
        self._renewing = None

    async def close(self) -> None:
        """Give the places back."""
        if self._renewing is not None:
            self._renewing.cancel()
        if self._held:
            await self._hold(0)
