"""The results of a batch: lines of its files, lines of its log, and how far it is.

Each line of the log has the whole progress until then, so that the last one says how far a running batch is.
It has the result of a line of the file, or the number of calls of server tools that such a line has begun,
or neither.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.apis.batches.schema import (
    Batch,
    BatchError,
    BatchErrors,
    BatchStatus,
    BatchUsage,
    CachedTokens,
    CreateBatch,
    ReasoningTokens,
    RequestCounts,
)
from antiphon.core.errors import AntiphonError

# The lines of the files


class _Answer(Struct):
    """The answer to the request of a line, as over HTTP."""

    status_code: int
    request_id: str
    body: Raw


class _Failure(Struct):
    """Why a line was not answered."""

    code: str
    message: str


class _Result(Struct):
    id: str
    custom_id: str
    response: _Answer | None
    error: _Failure | None = None


_encode = msgspec.json.Encoder().encode
_NOT_IN_TIME = _Failure(
    "batch_expired", "This request could not be executed before the completion window expired."
)


def answered(request_id: str, custom_id: str, status: int, body: bytes) -> bytes:
    """The line for a request that was answered, if only with an error of HTTP."""
    return _encode(_Result(request_id, custom_id, _Answer(status, request_id, Raw(body))))


def expired(request_id: str, custom_id: str) -> bytes:
    """The line for a request that was not answered in time."""
    return _encode(_Result(request_id, custom_id, None, _NOT_IN_TIME))


# The progress


class Progress(Struct, array_like=True):
    """How far a batch is: counts of lines, then of tokens, and the times of its states."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    in_progress_at: float | None = None
    finalizing_at: float | None = None


class _Usage(Struct):
    """The usage in the body of an answer, by either of its names."""

    prompt_tokens: int = 0
    input_tokens: int = 0
    completion_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: CachedTokens | None = None
    input_tokens_details: CachedTokens | None = None
    completion_tokens_details: ReasoningTokens | None = None
    output_tokens_details: ReasoningTokens | None = None


class _Used(Struct):
    usage: _Usage | None = None


_read_usage = msgspec.json.Decoder(_Used).decode


def count_usage(progress: Progress, body: bytes) -> None:
    """Add the tokens of an answer."""
    usage = _read_usage(body).usage
    if usage is None:
        return
    read, written = (
        usage.prompt_tokens_details or usage.input_tokens_details,
        usage.completion_tokens_details or usage.output_tokens_details,
    )
    progress.input_tokens += usage.prompt_tokens or usage.input_tokens
    progress.output_tokens += usage.completion_tokens or usage.output_tokens
    progress.cached_tokens += read.cached_tokens if read else 0
    progress.reasoning_tokens += written.reasoning_tokens if written else 0


class LogLine(Struct, omit_defaults=True):
    """A line of the log of a batch. `line` is the index of a line of the file."""

    progress: Progress
    line: int | None = None
    calls: int | None = None
    failed: bool = False
    result: Raw | UnsetType = UNSET


read_log_line = msgspec.json.Decoder(LogLine).decode


def results_in(events: bytes, *, failed: bool) -> Iterator[bytes]:
    """The results in lines of the log that failed, or those that did not, each with its end."""
    for line in events.split(b"\n"):
        logged = read_log_line(line)
        if logged.result is not UNSET and logged.failed is failed:
            yield bytes(logged.result)
            yield b"\n"


def last_progress(events: bytes) -> Progress:
    """The progress after lines of the log."""
    return read_log_line(events[events.rfind(b"\n") + 1 :]).progress


# What is stored of a batch


class StoredBatch(Struct):
    """A batch as it was created: what was requested, the digest of its file, and the number of lines."""

    wire: CreateBatch
    model: str = ""
    digest: str = ""
    total: int = 0
    keep_seconds: float = 0
    """How long the files with the results are kept."""


class BatchState(Struct):
    """The state of a batch that has ended, or does not run yet."""

    status: BatchStatus = "validating"
    ended_at: float | None = None
    progress: Progress = msgspec.field(default_factory=Progress)
    errors: list[BatchError] = []
    output_file_id: str | None = None
    error_file_id: str | None = None


_ENDED_AT: Mapping[str, str] = {
    "completed": "completed_at", "failed": "failed_at", "expired": "expired_at", "cancelled": "cancelled_at",
}  # fmt: skip
"""The status of a batch that has ended → the field with the time."""


def resource(
    batch_id: str, times: tuple[float, float, float | None], stored: StoredBatch, state: BatchState
) -> Batch:
    """A batch as clients see it, with the times when it was created, expires, and was cancelled."""
    created, expires, cancelling = times
    wire, progress = stored.wire, state.progress
    batch = Batch(
        id=batch_id,
        endpoint=wire.endpoint,
        input_file_id=wire.input_file_id,
        completion_window=wire.completion_window,
        status=state.status,
        created_at=int(created),
        expires_at=int(expires),
        model=stored.model or UNSET,
        errors=BatchErrors(state.errors) if state.errors else None,
        output_file_id=state.output_file_id,
        error_file_id=state.error_file_id,
        in_progress_at=_seconds(progress.in_progress_at),
        finalizing_at=_seconds(progress.finalizing_at),
        cancelling_at=_seconds(cancelling),
        request_counts=RequestCounts(stored.total, progress.completed, progress.failed),
        usage=_usage(progress),
        metadata=wire.metadata,
    )
    if (field := _ENDED_AT.get(state.status)) is not None:
        setattr(batch, field, _seconds(state.ended_at))
    return batch


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)


def _usage(progress: Progress) -> BatchUsage:
    return BatchUsage(
        progress.input_tokens,
        CachedTokens(progress.cached_tokens),
        progress.output_tokens,
        ReasoningTokens(progress.reasoning_tokens),
        progress.input_tokens + progress.output_tokens,
    )


# The log


class Logged(Struct):
    """An entry of the log: the result of a line, or the number of calls that it has begun."""

    line: int
    result: bytes = b""
    failed: bool = False
    body: bytes = b""
    """Of the answer, for its usage."""
    calls: int | None = None


EXPIRED = Logged(-1)
"""In the place of all lines for which there was no time. The log need not have them."""


class BatchLog:
    """Results → lines for the log, and the state of the batch. See `run.drive.Projection`.

    `progress` is that of an earlier worker, `total` the number of lines.
    """

    items: Sequence[Any] = ()
    frame = None

    def __init__(self, progress: Progress, total: int, clock: Callable[[], float]) -> None:
        self.progress = progress
        self._total = total
        self._clock = clock
        self.status = "in_progress"
        self.state = BatchState("in_progress", progress=progress)
        self.expired = False

    def set_prompts(self, prompts: Sequence[Any]) -> None:
        """Each line has its own."""

    def begin(self) -> list[bytes]:
        """A line that says since when the batch is in progress."""
        self.progress.in_progress_at = self.progress.in_progress_at or self._clock()
        return [_encode(LogLine(self.progress))]

    def push(self, choice: int, entries: Sequence[Logged]) -> list[bytes]:
        """The lines of these results, and of calls that begin."""
        if EXPIRED in entries:
            self.expired = True
            return []
        return [self._line(entry) for entry in entries]

    def _line(self, entry: Logged) -> bytes:
        progress = self.progress
        if entry.calls is not None:
            return _encode(LogLine(progress, entry.line, entry.calls))
        if entry.failed:
            progress.failed += 1
        else:
            progress.completed += 1
            count_usage(progress, entry.body)
        return _encode(LogLine(progress, entry.line, None, entry.failed, Raw(entry.result)))

    def delta_encoder(self, choice: int, delta: type[Any]) -> None:
        """Results have no deltas."""

    def recording_encoder(self, texts: list[str]) -> None:
        """See `delta_encoder`."""

    def finalizing(self) -> list[bytes]:
        """A line that says since when the files with the results are being written."""
        self.progress.finalizing_at = self._clock()
        return [_encode(LogLine(self.progress))]

    def finish(self) -> list[bytes]:
        """All lines have a result, or there is no time left for the others."""
        if self.expired:
            self.progress.failed = self._total - self.progress.completed
            self._end("incomplete", "expired")
        else:
            self._end("completed", "completed")
        return []

    def fail(self, error: AntiphonError) -> list[bytes]:
        """No more lines are answered."""
        self._end("failed", "failed")
        self.state.errors.append(_error(error))
        return []

    def cancel(self) -> list[bytes]:
        """The same, because a client has cancelled the batch."""
        self._end("cancelled", "cancelled")
        return []

    def lose(self, error: AntiphonError) -> None:
        """The batch has ended, and its results cannot be stored."""
        self.state.status = "failed"
        self.state.errors.append(_error(error))

    def _end(self, status: str, shown: BatchStatus) -> None:
        self.status, self.state.status = status, shown
        self.state.ended_at = self._clock()

    def body(self) -> bytes:
        """The state of the batch."""
        return _encode(self.state)


def _error(error: AntiphonError) -> BatchError:
    return BatchError(error.code or error.type, error.message, error.param)
