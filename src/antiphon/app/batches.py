"""Batches without HTTP: created, retrieved, listed and cancelled. A batch is a background job of the store.

The whole file is checked before a batch is created: if any line is wrong, the batch has failed at once, with
a list of all errors, and nothing is run. How its lines are answered: `app/batch_work.py`.
"""

import time

import msgspec

from antiphon.apis.batches.lines import Expected, LineScanner
from antiphon.apis.batches.results import BatchState, StoredBatch, resource
from antiphon.apis.batches.schema import WINDOW, Batch, BatchError, CreateBatch
from antiphon.apis.lists import encode_objects
from antiphon.app import decisions, files
from antiphon.app.app import App
from antiphon.app.batch_work import end_from_record, progress_of, scan
from antiphon.app.ids import random_id
from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import DAY, HOUR
from antiphon.run.endings import CancelRequestedError
from antiphon.store.files import missing_file
from antiphon.store.records import FileRecord, Paging, ResponseKind, ResponseRecord, ResponseStatus

PREFIX = "batch_"
PURPOSE = "batch"
_KIND = ResponseKind.BATCH
_FILE = "input_file_id"
_DECISIONS = "/v1/decisions"


async def create(app: App, owner: str, wire: CreateBatch) -> bytes:
    """Check a file, and store a batch of its lines for some worker to answer. Raises RequestError."""
    file = await _file(app, owner, wire.input_file_id)
    batch_id, now = random_id(PREFIX, 32), time.time()
    blobs = app.storage.store.blobs
    # The file may be deleted as soon as the batch exists.
    if not await blobs.hold(owner, file.digest, batch_id, now + WINDOW + HOUR):
        raise missing_file(file.id, _FILE)
    try:
        scanner = await scan(app, owner, file.digest, _expected(app, wire))
        model, errors = scanner.model or "", scanner.errors
        try:
            model = _model(app, wire, scanner)
        except RequestError as error:
            errors.append(BatchError(error.code or "model_not_found", error.message, "body.model"))
        stored = StoredBatch(wire, model, file.digest, len(scanner), app.settings.keep_days * DAY)
        record = _record(owner, batch_id, now, stored, errors)
        await app.storage.store.usage.check(owner, len(record.body), _FILE)
        await app.storage.store.responses.create(record, ())
        if errors:
            await blobs.release(owner, batch_id)
    except BaseException:
        await blobs.release(owner, batch_id)
        raise
    return msgspec.json.encode(await _shown(app, record))


async def _file(app: App, owner: str, file_id: str) -> FileRecord:
    """The file of a batch. Raises RequestError."""
    try:
        file = await files.find(app, owner, file_id)
    except NotFoundError as error:
        error.param = _FILE
        raise
    if file.purpose != PURPOSE:
        message = f"The file has the purpose '{file.purpose}'. Upload it with the purpose '{PURPOSE}'."
        raise RequestError(message, param=_FILE)
    return file


def _expected(app: App, wire: CreateBatch) -> Expected:
    """What the lines of the file have to be."""
    # Decisions may leave the model to the server.
    model = app.models.default or ("" if wire.endpoint == _DECISIONS else None)
    return Expected(wire.endpoint, app.limits.batch_lines, app.limits.body_bytes, model)


def _model(app: App, wire: CreateBatch, scanner: LineScanner) -> str:
    """The name of the model of the lines. Raises RequestError: there is none, or the key may not use it."""
    name = scanner.model or ""
    if wire.endpoint == _DECISIONS:  # which may name whichever model decides
        name = decisions.model_name(app, name)
    if name:  # else no line is right
        app.models.entry(name)
    return name


def _record(
    owner: str, batch_id: str, now: float, stored: StoredBatch, errors: list[BatchError]
) -> ResponseRecord:
    state = BatchState("failed", now, errors=errors) if errors else BatchState()
    return ResponseRecord(
        id=batch_id,
        owner=owner,
        kind=_KIND,
        created_at=now,
        status=ResponseStatus.FAILED if errors else ResponseStatus.QUEUED,
        model=stored.model,
        request=msgspec.json.encode(stored),
        body=msgspec.json.encode(state),
        background=True,
        expires_at=now + max(stored.keep_seconds, 2 * WINDOW),
    )


async def retrieve(app: App, owner: str, batch_id: str) -> bytes:
    """A batch in its current state. Raises NotFoundError."""
    return msgspec.json.encode(await _shown(app, await _find(app, owner, batch_id)))


async def list_batches(app: App, owner: str, paging: Paging) -> bytes:
    """Part of the batches of this owner, the newest first. Raises NotFoundError for ids in `paging`."""
    page = await app.storage.store.responses.page(owner, _KIND, paging)
    return encode_objects([await _shown(app, record) for record in page.data], has_more=page.has_more)


async def cancel(app: App, owner: str, batch_id: str) -> bytes:
    """Answer no more of its lines. Raises RequestError for a batch that has ended otherwise."""
    record = await _find(app, owner, batch_id)
    if record.status.terminal and record.status is not ResponseStatus.CANCELLED:
        shown = await _shown(app, record)
        message = f"The batch has ended: its status is '{shown.status}'. Only one that runs can be cancelled."
        raise RequestError(message, param="batch_id")
    store = app.storage.store
    now = await store.jobs.request_cancel(owner, batch_id, time.time())
    if now is not None and not now.status.terminal and now.lease is None:
        await store.responses.finish(await end_from_record(store, now, CancelRequestedError(), None))
        await store.blobs.release(owner, batch_id)
    return await retrieve(app, owner, batch_id)


async def _find(app: App, owner: str, batch_id: str) -> ResponseRecord:
    record = await app.storage.store.responses.get(owner, batch_id, _KIND)
    if record is None:
        raise NotFoundError(f"There is no batch '{batch_id[:64]}'.", param="batch_id")
    return record


async def _shown(app: App, record: ResponseRecord) -> Batch:
    """A batch as clients see it."""
    stored = msgspec.json.decode(record.request, type=StoredBatch)
    state = msgspec.json.decode(record.body, type=BatchState)
    if not record.status.terminal:
        state.progress = await progress_of(app.storage.store, record)
        if record.cancel_requested:
            state.status = "cancelling"
        elif state.progress.finalizing_at is not None:
            state.status = "finalizing"
        elif record.status is ResponseStatus.IN_PROGRESS:
            state.status = "in_progress"
    times = (record.created_at, record.created_at + WINDOW, record.cancel_requested_at)
    return resource(record.id, times, stored, state)
