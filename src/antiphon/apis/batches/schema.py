"""The wire types of Batches. Names and meanings are those of OpenAI's OpenAPI document."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.apis.request import Metadata
from antiphon.core.limits import DAY, HOUR

WINDOW = DAY
"""Seconds after which lines without an answer have expired: `completion_window` is always `24h`."""

Endpoint = Literal[
    "/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/embeddings", "/v1/decisions"
]
"""The paths whose requests a batch may have."""

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


class OutputExpiresAfter(Struct, frozen=True):
    """When the files with the results are deleted automatically."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=HOUR, le=30 * DAY)]


class CreateBatch(Struct):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiresAfter | None = None


class BatchError(Struct):
    """An error of the file, or of the whole batch. Lines are counted from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(Struct, tag_field="object", tag="list"):
    """The reasons for which nothing was run, or the batch ended early."""

    data: Sequence[BatchError]


class RequestCounts(Struct, frozen=True):
    """How many lines there are, how many have an answer, and how many an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class CachedTokens(Struct):
    """Of the tokens read, those that were in the cache of the model."""

    cached_tokens: int = 0


class ReasoningTokens(Struct):
    """Of the tokens written, those of reasoning."""

    reasoning_tokens: int = 0


class BatchUsage(Struct):
    """The tokens of all lines with an answer."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class Batch(Struct, tag_field="object", tag="batch", kw_only=True):
    """A batch in its current state. Times are in seconds since 1970."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: BatchStatus
    created_at: int
    expires_at: int
    model: str | UnsetType = UNSET
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    usage: BatchUsage | UnsetType = UNSET
    metadata: Metadata | None = None
