"""SQLite: a file, or memory, behind threads that SQLAlchemy's plain engine runs in.

One thread writes, a few read; a whole transaction is one trip to a thread, which
costs a third of what an async driver takes with a trip for each step.

Write-ahead logging with `synchronous=NORMAL`: what is committed is in the
operating system's hands, so it survives this process however that dies (kill -9
too). Only a machine that loses power can lose the last commits, never the file.

Several servers may share a file. `PRAGMA data_version` on the writing connection
changes when somebody else commits; a look at it every `Limits.poll` seconds wakes
whoever waits here.

What is deleted makes room inside the file; the file itself does not shrink.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event

from antiphon.core.errors import StoreError
from antiphon.store.database import Read, Transaction, failures_of
from antiphon.store.migrating import migrate
from antiphon.store.records import Limits
from antiphon.store.watching import Hub

R = TypeVar("R")

LOG_BYTES = 64 * 1024 * 1024
"""The write-ahead log is cut back to this size whenever it has been written back."""

RETRY = 0.01
"""Seconds between tries of what SQLite does not wait for."""

_PRAGMAS = ("journal_mode = WAL", "synchronous = NORMAL", f"journal_size_limit = {LOG_BYTES}")


class Sqlite:
    """A backend on a file, or in memory if `path` is None."""

    def __init__(self, path: Path | None, limits: Limits) -> None:
        self._path = path
        self._limits = limits
        self._hub = Hub()
        self._poller: asyncio.Task[None] | None = None
        self._write_thread = ThreadPoolExecutor(1, "store-writer")
        # IMMEDIATE: a transaction that will write asks for the lock first; later it might be refused.
        self._writer = self._engine("BEGIN IMMEDIATE", connections=1)
        if path is None:  # one connection has the memory to itself
            self._read_threads, self._reader = self._write_thread, self._writer
        else:
            self._read_threads = ThreadPoolExecutor(limits.readers, "store-reader")
            self._reader = self._engine("BEGIN", connections=limits.readers)

    async def open(self, hub: Hub) -> None:
        """Make the file if there is none, for its owner only, and bring its tables up to date."""
        self._hub = hub
        await _run(self._write_thread, self._open)
        if self._path is not None:
            self._poller = asyncio.create_task(self._poll(), name="store poller")

    async def read(self, work: Read[R]) -> R:
        """Run a read."""
        return await _run(self._read_threads, lambda: self._read(work))

    async def transact(self, work: Callable[[Transaction], R]) -> R:
        """Run a write, commit it and wake its topics."""
        result, topics = await _run(self._write_thread, lambda: self._transact(work))
        self._hub.wake(topics)
        return result

    async def close(self) -> None:
        """Close all connections; the last one to a file folds the log into it."""
        if self._poller:
            self._poller.cancel()
            await asyncio.wait([self._poller])
        self._read_threads.shutdown()  # waits for the last read
        self._write_thread.shutdown()
        self._reader.dispose()
        self._writer.dispose()

    def _engine(self, begin: str, connections: int) -> Engine:
        pool = {"poolclass": QueuePool, "pool_size": connections, "max_overflow": 0}
        engine = create_engine("sqlite://", creator=self._connect, **pool)

        @event.listens_for(engine, "begin")
        def start(connection: Connection) -> None:
            connection.exec_driver_sql(begin)

        return engine

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path or ":memory:",
            timeout=self._limits.patience,
            isolation_level=None,  # transactions begin as `_engine` says, not as the module guesses
            check_same_thread=False,
        )
        for pragma in _PRAGMAS if self._path else ():
            self._patiently(connection, f"PRAGMA {pragma}")
        return connection

    def _patiently(self, connection: sqlite3.Connection, statement: str) -> None:
        """Execute it. Where two servers make the log of one new file, SQLite does not wait by itself."""
        deadline = time.monotonic() + self._limits.patience
        while True:
            try:
                connection.execute(statement)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            else:
                return
            time.sleep(RETRY)

    def _open(self) -> None:
        with failures_of(sqlite3.Error):
            if self._path is not None:
                _create(self._path)
            with self._writer.begin() as connection:
                migrate(connection)

    def _read(self, work: Read[R]) -> R:
        with failures_of(sqlite3.Error), self._reader.begin() as connection:
            return work(connection)

    def _transact(self, work: Callable[[Transaction], R]) -> tuple[R, list[str]]:
        with failures_of(sqlite3.Error), self._writer.begin() as connection:
            transaction = Transaction(connection)
            return work(transaction), list(transaction.topics)

    async def _poll(self) -> None:
        seen: int | None = None
        while True:
            await asyncio.sleep(self._limits.poll)
            try:
                version = await _run(self._write_thread, self._data_version)
            except StoreError:
                version = None  # whoever wakes now reads, and meets the error himself
            if version != seen:
                self._hub.wake_all()
            seen = version

    def _data_version(self) -> int:
        with failures_of(sqlite3.Error):
            connection = self._writer.raw_connection()
            try:
                cursor = connection.cursor()
                version: int = cursor.execute("PRAGMA data_version").fetchone()[0]
                cursor.close()
                return version
            finally:
                connection.close()


async def _run(threads: ThreadPoolExecutor, work: Callable[[], R]) -> R:
    return await asyncio.get_running_loop().run_in_executor(threads, work)


def _create(path: Path) -> None:
    """Make folder and file for their owner only; SQLite gives its other files the same rights."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
