"""A backend of another package, as small as one can be: one connection to an SQLite in memory, and no threads."""

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, StaticPool, create_engine

from antiphon.core.limits import Limits
from antiphon.store.database import Read, Work, as_store_errors
from antiphon.store.migrate import migrate
from antiphon.store.records import StoreTuning
from antiphon.store.sql import open_sql
from antiphon.store.store import Store
from antiphon.store.transaction import DriverRows
from antiphon.store.watch import Notifier

R = TypeVar("R")


async def open_url(url: str, limits: Limits, tuning: StoreTuning) -> Store:
    """`tests.store.toy`."""
    return await open_sql(Toy(), limits, tuning)


class Toy:
    """See `Backend`."""

    def __init__(self) -> None:
        self._engine = create_engine("sqlite://", creator=_connect, poolclass=StaticPool)
        self._notifier = Notifier()

    async def open(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._connection = self._engine.connect()
        self._driver = Driver(self._connection)
        self._driver.execute("BEGIN")
        migrate(self._connection)
        self._driver.execute("COMMIT")

    def read(self, work: Read[R]) -> asyncio.Future[R]:
        return asyncio.ensure_future(self._read(work))

    async def _read(self, work: Read[R]) -> R:
        with as_store_errors(sqlite3.Error):
            return work(self._connection)

    async def transact(self, work: Work[R]) -> R:
        with as_store_errors(sqlite3.Error):
            self._driver.execute("BEGIN IMMEDIATE")
            try:
                result, topics = work(self._connection, self._driver)
            except BaseException:
                self._driver.execute("ROLLBACK")
                raise
            self._driver.execute("COMMIT")
        self._notifier.wake(topics)
        return result

    def refuses(self, error: BaseException) -> bool:
        return isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.OperationalError)

    async def close(self) -> None:
        self._connection.close()
        self._engine.dispose()


def _connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)  # `transact` begins transactions


class Driver:
    """See `SqlDriver`."""

    def __init__(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        self.execute, self.execute_many = driver.execute, driver.executemany

    def fetch_many(self, sql: str, rows: DriverRows) -> Sequence[Any]:
        return [found for row in rows for found in self.execute(sql, row)]
