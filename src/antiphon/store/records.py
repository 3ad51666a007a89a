"""The records of the store, which are immutable. It does not decode wire JSON, tokens and chunks.

Times are seconds since 1970. An owner is any identity of clients that the caller uses.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Generic, Literal, TypeVar

from msgspec import UNSET, Struct, UnsetType

T = TypeVar("T")


class ResponseStatus(StrEnum):
    """How far a response got. A terminal status never changes."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """The response does not change any more."""
        return self not in (ResponseStatus.QUEUED, ResponseStatus.IN_PROGRESS)


class ResponseKind(StrEnum):
    """What a response answers. Each kind has lists of its own."""

    RESPONSE = "response"
    """A request of the Responses API."""
    MESSAGE_BATCH = "message_batch"
    """The requests of a batch of messages."""
    BATCH = "batch"
    """The lines of a file."""


class Lease(Struct, frozen=True):
    """The holder of a response, and the time until which no other worker may take it over."""

    worker: str
    until: float


class ResponseRecord(Struct, frozen=True, kw_only=True):
    """A response, or something else that is answered and kept like one: the `kind` says which.

    `request` is what is needed to run it again, `body` the last stored response object, both wire JSON.
    `prompt_ids` are packed int32 token ids. `calls_begun` is at least the number of calls of server tools
    that have begun. `last_seq` is the sequence number of the last event in its log, -1 before the first.
    Without `expires_at` it never expires. `cancel_requested_at` is the time of the first cancel call, if it
    is known. `engine_deaths` is how often its engine has died. `successor_id` is the response that begins
    when this one, which was steered, has ended. With `read_until` it is a durable stream in the foreground:
    another worker continues it, and it is cancelled if nobody reads it until then.
    """

    id: str
    owner: str
    created_at: float
    status: ResponseStatus
    model: str
    request: bytes
    body: bytes
    kind: ResponseKind = ResponseKind.RESPONSE
    background: bool = False
    previous_id: str | None = None
    conversation_id: str | None = None
    prompt_ids: bytes | None = None
    calls_begun: int = 0
    cancel_requested: bool = False
    cancel_requested_at: float | None = None
    engine_deaths: int = 0
    lease: Lease | None = None
    last_seq: int = -1
    expires_at: float | None = None
    successor_id: str | None = None
    read_until: float | None = None


class ResponseSummary(Struct, frozen=True):
    """A response in a list."""

    id: str
    created_at: float
    status: ResponseStatus
    model: str
    background: bool


class ItemRecord(Struct, frozen=True):
    """An item of a response or a conversation, or a message of a stored completion.

    `payload` is wire JSON; `tokens` are packed int32 ids, None if they are unknown. `blobs` are the digests
    of those that the payload refers to: they are kept as long as the object that the item belongs to.
    """

    id: str
    type: str
    payload: bytes
    created_at: float
    tokens: bytes | None = None
    blobs: tuple[str, ...] = ()


class LogEntry(Struct, frozen=True):
    """Consecutive events in a response's log, `first` to `last` (sequence numbers, both included).

    `events` are lines of JSON, which the events are read from. `chunks` are the engine's chunks for them,
    opaque; readers of events get them empty.
    """

    first: int
    last: int
    events: bytes
    chunks: bytes = b""


class Append(Struct, frozen=True, kw_only=True):
    """Additions of a worker to its response.

    `worker` is the holder of its lease, None if there is none. `prompt_ids` and `calls_begun` replace the
    stored values, unless they are None.
    """

    response_id: str
    worker: str | None
    entries: tuple[LogEntry, ...] = ()
    prompt_ids: bytes | None = None
    calls_begun: int | None = None


class ResponseEnd(Struct, frozen=True, kw_only=True):
    """The end of a response.

    `worker` is the holder of its lease; None ends it only if there is no lease, as for a queued job.
    `entries` are the last of its log. `conversation` are the items that are added to its conversation, if it
    has one: input, then output.
    """

    response_id: str
    worker: str | None
    status: ResponseStatus
    body: bytes
    output: tuple[ItemRecord, ...] = ()
    entries: tuple[LogEntry, ...] = ()
    conversation: tuple[ItemRecord, ...] = ()


class Verdict(StrEnum):
    """The result of a write to a response. Only an accepted one has changed anything."""

    ACCEPTED = "accepted"
    RESPONSE_BYTES = "response_bytes"
    """Accepted, and now the response has more bytes than the limit of this name: it has to end."""
    STORED_BYTES = "stored_bytes"
    """The same of all that its owner has stored."""
    ALL_STORED_BYTES = "all_stored_bytes"
    """The same of all that all owners have."""
    GONE = "gone"
    """There is no such response; it was deleted."""
    ENDED = "ended"
    """It is terminal; a terminal status is never overwritten."""
    LOST = "lost"
    """Another worker holds its lease, or there is no lease."""
    GAP = "gap"
    """An entry does not begin right after the last one."""

    @property
    def limit(self) -> str | None:
        """The name of the limit that the response is over."""
        limits = (Verdict.RESPONSE_BYTES, Verdict.STORED_BYTES, Verdict.ALL_STORED_BYTES)
        return self.value if self in limits else None

    @property
    def accepted(self) -> bool:
        """It was written."""
        return self is Verdict.ACCEPTED or self.limit is not None


class LogTail(Struct, frozen=True):
    """A response's log from some event on. If `entries` reach `last_seq`, that is all there is so far."""

    status: ResponseStatus
    last_seq: int
    entries: list[LogEntry]


class Heartbeat(Struct, frozen=True):
    """Responses that a worker must stop: those that it has lost, and those that were cancelled.

    Those that were steered it must end as soon as it can. Of those that are `unread` the client has left.
    """

    lost: frozenset[str]
    cancelled: frozenset[str]
    steered: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()


class ConversationRecord(Struct, frozen=True, kw_only=True):
    """A conversation. `metadata` is wire JSON."""

    id: str
    owner: str
    created_at: float
    metadata: bytes


class CompletionRecord(Struct, frozen=True, kw_only=True):
    """A stored chat completion. `body` is wire JSON, `metadata` is for filters of lists."""

    id: str
    owner: str
    created_at: float
    model: str
    body: bytes
    metadata: Mapping[str, str] = {}
    expires_at: float | None = None


class BlobRecord(Struct, frozen=True):
    """Content that an owner has: its SHA-256 in hexadecimal digits, its media type, its size in bytes."""

    digest: str
    media_type: str
    size: int
    created_at: float


class FileRecord(Struct, frozen=True, kw_only=True):
    """A file that a client has uploaded. Its content is the blob of this digest, which it holds by its id."""

    id: str
    owner: str
    created_at: float
    filename: str
    purpose: str
    digest: str
    size: int
    expires_at: float | None = None


class ContainerRecord(Struct, frozen=True, kw_only=True):
    """A container, which expires a number of minutes after its last use.

    `interpreter` is the name of the one that has run its last call: only that one has its variables.
    """

    id: str
    owner: str
    name: str
    created_at: float
    last_active_at: float
    minutes: int
    expires_at: float
    interpreter: str | None = None


class ContainerFileRecord(Struct, frozen=True, kw_only=True):
    """A file of a container, at a path relative to its workspace, written by a `user` or the `assistant`.

    Its content is the blob of this digest, which it holds by its id.
    """

    id: str
    owner: str
    container_id: str
    created_at: float
    path: str
    source: str
    digest: str
    size: int


class IndexStatus(StrEnum):
    """The progress of indexing a file in a vector store. Only the sweep sees deleted ones."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DELETED = "deleted"


class FileCounts(Struct, frozen=True):
    """How many files there are of each status."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


class VectorStoreRecord(Struct, frozen=True, kw_only=True):
    """A vector store. `metadata` is wire JSON. It expires a number of seconds after its last use."""

    id: str
    owner: str
    created_at: float
    name: str
    description: str | None
    metadata: bytes
    expires_after_seconds: int | None
    last_active_at: float
    expires_at: float | None
    counts: FileCounts = FileCounts()
    usage_bytes: int = 0


class VectorStoreChange(Struct):
    """A change of a vector store: fields that are not set are not changed."""

    name: str | UnsetType = UNSET
    metadata: bytes | UnsetType = UNSET
    expires_after_seconds: int | UnsetType | None = UNSET
    last_active_at: float | UnsetType = UNSET
    expires_at: float | UnsetType | None = UNSET


class IndexedFile(Struct, frozen=True, kw_only=True):
    """A file in a vector store, and at the same time the job to index it.

    `id` is that of the file, `key` that of the row: a file that is attached again has another key. `error`
    and `attributes` are wire JSON, sizes of chunks are in tokens.
    """

    key: str
    id: str
    vector_store_id: str
    owner: str
    created_at: float
    status: IndexStatus
    attributes: bytes
    chunk_size: int
    chunk_overlap: int
    batch_id: str | None = None
    error: bytes | None = None
    usage_bytes: int = 0
    attempts: int = 0


class IndexEnd(Struct, frozen=True):
    """How the job of a worker to index a file ends: with this status, which may have an error."""

    worker: str
    key: str
    status: IndexStatus
    error: bytes | None = None


class VectorStoreBatch(Struct, frozen=True, kw_only=True):
    """Files that were attached together."""

    id: str
    vector_store_id: str
    owner: str
    created_at: float
    cancelled: bool = False
    counts: FileCounts = FileCounts()


class NewChunk(Struct, frozen=True):
    """A piece of a file's text, and its terms, joined by spaces.

    `vector` is its embedding by the model `embedded_by`, if there is one: packed floats of 32 bits.
    """

    position: int
    text: str
    terms: str
    embedded_by: str | None = None
    vector: bytes | None = None


class ChunkRecord(Struct, frozen=True):
    """A chunk that was found, with its file."""

    id: int
    file_id: str
    filename: str
    attributes: bytes
    position: int
    text: str
    terms: str


class Postings(Struct, frozen=True):
    """The matches of some terms.

    `total` chunks were searched, with `length` terms together. `counts` are the numbers of chunks with each
    term. `chunks` are the best matches.
    """

    total: int
    length: int
    counts: Mapping[str, int]
    chunks: Sequence[ChunkRecord]


class NewBlob(Struct, frozen=True, kw_only=True):
    """New content: its owner, its holder, and the time until which that holds it (None: forever)."""

    owner: str
    holder: str
    media_type: str
    created_at: float
    expires_at: float | None = None


class CompletionFilter(Struct, frozen=True):
    """Which stored completions a list has: those of the model, with all of the metadata."""

    model: str | None = None
    metadata: Mapping[str, str] = {}


class Paging(Struct, frozen=True):
    """The part of a list to return.

    In `order`, at most `limit` entries after the one named `after`, or the nearest ones before the one named
    `before`. Both names are ids.
    """

    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    before: str | None = None
    limit: int = 20


class Page(Struct, Generic[T], frozen=True):
    """Part of a list, in its order. `has_more`: there is more in the direction of paging."""

    data: list[T]
    has_more: bool


class SweepResult(Struct, frozen=True):
    """How much a sweep deleted."""

    responses: int
    completions: int
    blobs: int = 0
    files: int = 0
    vector_stores: int = 0


class StoreTuning(Struct, frozen=True, kw_only=True):
    """How a store works on its database: what an operator need not set. `core.limits` has the others."""

    chain: int = 10_000
    """The most responses that `previous_id` may link in a row."""
    known_item_bytes: int = 32 * 1024 * 1024
    """The most bytes of items of ended responses that are kept in memory, for what continues them."""
    entries: int = 1000
    """The most log entries that one read of events returns, and the most chunks of a file that one reads."""
    sweep: int = 200
    """The most objects of a sweep, and the most rows of a deleted object, that one transaction deletes."""
    batch: int = 1000
    """The most writes that share a transaction."""
    waiting: int = 10_000
    """The most writes that wait in a queue; further ones wait for a place in it."""
    readers: int = 4
    """The most reads that run at a time."""
    timeout: float = 5.0
    """Seconds until a database that does not answer, or stays locked, is an error."""
    poll: float = 0.25
    """Seconds between polls for writes of other servers, if the database does not notify."""
    longest_poll: float = 0.5
    """The same where no other server writes: each poll wakes the process up. What is done on one server is
    known to all within a second."""
