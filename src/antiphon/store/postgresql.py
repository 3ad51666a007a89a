"""PostgreSQL, through asyncpg. LISTEN/NOTIFY wakes the watches of every server.

One connection writes, a few read (each statement alone, without BEGIN and ROLLBACK), one listens. A
notification names the server that sent it, which has already notified its own watches.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy import Connection, func, select

from antiphon.core.errors import StoreError, StoreUnavailableError, install_extra
from antiphon.core.limits import Limits
from antiphon.store.database import Read, Work, as_store_errors
from antiphon.store.migrate import migrate
from antiphon.store.open import KNOWN
from antiphon.store.records import StoreTuning
from antiphon.store.sql import open_sql
from antiphon.store.store import Store
from antiphon.store.transaction import DriverRows
from antiphon.store.watch import Notifier

try:
    import asyncpg
    from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
    from sqlalchemy.util import await_only
except ImportError as error:
    raise ImportError(install_extra("PostgreSQL", "postgresql")) from error

R = TypeVar("R")

CHANNEL = "antiphon"
PAYLOAD_BYTES = 7999
"""The longest notification that PostgreSQL accepts."""
KEEPALIVE_SECONDS = 30.0
"""How often the listening connection is checked."""

_BY_KEYS = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"
"""Every join of ours follows a few keys; a planner that has not counted rows yet would read whole tables."""

_MIGRATION_LOCK = 0x616E7469
_NOTIFY = "SELECT pg_notify($1, $2)"
_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError)
_LOST = (*_FAILURES, OSError)


async def open_url(url: str, limits: Limits, tuning: StoreTuning) -> Store:
    """The store in the database of this URL."""
    if "://" not in url:
        raise ValueError(KNOWN)
    return await open_sql(Postgresql(url, tuning), limits, tuning)


class Postgresql:
    """A backend on the database that `url` names, as libpq writes it."""

    def __init__(self, url: str, tuning: StoreTuning) -> None:
        self._url = url
        self._tuning = tuning
        self._notifier = Notifier()
        self._name = uuid4().hex
        self._listener: asyncio.Task[None] | None = None
        self._writer: _Writer | None = None
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connect,
            isolation_level="AUTOCOMMIT",  # `_Writer` begins transactions
            pool_pre_ping=True,  # detects connections that were lost with a server
            pool_size=tuning.readers + 1,
            max_overflow=0,
            pool_timeout=tuning.timeout,
        )

    async def open(self, notifier: Notifier) -> None:
        """Bring the tables up to date, and listen."""
        self._notifier = notifier
        await self._migrate()
        tried = asyncio.Event()
        self._listener = asyncio.create_task(self._listen(tried), name="store listener")
        await tried.wait()

    def read(self, work: Read[R]) -> asyncio.Future[R]:
        """Begin a read."""
        return asyncio.create_task(self._read(work))

    async def _read(self, work: Read[R]) -> R:
        with as_store_errors(*_FAILURES):
            async with self._engine.connect() as connection:
                return await connection.run_sync(work)

    async def transact(self, work: Work[R]) -> R:
        """Run a write, commit it and wake its topics, here and elsewhere."""
        with as_store_errors(*_FAILURES):
            writer = await self._begin()
            try:
                result, topics = await writer.connection.run_sync(self._transact, writer, work)
                await writer.driver.execute("COMMIT")
            except BaseException:
                await self._roll_back(writer)
                raise
        self._notifier.wake(topics)
        return result

    async def _begin(self) -> "_Writer":
        """The connection that writes, in a new transaction; a new connection if the last was lost."""
        if self._writer is not None:
            with suppress(*_LOST):
                return await self._writer.begin()
            await self._disconnect()
        connection = await self._engine.connect()
        try:
            driver = (await connection.get_raw_connection()).driver_connection
        except BaseException:
            await connection.close()
            raise
        self._writer = _Writer(connection, driver)
        return await self._writer.begin()

    async def _roll_back(self, writer: "_Writer") -> None:
        try:
            await writer.driver.execute("ROLLBACK")
        except _LOST:
            await self._disconnect()

    async def _disconnect(self) -> None:
        """Close the connection that writes, which was lost."""
        writer, self._writer = self._writer, None
        if writer:
            await writer.connection.invalidate()
            await writer.connection.close()

    def refuses(self, error: BaseException) -> bool:
        """Whether an error is about one write, and the connection still works."""
        return isinstance(error, asyncpg.PostgresError) and self._writer is not None

    async def close(self) -> None:
        """Close all connections."""
        if self._listener:
            self._listener.cancel()
            await asyncio.wait([self._listener])
        if self._writer:
            await self._writer.connection.close()
        await self._engine.dispose()

    async def _connect(self) -> asyncpg.Connection:
        timeout = self._tuning.timeout
        connection = await asyncpg.connect(self._url, timeout=timeout, command_timeout=timeout)
        try:
            await connection.execute(_BY_KEYS)
        except BaseException:  # nobody else has it to close it
            connection.terminate()
            raise
        return connection

    async def _migrate(self) -> None:
        """In one transaction, without a time limit; several servers wait for each other."""

        def work(connection: Connection) -> None:
            connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            migrate(connection)

        async def connect() -> asyncpg.Connection:
            try:
                return await asyncpg.connect(self._url, timeout=self._tuning.timeout)
            except (OSError, asyncpg.CannotConnectNowError) as error:
                raise StoreUnavailableError from error

        engine = create_async_engine("postgresql+asyncpg://", async_creator=connect)
        try:
            with as_store_errors(*_FAILURES):
                async with engine.begin() as connection:
                    await connection.run_sync(work)
        finally:
            await engine.dispose()

    def _transact(self, connection: Connection, writer: "_Writer", work: Work[R]) -> tuple[R, list[str]]:
        result, topics = work(connection, writer)
        if topics:
            writer.execute_many(_NOTIFY, [(CHANNEL, payload) for payload in _payloads(self._name, topics)])
        return result, topics

    async def _listen(self, tried: asyncio.Event) -> None:
        """Listen until cancelled. While that fails, wake all watches periodically."""
        while True:
            with suppress(StoreError):  # notified readers read, and get the error
                await self._listen_once(tried)
            tried.set()
            self._notifier.wake_all()
            await asyncio.sleep(self._tuning.poll)

    async def _listen_once(self, listening: asyncio.Event) -> None:
        lost = asyncio.Event()
        with as_store_errors(*_FAILURES):
            connection = await self._connect()
            try:
                connection.add_termination_listener(lambda _: lost.set())
                await connection.add_listener(CHANNEL, self._notified)
                listening.set()
                self._notifier.wake_all()  # for notifications that were missed
                await _wait_until_lost(lost, connection)
            finally:
                connection.terminate()

    def _notified(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        sender, *topics = str(payload).split("\n")
        if sender != self._name:
            self._notifier.wake(topics)


class _Writer:
    """The connection that writes. SQLAlchemy and asyncpg share it; asyncpg begins and ends transactions."""

    def __init__(self, connection: AsyncConnection, driver: asyncpg.Connection) -> None:
        self.connection = connection
        self.driver = driver

    async def begin(self) -> "_Writer":
        """Begin a transaction."""
        await self.driver.execute("BEGIN")
        return self

    def execute_many(self, sql: str, rows: DriverRows) -> None:
        """Run a statement for each row of values."""
        await_only(self.driver.executemany(sql, rows))

    def fetch_many(self, sql: str, rows: DriverRows) -> Sequence[Any]:
        """The results of a query for each row of values."""
        results: Sequence[Any] = await_only(self.driver.fetchmany(sql, rows))
        return results


async def _wait_until_lost(lost: asyncio.Event, connection: asyncpg.Connection) -> None:
    """Wait until the connection is lost; one that hangs raises an error."""
    while not lost.is_set():
        try:
            async with asyncio.timeout(KEEPALIVE_SECONDS):
                await lost.wait()
        except TimeoutError:
            await connection.execute("SELECT 1")


def _payloads(sender: str, topics: Iterable[str]) -> Iterator[str]:
    """Notifications of all topics, one per line, each up to the size limit."""
    payload = sender
    for topic in topics:
        if len(payload) + 1 + len(topic) > PAYLOAD_BYTES:
            yield payload
            payload = sender
        payload += f"\n{topic}"
    if payload != sender:
        yield payload
