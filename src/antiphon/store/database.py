"""One way to read and one to write, whatever the database.

A statement of the store is a plain function of a SQLAlchemy connection. A `Backend`
runs it: SQLite in a thread of its own, PostgreSQL through asyncpg. Reads run side
by side. Writes queue up for one writer: all that wait when it is free become one
transaction (group commit), and neighbours of one kind become one call, so that a
hundred appends cost a handful of statements.

A write answers what became of it; it raises only for what is wrong with itself or
with the database. If the fault is its own (a duplicate id, text that cannot be
stored), the transaction is rolled back and its writes are done one by one, so
that none of them pays for another.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from sqlalchemy import Connection, CursorResult, Executable, Row
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from antiphon.core.errors import AntiphonError, StoreError
from antiphon.store.records import Limits
from antiphon.store.watching import Hub

A = TypeVar("A")
R = TypeVar("R")

Values = dict[str, Any]
Rows = Sequence[Values]
"""What is inserted."""

Found = Row[*tuple[Any, ...]]
"""What is selected."""


class Transaction:
    """A write transaction, and whom to wake once it is committed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.topics: dict[str, None] = {}  # a set that keeps its order

    def execute(self, statement: Executable, values: Values | None = None) -> CursorResult[Any]:
        """Run one statement, with values for what it leaves open."""
        return self.connection.execute(statement, values)

    def each(self, statement: Executable, rows: Rows) -> None:
        """Run a statement for each row of parameters; for none, not at all."""
        if rows:
            self.connection.execute(statement, rows)

    def wake(self, *topics: str) -> None:
        """Tell who watches these topics, after the commit."""
        self.topics.update(dict.fromkeys(topics))


Read = Callable[[Connection], R]
Write = Callable[[Transaction, Sequence[A]], Sequence[R]]
"""Does what all arguments ask, in order, and gives a result for each."""


class Backend(Protocol):
    """A database. Its failures are StoreErrors."""

    async def open(self, hub: Hub) -> None:
        """Connect, bring the tables up to date, and from now on wake the hub."""
        ...

    async def read(self, work: Read[R]) -> R:
        """Run a read."""
        ...

    async def transact(self, work: Callable[[Transaction], R]) -> R:
        """Run a write in a transaction, commit it and wake its topics, here and elsewhere."""
        ...

    async def close(self) -> None:
        """Let go of the database."""
        ...


@contextmanager
def failures_of(*kinds: type[Exception]) -> Iterator[None]:
    """Whatever goes wrong with the database in here is a StoreError; clients never see more of it."""
    failures: tuple[type[Exception], ...] = (SQLAlchemyError, OSError, *kinds)
    try:
        yield
    except failures as error:
        original = getattr(error, "orig", None)
        if isinstance(original, AntiphonError):  # raised by a type of ours, see `schema.Text`
            raise original from None
        raise StoreError from error


def one_by_one(work: Callable[[Transaction, A], R]) -> Write[A, R]:
    """A write that gains nothing from company."""

    def each(transaction: Transaction, arguments: Sequence[A]) -> list[R]:
        return [work(transaction, argument) for argument in arguments]

    return each


class _Waiting(Struct, eq=False):
    work: Write[Any, Any]
    argument: Any
    result: asyncio.Future[Any]

    def settle(self, result: Any) -> None:
        if not self.result.done():  # else the caller has gone
            self.result.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class Database:
    """A backend with its writer and its hub."""

    def __init__(self, backend: Backend, limits: Limits) -> None:
        self.hub = Hub()
        self.limits = limits
        self._backend = backend
        self._queue: asyncio.Queue[_Waiting | None] = asyncio.Queue(limits.waiting)
        self._writer: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the backend; raises StoreError."""
        try:
            await self._backend.open(self.hub)
        except BaseException:
            await self._backend.close()
            raise
        self._writer = asyncio.create_task(self._write_all(), name="store writer")

    async def read(self, work: Callable[..., R], *arguments: object) -> R:
        """What `work(connection, *arguments)` finds."""
        self._demand_open()
        return await self._backend.read(lambda connection: work(connection, *arguments))

    async def write(self, work: Write[A, R], argument: A) -> R:
        """What became of `argument`, once it is committed."""
        self._demand_open()
        waiting = _Waiting(work, argument, asyncio.get_running_loop().create_future())
        await self._queue.put(waiting)
        result: R = await waiting.result
        return result

    async def close(self) -> None:
        """Do what waits, then let go."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        await self._queue.put(None)
        await writer
        await self._backend.close()

    def _demand_open(self) -> None:
        if self._writer is None:
            raise StoreError("The store is closed.")

    async def _write_all(self) -> None:
        last = False
        while not last:
            batch = [await self._queue.get()]
            while len(batch) < self.limits.batch and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            last = None in batch
            await self._commit([waiting for waiting in batch if waiting and not waiting.result.done()])

    async def _commit(self, batch: Sequence[_Waiting]) -> None:
        if not batch:
            return
        try:
            results = await self._backend.transact(partial(_perform, batch))
        except Exception as error:  # it goes to whoever waits, and the writer lives on
            await self._refuse(batch, error)
        else:
            for waiting, result in zip(batch, results, strict=True):
                waiting.settle(result)

    async def _refuse(self, batch: Sequence[_Waiting], error: Exception) -> None:
        if len(batch) > 1 and _is_of_one(error):
            for waiting in batch:
                await self._commit([waiting])
        else:
            for waiting in batch:
                waiting.fail(error)


def _perform(batch: Sequence[_Waiting], transaction: Transaction) -> list[Any]:
    results: list[Any] = []
    for work, group in groupby(batch, lambda waiting: waiting.work):
        results += work(transaction, [waiting.argument for waiting in group])
    return results


def _is_of_one(error: Exception) -> bool:
    """Whether a batch failed because of one write in it, not because of the database."""
    cause = error.__cause__
    if not isinstance(error, StoreError):
        return True
    if isinstance(cause, OperationalError | InterfaceError):
        return False
    return isinstance(cause, DBAPIError) and not cause.connection_invalidated
