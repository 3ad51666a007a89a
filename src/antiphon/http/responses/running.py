"""What can be told of a response, and done to it, while a worker is at it or none is left."""

import asyncio
from typing import Any

import msgspec

from antiphon.core.errors import AntiphonError, NotFoundError
from antiphon.run.worker import LastWords
from antiphon.store.records import Entry, Outcome, ResponseRecord, ResponseStatus
from antiphon.store.store import Store, events_of

CANCEL_PATIENCE = 10.0
"""Seconds that a cancelled response may take to end before its client is told how it is now."""

_Events = list[tuple[str, dict[str, Any]]]
"""Types of events, each with its fields."""


def as_it_is(record: ResponseRecord) -> bytes:
    """The response object as it is now: of one that is running, with the items that are done."""
    return record.body if record.status.terminal else msgspec.json.encode(_so_far(record))


def _so_far(record: ResponseRecord) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(record.body)
    done = [item for item in body["output"] if item.get("status") != ResponseStatus.IN_PROGRESS]
    return body | {"status": record.status, "output": done}


async def cancel(store: Store, record: ResponseRecord) -> bytes:
    """Have a response cancelled, and wait until it is; its body then. One that has ended stays as it is."""
    with store.watch(events_of(record.id)) as watch:
        asked = await store.jobs.request_cancel(record.owner, record.id)
        if asked is not None and not asked.status.terminal and asked.lease is None:
            await _end(store, asked)  # nobody works on it
        patience = asyncio.get_running_loop().time() + CANCEL_PATIENCE
        while True:
            now = await store.responses.get(record.owner, record.id)
            if now is None:
                raise NotFoundError(f"Response with id '{record.id}' not found.", param="response_id")
            left = patience - asyncio.get_running_loop().time()
            if now.status.terminal or left <= 0:
                return as_it_is(now)
            await watch.changed(left)


async def _end(store: Store, record: ResponseRecord) -> None:
    """End a response that was cancelled while no worker was at it."""
    last = cancelled(record)
    first = record.last_seq + 1
    entry = Entry(first, first + len(last.lines) - 1, b"\n".join(last.lines))
    outcome = Outcome(
        response_id=record.id, worker=None, status=last.status, body=last.body, entries=(entry,)
    )
    await store.responses.finish(outcome)


def cancelled(record: ResponseRecord) -> LastWords:
    """The end of a response that is not wanted any more."""
    response = _so_far(record) | {"status": ResponseStatus.CANCELLED}
    return _last_words(record, response, [("response.incomplete", {"response": response})])


def failed(record: ResponseRecord, error: AntiphonError) -> LastWords:
    """The end of a response that cannot be finished."""
    told = {"code": error.code, "message": error.message, "param": error.param}
    response = _so_far(record) | {
        "status": ResponseStatus.FAILED,
        "error": {"code": "server_error", "message": error.message},
    }
    last: _Events = [
        ("error", {**told, "error": {"type": error.type, **told}}),
        ("response.failed", {"response": response}),
    ]
    return _last_words(record, response, last)


def _last_words(record: ResponseRecord, response: dict[str, Any], last: _Events) -> LastWords:
    """The end of a response of which only the record is left: an item that was begun stays unfinished."""
    if record.last_seq < 0:
        last = [("response.created", {"response": response}), *last]
    lines = [
        msgspec.json.encode({"type": type_, "sequence_number": number, **fields})
        for number, (type_, fields) in enumerate(last, record.last_seq + 1)
    ]
    return LastWords(response["status"], msgspec.json.encode(response), lines)
