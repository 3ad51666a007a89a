"""What can be made of a response's row alone: the response as it is now, and its end."""

from typing import Any

import msgspec

from antiphon.app.log_writer import LogWriter
from antiphon.core.errors import public_error
from antiphon.log import log_failure
from antiphon.run.endings import CancelRequestedError
from antiphon.store.records import LogEntry, ResponseEnd, ResponseRecord, ResponseStatus


def current_body(record: ResponseRecord) -> bytes:
    """The response object as it is now: of one that is running, with the items that are done."""
    return record.body if record.status.terminal else msgspec.json.encode(_so_far(record))


def _so_far(record: ResponseRecord) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(record.body)
    done = [item for item in body["output"] if item.get("status") != ResponseStatus.IN_PROGRESS]
    return body | {"status": record.status, "output": done}


async def finish_from_record(writer: LogWriter, record: ResponseRecord, reason: BaseException) -> None:
    """End a response that this server holds, and of which nothing but the row is known."""
    log_failure(reason)
    await writer.store.responses.finish(end_from_record(record, reason, worker=writer.worker))


def end_from_record(record: ResponseRecord, reason: BaseException, worker: str | None) -> ResponseEnd:
    """How a response ends that was cancelled, or failed. An item that was begun stays unfinished."""
    if isinstance(reason, CancelRequestedError):
        response = _so_far(record) | {"status": ResponseStatus.CANCELLED}
        events: list[tuple[str, dict[str, Any]]] = [("response.incomplete", {"response": response})]
    else:
        error = public_error(reason)
        fields = {"code": error.code, "message": error.message, "param": error.param}
        response = _so_far(record) | {
            "status": ResponseStatus.FAILED,
            "error": {"code": "server_error", "message": error.message},
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
    )
