"""Input for a background response that is being answered, over HTTP: on this server, or on another.

The next response is made at once, and stored with the input. No worker gets it before the one that is
steered has ended; in the transaction of that end it becomes a job like others. So the input is never lost,
whichever server dies when. The worker of the first is told in the way in which it is told of a cancellation.

A response that is steered again has a successor already: then that one is steered, and ends when it begins.
"""

import asyncio
import time
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.apis.media import with_sources
from antiphon.apis.responses.input import complete, parse_input, to_stored
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.steering import (
    COMPLETED,
    NOT_ACTIVE,
    NOT_FOUND,
    NOT_SUPPORTED,
    TOO_MANY,
    Steer,
    SteerResponse,
    check_input,
    check_steerable,
    joined,
    steering_error,
    successor,
)
from antiphon.app.app import App
from antiphon.app.ids import random_id
from antiphon.app.journal import as_records
from antiphon.core.errors import NotFoundError
from antiphon.core.limits import DAY
from antiphon.store.records import Append, ItemRecord, LogEntry, ResponseRecord, ResponseStatus

_UNSET_AT_START = ("completed_at", "error", "incomplete_details", "usage")
_OF_THE_END = ("generations", "notes", "required_input", "unmet")
"""Fields of a response object that the next one does not have."""


async def steer(app: App, owner: str, response_id: str, wire: SteerResponse) -> bytes:
    """Give input to a background response that is being answered. Raises RequestError."""
    check_input(wire.input)
    store, limit, target = app.storage.store, app.limits.pending_steers, response_id
    for _ in range(limit):
        record = await store.responses.get(owner, target)
        _check(record, response_id, first=target == response_id)
        assert record is not None
        if record.successor_id is not None:
            target = record.successor_id
            continue
        following, items = await _following(app, record, wire)
        entry = LogEntry(0, 1, b"\n".join(_begun(following.body)))
        # At the same time: the store puts both into one transaction.
        state, _verdicts = await asyncio.gather(
            store.jobs.steer(target, following, items),
            store.log.append(Append(response_id=following.id, worker=None, entries=(entry,))),
        )
        if state is not None and state.successor_id == following.id:
            return msgspec.json.encode(Steer(random_id("steer_", 48), target, following.id))
    message = f"{limit} inputs wait for this response to end, the limit 'pending_steers'. Wait until it has."
    raise steering_error(TOO_MANY, message, "response_id")


def _check(record: ResponseRecord | None, response_id: str, *, first: bool) -> None:
    """Refuse to steer a response. Raises RequestError."""
    param = "response_id"
    if record is None and first:
        message = f"Response with id '{response_id}' not found."
        raise NotFoundError(message, param=param, code=NOT_FOUND)
    if record is None:
        raise steering_error(NOT_ACTIVE, "The response that follows this one was deleted.", param)
    if not record.background:
        message = (
            "Only background responses can be steered here, and others on the WebSocket of their client."
        )
        raise steering_error(NOT_SUPPORTED, message, param)
    if record.status.terminal:
        code = COMPLETED if record.status is ResponseStatus.COMPLETED else NOT_ACTIVE
        next_id = record.successor_id
        others = f" '{next_id}' follows it." if next_id else " Send the input with 'previous_response_id'."
        raise steering_error(code, f"The response has ended, and is {record.status}.{others}", param)


async def _following(
    app: App, record: ResponseRecord, wire: SteerResponse
) -> tuple[ResponseRecord, tuple[ItemRecord, ...]]:
    """The row of the response after this one, and its input."""
    request = msgspec.json.decode(record.request, type=CreateResponse)
    check_steerable(request)
    new_id, now = random_id("resp_", 48), time.time()
    request = successor(request, record.id, [wire.input])
    contents = app.contents(record.owner)
    items = await contents.keep(to_stored(complete(parse_input(request.input), new_id)), new_id, "input")
    given = [with_sources(item, contents.reference_of) for item in joined([wire.input])]
    response = ResponseRecord(
        id=new_id,
        owner=record.owner,
        created_at=now,
        status=ResponseStatus.QUEUED,
        model=record.model,
        request=msgspec.json.encode(replace(request, input=given)),
        body=_queued(record, new_id, now),
        background=True,
        previous_id=record.id,
        expires_at=now + app.settings.keep_days * DAY,
    )
    return response, as_records(items)


def _queued(record: ResponseRecord, new_id: str, now: float) -> bytes:
    """The body of the response after this one: it has the same settings."""
    body: dict[str, Any] = msgspec.json.decode(record.body)
    body |= {"id": new_id, "created_at": int(now), "status": "queued", "output": []}
    body |= dict.fromkeys(_UNSET_AT_START) | {"previous_response_id": record.id}
    return msgspec.json.encode({name: value for name, value in body.items() if name not in _OF_THE_END})


def _begun(body: bytes) -> list[bytes]:
    """The first events of a queued response; its worker makes them again, and does not store them."""
    response = msgspec.Raw(body)
    return [
        msgspec.json.encode({"type": type_, "sequence_number": number, "response": response})
        for number, type_ in enumerate(("response.created", "response.queued"))
    ]
