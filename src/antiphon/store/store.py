"""The store's contract: thirteen parts, each a few async methods, of one object that `open_store` returns.

    store.responses      responses with their input and output items
    store.log            the events of a response, as appended by the worker that holds its lease
    store.jobs           background responses: claim, heartbeat, cancel, release
    store.conversations  conversations and their items
    store.completions    stored chat completions and their messages
    store.blobs          content by its digest, kept while it has a holder
    store.files          files that clients have uploaded
    store.vector_stores  files that are indexed, and searched by their terms
    store.containers     places where programs run, and their files
    store.approvals      requests for an approval that were answered
    store.key_limits     what is left of the limits of keys, over all servers
    store.replicas       the work of replicas over all servers, and which are drained
    store.usage          how much each owner has stored

A background response is its row: there is no separate queue.

                              save ──────────────► completed, incomplete, failed, cancelled
    create ──► queued ──claim──► in_progress ──finish──► completed, incomplete, failed, cancelled
                 │                ▲      │
                 │                └claim─┘ once the lease is released or has expired
                 └──────finish (worker None)──► cancelled

Contract, checked by the suite in `tests/contracts/store.py` for every database:

* a method either makes its whole change, atomically, or none;
* writes happen in the order of their calls; those that are called before the
  first has begun (`asyncio.gather(create(…), finish(…))`) share one transaction;
* when a write returns, it survives the end of this process; a write that raised
  StoreError did not happen: repeat it, or report it to the client (if PostgreSQL was lost
  during a commit it may have happened; appends can be repeated safely);
* every failure of the database is a StoreError, and the store works
  again by itself when the database does;
* objects of other owners are not found;
* a page of a list, an object, and the deletion of one cost the same however much is stored; a list by several
  filters looks at a bounded number of rows at a time;
* reads run in fair shares by client, whose name is in `core.limits.CLIENT`;
* a deleted object is not found any more; what belongs to it may be deleted a moment later;
* a log has no gaps, and only the holder of the lease writes to it;
* a terminal status is never overwritten;
* the usage of an owner equals what is stored, for any writes and deletions (`usage.py` says what counts).
"""

from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from antiphon.core.permits import Permits
from antiphon.core.shared_limits import Held, Question, Taken
from antiphon.core.shared_loads import SharedReplicas
from antiphon.store.records import (
    Append,
    BlobRecord,
    ChunkRecord,
    CompletionFilter,
    CompletionRecord,
    ContainerFileRecord,
    ContainerRecord,
    ConversationRecord,
    FileRecord,
    Heartbeat,
    IndexedFile,
    IndexEnd,
    ItemRecord,
    LogEntry,
    LogTail,
    NewBlob,
    NewChunk,
    Page,
    Paging,
    Postings,
    ResponseEnd,
    ResponseKind,
    ResponseRecord,
    ResponseSummary,
    SweepResult,
    VectorStoreBatch,
    VectorStoreChange,
    VectorStoreRecord,
    Verdict,
)
from antiphon.store.watch import WatchesElsewhere

JOBS = "jobs"
"""The topic of jobs that can be claimed."""


INDEXING = "indexing"
"""The topic of files that can be claimed to be indexed."""

REPLICAS = "replicas"
"""The topic of replicas: one was drained or resumed, or a process has begun to tell of its work."""


def events_of(response_id: str) -> str:
    """The topic of a response's log and status: something was appended, or it ended, or was deleted."""
    return f"events:{response_id}"


def cancel_of(response_id: str) -> str:
    """The topic of what its worker has to know: it was cancelled, steered or deleted."""
    return f"cancel:{response_id}"


class Watch(Protocol):
    """Reports that something may have changed since the watch began, or since its last report."""

    async def changed(self, within: float | None = None) -> bool:
        """Wait for a change, at most `within` seconds; returns whether there was one.

        There may be false alarms.
        """
        ...


class Responses(Protocol):
    """Responses, their input items and their output items."""

    async def create(self, record: ResponseRecord, input_items: Sequence[ItemRecord]) -> None:
        """Store a new response. Raises NotFoundError if its conversation does not exist.

        Raises RequestError if there is no room for it. The items are added to the conversation by `finish`.
        """
        ...

    async def save(
        self, record: ResponseRecord, input_items: Sequence[ItemRecord], output: Sequence[ItemRecord]
    ) -> None:
        """Store a new response that has ended: `record` has a terminal status, the last body and no lease.

        All of the items are added to its conversation. Raises NotFoundError if that does not exist. A
        finished answer is stored even if there is no room, here and by `finish`.
        """
        ...

    async def get(
        self, owner: str, response_id: str, kind: ResponseKind = ResponseKind.RESPONSE
    ) -> ResponseRecord | None:
        """The response in its current state; None if the id is of another kind."""
        ...

    async def page(self, owner: str, kind: ResponseKind, paging: Paging) -> Page[ResponseRecord]:
        """Part of what the owner has of a kind, by time. Raises NotFoundError for ids in `paging`."""
        ...

    async def summaries(self, owner: str, background: bool | None, paging: Paging) -> Page[ResponseSummary]:
        """Part of the owner's responses, by time: all, those in the background, or the others.

        Raises NotFoundError for ids in `paging`.
        """
        ...

    async def finish(self, end: ResponseEnd) -> Verdict:
        """End a response: status, body, output, last log entries and its conversation's items, atomically.

        If the conversation was deleted meanwhile, it is left out.
        """
        ...

    async def delete(self, owner: str, response_id: str, kind: ResponseKind = ResponseKind.RESPONSE) -> bool:
        """Delete a response with its items and log; returns whether there was one. Its worker loses it."""
        ...

    async def input_items(self, owner: str, response_id: str, paging: Paging) -> Page[ItemRecord]:
        """The input items of a response. Raises NotFoundError, also for ids in `paging`."""
        ...

    async def items(self, owner: str, item_ids: Collection[str]) -> dict[str, bytes]:
        """The payloads of those of these items that exist, in any response or conversation."""
        ...

    async def history(self, owner: str, response_id: str) -> list[ItemRecord]:
        """All items of the responses that `previous_id` links, oldest first: of each input, then output.

        Raises NotFoundError that names the missing response, be it the last one or an earlier one that was
        deleted; RequestError if there are too many.
        """
        ...


class Log(Protocol):
    """The events of responses."""

    async def append(self, *appends: Append) -> list[Verdict]:
        """Add to the logs of several responses, in one transaction; returns a verdict for each.

        The entries of one Append are accepted together or not at all. If they exceed a limit, the verdict
        names it: then the response has to end. Appending the last entries again is accepted and changes
        nothing, so a write whose result is unknown can be repeated.
        """
        ...

    async def events_after(
        self, owner: str, response_id: str, seq: int, most: int | None = None
    ) -> LogTail | None:
        """The entries with events after `seq` (-1: all), without chunks; None if the response does not exist.

        The first may begin at or before `seq`. At most `StoreTuning.entries` of them, or `most`: there are
        more if the last one does not reach `LogTail.last_seq`.
        """
        ...

    async def read(self, response_id: str) -> list[LogEntry]:
        """The whole log with its chunks, for the worker that takes the response over."""
        ...


class Jobs(Protocol):
    """The leases of workers on jobs.

    `now` and `lease_seconds` are in seconds; a worker's name must be unique for ever.
    """

    async def claim(
        self,
        worker: str,
        now: float,
        lease_seconds: float,
        limit: int,
        kinds: frozenset[ResponseKind] | None = None,
    ) -> list[ResponseRecord]:
        """Take background responses that are queued or have no valid lease any more, of all or these kinds.

        The next is of the owner with the fewest that run; among equals, owners take turns. Those of one owner
        and kind are taken oldest first; kinds take turns, too.
        They are in_progress from now on. One with events in its log was begun by another worker; one with
        `cancel_requested` has only to be finished.
        """
        ...

    async def any_background(self) -> bool:
        """Whether any background response is queued or in progress, on any server.

        If there is none, none can be claimed before `JOBS` is notified.
        """
        ...

    async def claim_abandoned(
        self, worker: str, now: float, lease_seconds: float, limit: int, until: float
    ) -> list[ResponseRecord]:
        """The same for foreground responses whose lease has expired: their server has crashed.

        Those with `read_until` are to be continued, the others to be ended. That time moves on by as much as
        nobody could read them; if they were released, which may be long ago, to `until`.
        A response that was created without a lease is never abandoned.
        """
        ...

    async def heartbeat(
        self, worker: str, response_ids: Collection[str], now: float, lease_seconds: float
    ) -> Heartbeat:
        """Renew leases. Lost, cancelled and steered ones are reported each time until the worker stops.

        So are durable streams that nobody has read until `now`.
        """
        ...

    async def keep(self, until: Mapping[str, float]) -> None:
        """Somebody reads these responses: none that is a durable stream is unread before its time."""
        ...

    async def request_cancel(self, owner: str, response_id: str, now: float) -> ResponseRecord | None:
        """Request a response to be cancelled, again if necessary; returns its current state.

        If it has ended, it is not changed. If no worker has it, the caller must finish it, with worker None;
        otherwise its worker is notified.
        """
        ...

    async def steer(
        self, response_id: str, successor: ResponseRecord, input_items: Sequence[ItemRecord]
    ) -> ResponseRecord | None:
        """Have a response of the same owner end soon, and then the `successor` begin, also if it fails.

        Returns the response in its current state, None if there is none. If it has ended, or has another
        successor, nothing is changed. Otherwise its worker is notified. The successor is a queued job, which
        no worker gets before. Raises RequestError if there is no room for it.
        """
        ...

    async def announce_successor(self, response_id: str, successor_id: str) -> None:
        """Have a response end soon: one with this id, which is not stored yet, will follow it.

        Its worker is notified. If it has ended, or has another successor, nothing is changed.
        """
        ...

    async def count_death(self, worker: str, response_id: str) -> int:
        """The engine of a response has died: returns how often, and 0 if the worker does not hold it."""
        ...

    async def release(self, worker: str) -> None:
        """Release the worker's leases on background responses and durable streams.

        Others can continue them at once.
        """
        ...


class Conversations(Protocol):
    """Conversations. A missing one, or a missing item, is a NotFoundError, unless a method says otherwise."""

    async def create(self, record: ConversationRecord, items: Sequence[ItemRecord]) -> None:
        """Store a new conversation. Raises RequestError beyond its limits."""
        ...

    async def get(self, owner: str, conversation_id: str) -> ConversationRecord | None:
        """The conversation."""
        ...

    async def update(self, owner: str, conversation_id: str, metadata: bytes) -> ConversationRecord:
        """Replace the metadata; returns the conversation."""
        ...

    async def delete(self, owner: str, conversation_id: str) -> bool:
        """Delete a conversation with its items; returns whether there was one. Its responses keep theirs."""
        ...

    async def add(self, owner: str, conversation_id: str, items: Sequence[ItemRecord]) -> None:
        """Append items, consecutively even with concurrent calls.

        Raises RequestError if there is no room for them.
        """
        ...

    async def items(self, owner: str, conversation_id: str, paging: Paging) -> Page[ItemRecord]:
        """Part of its items."""
        ...

    async def history(self, owner: str, conversation_id: str) -> list[ItemRecord]:
        """All of its items, oldest first."""
        ...

    async def item(self, owner: str, conversation_id: str, item_id: str) -> ItemRecord | None:
        """One item; None also if the conversation does not exist."""
        ...

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> ConversationRecord:
        """Delete one item; returns its conversation."""
        ...


class Completions(Protocol):
    """Stored chat completions."""

    async def save(self, record: CompletionRecord, messages: Sequence[ItemRecord]) -> None:
        """Store a completion and the messages that it answered."""
        ...

    async def get(self, owner: str, completion_id: str) -> CompletionRecord | None:
        """The completion."""
        ...

    async def list(self, owner: str, only: CompletionFilter, paging: Paging) -> Page[CompletionRecord]:
        """Part of the owner's completions, by time. Raises NotFoundError for ids in `paging`."""
        ...

    async def update(
        self, owner: str, completion_id: str, metadata: Mapping[str, str], body: bytes
    ) -> CompletionRecord:
        """Replace metadata and body; returns the completion. Raises NotFoundError."""
        ...

    async def delete(self, owner: str, completion_id: str) -> bool:
        """Delete a completion with its messages; returns whether there was one."""
        ...

    async def messages(self, owner: str, completion_id: str, paging: Paging) -> Page[ItemRecord]:
        """Part of its messages. Raises NotFoundError, also for ids in `paging`."""
        ...


class Blobs(Protocol):
    """Content, by the SHA-256 of its bytes, in hexadecimal digits.

    A blob exists while it has a holder: the id of the object that refers to it, a file, a response, a
    conversation. Holders are removed by `release`, when they expire, or, for a response, a conversation or a
    stored completion, when that is deleted. These hold what their items refer to (`ItemRecord.blobs`) from
    the write on that stores the items, which raises NotFoundError if the blob is gone. If an owner stores
    the same content again, there is one blob with two holders.
    """

    async def put(self, new: NewBlob, content: AsyncIterable[bytes] | bytes) -> BlobRecord:
        """Store content, in pieces.

        If the owner has it already, it keeps its media type. Raises RequestError if there is no room for it;
        then, and whenever `content` raises, nothing of it is kept.
        """
        ...

    async def get(self, owner: str, digest: str) -> BlobRecord | None:
        """The blob."""
        ...

    def read(self, owner: str, digest: str, start: int = 0) -> AsyncIterator[bytes]:
        """Its bytes from byte `start` on, in pieces of at most 256 KiB, none if that is beyond its end.

        Raises NotFoundError, also if it is deleted meanwhile.
        """
        ...

    async def hold(self, owner: str, digest: str, holder: str, expires_at: float | None = None) -> bool:
        """Add a holder, or change the time of one; returns whether the blob exists."""
        ...

    async def release(self, owner: str, holder: str) -> None:
        """A holder needs its blobs no more."""
        ...


class Files(Protocol):
    """Files that clients have uploaded."""

    async def create(self, record: FileRecord) -> None:
        """Store the description of a file, whose blob exists, and make it hold the blob.

        Raises NotFoundError if the blob is gone, RequestError if the owner has `Limits.files` of them.
        """
        ...

    async def replace(self, record: FileRecord) -> None:
        """As `create`, in the place of the owner's file with this id, if there is one.

        Another holder has to hold the blob meanwhile.
        """
        ...

    async def get(self, owner: str, file_id: str) -> FileRecord | None:
        """The file."""
        ...

    async def list(self, owner: str, purpose: str | None, paging: Paging) -> Page[FileRecord]:
        """Part of the owner's files, of this purpose or of all, by time. Raises NotFoundError for ids."""
        ...

    async def delete(self, owner: str, file_id: str) -> bool:
        """Delete a file; returns whether there was one."""
        ...


class Containers(Protocol):
    """Containers and their files. Expired ones are not found."""

    async def create(self, record: ContainerRecord) -> None:
        """Store a container. Raises RequestError if the owner has `Limits.containers` of them."""
        ...

    async def get(self, owner: str, container_id: str) -> ContainerRecord | None:
        """The container."""
        ...

    async def list(self, owner: str, name: str | None, paging: Paging) -> Page[ContainerRecord]:
        """Part of the owner's containers, of this name or of all, by time. Raises NotFoundError for ids."""
        ...

    async def use(
        self, owner: str, container_id: str, interpreter: str, now: float
    ) -> ContainerRecord | None:
        """Note that an interpreter runs a call; the container as it was before that."""
        ...

    async def delete(self, owner: str, container_id: str) -> bool:
        """Delete a container with its files; returns whether there was one."""
        ...

    async def put_file(self, record: ContainerFileRecord) -> None:
        """Store a file, whose blob exists, replacing one with the same path, and hold the blob.

        Raises NotFoundError if the container or the blob is gone, RequestError if the container has
        `Limits.container_files`.
        """
        ...

    async def get_file(self, owner: str, container_id: str, file_id: str) -> ContainerFileRecord:
        """A file. Raises NotFoundError."""
        ...

    async def list_files(self, owner: str, container_id: str, paging: Paging) -> Page[ContainerFileRecord]:
        """Part of the files of a container, by time. Raises NotFoundError, also for ids in `paging`."""
        ...

    async def delete_file(self, owner: str, container_id: str, file_id: str) -> None:
        """Delete a file. Raises NotFoundError."""
        ...


class VectorStores(Protocol):
    """Vector stores and their files. A missing one is a NotFoundError, unless a method says otherwise.

    A file in a vector store is a row, and at the same time the job to index it: it is claimed under a lease,
    gets chunks, and is finished. Only completed files are found. Counts and sizes are as of now.
    """

    async def create(self, record: VectorStoreRecord, attached: Sequence[IndexedFile]) -> VectorStoreRecord:
        """Store a new one with these files. Raises RequestError beyond `Limits.vector_stores`."""
        ...

    async def get(self, owner: str, vector_store_id: str) -> VectorStoreRecord | None:
        """The vector store."""
        ...

    async def list(self, owner: str, paging: Paging) -> Page[VectorStoreRecord]:
        """Part of the owner's vector stores, by time."""
        ...

    async def update(self, owner: str, vector_store_id: str, change: VectorStoreChange) -> VectorStoreRecord:
        """Change it; returns its new state."""
        ...

    async def touch(self, owner: str, vector_store_ids: Collection[str], now: float) -> None:
        """Register a use, which postpones their expiry. Missing ones are ignored."""
        ...

    async def delete(self, owner: str, vector_store_id: str) -> bool:
        """Delete one; returns whether there was one. Its files are kept."""
        ...

    async def attach(
        self,
        owner: str,
        vector_store_id: str,
        attached: Sequence[IndexedFile],
        batch: VectorStoreBatch | None = None,
    ) -> None:
        """Attach files of the owner, as a new batch or not.

        A file that is attached already is indexed again.
        """
        ...

    async def file(self, owner: str, vector_store_id: str, file_id: str) -> IndexedFile:
        """A file in it."""
        ...

    async def files(
        self,
        owner: str,
        vector_store_id: str,
        paging: Paging,
        status: str | None = None,
        batch_id: str | None = None,
    ) -> Page[IndexedFile]:
        """Part of its files, or of those of a batch, by time."""
        ...

    async def update_file(
        self, owner: str, vector_store_id: str, file_id: str, attributes: bytes
    ) -> IndexedFile:
        """Replace a file's attributes; returns the file."""
        ...

    async def detach(self, owner: str, vector_store_id: str, file_id: str) -> None:
        """Remove a file."""
        ...

    async def texts(self, owner: str, vector_store_id: str, file_id: str) -> Sequence[str]:
        """The chunks of a file, in order."""
        ...

    async def batch(self, owner: str, vector_store_id: str, batch_id: str) -> VectorStoreBatch:
        """A batch in its current state."""
        ...

    async def cancel_batch(self, owner: str, vector_store_id: str, batch_id: str) -> VectorStoreBatch:
        """Cancel those of its files that are not indexed yet; returns its state."""
        ...

    async def claim(
        self, worker: str, now: float, lease_seconds: float, held: Collection[str] = ()
    ) -> IndexedFile | None:
        """Take a file that waits to be indexed, and delete chunks of an earlier worker.

        Owners have their turns as in `Jobs.claim`. Of those that the worker has `held` until now, leases that
        ran out are renewed. A file that another worker has not given back counts one more of its `attempts`.
        """
        ...

    async def renew(self, worker: str, keys: Collection[str], now: float, lease_seconds: float) -> None:
        """Renew leases, except those that were lost."""
        ...

    async def release(self, worker: str) -> None:
        """Release all leases of the worker, so that others can continue at once."""
        ...

    async def postpone(self, worker: str, key: str, until: float) -> bool:
        """Give a job back that cannot be done now; whether the worker still had it.

        It can be claimed from `until` on. If another worker has taken it, this one is not counted as crashed.
        """
        ...

    async def add_chunks(self, worker: str, key: str, chunks: Sequence[NewChunk]) -> bool:
        """Add chunks; whether the worker still has the job. Raises RequestError beyond `Limits.stored`."""
        ...

    async def finish(self, end: IndexEnd) -> bool:
        """End a job; returns whether the worker still had it. A failed file keeps no chunks."""
        ...

    async def attributes(self, owner: str, vector_store_ids: Sequence[str]) -> dict[str, bytes]:
        """The attributes of all files that can be found, by key."""
        ...

    async def postings(
        self,
        owner: str,
        vector_store_ids: Sequence[str],
        terms: Sequence[str],
        keys: Collection[str] | None = None,
    ) -> Postings:
        """The chunks with at least one of these terms: the best two hundred, approximately ranked by BM25.

        With `keys`, only those of the files with these keys. Missing vector stores are ignored.
        """
        ...

    async def vectors(
        self, owner: str, vector_store_ids: Sequence[str], keys: Collection[str], model: str
    ) -> Sequence[tuple[int, bytes]]:
        """The id and the vector of each chunk, of the files with these keys, that this model has embedded."""
        ...

    async def chunks(self, owner: str, chunk_ids: Sequence[int]) -> Sequence[ChunkRecord]:
        """Those of these chunks that can be found, in no order."""
        ...


class Approvals(Protocol):
    """Requests for an approval that were answered."""

    async def claim(self, owner: str, request_id: str, response_id: str, expires_at: float) -> bool:
        """Register the response that uses an answered request; false if another one has used it.

        The entry is deleted when it has expired.
        """
        ...


class KeyLimits(Protocol):
    """What is left of the limits of keys, over all servers: see `core/shared_limits.py`."""

    async def take(self, server: str, question: Question) -> Taken:
        """Settle what a server has used of a limit, and lend it more."""
        ...

    async def hold(self, server: str, owner: str, limit: int, places: int, seconds: float) -> Held:
        """Have a server hold so many of an owner's places for so long, in place of those before.

        It gets fewer if those of all servers would be more than the limit.
        """
        ...

    async def leave(self, server: str) -> None:
        """Forget a server that stops, and the places that it holds."""
        ...


class Replicas(Protocol):
    """The work of replicas over all servers, and which are drained: see `core/shared_loads.py`."""

    async def tell(
        self, server: str, process: str, loads: Mapping[str, int], *, begins: bool
    ) -> SharedReplicas:
        """Tell of the work of a process by replica, in place of what it told before; and what others told.

        Those are the processes of other servers. If it `begins` to have work, they are notified.
        """
        ...

    async def read(self, server: str) -> SharedReplicas:
        """What others than this server have told, some of it long ago, by processes that were killed."""
        ...

    async def leave(self, process: str) -> None:
        """Forget a process that stops."""
        ...

    async def drain(self, replica: str, by: str, within: float) -> None:
        """Drain a replica at all servers, until it is resumed, unless it is drained; they are notified.

        Raises StoreError if that does not begin within so many seconds: then it is not done later either.
        """
        ...

    async def resume(self, replica: str, within: float) -> None:
        """Resume it at all servers, which are notified. Raises as `drain` does."""
        ...


class StorageUsage(Protocol):
    """How much each owner has stored."""

    async def of(self, owner: str) -> int:
        """The bytes that an owner has stored."""
        ...

    async def check(self, owner: str, adding: int, param: str, conversation_id: str | None = None) -> None:
        """Raise RequestError for `param` if there is no room for these additional bytes of one response.

        If they also go to a conversation, there must be room in it: otherwise the error is about
        `conversation`.
        """
        ...


class Store(Protocol):
    """Everything that lasts."""

    @property
    def responses(self) -> Responses: ...
    @property
    def log(self) -> Log: ...
    @property
    def jobs(self) -> Jobs: ...
    @property
    def conversations(self) -> Conversations: ...
    @property
    def completions(self) -> Completions: ...
    @property
    def blobs(self) -> Blobs: ...
    @property
    def files(self) -> Files: ...
    @property
    def containers(self) -> Containers: ...
    @property
    def vector_stores(self) -> VectorStores: ...
    @property
    def approvals(self) -> Approvals: ...
    @property
    def key_limits(self) -> KeyLimits: ...
    @property
    def replicas(self) -> Replicas: ...
    @property
    def usage(self) -> StorageUsage: ...

    @property
    def permits(self) -> Mapping[str, Permits]:
        """Those of the work that this server has the store do, by its kind."""
        ...

    def watch(self, topic: str) -> AbstractContextManager[Watch]:
        """Watch for changes by any server: `JOBS`, `REPLICAS`, `events_of(id)`, `cancel_of(id)`.

        Watch first, then read: changes in between are reported.
        """
        ...

    async def check_writable(self) -> None:
        """Commit a small write without effect. Raises StoreError, StoreFullError.

        A disk may have room for it, and none for what clients store: for a while after such a failure it is
        taken to be full.
        """
        ...

    async def sweep(self, now: float) -> SweepResult:
        """Delete expired objects, in small transactions."""
        ...

    async def close(self) -> None:
        """Do the queued writes, then close all connections."""
        ...


@runtime_checkable
class SharesWatches(Protocol):
    """A store that several processes of a server use, and tell each other what they have changed."""

    def share(self, elsewhere: WatchesElsewhere) -> None:
        """Tell the other processes, and be told by them, besides what the database does."""
        ...
