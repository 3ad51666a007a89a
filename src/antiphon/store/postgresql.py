"""PostgreSQL, through asyncpg. LISTEN/NOTIFY wakes whoever waits, on every server.

One connection writes, a few read (each statement by itself, with no BEGIN and
ROLLBACK around it), one listens. A notification names the server that sent it:
that one has woken its own already.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4

import asyncpg
from sqlalchemy import Connection, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from antiphon.core.errors import StoreError
from antiphon.store.database import Read, Transaction, failures_of
from antiphon.store.migrating import migrate
from antiphon.store.records import Limits
from antiphon.store.watching import Hub

R = TypeVar("R")

CHANNEL = "antiphon"
PAYLOAD_BYTES = 7999
"""The longest notification that PostgreSQL takes."""
KEEPALIVE_SECONDS = 30.0
"""How often a connection that only listens is asked whether it is still there."""

_BY_KEYS = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"
"""Every join of ours follows a few keys; a planner that has not counted rows yet would read whole tables."""

_MIGRATION_LOCK = 0x616E7469
_FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError)


class Postgresql:
    """A backend on the database that `url` names, as libpq writes it."""

    def __init__(self, url: str, limits: Limits) -> None:
        self._url = url
        self._limits = limits
        self._hub = Hub()
        self._name = uuid4().hex
        self._listener: asyncio.Task[None] | None = None
        self._reading: set[asyncio.Task[Any]] = set()
        self._writer = self._engine(pool_size=1)
        self._reader = self._engine(pool_size=limits.readers, isolation_level="AUTOCOMMIT")

    async def open(self, hub: Hub) -> None:
        """Bring the tables up to date, and listen."""
        self._hub = hub
        await self._migrate()
        tried = asyncio.Event()
        self._listener = asyncio.create_task(self._listen(tried), name="store listener")
        await tried.wait()

    async def read(self, work: Read[R]) -> R:
        """Run a read. It ends, even if whoever wants it leaves: a connection must not be left in mid-air."""
        reading = asyncio.create_task(self._read(work))
        self._reading.add(reading)
        reading.add_done_callback(self._read_done)
        return await asyncio.shield(reading)

    async def _read(self, work: Read[R]) -> R:
        with failures_of(*_FAILURES):
            async with self._reader.connect() as connection:
                return await connection.run_sync(work)

    def _read_done(self, reading: asyncio.Task[Any]) -> None:
        self._reading.discard(reading)
        if not reading.cancelled():
            reading.exception()  # whoever left does not want to know

    async def transact(self, work: Callable[[Transaction], R]) -> R:
        """Run a write, commit it and wake its topics, here and elsewhere."""
        with failures_of(*_FAILURES):
            async with self._writer.begin() as connection:
                result, topics = await connection.run_sync(self._transact, work)
        self._hub.wake(topics)
        return result

    async def close(self) -> None:
        """Close all connections."""
        if self._listener:
            self._listener.cancel()
            await asyncio.wait([self._listener])
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self._reader.dispose()
        await self._writer.dispose()

    def _engine(self, **options: Any) -> AsyncEngine:
        return create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connect,
            pool_pre_ping=True,  # a server that came back finds no dead connections here
            max_overflow=0,
            pool_timeout=self._limits.patience,
            **options,
        )

    async def _connect(self) -> asyncpg.Connection:
        patience = self._limits.patience
        connection = await asyncpg.connect(self._url, timeout=patience, command_timeout=patience)
        await connection.execute(_BY_KEYS)
        return connection

    async def _migrate(self) -> None:
        """In one transaction, however long it takes; of several servers, one after the other."""

        def work(connection: Connection) -> None:
            connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            migrate(connection)

        async def connect() -> asyncpg.Connection:
            return await asyncpg.connect(self._url, timeout=self._limits.patience)

        engine = create_async_engine("postgresql+asyncpg://", async_creator=connect)
        try:
            with failures_of(*_FAILURES):
                async with engine.begin() as connection:
                    await connection.run_sync(work)
        finally:
            await engine.dispose()

    def _transact(self, connection: Connection, work: Callable[[Transaction], R]) -> tuple[R, list[str]]:
        transaction = Transaction(connection)
        result = work(transaction)
        topics = list(transaction.topics)
        for payload in _payloads(self._name, topics):
            connection.execute(select(func.pg_notify(CHANNEL, payload)))
        return result, topics

    async def _listen(self, tried: asyncio.Event) -> None:
        """Listen for ever. While that does not work, all that wait are woken now and then."""
        while True:
            with suppress(StoreError):  # whoever wakes now reads, and meets the error himself
                await self._listen_once(tried)
            tried.set()
            self._hub.wake_all()
            await asyncio.sleep(self._limits.poll)

    async def _listen_once(self, listening: asyncio.Event) -> None:
        lost = asyncio.Event()
        with failures_of(*_FAILURES):
            connection = await self._connect()
            try:
                connection.add_termination_listener(lambda _: lost.set())
                await connection.add_listener(CHANNEL, self._heard)
                listening.set()
                self._hub.wake_all()  # what was told before is told now
                await _until(lost, connection)
            finally:
                connection.terminate()

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        sender, *topics = str(payload).split("\n")
        if sender != self._name:
            self._hub.wake(topics)


async def _until(lost: asyncio.Event, connection: asyncpg.Connection) -> None:
    """Wait for a connection's end; one that hangs ends with an error."""
    while not lost.is_set():
        try:
            async with asyncio.timeout(KEEPALIVE_SECONDS):
                await lost.wait()
        except TimeoutError:
            await connection.execute("SELECT 1")


def _payloads(sender: str, topics: Iterable[str]) -> Iterator[str]:
    """Notifications that tell all topics, one a line, each as long as may be."""
    payload = sender
    for topic in topics:
        if len(payload) + 1 + len(topic) > PAYLOAD_BYTES:
            yield payload
            payload = sender
        payload += f"\n{topic}"
    if payload != sender:
        yield payload
