"""Message batches without HTTP. A batch is a background job of the store: its log has the results.

How its requests are answered, and answered no second time: `app/batch_source.py`. Media of requests are blobs
of the sender, for as long as requests of the batch may be answered.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import msgspec
from msgspec import Raw

from antiphon.apis.messages.batch import (
    LIFETIME,
    BatchProjection,
    BatchRequest,
    BatchResult,
    BatchState,
    CallsBegun,
    CreateMessageBatch,
    DeletedBatch,
    MessageBatch,
    MessageBatchList,
    RequestCounts,
    calls_begun,
    check_ids,
    error_result,
    read_entry,
    result_of,
    results_in,
    timestamp,
)
from antiphon.apis.messages.mcp import with_changed_tokens
from antiphon.apis.messages.schema import CreateMessage
from antiphon.apis.request_object import Object
from antiphon.apis.wire import check_model, decode
from antiphon.app import messages
from antiphon.app.app import App
from antiphon.app.attachments import Contents
from antiphon.app.batch_source import BatchJournal, BatchSource, body_of
from antiphon.app.ids import random_id
from antiphon.app.journal import BackgroundJournal, CallJournal, StoredInput
from antiphon.core.errors import AntiphonError, NotFoundError, RequestError, public_error
from antiphon.core.limits import DAY
from antiphon.run.drive import Driver
from antiphon.run.endings import CancelRequestedError
from antiphon.run.replay import ReplayLog
from antiphon.store.records import (
    LogEntry,
    Page,
    Paging,
    ResponseEnd,
    ResponseKind,
    ResponseRecord,
    ResponseStatus,
)
from antiphon.store.store import Store

PREFIX = "msgbatch_"
PARALLEL = 8
"""The number of requests of one batch that are answered at a time."""
PAUSE = 64
"""The number of requests that are read before the event loop may do other work."""

_KIND = ResponseKind.MESSAGE_BATCH


async def create(app: App, wire: CreateMessageBatch, owner: str) -> ResponseRecord:
    """Store a batch for some worker to answer. Raises RequestError."""
    check_ids(wire)
    batch_id, now, contents = random_id(PREFIX, 24), time.time(), app.contents(owner)
    for index, request in enumerate(wire.requests):
        params = with_changed_tokens(request.params, app.seal(owner))
        request.params = await _with_references(
            params, contents, batch_id, f"requests[{index}].params.messages"
        )
        if index % PAUSE == 0:
            await asyncio.sleep(0)
    record = ResponseRecord(
        id=batch_id,
        owner=owner,
        kind=_KIND,
        created_at=now,
        status=ResponseStatus.QUEUED,
        model="",
        request=msgspec.json.encode(wire),
        body=msgspec.json.encode(BatchState(RequestCounts(processing=len(wire.requests)))),
        background=True,
        expires_at=now + max(app.settings.keep_days * DAY, LIFETIME),
    )
    store = app.storage.store
    await store.usage.check(record.owner, len(record.request), "requests")
    await store.responses.create(record, ())
    return record


async def _with_references(params: Object, contents: Contents, batch_id: str, param: str) -> Object:
    """A request with references in the place of media, which the batch holds. Raises RequestError."""
    messages = params.get("messages")
    if not isinstance(messages, list):
        return params
    stored_messages = [
        await contents.with_references(message, batch_id, param) if isinstance(message, dict) else message
        for message in messages
    ]
    return {**params, "messages": stored_messages}


async def retrieve(app: App, owner: str, batch_id: str) -> ResponseRecord:
    """A batch in its current state. Raises NotFoundError."""
    record = await app.storage.store.responses.get(owner, batch_id, _KIND)
    if record is None:
        raise NotFoundError(f"There is no message batch '{batch_id}'.", param="message_batch_id")
    return record


async def list_batches(app: App, owner: str, paging: Paging) -> Page[ResponseRecord]:
    """Part of the batches of this owner."""
    return await app.storage.store.responses.page(owner, _KIND, paging)


async def cancel(app: App, owner: str, batch_id: str) -> ResponseRecord:
    """Cancel its remaining requests; returns its current state. A batch that has ended is not changed."""
    await retrieve(app, owner, batch_id)
    store = app.storage.store
    record = await store.jobs.request_cancel(owner, batch_id, time.time())
    if record is not None and not record.status.terminal and record.lease is None:
        await store.responses.finish(await end_from_record(store, record, CancelRequestedError(), None))
    return await retrieve(app, owner, batch_id)


async def delete(app: App, owner: str, batch_id: str) -> bytes:
    """Delete a batch that has ended, with its results."""
    await _ended(app, owner, batch_id)
    await app.storage.store.responses.delete(owner, batch_id, _KIND)
    return msgspec.json.encode(DeletedBatch(batch_id))


async def results(app: App, owner: str, batch_id: str) -> AsyncIterator[bytes]:
    """The lines of its results, in pieces. Raises RequestError for a batch that has not ended."""
    record = await _ended(app, owner, batch_id)

    async def pieces() -> AsyncIterator[bytes]:
        seen = -1
        while seen < record.last_seq:
            tail = await app.storage.store.log.events_after(owner, batch_id, seen)
            if tail is None or not tail.entries:
                return
            for entry in tail.entries:
                yield results_in(entry.events)
                seen = entry.last

    return pieces()


def resource_of(record: ResponseRecord, results_url: Callable[[str], str]) -> MessageBatch:
    """A batch as clients see it."""
    state, ended = msgspec.json.decode(record.body, type=BatchState), record.status.terminal
    running = "canceling" if record.cancel_requested else "in_progress"
    return MessageBatch(
        id=record.id,
        processing_status="ended" if ended else running,
        request_counts=state.counts,
        created_at=timestamp(record.created_at),
        expires_at=timestamp(record.created_at + LIFETIME),
        ended_at=_timestamp(state.ended_at),
        cancel_initiated_at=_timestamp(record.cancel_requested_at),
        results_url=results_url(record.id) if ended else None,
    )


def _timestamp(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(seconds)


def shown_page(page: Page[ResponseRecord], results_url: Callable[[str], str]) -> MessageBatchList:
    """Part of the batches as clients see them."""
    batches = [resource_of(record, results_url) for record in page.data]
    first, last = (batches[0].id, batches[-1].id) if batches else (None, None)
    return MessageBatchList(batches, page.has_more, first, last)


async def _ended(app: App, owner: str, batch_id: str) -> ResponseRecord:
    record = await retrieve(app, owner, batch_id)
    if not record.status.terminal:
        message = f"The message batch '{batch_id}' has not ended yet. Wait, or cancel it."
        raise RequestError(message, param="message_batch_id")
    return record


# Jobs of workers


async def prepare(app: App, record: ResponseRecord) -> tuple[Driver, BackgroundJournal]:
    """The driver for the requests of a batch that have no result yet."""
    wire = msgspec.json.decode(record.request, type=CreateMessageBatch)
    recorded = await _recorded(app.storage.store, record)
    projection = BatchProjection((request.custom_id for request in wire.requests), time.time)
    projection.push(0, recorded)
    stored_input = StoredInput(record.id, lambda _: record, ())
    journal = _Journal(app.storage.writer, projection, stored_input, record, ReplayLog())
    source = BatchSource(app, record, _Work(app, record, wire, recorded))
    # The deadline of the server is for one answer.
    return Driver(source, projection, journal), journal


async def _recorded(store: Store, record: ResponseRecord) -> list[BatchResult | CallsBegun]:
    """The log of a batch."""
    log = await store.log.read(record.id) if record.last_seq >= 0 else []
    return [read_entry(line) for entry in log for line in entry.events.split(b"\n")]


async def end_from_record(
    store: Store, record: ResponseRecord, reason: BaseException, worker: str | None
) -> ResponseEnd:
    """The end of a batch that no worker has begun, or continues: its requests are cancelled, or fail."""
    recorded = await _recorded(store, record)
    wire = msgspec.json.decode(record.request, type=CreateMessageBatch)
    projection = BatchProjection((request.custom_id for request in wire.requests), time.time)
    projection.push(0, recorded)
    cancelled, first = isinstance(reason, CancelRequestedError), record.last_seq + 1
    lines = projection.cancel() if cancelled else projection.fail(public_error(reason))
    return ResponseEnd(
        response_id=record.id,
        worker=worker,
        status=ResponseStatus(projection.status),
        body=projection.body(),
        entries=(LogEntry(first, first + len(lines) - 1, b"\n".join(lines)),) if lines else (),
    )


class _Journal(BatchJournal):
    """The journal of a batch, which has ends of its own."""

    end_from_record = staticmethod(end_from_record)


class _Work:
    """The requests of a batch, by their ids. See `app.batch_source.BatchWork`."""

    def __init__(
        self,
        app: App,
        record: ResponseRecord,
        wire: CreateMessageBatch,
        recorded: list[BatchResult | CallsBegun],
    ) -> None:
        self._app = app
        self._owner = record.owner
        self._id = record.id
        self.parallel = PARALLEL
        self.expires_at = record.created_at + LIFETIME
        self.begun = {entry.custom_id: entry.calls for entry in recorded if isinstance(entry, CallsBegun)}
        self._results = {entry.custom_id for entry in recorded if isinstance(entry, BatchResult)}
        self._requests = wire.requests
        self._left = iter([request for request in wire.requests if request.custom_id not in self._results])

    async def next(self) -> BatchRequest | None:
        return next(self._left, None)

    def name(self, request: BatchRequest) -> str:
        return request.custom_id

    def request_id(self, request: BatchRequest) -> str:
        return f"{self._id}/{request.custom_id}"

    async def answer(self, request: BatchRequest, calls: CallJournal) -> BatchResult:
        params = with_changed_tokens(request.params, partial(self._app.sealer.unseal, self._owner))
        wire = decode(msgspec.json.encode(params), CreateMessage)
        check_model(wire.model, self._app.limits)
        wire.stream = None
        body = await body_of(messages.create(self._app, wire, self._owner, journal=calls))
        return self._kept(result_of(request.custom_id, "succeeded", message=Raw(body)))

    def failed(self, request: BatchRequest, error: AntiphonError) -> BatchResult:
        return self._kept(error_result(request.custom_id, error))

    def calls_begin(self, request: BatchRequest, count: int) -> CallsBegun:
        return calls_begun(request.custom_id, count)

    def expire(self) -> list[BatchResult]:
        ids = (request.custom_id for request in self._requests)
        return [result_of(custom_id, "expired") for custom_id in ids if custom_id not in self._results]

    def _kept(self, result: BatchResult) -> BatchResult:
        self._results.add(result.custom_id)
        return result
