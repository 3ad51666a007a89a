"""SQLite: a file, or memory, in threads that run SQLAlchemy's synchronous engine.

One thread writes, a few read; a whole transaction runs in one call of a thread, which costs a third of an
async driver with a call for each step.

Write-ahead logging with `synchronous=NORMAL`: committed data are in the operating system's cache, so they
survive any end of this process, including kill -9. If the machine loses power, only the last commits may be
lost, never the file.

Several servers may share a file. `PRAGMA data_version` changes when another connection commits. It is read
in the thread of the event loop, on a connection that never waits for a lock: this takes 3 µs, less than to
look at the times of the files, which change before a commit can be seen. If somebody has written, the writing
connection tells whether it was another server, and then all watches wake. While another server writes, that
happens every `StoreTuning.poll` seconds, else every `longest_poll`.
Processes of one server also tell each other what they have changed.

Deleted rows free pages inside the file for reuse; the file does not shrink.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, QueuePool, create_engine

from antiphon.core.errors import StoreError, StoreUnusableError
from antiphon.core.limits import Limits
from antiphon.store.database import Read, Work, as_store_errors
from antiphon.store.migrate import migrate
from antiphon.store.open import KNOWN, default_path
from antiphon.store.records import StoreTuning
from antiphon.store.sql import open_sql
from antiphon.store.store import Store
from antiphon.store.transaction import DriverRows
from antiphon.store.watch import Notifier

R = TypeVar("R")

LOG_BYTES = 64 * 1024 * 1024
"""The write-ahead log is cut back to this size whenever it has been written back."""

CHECKPOINT_PAGES = 4000
"""Pages in the write-ahead log before they are copied to the file; a page that changes often is copied
once."""

RETRY_SECONDS = 0.01
"""Seconds between attempts where SQLite does not wait for a lock by itself."""

_BEGIN = "BEGIN IMMEDIATE"
"""A transaction that will write takes the lock first; later it might be refused."""

_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = NORMAL",
    f"journal_size_limit = {LOG_BYTES}",
    f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
)


async def open_url(url: str, limits: Limits, tuning: StoreTuning) -> Store:
    """A file, the default one, or memory."""
    return await open_sql(Sqlite(_path(url), tuning), limits, tuning)


def _path(url: str) -> Path | None:
    """The file that a URL names, None for memory. Raises ValueError."""
    match url.partition("://"):
        case "none" | "memory", "", _:
            return None
        case "sqlite", "", _:
            return default_path()
        case "sqlite", _, path if path.startswith("/") and path[1:] not in ("", ":memory:"):
            return Path(path[1:]).expanduser()
    raise ValueError(KNOWN)


class Sqlite:
    """A backend with a file, or in memory if `path` is None."""

    def __init__(self, path: Path | None, tuning: StoreTuning) -> None:
        self._path = path
        self._tuning = tuning
        self._notifier = Notifier()
        self._looker: _Looker | None = None
        self._looking: asyncio.Task[None] | None = None
        self._others: int | None = None  # what `_Writer.others_version` was at the last look
        self._write_thread = ThreadPoolExecutor(1, "store-writer")
        self._read_threads = self._write_thread
        if path is not None:
            self._read_threads = ThreadPoolExecutor(tuning.readers, "store-reader")
        pool = {"poolclass": QueuePool, "pool_size": tuning.readers + 1, "max_overflow": 0}
        self._engine = create_engine("sqlite://", creator=self._connect, **pool)
        self._writer: _Writer | None = None
        self._file: tuple[int, int] | None = None  # that was opened

    async def open(self, notifier: Notifier) -> None:
        """Create the file if necessary, readable for its owner only, and migrate its tables.

        Raises ValueError for an SQLite without full-text search.
        """
        self._notifier = notifier
        _check_search()
        await _run(self._write_thread, self._open)
        if self._looker is not None:
            self._looking = asyncio.create_task(self._look(self._looker), name="store looker")

    def read(self, work: Read[R]) -> asyncio.Future[R]:
        """Begin a read."""
        return _run(self._read_threads, lambda: self._read(work))

    async def transact(self, work: Work[R]) -> R:
        """Run a write, commit it and wake its topics, here and in other processes of the server."""
        result, topics = await _run(self._write_thread, lambda: self._transact(work))
        # In the event loop's thread: watches belong to it, and must not be notified before the commit.
        self._notifier.tell(topics)
        return result

    def refuses(self, error: BaseException) -> bool:
        """Whether an error is about one write."""
        return isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.OperationalError)

    async def close(self) -> None:
        """Close all connections; the last one to a file merges the write-ahead log into it."""
        if self._looking:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        if self._looker:
            self._looker.close()
        self._read_threads.shutdown()
        self._write_thread.shutdown()
        if self._writer:
            self._writer.connection.close()
        self._engine.dispose()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path or ":memory:",
            timeout=self._tuning.timeout,
            isolation_level=None,  # `_Writer` begins transactions, not the module
            check_same_thread=False,
        )
        try:
            for pragma in _PRAGMAS if self._path else ():
                self._retry(connection, f"PRAGMA {pragma}")
        except BaseException:  # nobody else has it to close it
            connection.close()
            raise
        return connection

    def _retry(self, connection: sqlite3.Connection, statement: str) -> None:
        """Execute it. SQLite does not wait by itself while another server makes the log of a new file."""
        deadline = time.monotonic() + self._tuning.timeout
        while True:
            try:
                connection.execute(statement)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            else:
                return
            time.sleep(RETRY_SECONDS)

    def _open(self) -> None:
        try:
            self._open_file()
        except StoreError as error:
            if self._path is None:
                raise
            raise StoreUnusableError(f"{self._path}: {error.why}") from error

    def _open_file(self) -> None:
        with as_store_errors(sqlite3.Error):
            if self._path is not None:
                _create(self._path)
                self._file = _identity(self._path)
            connection = self._engine.connect()
            self._writer = _Writer(connection)
            with connection.begin():
                connection.exec_driver_sql(_BEGIN)
                migrate(connection)
            if self._path is not None:
                self._looker, self._others = _Looker(self._path), self._writer.others_version()

    def _read(self, work: Read[R]) -> R:
        with as_store_errors(sqlite3.Error):
            if self._path is None and self._writer:  # the only connection to this memory
                return work(self._writer.connection)
            with self._engine.connect() as connection:
                return work(connection)

    def _transact(self, work: Work[R]) -> tuple[R, list[str]]:
        assert self._writer
        with as_store_errors(sqlite3.Error):
            if self._path is not None and self._file != _identity(self._path):
                raise OSError("The file was replaced: what is written into the old one is lost.")
            with self._writer.transaction():
                return work(self._writer.connection, self._writer)

    async def _look(self, looker: "_Looker") -> None:
        """Look for writes of others, until cancelled: less often while there are none."""
        pause = self._tuning.poll
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._tuning.longest_poll)
            if looker.has_changed():
                before, self._others = self._others, await self._others_version()
                if self._others != before:
                    pause = self._tuning.poll
                    self._notifier.wake_all()

    async def _others_version(self) -> int | None:
        """A number that changes when others write. None if it cannot be read: who is woken gets the error."""
        assert self._writer
        with suppress(StoreError):
            return await _run(self._write_thread, self._writer.others_version)
        return None


class _Looker:
    """A connection that sees whether anybody has written, and waits for nothing: for the event loop."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        self._seen = self._version()

    def has_changed(self) -> bool:
        """Whether anybody has committed since the last call, or it cannot be seen now."""
        before, self._seen = self._seen, self._version()
        return self._seen is None or self._seen != before

    def _version(self) -> int | None:
        """A number that changes with commits; None if the file is locked, or cannot be read."""
        with suppress(sqlite3.Error):
            return _data_version(self._connection)
        return None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class _Writer:
    """The connection that writes."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        self._driver = driver
        self.execute_many = driver.executemany

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits unless it fails."""
        self._driver.execute(_BEGIN)
        try:
            yield
            # Inside the `try`: a COMMIT that fails (the disk is full) leaves the transaction open.
            self._driver.execute("COMMIT")
        except BaseException:
            self._driver.rollback()
            raise

    def fetch_many(self, sql: str, rows: DriverRows) -> list[Any]:
        """The results of a query for each row of values."""
        return [result for row in rows for result in self._driver.execute(sql, row)]

    def others_version(self) -> int:
        """A number that changes when other connections write. Raises StoreError."""
        with as_store_errors(sqlite3.Error):
            return _data_version(self._driver)


def _data_version(connection: sqlite3.Connection) -> int:
    """A number that changes when other connections commit."""
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


def _identity(path: Path) -> tuple[int, int]:
    """What tells a file from another that takes its place. Raises OSError if there is none."""
    there = path.stat()
    return there.st_dev, there.st_ino


def _run(threads: ThreadPoolExecutor, work: Callable[[], R]) -> asyncio.Future[R]:
    return asyncio.get_running_loop().run_in_executor(threads, work)


def _check_search() -> None:
    """Raise ValueError if SQLite was built without the extension for searching vector stores."""
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute("CREATE VIRTUAL TABLE tried USING fts5(text)")
        except sqlite3.OperationalError as error:
            message = (
                "the SQLite of this Python has no FTS5, its full text search. Take a Python that has it, "
                "or PostgreSQL."
            )
            raise ValueError(message) from error


def _create(path: Path) -> None:
    """Create folder and file, readable for their owner only; SQLite copies this to its other files."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
