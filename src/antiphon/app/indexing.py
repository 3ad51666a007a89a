"""Indexes the files of vector stores: their text is read, cut, and written as chunks.

A job is a row, claimed under a lease that is renewed during the work. If this server crashes, another claims
the job when the lease has expired, deletes the chunks written so far, and starts again. So it is, too, if
this server could not renew its lease in time: when it notices that, it says that it has not crashed.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import structlog

from antiphon.apis.vector_stores.schema import LastError
from antiphon.app.app import App
from antiphon.app.files import whole_content
from antiphon.core.errors import (
    EngineBusyError,
    EngineNotReadyError,
    RequestError,
    StoreError,
    StoreFullError,
)
from antiphon.core.limits import CLIENT
from antiphon.log import log_failure
from antiphon.run.bounded import BoundedPool
from antiphon.run.documents import UNSUPPORTED, Chunking, TextChunk, read_chunks
from antiphon.store.records import IndexedFile, IndexEnd, IndexStatus, NewChunk
from antiphon.store.store import INDEXING, VectorStores

JOBS = 2
"""Files that are indexed at a time."""
ATTEMPTS = 3
"""The number of servers that may crash while they index a file."""
RENEWALS = 3
"""Renewals within a lease."""
_WRITTEN = 200
"""Chunks that are written at once, so that other writes need not wait long."""

_NOT_NOW = (EngineBusyError, EngineNotReadyError, StoreError)
"""Errors that say nothing of the file."""

log = structlog.get_logger(__name__)


class Indexer:
    """Indexes files in the background."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._lease_seconds = app.settings.lease_seconds
        self.pool = BoundedPool(app.limits)
        self._held: set[str] = set()
        self._has_held = asyncio.Event()  # there are some
        self._tasks: list[asyncio.Task[None]] = []
        self._draining = self._stopping = False

    def start(self) -> None:
        """Begin to work. The storage was started before."""
        work = [self._renew(), *(self._work() for _ in range(JOBS))]
        self._tasks = [asyncio.create_task(loop) for loop in work]

    def drain(self) -> None:
        """Claim no more."""
        self._draining = True

    async def stop(self) -> None:
        """Stop working; other servers can continue unfinished jobs at once."""
        self._draining = self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        with suppress(StoreError):  # then the leases run out
            await self._vector_stores.release(self._worker)

    @property
    def _vector_stores(self) -> VectorStores:
        return self._app.storage.store.vector_stores

    @property
    def _worker(self) -> str:
        return self._app.storage.writer.worker

    async def _renew(self) -> None:
        while True:
            await self._has_held.wait()
            await asyncio.sleep(self._lease_seconds / RENEWALS)
            if self._held:
                with suppress(StoreError):  # the next renewal may still be in time
                    await self._vector_stores.renew(
                        self._worker, [*self._held], time.time(), self._lease_seconds
                    )

    async def _work(self) -> None:
        with self._app.storage.store.watch(INDEXING) as watch:
            while not self._draining:
                try:
                    held = [*self._held]
                    record = await self._vector_stores.claim(
                        self._worker, time.time(), self._lease_seconds, held
                    )
                    if record is not None:
                        await self._hold(record)
                        continue
                except StoreError as error:
                    log.warning("the store does not answer", error=error.why)
                except (EngineBusyError, EngineNotReadyError) as error:
                    log.warning("a file has to wait for the model that embeds", error=error.message)
                except Exception as error:
                    log_failure(error)
                if not self._draining:
                    await watch.changed(self._lease_seconds)

    async def _hold(self, record: IndexedFile) -> None:
        self._held.add(record.key)
        self._has_held.set()
        CLIENT.set(record.owner)
        try:
            await self._index(record)
        finally:
            self._held.discard(record.key)
            if not self._held:
                self._has_held.clear()

    async def _index(self, record: IndexedFile) -> None:
        """Index a file. Raises an error of `_NOT_NOW`: then the job is tried again later."""
        try:
            held = await self._end(record)
        except _NOT_NOW:
            await self._postpone(record)
            raise
        if not held:  # another server has taken it
            await self._postpone(record)

    async def _end(self, record: IndexedFile) -> bool:
        """Index a file, and store its end; whether the job was still ours. Raises an error of `_NOT_NOW`."""
        error = None
        try:
            if not await self._write_chunks(record):
                return False
        except Exception as failure:
            if self._stopping:  # whatever fails then says nothing of the file, and must not end the stopping
                raise asyncio.CancelledError from failure
            if isinstance(failure, _NOT_NOW):
                raise
            error = _explanation(failure, record)
        status = IndexStatus.COMPLETED if error is None else IndexStatus.FAILED
        encoded = None if error is None else msgspec.json.encode(error)
        return await self._vector_stores.finish(IndexEnd(self._worker, record.key, status, encoded))

    async def _postpone(self, record: IndexedFile) -> None:
        """Have it tried again later, by any server: this one has not crashed. Raises StoreError.

        As long as the store is unavailable, no other file could be indexed either.
        """
        until = time.time() + self._lease_seconds
        writer = self._app.storage.writer
        while True:
            try:
                await writer.retried(lambda: self._vector_stores.postpone(self._worker, record.key, until))
            except StoreFullError:
                raise
            except StoreError as error:
                log.warning("a file cannot be given back", id=record.id, error=error.why)
            else:
                return

    async def _write_chunks(self, record: IndexedFile) -> bool:
        """Write the chunks of a file; whether the job is still ours. Raises RequestError, StoreError."""
        # A file that crashes the process must not crash every server.
        if record.attempts >= ATTEMPTS:
            message = "The server stopped each time that it indexed this file. Leave it out."
            raise RequestError(message)
        _, content = await whole_content(self._app, record.owner, record.id, "file_id")
        chunks = await read_chunks(self.pool, content, Chunking(record.chunk_size, record.chunk_overlap))
        if not chunks:
            raise RequestError("This file has no text. Send a file with text, not only with images.")
        for start in range(0, len(chunks), _WRITTEN):
            some = await self._embedded(chunks[start : start + _WRITTEN], start)
            if not await self._vector_stores.add_chunks(self._worker, record.key, some):
                return False
        return True

    async def _embedded(self, chunks: Sequence[TextChunk], first: int) -> list[NewChunk]:
        """The chunks, from position `first` on, with their vectors, if there is an embedder."""
        embedder = self._app.embedder
        if embedder is None:
            return [NewChunk(place, chunk.text, chunk.terms) for place, chunk in enumerate(chunks, first)]
        vectors = await embedder.vectors([chunk.text for chunk in chunks])
        return [
            NewChunk(place, chunk.text, chunk.terms, embedder.model, vector)
            for place, (chunk, vector) in enumerate(zip(chunks, vectors, strict=True), first)
        ]


def _explanation(failure: Exception, record: IndexedFile) -> LastError:
    """Why a file cannot be indexed, for its owner."""
    if isinstance(failure, RequestError):
        code = UNSUPPORTED if failure.code == UNSUPPORTED else "invalid_file"
        return LastError(code, failure.message)
    log_failure(failure, vector_store=record.vector_store_id, file=record.id)
    return LastError("server_error", "This file could not be indexed. Attach it again.")
