"""One way to read and one to write, for every database.

A read is a function of a SQLAlchemy connection, a write one of a `Transaction`. A `Backend` runs them:
SQLite in threads, PostgreSQL through asyncpg. A few reads run at a time, in fair shares by client: the reads
of one that has many wait for each other, and hardly delay those of others. Writes are queued for one writer:
those that wait when it is free share a transaction (group commit), and consecutive writes of one kind share
a call, so that a hundred appends take only a few statements.

A write raises only if it is invalid itself or the database fails. If it is invalid (a duplicate id, text
that cannot be stored), the transaction is rolled back and its writes are repeated one by one, so that the
others still succeed.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import partial
from itertools import groupby
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from antiphon.core.errors import AntiphonError, StoreError, StoreFullError
from antiphon.core.limits import Limits
from antiphon.core.permits import Permit, Permits
from antiphon.store.quota import EnoughUntil, Quota
from antiphon.store.records import StoreTuning
from antiphon.store.transaction import SqlDriver, Transaction
from antiphon.store.watch import Notifier

A = TypeVar("A")
R = TypeVar("R")

ResultRow = Row[*tuple[Any, ...]]
"""A row of a query."""

FULL_SECONDS = 10.0
"""For how long a write that failed for lack of room shows that the disk is full."""

DISK_FULL = "53100"
"""PostgreSQL's error code for it."""

Read = Callable[[Connection], R]
Work = Callable[[Connection, SqlDriver], tuple[R, list[str]]]
"""All writes of one transaction; returns their results, and the topics to notify after the commit."""
Write = Callable[[Transaction, Sequence[A]], Sequence[R]]
"""Performs the writes for all arguments, in order, and returns a result for each."""


class Backend(Protocol):
    """A database. Its failures are StoreErrors."""

    async def open(self, notifier: Notifier) -> None:
        """Connect, bring the tables up to date, and from now on wake the notifier."""
        ...

    def read(self, work: Read[R]) -> asyncio.Future[R]:
        """Begin a read."""
        ...

    async def transact(self, work: Work[R]) -> R:
        """Run a write in a transaction, commit it and wake its topics, here and elsewhere."""
        ...

    def refuses(self, error: BaseException) -> bool:
        """Whether the driver's error is about one write, not about the database."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


@contextmanager
def as_store_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Raise database errors as StoreError, whose message reveals nothing of the database."""
    failures: tuple[type[Exception], ...] = (SQLAlchemyError, OSError, *kinds)
    try:
        yield
    except failures as error:
        original = getattr(error, "orig", None)
        if isinstance(original, AntiphonError):  # raised by a type of ours, see `schema.Text`
            raise original from None
        raise (StoreFullError if _is_full(original or error) else StoreError) from error


def _is_full(error: Any) -> bool:
    """Whether the error of SQLite or PostgreSQL says that the disk is full."""
    return (
        getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        or getattr(error, "sqlstate", None) == DISK_FULL
    )


def one_by_one(work: Callable[[Transaction, A], R]) -> Write[A, R]:
    """A write that performs its calls one after the other."""

    def perform(transaction: Transaction, arguments: Sequence[A]) -> list[R]:
        return [work(transaction, argument) for argument in arguments]

    return perform


_APART: set[Callable[..., Any]] = set()


def apart(write: Write[A, R]) -> Write[A, R]:
    """A write that is never in one transaction with other ones.

    It locks rows that all servers lock, in an order of their own: with others, that would be no order.
    """
    _APART.add(write)
    return write


def _touch(transaction: Transaction, times: Sequence[None]) -> Sequence[None]:
    transaction.touch()
    return times


class _Waiting(Struct, eq=False):
    permit: Permit
    work: Write[Any, Any]
    argument: Any
    result: asyncio.Future[Any]

    def succeed(self, result: Any) -> None:
        if not self.result.done():  # else the caller was cancelled
            self.result.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class Database:
    """A backend with its writer and its notifier."""

    def __init__(self, backend: Backend, limits: Limits, tuning: StoreTuning) -> None:
        self.notifier = Notifier()
        self.limits = limits
        self.tuning = tuning
        self.enough_until: EnoughUntil = {}
        self._backend = backend
        # Of several, one client never has all: slow reads of one do not delay another's at all.
        self.reads = Permits(tuning.readers, owner_capacity=max(1, tuning.readers - 1))
        self.room = Permits(tuning.waiting)
        """In the queue of writes."""
        self._reading: set[asyncio.Future[Any]] = set()
        self._working: dict[Callable[..., Any], asyncio.Task[None]] = {}
        self._full_until = 0.0
        self._queue: asyncio.Queue[_Waiting | None] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the backend; raises StoreError."""
        try:
            await self._backend.open(self.notifier)
        except BaseException:
            await self._backend.close()
            raise
        self._writer = asyncio.create_task(self._write_all(), name="store writer")

    async def read(self, work: Callable[..., R], *arguments: object) -> R:
        """The result of `work(connection, *arguments)`.

        If the caller is cancelled, the read ends nevertheless, and keeps its permit until then: it occupies a
        thread, or a connection.
        """

        def begin() -> asyncio.Future[R]:
            self._require_open()
            reading = self._backend.read(lambda connection: work(connection, *arguments))
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)
            return reading

        return await self.reads.run(begin)

    async def write(self, work: Write[A, R], argument: A) -> R:
        """The result of the write, after its commit."""
        permit = await self.room.acquire()
        try:
            self._require_open()
        except StoreError:
            permit.leave()
            raise
        waiting = _Waiting(permit, work, argument, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(waiting)
        result: R = await waiting.result
        return result

    def begin(self, work: "Callable[[Database], Coroutine[Any, Any, None]]") -> None:
        """Begin work in the background, which a failure of the database ends; once at a time."""
        if work not in self._working:
            task = self._working[work] = asyncio.create_task(self._work(work), context=Context())
            task.add_done_callback(lambda _: self._working.pop(work))

    async def _work(self, work: "Callable[[Database], Coroutine[Any, Any, None]]") -> None:
        with suppress(StoreError):
            await work(self)

    async def check_writable(self) -> None:
        if asyncio.get_running_loop().time() < self._full_until:
            raise StoreFullError
        await self.write(_touch, None)

    def quota(self, connection: Connection, now: float) -> Quota:
        """The quotas of owners, by the clock of the event loop."""
        return Quota(connection, self.limits, self.enough_until, now)

    async def close(self) -> None:
        """Do the queued writes, wait for the reads that run, then close the backend.

        Writes that have not found room in the queue are refused.
        """
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        for work in self._working.values():
            work.cancel()
        self._queue.put_nowait(None)
        await writer
        await asyncio.gather(*self._reading, *self._working.values(), return_exceptions=True)
        await self._backend.close()

    def _require_open(self) -> None:
        if self._writer is None:
            raise StoreError("The store is closed.")

    async def _write_all(self) -> None:
        last = False
        while not last:
            batch = [await self._queue.get()]
            while len(batch) < self.tuning.batch and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            for waiting in batch:
                if waiting is not None:
                    waiting.permit.leave()
            last = None in batch  # from `close`, after all writes queued before it
            undone = [waiting for waiting in batch if waiting and not waiting.result.done()]
            for _, together in groupby(undone, lambda waiting: waiting.work in _APART):
                await self._commit([*together])

    async def _commit(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        now = asyncio.get_running_loop().time()  # a thread may write
        try:
            results = await self._backend.transact(partial(self._perform, batch, now))
        except Exception as error:  # the callers get it; the writer continues
            await self._refuse(batch, error)
        else:
            for waiting, result in zip(batch, results, strict=True):
                waiting.succeed(result)

    def _perform(
        self, batch: Sequence[_Waiting], now: float, connection: Connection, driver: SqlDriver
    ) -> tuple[list[Any], list[str]]:
        transaction = Transaction(connection, driver, self.quota(connection, now), self.tuning)
        results: list[Any] = []
        for work, group in groupby(batch, lambda waiting: waiting.work):
            results += work(transaction, [waiting.argument for waiting in group])
        transaction.store_counts()
        return results, [*transaction.topics]

    async def _refuse(self, batch: Sequence[_Waiting], error: Exception) -> None:
        if len(batch) > 1 and self._is_of_one(error):
            for waiting in batch:
                await self._commit([waiting])
        else:
            if isinstance(error, StoreFullError):
                self._full_until = asyncio.get_running_loop().time() + FULL_SECONDS
            for waiting in batch:
                waiting.fail(error)

    def _is_of_one(self, error: Exception) -> bool:
        """Whether a batch failed because of one write in it, not because of the database."""
        if not isinstance(error, StoreError):
            return True
        cause = error.__cause__
        if isinstance(cause, DBAPIError):
            cause = cause.driver_exception
        return cause is not None and self._backend.refuses(cause)
