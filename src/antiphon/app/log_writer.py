"""Writes the logs of all responses of this server to the store, in batches.

A journal collects the wire events of one response. The writer takes the events of all journals, and appends
them in one transaction: some forty times a second if a background response is among them, whose clients read
the log, and otherwise twice. So storing a stream costs little, and readers of the log are slightly
delayed.

When the database is unavailable, the events wait and are written when it is available again; if that takes
too long, or its disk is full, the answers are stopped. A response that belongs to another server, has ended,
was deleted, or exceeds the limit of storage is stopped as well.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import structlog

from antiphon.app.event_log import events_after
from antiphon.app.metrics import Metrics
from antiphon.app.readers import Readers
from antiphon.core.errors import StoreError, StoreFullError
from antiphon.core.permits import Permits
from antiphon.run.drive import LARGE, wait_for_turn
from antiphon.run.endings import LostError, OverLimitError
from antiphon.store.records import Append, Lease, LogEntry
from antiphon.store.store import Store

LEASE_SECONDS = 3.0
"""Seconds after which the responses of a server that did not renew its leases are taken over."""
TICK = 0.025
"""Seconds in which the server collects events before it writes them."""
FOREGROUND_TICK = 0.5
"""The same for streams that are being sent: their clients do not wait for the log."""
STORE_TIMEOUT = 30.0
"""Seconds to retry writing, or reading, when the database is unavailable."""
RETRY = 0.5
"""Seconds between tries to write them."""
LAST_CALLS_SECONDS = 1.0
"""How long the store may take for the last calls of a server that stops, such as storing ends of answers."""

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Writable(Protocol):
    """The journal of one response, for the writer. `stored` are the last events written, without gaps."""

    response_id: str
    background: bool
    stored: Sequence[LogEntry]

    def take(self) -> Append | None:
        """The events since the last call."""
        ...

    def stop(self, reason: Exception) -> object:
        """There is no use in going on."""
        ...


class LogWriter:
    """Writes for the journals of one server.

    `worker` is the name in the leases of this server. `stopping` is done when it releases them. Writes are
    counted in `metrics`.
    """

    def __init__(
        self, store: Store, lease_seconds: float = LEASE_SECONDS, metrics: Metrics | None = None
    ) -> None:
        self.store = store
        self._metrics = metrics or Metrics()
        self.worker = f"worker-{secrets.token_hex(8)}"
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open: dict[str, Writable] = {}
        self._lease_seconds = lease_seconds
        self._ready: dict[Writable, None] = {}  # those that have collected something
        self._any_ready = asyncio.Event()
        self._background_ready = asyncio.Event()
        self._writing = asyncio.Lock()
        self.reading = Permits(1)
        """For who may read much of a log: several threads would keep the interpreter lock from the event
        loop."""
        self._metrics.permits |= {"logs": self.reading, **store.permits}
        self.abandoned = asyncio.Lock()
        """Held by who ends responses of a process that has died, or begins one of them again: not both."""
        self.readers = Readers()
        self._flushing: set[asyncio.Task[None]] = set()
        self._calling: set[asyncio.Task[Any]] = set()  # the tasks that call the store

    def lease(self) -> Lease:
        """A new lease of this server."""
        return Lease(self.worker, time.time() + self._lease_seconds)

    def register(self, journal: Writable) -> None:
        """Renew the lease of a response from now on."""
        self.open[journal.response_id] = journal

    async def unregister(self, journal: Writable) -> None:
        """Wait until nothing of the journal is being written, and write no more of it."""
        if self.open.get(journal.response_id) is journal:
            async with self._writing:
                self._drop(journal)

    @contextmanager
    def registered(self, journal: Writable) -> Iterator[None]:
        """Renew the lease of a response while the block runs."""
        self.register(journal)
        try:
            yield
        finally:
            self._drop(journal)

    def _drop(self, journal: Writable) -> None:
        """Write no more of it: a caller that waits for its end does not wait for the store again."""
        self.open.pop(journal.response_id, None)
        self._ready.pop(journal, None)

    def fresh(self, response_id: str, after: int) -> list[bytes]:
        """The events after `after`, if this server has just stored them: then they need not be read."""
        entries = journal.stored if (journal := self.open.get(response_id)) else ()
        if not entries or not entries[0].first - 1 <= after < entries[-1].last:
            return []
        return events_after(after, entries)

    def notify(self, journal: Writable) -> None:
        """The journal has collected something."""
        self._ready[journal] = None
        self._any_ready.set()
        if journal.background:
            self._background_ready.set()

    async def write(self) -> None:
        """Write the events of all journals, until cancelled."""
        while True:
            await self._any_ready.wait()
            # A background response ends the long wait; the short one collects the others of its engine step.
            # Not by `wait_for`, which in Python 3.11 loses a cancellation that comes with what it waits for.
            with suppress(TimeoutError):
                async with asyncio.timeout(FOREGROUND_TICK - TICK):
                    await self._background_ready.wait()
            await asyncio.sleep(TICK)
            await self.flush()

    async def finish(self) -> None:
        """Wait for calls of the store that go on after their requests; cancel those that take too long."""
        calling = {*self._calling}
        if calling:
            _, late = await asyncio.wait(calling, timeout=LAST_CALLS_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def flush(self) -> None:
        """Write the events collected so far.

        A batch that was taken is written even if the caller is cancelled.
        """
        flushing = asyncio.ensure_future(self._flush())
        self._flushing.add(flushing)
        flushing.add_done_callback(self._flushing.discard)
        await asyncio.shield(flushing)

    async def _flush(self) -> None:
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        appends = await self._taken()
        if not appends:
            return
        try:
            verdicts = await self.retried(lambda: self.store.log.append(*appends.values()))
        except Exception as error:  # it ends the answers concerned; the writer continues
            if isinstance(error, StoreError):
                error.__traceback__ = None  # it was logged, and refers to the events
            for journal in appends:
                self._drop(journal)
                journal.stop(error)
            return
        for (journal, append), verdict in zip(appends.items(), verdicts, strict=True):
            if verdict.accepted:
                journal.stored = append.entries or journal.stored
            if verdict.limit is not None:
                journal.stop(OverLimitError(verdict.limit))
            elif not verdict.accepted:
                journal.stop(LostError(verdict))

    async def _taken(self) -> dict[Writable, Append]:
        """The collected events: if they are large, they are taken in several turns of the event loop."""
        ready, self._ready = self._ready, {}
        self._any_ready.clear()
        self._background_ready.clear()
        appends: dict[Writable, Append] = {}
        size = 0
        for journal in ready:
            try:
                append = journal.take()
            except Exception as error:  # what cannot be written ends its answer, and no other
                self._drop(journal)
                journal.stop(error)
                continue
            if append:
                appends[journal] = append
                size += sum(len(entry.events) + len(entry.chunks) for entry in append.entries)
            if size > LARGE:
                await wait_for_turn()
                size = 0
        return appends

    async def retried(
        self, call: Callable[[], Awaitable[T]], made: Callable[[], Awaitable[T | None]] | None = None
    ) -> T:
        """Call the store, again and again while it is unavailable.

        A call that failed may have been made. Writes that cannot be repeated need `made`, which returns the
        result of an earlier call, or None. A server that releases its leases does not wait for the store:
        other servers continue from the stored state.
        """
        task = asyncio.current_task()
        assert task is not None
        self._calling.add(task)
        try:
            return await self._retried(call, made)
        finally:
            self._calling.discard(task)

    async def _retried(
        self, call: Callable[[], Awaitable[T]], made: Callable[[], Awaitable[T | None]] | None
    ) -> T:
        now = asyncio.get_running_loop().time
        start = now()
        deadline = start + STORE_TIMEOUT
        failed = False
        while True:
            try:
                result = await made() if failed and made is not None else None
                if result is None:
                    result = await call()
            except StoreError as error:
                self._metrics.store_failed()
                log.warning("the store does not answer", error=error.why)
                if self.stopping.done() or now() > deadline or isinstance(error, StoreFullError):
                    raise
                failed = True
            else:
                self._metrics.store_wrote(now() - start)
                return result
            await asyncio.wait((self.stopping,), timeout=RETRY)  # a server that stops does not sit it out
