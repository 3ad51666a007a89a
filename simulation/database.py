"""One database that all servers share, and the laws that are checked after every transaction.

The store above it is the real one: its statements, its group commit, its schema by its migrations. Only the
hundred lines that pass transactions to threads are replaced: a transaction runs here, as a whole, at a
moment that the seed chooses, on SQLite in memory. Before and after it a failure may occur, as with a
database over a network or on a full disk.
"""

import asyncio
import sqlite3
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from sqlalchemy import StaticPool, create_engine

from antiphon.core.errors import StoreError
from antiphon.core.limits import DEFAULTS
from antiphon.store.database import Read, Work, as_store_errors
from antiphon.store.migrate import migrate
from antiphon.store.records import StoreTuning
from antiphon.store.sql import SqlStore
from antiphon.store.transaction import DriverRows
from antiphon.store.watch import Notifier
from simulation.laws import Histories, LawError
from simulation.loop import Process, SimulatedLoop

R = TypeVar("R")

TRIP = 0.01
"""Seconds to the database, and back, at most."""
POLL = 0.3
"""Seconds until another server notices a transaction, at most."""


class DatabaseFaults:
    """The failures of the database, for one server. Times are those of their ends."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove all failures."""
        self.away = self.slow = self.full = 0.0
        self.unsure = 0.0
        """The share of transactions whose success is not reported."""


class Memory:
    """SQLite in memory, emptied for each simulation: opening one takes longer than many simulations."""

    def __init__(self) -> None:
        self._driver = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        engine = create_engine("sqlite://", creator=lambda: self._driver, poolclass=StaticPool)
        self.connection = engine.connect()
        with self.connection.begin():
            migrate(self.connection)
        self._empty = sqlite3.connect(":memory:", check_same_thread=False)
        self._driver.backup(self._empty)
        self.execute_many = self._driver.executemany

    @property
    def changes(self) -> int:
        """How many rows were ever changed."""
        return self._driver.total_changes

    def reset(self) -> None:
        """Empty all tables, and what their search index remembers."""
        self._empty.backup(self._driver)

    def execute(self, sql: str, *values: Any) -> list[Any]:
        """The rows of a query."""
        return self._driver.execute(sql, values).fetchall()

    def fetch_many(self, sql: str, rows: DriverRows) -> Sequence[Any]:
        """See `transaction.Driver`."""
        return [found for row in rows for found in self._driver.execute(sql, row)]


class SharedDatabase:
    """The database of one simulation."""

    def __init__(self, memory: Memory, rng: Random, loop: SimulatedLoop) -> None:
        memory.reset()
        self.memory = memory
        self.rng = rng
        self.loop = loop
        self.histories = Histories(memory.execute, loop.time)
        self.transactions = 0
        self._changes = memory.changes
        self._servers: dict[Notifier, Process] = {}
        self._unnoticed: set[Notifier] = set()
        """Those of servers that poll, and will notice changes within `POLL`."""

    def store(self, process: Process, database_faults: DatabaseFaults) -> SqlStore:
        """The store of the server in this process."""
        return SqlStore(_Connection(self, process, database_faults), DEFAULTS, StoreTuning())

    def join(self, notifier: Notifier, process: Process) -> None:
        """Wake it when another server has written."""
        self._servers[notifier] = process

    def transact(self, process: Process, work: Work[R], full: bool) -> tuple[R, list[str]]:
        """Run a transaction; all laws hold after it."""
        execute = self.memory.execute
        execute("BEGIN IMMEDIATE")
        try:
            result, topics = work(self.memory.connection, self.memory)
            if full:
                raise sqlite3.OperationalError("database or disk is full")  # noqa: TRY301 - as SQLite does
        except BaseException:
            execute("ROLLBACK")
            raise
        execute("COMMIT")
        self.transactions += 1
        if self.memory.changes == self._changes:  # there was no change
            return result, topics
        self._changes = self.memory.changes
        try:
            self.histories.check(process)
        except LawError as error:  # the server would treat it as a failure of its database
            self.loop.call_exception_handler({"message": str(error), "exception": error})
        for notifier, other in self._servers.items():
            if other is not process and other.alive and notifier not in self._unnoticed:
                self._unnoticed.add(notifier)
                self.loop.call_later(
                    self.rng.random() * POLL, self._notice, notifier, context=other.context()
                )
        return result, topics

    def _notice(self, notifier: Notifier) -> None:
        self._unnoticed.discard(notifier)
        notifier.wake_all()


class _Connection:
    """The backend of one server. See `antiphon.store.database.Backend`."""

    def __init__(self, shared: SharedDatabase, process: Process, database_faults: DatabaseFaults) -> None:
        self._shared = shared
        self._process = process
        self._weather = database_faults
        self._notifier = Notifier()

    async def open(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._shared.join(notifier, self._process)

    def read(self, work: Read[R]) -> asyncio.Future[R]:
        return asyncio.create_task(self._read(work))

    async def _read(self, work: Read[R]) -> R:
        await self._trip()
        with as_store_errors(sqlite3.Error):
            found = work(self._shared.memory.connection)
        await self._trip()
        return found

    async def transact(self, work: Work[R]) -> R:
        await self._trip()
        full = self._weather.full > self._shared.loop.time()
        with as_store_errors(sqlite3.Error):
            result, topics = self._shared.transact(self._process, work, full)
        if self._shared.rng.random() < self._weather.unsure:
            raise StoreError("The connection was lost.") from OSError()
        await self._trip()
        self._notifier.wake(topics)
        return result

    def refuses(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.OperationalError)

    async def close(self) -> None:
        """Nothing to do."""

    async def _trip(self) -> None:
        """The way to the database or back. Raises StoreError while the database is unavailable."""
        rng, now = self._shared.rng, self._shared.loop.time()
        slow = 100 if self._weather.slow > now else 1
        await asyncio.sleep(rng.random() * TRIP * slow)
        if self._weather.away > now:
            await asyncio.sleep(rng.random() * rng.choice((0, 5)))  # refused at once, or not answered
            raise StoreError("The database is unavailable.") from OSError()
