"""Message batches: many requests, answered in the background, with a line of JSON for the result of each."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from antiphon.apis.messages.errors import encode_error
from antiphon.apis.request_object import Object
from antiphon.core.errors import AntiphonError, RequestError

MAX_REQUESTS = 100_000
"""The most requests of one batch, as in Anthropic's API."""
LIFETIME = 24 * 60 * 60.0
"""Seconds after which requests without an answer have expired."""


class BatchRequest(Struct):
    """One of the requests: its errors are in its result."""

    custom_id: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    params: Object


class CreateMessageBatch(Struct):
    """POST /v1/messages/batches."""

    requests: Annotated[list[BatchRequest], Meta(min_length=1, max_length=MAX_REQUESTS)]


class RequestCounts(Struct, kw_only=True):
    """The number of requests by result. All are counted as processing until each has a result."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class BatchState(Struct):
    """The stored state of a batch, besides its requests and results."""

    counts: RequestCounts
    ended_at: float | None = None


class MessageBatch(Struct, tag_field="type", tag="message_batch", kw_only=True):
    """The current state of a batch."""

    id: str
    processing_status: str
    request_counts: RequestCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    results_url: str | None
    cancel_initiated_at: str | None = None
    archived_at: None = None


class MessageBatchList(Struct):
    """Part of the batches of a key, the newest first."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedBatch(Struct, tag_field="type", tag="message_batch_deleted"):
    """There is no such batch any more."""

    id: str


class BatchResult(NamedTuple):
    """The result of a request: the name of its counter, and the line of JSON."""

    kind: str
    custom_id: str
    line: bytes


class CallsBegun(NamedTuple):
    """A request has begun this total number of calls of server tools."""

    custom_id: str
    calls: int
    line: bytes


class _Line(Struct):
    custom_id: str
    result: dict[str, Any]


class _BegunLine(Struct):
    calls_begun: int
    custom_id: str


_BEGUN = b'{"calls_begun":'
"""The beginning of such a line, which no result has."""


def result_of(custom_id: str, kind: str, **fields: Any) -> BatchResult:
    """The result of a request."""
    return BatchResult(kind, custom_id, msgspec.json.encode(_Line(custom_id, {"type": kind, **fields})))


def error_result(custom_id: str, error: AntiphonError) -> BatchResult:
    """The result of a request that failed."""
    return result_of(custom_id, "errored", error=Raw(encode_error(error)))


def calls_begun(custom_id: str, count: int) -> CallsBegun:
    """The line that is stored before the last of `count` calls begins."""
    return CallsBegun(custom_id, count, msgspec.json.encode(_BegunLine(count, custom_id)))


def read_entry(line: bytes) -> BatchResult | CallsBegun:
    """Parse a stored line."""
    if line.startswith(_BEGUN):
        calls = msgspec.json.decode(line, type=_BegunLine)
        return CallsBegun(calls.custom_id, calls.calls_begun, line)
    read = msgspec.json.decode(line, type=_Line)
    return BatchResult(read.result["type"], read.custom_id, line)


def results_in(lines: bytes) -> bytes:
    """Those of the lines that are results, each with its end."""
    return b"".join(line + b"\n" for line in lines.split(b"\n") if not line.startswith(_BEGUN))


def check_ids(batch: CreateMessageBatch) -> None:
    """Raise RequestError if two requests have the same id: their results could not be assigned."""
    seen: set[str] = set()
    for index, request in enumerate(batch.requests):
        if request.custom_id in seen:
            param = f"requests[{index}].custom_id"
            message = f"Invalid value for '{param}': Another request has it. Give each its own."
            raise RequestError(message, param=param)
        seen.add(request.custom_id)


def timestamp(seconds: float) -> str:
    """A time as RFC 3339 has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class BatchProjection:
    """Results → lines for the log, and the state of the batch. See `run.drive.Projection`.

    Requests without a result when the batch ends get one: they were cancelled, or failed with the batch.
    """

    items: Sequence[Any] = ()
    frame = None

    def __init__(self, ids: Iterable[str], clock: Callable[[], float]) -> None:
        self._left = dict.fromkeys(ids)
        self._counts = RequestCounts(processing=len(self._left))
        self._clock = clock
        self.status = "in_progress"

    def set_prompts(self, prompts: Sequence[Any]) -> None:
        """Each request has its own."""

    def begin(self) -> list[bytes]:
        """There is nothing before the first result."""
        return []

    def push(self, choice: int, entries: Sequence[BatchResult | CallsBegun]) -> list[bytes]:
        """The lines of these results, and of calls that begin."""
        counts = self._counts
        for entry in entries:
            if isinstance(entry, BatchResult):
                del self._left[entry.custom_id]
                counts.processing -= 1
                setattr(counts, entry.kind, getattr(counts, entry.kind) + 1)
        return [entry.line for entry in entries]

    def delta_encoder(self, choice: int, delta: type[Any]) -> None:
        """Results have no deltas."""

    def recording_encoder(self, texts: list[str]) -> None:
        """See `delta_encoder`."""

    def finish(self) -> list[bytes]:
        """Each request has its result."""
        self.status = "completed"
        return []

    def fail(self, error: AntiphonError) -> list[bytes]:
        """The remaining requests fail with the batch."""
        self.status = "failed"
        return self.push(0, [error_result(custom_id, error) for custom_id in self._left])

    def cancel(self) -> list[bytes]:
        """The remaining requests are cancelled."""
        self.status = "cancelled"
        return self.push(0, [result_of(custom_id, "canceled") for custom_id in self._left])

    def body(self) -> bytes:
        """The state of the batch."""
        ended = None if self.status == "in_progress" else self._clock()
        return msgspec.json.encode(BatchState(self._counts, ended))
