"""Limits of a key that hold over all servers of one database: by leases, so that most requests ask nobody.

The limit per minute of a key is one time in the database, its theoretical arrival time (the generic cell
rate algorithm, GCRA): when the limit is full again. Each request or token moves it by `60 / limit` seconds,
and it may be a minute ahead at most. A lease moves it for many requests at once: its server spends it
without asking. A lease is an interval that begins now, and what lies in the past cannot be spent any more.
So a lease expires at least as fast as the limit is refilled, and whatever servers do, or die, the use of a
key in any time is at most the limit, and what is refilled in that time. Nothing has to be given back. It is,
where it helps others: what is left of a lease goes with each request that asks, and is settled if it is
much, as after an answer that was shorter than its `max_tokens`, and when the server stops.

A server asks for the next lease when half of one is used, and asks once before it refuses a request. If the
database does not answer, each server goes on with its part of the limit: that divided by the number of
servers.

For answers at a time, servers hold places for some seconds, and renew them.
"""

import asyncio
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
REFUSED_SECONDS = 1.0
"""For so long a server does not ask again for what there was not, unless enough was refilled meanwhile."""
SETTLE_SECONDS = 1.0
"""Seconds until much that was used without a lease, or leased and not used, is settled."""
PLACE_SECONDS = 15.0
"""How long a server holds its places without renewing them."""
AGAIN_SECONDS = 0.05
"""After so long a server asks again for a place, which another one may just be giving back."""
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
    """A lease of an `amount`, 0 if there is less than was asked for.

    `left` is what the limit has besides, `servers` the number of those that have asked lately.
    """

    amount: float
    left: float
    servers: int = 1


class Held(Struct, frozen=True):
    """The places that a server has, how many are `left` for others, and the number of servers."""

    places: int
    left: int = 0
    servers: int = 1


class Ledger(Protocol):
    """The database of the limits, for one server."""

    @property
    def away(self) -> bool:
        """It has not answered a moment ago, and is not asked."""
        ...

    async def take(self, question: Question) -> Taken:
        """Settle, and take a lease. Raises StoreError."""
        ...

    async def hold(self, owner: str, limit: int, places: int, seconds: float) -> "Held":
        """Hold so many places from now on, in place of those before. Raises StoreError."""
        ...

    async def leave(self) -> None:
        """The server stops: it counts no more, and holds no places. Raises StoreError."""
        ...


class Lease:
    """What a server may spend: an interval of time, whose beginning moves on with what is spent."""

    def __init__(self, limit: int) -> None:
        self._each = MINUTE / limit
        self._start = self._end = monotonic()

    @property
    def rest(self) -> float:
        """How much may be spent now."""
        return max(0.0, self._end - max(self._start, monotonic())) / self._each

    def add(self, amount: float, at: float, spent: float) -> None:
        """Add an amount that was leased at this time, of which some is spent."""
        self._start = max(self._start, at)
        self._end = max(self._end, self._start) + amount * self._each
        self._start += spent * self._each

    def spend(self, amount: float) -> float:
        """Spend an amount; returns what was not there."""
        self._start = max(self._start, monotonic())
        spent = min(amount, max(0.0, self._end - self._start) / self._each)
        self._start += spent * self._each
        return amount - spent

    def restore(self, amount: float) -> None:
        """Spend an amount less, as far as it would not have expired meanwhile."""
        self._start -= min(amount * self._each, max(0.0, self._start - monotonic()))

    def give_back(self, most: float) -> float:
        """Have so much less, at most; returns how much."""
        given = max(0.0, min(most, self.rest))
        self._end -= given * self._each
        return given


class _Background:
    """Work beside requests, of each kind once at a time."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin this work, unless it runs."""
        name = work.__name__
        if name not in self._tasks:
            task = self._tasks[name] = asyncio.get_running_loop().create_task(work())
            task.add_done_callback(lambda _: self._tasks.pop(name, None))

    def stop(self) -> None:
        """Cancel all of it."""
        for task in self._tasks.values():
            task.cancel()


class SharedBucket:
    """A limit per minute of an owner, which all servers share. See `Bucket` for the methods of both."""

    def __init__(self, ledger: Ledger, owner: str, kind: str, limit: int) -> None:
        self.limit = limit
        self._ledger = ledger
        self._owner = owner
        self._kind = kind
        self._each = MINUTE / limit
        self._lease = Lease(limit)
        self._share = float(limit // SHARE)
        self._much = max(1.0, self._share)
        self._owed = 0.0  # used without a lease, and not settled yet
        self._granted = 0.0  # to the request that has asked: it takes it at once
        self._room, self._room_at = float(limit), monotonic()  # what the database had, and when
        self._servers = 1
        self._own_end = self._room_at  # of the part of the limit that is used while the database is away
        self._refused_until = 0.0
        self._asking = asyncio.Lock()
        self._background = _Background()

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
        granted, self._granted = self._granted, 0.0
        if amount >= granted:
            self._owed += self._lease.spend(amount - granted)
        else:
            settled = min(self._owed, max(0.0, -amount))
            self._owed -= settled
            self._own_end -= settled * self._each * self._servers
            self._lease.restore(granted - amount - settled)
        if self._much_to_settle:
            self._background.begin(self._settle)

    async def secure(self, amount: float) -> None:
        """Take a lease of this amount, if there is none and can be one. `take` has to follow at once."""
        if (rest := self._lease.rest) < amount:
            async with self._asking:
                if self._lease.rest < amount and not self._refuses(amount):
                    await self._ask(self._lease.rest, amount, max(amount, self._share))
        elif rest - amount < self._share / 2 and not self._ledger.away:
            self._background.begin(self._ask_ahead)

    @property
    def _available(self) -> float:
        return self._lease.rest + self._granted

    def _refuses(self, amount: float) -> bool:
        """The database has just said that there is not as much."""
        return monotonic() < self._refused_until and self.seconds(amount) > _SOON

    @property
    def _much_to_settle(self) -> bool:
        """A quarter of a lease was used without one, or more than two are not used."""
        return self._owed * 4 > self._much or self._lease.rest > self._much * 2

    async def _ask(self, back: float, least: float, most: float) -> None:
        """Give so much of the lease back, and ask for more; or alone go on without the database."""
        if self._ledger.away:
            self._go_on_alone(least)
            return
        owed, self._owed = self._owed, 0.0
        asked = monotonic()  # the lease begins a little early, but never late
        settle = owed - self._lease.give_back(back)
        try:
            taken = await self._ledger.take(
                Question(self._owner, self._kind, self.limit, settle, least, most)
            )
        except BaseException as error:
            self._owed += owed  # it may have been settled: what was used is rather counted twice
            if not isinstance(error, StoreError):
                raise
            self._go_on_alone(least)
            return
        self._servers, self._room, self._room_at = taken.servers, taken.left, asked
        self._own_end = asked + MINUTE
        if taken.amount:
            self._lease.add(taken.amount, asked, least)
            self._granted = least  # of the request that has asked
        elif least:
            self._refused_until = asked + REFUSED_SECONDS

    async def _ask_ahead(self) -> None:
        async with self._asking:
            if self._lease.rest < self._share / 2:
                await self._ask(0, 0, self._share)

    async def _settle(self) -> None:
        """Settle a little later, for several answers at once. While the database is away, try again."""
        while self._much_to_settle:
            await asyncio.sleep(SETTLE_SECONDS)
            async with self._asking:
                if self._much_to_settle:
                    await self._ask(self._lease.rest - self._share, 0, 0)

    def _go_on_alone(self, amount: float) -> None:
        """Lend this server the amount of its own part of the limit, if that has as much, or is full."""
        now = monotonic()
        start, needed = max(self._own_end, now), amount * self._each * self._servers
        if amount and now + MINUTE - start >= min(needed, MINUTE) - _TINY:
            self._own_end = start + needed
            self._granted += amount
            self._owed += amount

    async def close(self) -> None:
        """Settle what is owed, and give back what is not used."""
        self._background.stop()
        if self._owed or self._lease.rest:
            async with self._asking:
                await self._ask(self._lease.rest, 0, 0)


class SharedPlaces:
    """The answers at a time of an owner, which all servers share."""

    def __init__(self, ledger: Ledger, owner: str, limit: int) -> None:
        self.limit = limit
        self._ledger = ledger
        self._owner = owner
        self._running = 0
        self._held = 0
        self._scarce = False  # other servers may need what is not used
        self._servers = 1
        self._until = self._refused_until = 0.0
        self._asking = asyncio.Lock()
        self._background = _Background()

    @property
    def free(self) -> bool:
        """One more may run."""
        return self._running < self._held and monotonic() < self._until

    def count(self, running: int) -> None:
        """So many run now."""
        self._running = running
        if running > self._held:  # an answer goes on that another process had a place for
            self._background.begin(self._renew)
        if self._scarce and running < self._held:
            self._background.begin(self._release)

    async def secure(self) -> None:
        """Hold a place for one more, if there is one."""
        if not self._is_asked_for:
            return
        async with self._asking:
            if self._is_asked_for:
                await self._hold(self._running + 1)
            if self._is_asked_for:
                await asyncio.sleep(AGAIN_SECONDS)
                await self._hold(self._running + 1)
                self._refused_until = 0.0 if self.free else monotonic() + REFUSED_SECONDS

    @property
    def _is_asked_for(self) -> bool:
        return not self.free and self._running < self.limit and monotonic() >= self._refused_until

    async def _hold(self, places: int) -> None:
        self._held = min(self._held, places)  # from now on: others may get the rest at any time
        asked = monotonic()
        try:
            held = await self._ledger.hold(self._owner, self.limit, places, PLACE_SECONDS)
        except StoreError:  # with its part of them
            self._held = max(self._held, self.limit // self._servers, 1)
            self._until = monotonic() + QUESTION_SECONDS
        except BaseException:  # it may hold one more
            self._background.begin(self._renew)
            raise
        else:
            self._held, self._servers = held.places, held.servers
            self._scarce = held.servers > 1 and not held.left
            self._until = asked + PLACE_SECONDS
        if self._held:
            self._background.begin(self._renew)

    async def _release(self) -> None:
        async with self._asking:
            if self._running < self._held:
                await self._hold(self._running)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(PLACE_SECONDS / 3)
            async with self._asking:
                await self._hold(self._running)
            if not self._held and not self._running:
                return

    def close(self) -> None:
        """Renew no more."""
        self._background.stop()
