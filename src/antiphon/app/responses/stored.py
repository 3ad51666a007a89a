"""Stored responses: their current state, events and input items; cancelled and deleted."""

import asyncio
import time

import msgspec

from antiphon.apis.lists import encode_objects, encode_stored
from antiphon.apis.responses.errors import encode_stream_error
from antiphon.apis.responses.resource import DeletedResponse, ListedResponse
from antiphon.app.app import App
from antiphon.app.attachments import shown_page
from antiphon.app.log_source import LogProjection, LogSource
from antiphon.app.responses.record import current_body, end_from_record
from antiphon.core.errors import NotFoundError, RequestError
from antiphon.run.drive import Driver, Output
from antiphon.run.endings import CancelRequestedError
from antiphon.store.records import ItemRecord, Page, Paging, ResponseRecord
from antiphon.store.store import events_of

CANCEL_TIMEOUT = 10.0
"""Seconds that a cancelled response may take to end before its client gets its current state."""


async def list_responses(app: App, owner: str, background: bool | None, paging: Paging) -> bytes:
    """A page of the responses of this owner, without their content; `background` is an optional filter."""
    page = await app.storage.store.responses.summaries(owner, background, paging)
    entries = [
        ListedResponse(summary.id, int(summary.created_at), summary.status, summary.model, summary.background)
        for summary in page.data
    ]
    return encode_objects(entries, has_more=page.has_more)


async def retrieve(app: App, owner: str, response_id: str) -> bytes:
    """The response in its current state. Raises NotFoundError."""
    return await current_body(app.storage.store, await _get(app, owner, response_id))


async def events(app: App, owner: str, response_id: str, after: int) -> Driver:
    """The driver for the stored events after sequence number `after`, for a reader. Raises RequestError."""
    record = await _get(app, owner, response_id)
    if record.last_seq < 0 and record.status.terminal:
        message = "This response was not streamed, so it has no events. Leave out 'stream'."
        raise RequestError(message, param="stream")
    if record.read_until is not None and not record.status.terminal:
        return Driver(ReadSource(app.storage.writer, owner, response_id, after), _projection())
    return log_driver(app, owner, response_id, after)


class ReadSource(LogSource):
    """The log of a durable stream, whose reader keeps it from being cancelled. See `Source`."""

    async def run(self, output: Output) -> None:
        with self._writer.readers.reading(self._id):
            await super().run(output)


def log_driver(app: App, owner: str, response_id: str, after: int = -1) -> Driver:
    """Drives the log of a stored response to a reader."""
    return Driver(LogSource(app.storage.writer, owner, response_id, after), _projection())


def _projection() -> LogProjection:
    return LogProjection(encode_stream_error)


async def delete(app: App, owner: str, response_id: str) -> bytes:
    """Delete a response, with its items and events. If it is running, it stops."""
    if not await app.storage.store.responses.delete(owner, response_id):
        raise _not_found(response_id)
    app.traces.forget(owner, response_id)
    return msgspec.json.encode(DeletedResponse(response_id))


async def cancel(app: App, owner: str, response_id: str) -> bytes:
    """Cancel a background response and wait until it ends; returns its body. An ended one is not changed."""
    store = app.storage.store
    if not (await _get(app, owner, response_id)).background:
        message = "Only background responses can be cancelled. Close the connection of others."
        raise RequestError(message, param="response_id")
    with store.watch(events_of(response_id)) as watch:
        record = await store.jobs.request_cancel(owner, response_id, time.time())
        # No worker has it. A worker is notified by the watch, or when it renews the lease.
        if record is not None and not record.status.terminal and record.lease is None:
            await store.responses.finish(await end_from_record(store, record, CancelRequestedError(), None))
        deadline = asyncio.get_running_loop().time() + CANCEL_TIMEOUT
        while True:
            record = await _get(app, owner, response_id)
            left = deadline - asyncio.get_running_loop().time()
            if record.status.terminal or left <= 0:
                return await current_body(store, record)
            await watch.changed(left)


async def list_input_items(app: App, owner: str, response_id: str, paging: Paging) -> bytes:
    """A page of the input of a response. Raises NotFoundError."""
    await _get(app, owner, response_id)
    store = app.storage.store
    page = await store.responses.input_items(owner, response_id, paging)
    return await encode_items(app, await shown_page(store, owner, page, app.limits.page_bytes))


async def encode_items(app: App, page: Page[ItemRecord]) -> bytes:
    """The body of a list of items, which may be large."""
    entries = [(item.id, item.payload) for item in page.data]
    return await app.large.run(lambda: encode_stored(entries, has_more=page.has_more))


async def _get(app: App, owner: str, response_id: str) -> ResponseRecord:
    record = await app.storage.store.responses.get(owner, response_id)
    if record is None:
        raise _not_found(response_id)
    return record


def _not_found(response_id: str) -> NotFoundError:
    return NotFoundError(f"Response with id '{response_id}' not found.", param="response_id")
