"""Records for tests of the store, and how they wait."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from antiphon.store.records import (
    Append,
    CompletionRecord,
    ConversationRecord,
    ItemRecord,
    Lease,
    LogEntry,
    ResponseEnd,
    ResponseRecord,
    ResponseStatus,
)
from antiphon.store.store import Store

TIMEOUT = 30.0
"""Seconds until a condition that must come true counts as missed."""

OWNER = "alice"
NOW = 1000.0
TERMINAL = [status for status in ResponseStatus if status.terminal]

Opener = Callable[..., Awaitable[Store]]


def item(name: str, **changes: Any) -> ItemRecord:
    payload = msgspec.json.encode({"id": name, "type": "message"})
    return msgspec.structs.replace(ItemRecord(name, "message", payload, NOW), **changes)


def items(*names: str) -> tuple[ItemRecord, ...]:
    return tuple(map(item, names))


def names(records: Sequence[ItemRecord]) -> list[str]:
    return [record.id for record in records]


def response(name: str = "resp_1", **changes: Any) -> ResponseRecord:
    record = ResponseRecord(
        id=name,
        owner=OWNER,
        created_at=NOW,
        status=ResponseStatus.IN_PROGRESS,
        model="m",
        request=b'{"input":"hi"}',
        body=b'{"status":"in_progress"}',
    )
    return msgspec.structs.replace(record, **changes)


def leased(
    name: str = "resp_1", worker: str = "w", until: float = NOW + 10, **changes: Any
) -> ResponseRecord:
    return response(name, lease=Lease(worker, until), **changes)


def ended(name: str = "resp_1", **changes: Any) -> ResponseRecord:
    return response(name, **{"status": ResponseStatus.COMPLETED, **changes})


def job(name: str = "resp_1", **changes: Any) -> ResponseRecord:
    return response(name, **{"status": ResponseStatus.QUEUED, "background": True, **changes})


def conversation(name: str = "conv_1", **changes: Any) -> ConversationRecord:
    record = ConversationRecord(id=name, owner=OWNER, created_at=NOW, metadata=b"{}")
    return msgspec.structs.replace(record, **changes)


def completion(name: str = "chat_1", **changes: Any) -> CompletionRecord:
    record = CompletionRecord(id=name, owner=OWNER, created_at=NOW, model="m", body=b"{}")
    return msgspec.structs.replace(record, **changes)


def entry(first: int, last: int | None = None, chunks: bytes = b"\x00\xff") -> LogEntry:
    last = first if last is None else last
    events = b"\n".join(b'{"sequence_number":%d}' % seq for seq in range(first, last + 1))
    return LogEntry(first, last, events, chunks)


def append(*entries: LogEntry, name: str = "resp_1", worker: str | None = "w", **values: Any) -> Append:
    return Append(response_id=name, worker=worker, entries=entries, **values)


def response_end(name: str = "resp_1", worker: str | None = "w", **changes: Any) -> ResponseEnd:
    end = ResponseEnd(
        response_id=name, worker=worker, status=ResponseStatus.COMPLETED, body=b'{"status":"completed"}'
    )
    return msgspec.structs.replace(end, **changes)


async def woken(waiting: Any) -> bool:
    """Whether a watch reports a change; it has long enough to."""
    return bool(await waiting.changed(TIMEOUT))


async def quiet(waiting: Any) -> bool:
    """Whether a watch reports nothing."""
    return not await waiting.changed(0)
