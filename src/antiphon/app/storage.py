"""The store of a server, and the writer of its logs: both are there between `start` and `stop`."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum

from antiphon.app.log_writer import LEASE_SECONDS, LogWriter
from antiphon.app.metrics import Metrics
from antiphon.core.errors import StoreError, StoreFullError
from antiphon.run.probe import SharedProbe
from antiphon.store.store import Store

ANSWER_SECONDS = 0.5
"""How long the store may take to answer a probe for /health: callers wait a second at most."""

WRITE_SECONDS = 5.0
"""Seconds between two writes that only show whether the store can be written."""

HUNG_SECONDS = 5.0
"""How long such a write may take."""


class StoreStatus(StrEnum):
    """Whether the store can be used."""

    OPENING = "opening"
    READY = "ready"
    AWAY = "away"
    """It cannot be read or written."""
    FULL = "full"
    """It can be read, but its disk is full."""


class Storage:
    """Opens the store when the server starts. Writes are counted in `metrics`."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[Store]],
        lease_seconds: float = LEASE_SECONDS,
        metrics: Metrics | None = None,
    ) -> None:
        self._open_store = open_store
        self._lease_seconds = lease_seconds
        self._metrics = metrics
        self._writer: LogWriter | None = None
        self._writing: asyncio.Task[None] | None = None
        self._writes = SharedProbe(self._write, fresh=WRITE_SECONDS, timeout=HUNG_SECONDS)

    @property
    def started(self) -> bool:
        """The store is open."""
        return self._writer is not None

    @property
    def writer(self) -> LogWriter:
        """The log writer. Raises StoreError before `start`."""
        if self._writer is None:
            raise StoreError
        return self._writer

    @property
    def store(self) -> Store:
        """The store. Raises StoreError before `start`."""
        return self.writer.store

    async def status(self) -> StoreStatus:
        """Whether the store can be read now, and could be written a moment ago."""
        if not self.started:
            return StoreStatus.OPENING
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.store.responses.get("", "")  # it does not exist: an empty answer is enough
        except (StoreError, TimeoutError):
            return StoreStatus.AWAY
        failure = await self._writes.result(ANSWER_SECONDS)
        if isinstance(failure, StoreFullError):
            return StoreStatus.FULL
        return StoreStatus.READY if failure is None else StoreStatus.AWAY

    async def _write(self) -> None:
        await self.store.check_writable()

    async def start(self) -> None:
        """Open the store. Raises AntiphonError if that cannot be done."""
        self._writer = LogWriter(await self._open_store(), self._lease_seconds, self._metrics)
        self._writing = asyncio.create_task(self._writer.write())

    async def stop(self) -> None:
        """Close the store."""
        await self._writes.close()
        if self._writer is None or self._writing is None:
            return
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        await self._writer.finish()
        writer, self._writer = self._writer, None
        await writer.store.close()
