"""Works on batches: reads their file, answers its lines, and writes the files with the results.

The file is a blob, which the batch holds until it has ended; it is read in pieces, and a few of them are kept
in memory. Results are lines of the log. When the last is there, the log is copied into the files, which are
blobs, too, also in pieces. So the memory that a batch needs does not depend on the size of its files.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from hashlib import sha256

import msgspec
from msgspec import Struct

from antiphon.apis.api import OPENAI
from antiphon.apis.batches.lines import Expected, Line, LineScanner, read_line
from antiphon.apis.batches.results import (
    EXPIRED,
    BatchLog,
    Logged,
    LogLine,
    Progress,
    StoredBatch,
    answered,
    expired,
    last_progress,
    read_log_line,
    results_in,
)
from antiphon.apis.batches.schema import WINDOW
from antiphon.app import batch_endpoints, files
from antiphon.app.app import App
from antiphon.app.batch_source import BatchJournal, BatchSource
from antiphon.app.journal import BackgroundJournal, CallJournal, StoredInput
from antiphon.app.log_writer import LogWriter
from antiphon.core.errors import AntiphonError, RequestError, StoreError, public_error
from antiphon.log import log_failure
from antiphon.run.drive import Driver
from antiphon.run.endings import CancelRequestedError, Ending
from antiphon.run.replay import ReplayLog
from antiphon.store.records import FileRecord, LogEntry, ResponseEnd, ResponseRecord, ResponseStatus
from antiphon.store.store import Store

OUTPUT_PURPOSE = "batch_output"
PARALLEL = 64
"""The most lines of one batch that are under way at a time."""
PIECE_BYTES = 256 * 1024
PIECES = 4
"""The file is read in pieces of this size; so many are kept, those that were read last."""
ENTRIES = 16
"""The most entries of the log that are read at a time. Each has what came in 25 ms, or one result."""
SMALL_BYTES = 16 * 1024
"""Pieces below this size are scanned on the event loop, others in a thread."""


async def scan(app: App, owner: str, digest: str, expected: Expected) -> LineScanner:
    """Read a file to its end. Raises NotFoundError if it is gone."""
    scanner = LineScanner(expected)
    async for piece in app.storage.store.blobs.read(owner, digest):
        if len(piece) < SMALL_BYTES:
            scanner.feed(piece)
        else:
            await app.large.run(lambda piece=piece: scanner.feed(piece))  # type: ignore[misc]
        if scanner.full:
            break
    scanner.finish()
    return scanner


class _Pieces:
    """Reads places of a file, neighbouring ones mostly from memory."""

    def __init__(self, store: Store, owner: str, digest: str) -> None:
        self._blobs = store.blobs
        self._key = (owner, digest)
        self._kept: dict[int, bytes] = {}
        self._reading = asyncio.Lock()

    async def read(self, start: int, size: int) -> bytes:
        """These bytes. Raises NotFoundError if the file is gone."""
        first, last = start // PIECE_BYTES, (start + size - 1) // PIECE_BYTES
        skipped = start - first * PIECE_BYTES
        if first == last and (kept := self._kept.get(first)) is not None:  # as for most lines
            return kept[skipped : skipped + size]
        async with self._reading:
            data = b"".join([await self._piece(number) for number in range(first, last + 1)])
        return data[skipped : skipped + size]

    async def _piece(self, number: int) -> bytes:
        piece = self._kept.pop(number, None)
        if piece is None:
            piece = b""
            async for part in self._blobs.read(*self._key, number * PIECE_BYTES):
                piece += part
                if len(piece) >= PIECE_BYTES:
                    break
        self._kept[number] = piece[:PIECE_BYTES]
        if len(self._kept) > PIECES:
            del self._kept[next(iter(self._kept))]
        return self._kept[number]


class _Request(Struct, frozen=True):
    """A line of the file, by its index among those that are requests. Its id is the same on any server."""

    index: int
    line: Line
    id: str


class BatchLines:
    """The lines of a batch that have no result yet. See `app.batch_source.BatchWork`."""

    def __init__(self, app: App, record: ResponseRecord, stored: StoredBatch, log: "_RecordedLog") -> None:
        self._app = app
        self._record = record
        self._stored = stored
        self._done = log.done
        self._pieces = _Pieces(app.storage.store, record.owner, stored.digest)
        self._places: LineScanner | None = None
        self._order: Iterator[int] = iter(())
        self.parallel = 1
        self.expires_at = record.created_at + WINDOW
        self.begun = log.begun

    async def open(self) -> None:
        """Read the file. Raises AntiphonError."""
        app, stored = self._app, self._stored
        expected = Expected(stored.wire.endpoint, checked=True)
        self._places = scanner = await scan(app, self._record.owner, stored.digest, expected)
        order = await app.large.run(scanner.grouped)
        self._order = (index for index in order if not self._done[index])
        model = await app.models.model(stored.model) if stored.model else None
        self.parallel = min(PARALLEL, max(1, model.load.slots)) if model else PARALLEL

    async def next(self) -> _Request | None:
        index = next(self._order, None)
        return None if index is None else await self._request(index)

    async def _request(self, index: int) -> _Request:
        assert self._places is not None
        line = read_line(await self._pieces.read(*self._places.place(index)))
        digest = sha256(f"{self._record.id}/{index}".encode()).hexdigest()
        return _Request(index, line, f"batch_req_{digest[:32]}")

    def name(self, request: _Request) -> str:
        return f"{request.index}"

    def request_id(self, request: _Request) -> str:
        return request.id

    async def answer(self, request: _Request, calls: CallJournal) -> Logged:
        endpoint, owner = self._stored.wire.endpoint, self._record.owner
        body = await batch_endpoints.answer(self._app, endpoint, bytes(request.line.body), owner, calls)
        return self._result(request, 200, body)

    def failed(self, request: _Request, error: AntiphonError) -> Logged:
        return self._result(request, OPENAI.status(error), OPENAI.encode_error(error))

    def _result(self, request: _Request, status: int, body: bytes) -> Logged:
        self._done[request.index] = True
        line = answered(request.id, request.line.custom_id, status, body)
        return Logged(request.index, line, status != 200, body)

    def calls_begin(self, request: _Request, count: int) -> Logged:
        return Logged(request.index, calls=count)

    def expire(self) -> list[Logged]:
        return [] if all(self._done) else [EXPIRED]

    async def left(self) -> AsyncIterator[bytes]:
        """The results of lines for which there was no time. Raises AntiphonError."""
        if self._places is None:
            await self.open()
        for index, done in enumerate(self._done):
            if not done:
                request = await self._request(index)
                yield expired(request.id, request.line.custom_id) + b"\n"


class _RecordedLog:
    """What a log says: which lines are `done`, the calls that others have begun, the progress."""

    def __init__(self, total: int) -> None:
        self.done = bytearray(total)
        self.begun: dict[str, int] = {}
        self.progress = Progress()

    def read(self, events: bytes) -> None:
        """The next lines."""
        for line in events.split(b"\n"):
            logged = read_log_line(line)
            self.progress = logged.progress
            if logged.line is not None:
                self._read(logged, logged.line)

    def _read(self, logged: LogLine, index: int) -> None:
        if logged.calls is not None:
            self.begun[f"{index}"] = logged.calls
        elif index < len(self.done):
            self.done[index] = True


async def _entries(store: Store, record: ResponseRecord, last: int) -> AsyncIterator[LogEntry]:
    """The log of a batch up to an event, a part at a time."""
    seen = -1
    while seen < last:
        tail = await store.log.events_after(record.owner, record.id, seen, ENTRIES)
        if tail is None or not tail.entries:
            return
        for entry in tail.entries:
            yield entry
            seen = entry.last


async def _recorded(store: Store, record: ResponseRecord, total: int) -> _RecordedLog:
    log = _RecordedLog(total)
    async for entry in _entries(store, record, record.last_seq):
        log.read(entry.events)
        await asyncio.sleep(0)
    return log


async def progress_of(store: Store, record: ResponseRecord) -> Progress:
    """How far a batch is that runs."""
    if record.last_seq < 0:
        return Progress()
    tail = await store.log.events_after(record.owner, record.id, record.last_seq - 1)
    return last_progress(tail.entries[-1].events) if tail is not None and tail.entries else Progress()


# Jobs of workers


async def prepare(app: App, record: ResponseRecord) -> tuple[Driver, BackgroundJournal]:
    """The driver for the lines of a batch that have no result yet. Raises AntiphonError."""
    stored = msgspec.json.decode(record.request, type=StoredBatch)
    log = await _recorded(app.storage.store, record, stored.total)
    lines = BatchLines(app, record, stored, log)
    if not record.cancel_requested and time.time() < lines.expires_at:
        await lines.open()
    projection = BatchLog(log.progress, stored.total, time.time)
    journal = _Journal(app.storage.writer, projection, record, lines)
    # The deadline of the server is for one answer.
    return Driver(BatchSource(app, record, lines), projection, journal), journal


async def end_from_record(
    store: Store, record: ResponseRecord, reason: BaseException, worker: str | None
) -> ResponseEnd:
    """The end of a batch that no worker has begun, or continues: it is cancelled, or fails."""
    projection = BatchLog(await progress_of(store, record), 0, time.time)
    if isinstance(reason, CancelRequestedError):
        projection.cancel()
    else:
        projection.fail(public_error(reason))
    await _write_results(store, record, record.last_seq, projection)
    return ResponseEnd(
        response_id=record.id,
        worker=worker,
        status=ResponseStatus(projection.status),
        body=projection.body(),
    )


async def release_file(store: Store, record: ResponseRecord) -> None:
    """Let the file of a batch go that has ended."""
    with suppress(StoreError):  # then when the time is over that was set for it
        await store.blobs.release(record.owner, record.id)


class _Journal(BatchJournal):
    """The journal of a batch: before the end of that is stored, it writes the files with the results."""

    end_from_record = staticmethod(end_from_record)

    def __init__(
        self, writer: LogWriter, projection: BatchLog, record: ResponseRecord, lines: BatchLines
    ) -> None:
        super().__init__(
            writer, projection, StoredInput(record.id, lambda _: record, ()), record, ReplayLog()
        )
        self._batch = projection
        self._lines = lines

    async def close(self, ending: Ending, reason: BaseException | None, lines: list[bytes]) -> list[bytes]:
        writer, record, batch = self._writer, self._record, self._batch
        self.record(0, (), [*lines, *batch.finalizing()])
        await writer.flush()
        now = await writer.store.responses.get(record.owner, record.id, record.kind)
        # Another server may have taken it over: then its files are the ones that count.
        if now is not None and now.lease is not None and now.lease.worker == writer.worker:
            lines_left = self._lines if batch.expired else None
            last = self._next - 1
            await writer.retried(lambda: _write_results(writer.store, record, last, batch, lines_left))
        ended = await super().close(ending, reason, [])
        await release_file(writer.store, record)
        return ended


# The files with the results


async def _write_results(
    store: Store, record: ResponseRecord, last: int, batch: BatchLog, left: BatchLines | None = None
) -> None:
    """Write the file of answers and that of errors, of a log with events up to `last`, and of lines `left`.

    If they cannot be stored, the batch fails. They replace those of an earlier try.
    """
    state, progress = batch.state, batch.progress
    try:
        if progress.completed:
            content = _results(store, record, last, failed=False)
            state.output_file_id = await _write(store, record, "output", content)
        if progress.failed:
            content = _results(store, record, last, left, failed=True)
            state.error_file_id = await _write(store, record, "error", content)
    except RequestError as error:
        log_failure(error)
        batch.lose(error)


async def _results(
    store: Store, record: ResponseRecord, last: int, left: BatchLines | None = None, *, failed: bool
) -> AsyncIterator[bytes]:
    async for entry in _entries(store, record, last):
        yield b"".join(results_in(entry.events, failed=failed))
    if left is not None:
        async for line in left.left():
            yield line


async def _write(store: Store, record: ResponseRecord, what: str, content: AsyncIterator[bytes]) -> str:
    """Store a file; its id. Raises RequestError if there is no room for it."""
    stored, now = msgspec.json.decode(record.request, type=StoredBatch), time.time()
    expiry = stored.wire.output_expires_after
    file_id = "file-" + sha256(f"{record.id}/{what}".encode()).hexdigest()[:24]
    holder = f"{file_id}.new"
    blob = await files.hold(store, record.owner, holder, content)
    file = FileRecord(
        id=file_id,
        owner=record.owner,
        created_at=now,
        filename=f"{record.id}_{what}.jsonl",
        purpose=OUTPUT_PURPOSE,
        digest=blob.digest,
        size=blob.size,
        expires_at=now + (stored.keep_seconds if expiry is None else expiry.seconds),
    )
    await store.files.replace(file)
    await store.blobs.release(record.owner, holder)
    return file_id
