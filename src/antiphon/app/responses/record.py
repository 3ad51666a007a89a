"""What can be derived from a response's row and its log: its current body, and its end."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from antiphon.apis.framing import event_type
from antiphon.apis.responses.errors import response_error_code
from antiphon.apis.responses.input import listing_of
from antiphon.apis.responses.progress import output_so_far
from antiphon.apis.responses.resource import CANCELLED_DETAILS, ResponseUsage, usage_of
from antiphon.apis.responses.steering import WAITS
from antiphon.apis.responses.stored import unpack
from antiphon.app.event_log import logged_events
from antiphon.app.log_writer import LogWriter
from antiphon.core.chunks import Chunk
from antiphon.core.errors import NotFoundError, public_error
from antiphon.core.events import Usage
from antiphon.core.hosts import Listing
from antiphon.log import log_failure
from antiphon.run.endings import CancelRequestedError, ClientLeftError
from antiphon.run.replay import PromptEntry, read_entries
from antiphon.store.records import (
    ItemRecord,
    LogEntry,
    Paging,
    ResponseEnd,
    ResponseRecord,
    ResponseStatus,
    Verdict,
)
from antiphon.store.store import Store

EndFromRecord = Callable[[Store, ResponseRecord, BaseException, str | None], Awaitable[ResponseEnd]]
"""Makes the end of a job that was cancelled, or failed, from its row and its log, for its worker."""


class RequiredInputError(Exception):
    """The response before this one, which follows by itself, has ended with calls that have no outputs."""

    expected = True  # see `log_failure`

    def __init__(self, required: list[dict[str, Any]]) -> None:
        self.required = required
        super().__init__()


ITEM_DONE = b"response.output_item.done"
"""The type of the event with which an item ends."""


async def log_of(store: Store, record: ResponseRecord) -> list[LogEntry]:
    """The log of a response so far, with its chunks."""
    return await store.log.read(record.id) if record.last_seq >= 0 else []


async def current_body(store: Store, record: ResponseRecord) -> bytes:
    """The current response object: a running one has its items as far as they are stored."""
    if record.status.terminal:
        return record.body
    entries = await log_of(store, record)
    # For a long answer this takes too long for the event loop.
    return msgspec.json.encode(await asyncio.to_thread(_so_far, record, entries))


def recorded_listings(entries: Sequence[LogEntry]) -> Mapping[str, Listing]:
    """The listings of remote servers when a response was begun, by label, for servers that continue it."""
    lines = [line for entry in entries for line in logged_events(entry) if event_type(line) == ITEM_DONE]
    items = [msgspec.json.decode(line)["item"] for line in lines if b'"mcp_list_tools"' in line]
    listings = [listing for item in items if (listing := listing_of(item, known=False)) is not None]
    return {listing.label: listing for listing in listings}


def _so_far(record: ResponseRecord, entries: Sequence[LogEntry]) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(record.body)
    lines = (line for entry in entries for line in logged_events(entry))
    return body | {"status": record.status, "output": output_so_far(lines)}


def _usage(record: ResponseRecord, entries: Sequence[LogEntry]) -> ResponseUsage | None:
    """The tokens of a background response; None if the recorded chunks cannot be read."""
    try:
        recorded = read_entries(entry.chunks for entry in entries)
    except msgspec.MsgspecError:
        return None
    prompts = [unpack(record.prompt_ids or b""), *(e.ids for e in recorded if isinstance(e, PromptEntry))]
    written = sum(len(entry.tokens) for entry in recorded if isinstance(entry, Chunk))
    return usage_of(sum(map(len, prompts)), Usage(written))


async def end_from_record(
    store: Store, record: ResponseRecord, reason: BaseException, worker: str | None
) -> ResponseEnd:
    """The end of a response that was cancelled, or failed. An item that was begun stays incomplete."""
    entries = await log_of(store, record)
    so_far = _so_far(record, entries)
    # An item without an end in the log must not have one in the response: readers would differ.
    so_far["output"] = [item for item in so_far["output"] if isinstance(item, msgspec.Raw)]
    if isinstance(reason, CancelRequestedError | ClientLeftError):
        response = so_far | {
            "status": ResponseStatus.CANCELLED,
            "incomplete_details": CANCELLED_DETAILS,
            "usage": _usage(record, entries),
        }
        events: list[tuple[str, dict[str, Any]]] = [("response.incomplete", {"response": response})]
    elif isinstance(reason, RequiredInputError):
        response = so_far | {
            "status": ResponseStatus.INCOMPLETE,
            "incomplete_details": {"reason": WAITS},
            "required_input": reason.required,
        }
        events = [("response.incomplete", {"response": response})]
    else:
        error = public_error(reason)
        fields = {"code": error.code, "message": error.message, "param": error.param}
        response = so_far | {
            "status": ResponseStatus.FAILED,
            "error": {"code": response_error_code(error), "message": error.message},
        }
        events = [
            ("error", {**fields, "error": {"type": error.type, **fields}}),
            ("response.failed", {"response": response}),
        ]
    if record.last_seq < 0:
        events = [("response.created", {"response": response}), *events]
    first = record.last_seq + 1
    lines = [
        msgspec.json.encode({"type": type_, "sequence_number": number, **fields})
        for number, (type_, fields) in enumerate(events, first)
    ]
    return ResponseEnd(
        response_id=record.id,
        worker=worker,
        status=response["status"],
        body=msgspec.json.encode(response),
        entries=(LogEntry(first, first + len(lines) - 1, b"\n".join(lines)),),
        conversation=() if record.conversation_id is None else await _input_of(store, record),
    )


async def finish_from_record(
    writer: LogWriter, record: ResponseRecord, reason: BaseException, end: EndFromRecord = end_from_record
) -> Verdict:
    """End a job that this server holds, from its row and its log alone."""
    log_failure(reason)
    return await writer.store.responses.finish(await end(writer.store, record, reason, writer.worker))


async def _input_of(store: Store, record: ResponseRecord) -> tuple[ItemRecord, ...]:
    """The input of a response, which its conversation gets however it ends."""
    items: list[ItemRecord] = []
    after, more = None, True
    with suppress(NotFoundError):  # it was deleted
        while more:
            page = await store.responses.input_items(record.owner, record.id, Paging("asc", after))
            items += page.data
            after, more = items[-1].id if items else None, page.has_more
    return (*items,)
