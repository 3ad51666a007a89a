"""The tables. A change here needs a migration (`migrations/versions/`); a test checks that the two are equal.

Times are seconds since 1970. A `size` is in bytes; that of a parent includes all rows that belong to it
(`usage.py`). `items.parent` is the id of the object that an item belongs to: a response, a conversation or a
stored completion; `items.blobs` are the digests of the blobs that an item refers to, which its parent holds.
Rows that belong to a parent are deleted by code, in one order (`delete.py`), because a foreign key cannot
refer to three tables.

To add a table or column: here, and a migration next to the others in `store/migrations/versions/`; records in
`store/records.py`, methods in `store/store.py`. Tests: `tests/contracts/store.py`, which runs on every
database; `tests/store/test_migrations.py` checks that tables and migrations agree.
"""

import re
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    TextClause,
    TypeDecorator,
    text,
)
from sqlalchemy import Text as PlainText

from antiphon.core.errors import RequestError

RUNNING = text("status IN ('queued', 'in_progress')")
"""Not terminal."""
# Word for word the conditions of indexes, or these would not be used.
ANSWERING = text(f"{RUNNING} AND NOT background")
BACKGROUND_JOBS = text(f"{RUNNING} AND background")
DURABLE = text("read_until IS NOT NULL")
INDEXING_JOBS = text("status = 'in_progress'")
DETACHED = text("status = 'deleted'")
"""Responses in the foreground that have not ended; the rows that workers claim (`job_queue.py`); responses in
the foreground that workers continue; files that were taken out of vector stores."""

ATTACHED = text("status <> 'deleted'")
"""Not taken out of a vector store; word for word the condition of two indexes."""

COUNTED = ("in_progress", "completed", "failed", "cancelled")
"""The statuses of files that are in a vector store."""

AFTER_ANOTHER = 1e18
"""The end of the lease of a response that begins when the one before it has ended: no worker has it."""
WAITS_FOR_ANOTHER = text(f"lease_until = {AFTER_ANOTHER!r}")

METADATA = MetaData()

_SURROGATE = re.compile("[\ud800-\udfff]")


class Text(TypeDecorator[str]):
    """Text that every database can hold; other text is a RequestError, because it comes from clients."""

    impl = PlainText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        """The text itself."""
        return value if value is None else checked(value)


def checked(value: str) -> str:
    """The text, if it can be stored: PostgreSQL has no U+0000, UTF-8 no half of a pair."""
    if "\0" in value or not (value.isascii() or _SURROGATE.search(value) is None):
        raise RequestError("Text must not contain U+0000 or an unpaired surrogate. Remove it.")
    return value


def _file_counts() -> list[Column[int]]:
    """How many files of each status there are: counted in the transaction that changes one."""
    zero = text("0")
    return [Column(f"files_{status}", Integer, nullable=False, server_default=zero) for status in COUNTED]


def _attached(name: str, *columns: str) -> Index:
    """An index of the files that are in a vector store, by time."""
    within = ("vector_store_id", *columns, "created_at", "file_id")
    return Index(name, *within, sqlite_where=ATTACHED, postgresql_where=ATTACHED)


def _indexes_of_jobs(table: str, jobs: TextClause, *kind: str) -> tuple[Index, Index]:
    """The indexes of a `JobQueue`: those that wait, and those that run. `kind` is the column of kinds."""
    running = text(f"{jobs} AND worker IS NOT NULL")
    waiting = (*kind, "owner", "created_at", "id")
    return (
        Index(f"{table}_jobs", *waiting, sqlite_where=jobs, postgresql_where=jobs),
        Index(f"{table}_leased", "owner", sqlite_where=running, postgresql_where=running),
    )


responses = Table(
    "responses",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("status", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("background", Boolean, nullable=False),
    Column("previous_id", Text),
    Column("conversation_id", Text),
    Column("cancel_requested", Boolean, nullable=False),
    Column("worker", Text),
    Column("lease_until", Double),
    Column("last_seq", BigInteger, nullable=False),
    Column("expires_at", Double),
    Column("request", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("prompt_ids", LargeBinary),
    Column("calls_begun", Integer, nullable=False, server_default=text("0")),
    Column("cancel_requested_at", Double),
    Column("size", BigInteger, nullable=False, server_default=text("0")),
    Column("engine_deaths", Integer, nullable=False, server_default=text("0")),
    Column("kind", Text, nullable=False, server_default=text("'response'")),
    Column("successor_id", Text),
    Column("read_until", Double),
    Index("responses_by_owner", "owner", "kind", "created_at", "id"),
    Index("responses_by_background", "owner", "kind", "background", "created_at", "id"),
    Index(
        "responses_expiring",
        "expires_at",
        sqlite_where=text("expires_at IS NOT NULL"),
        postgresql_where=text("expires_at IS NOT NULL"),
    ),
    Index("responses_answering", "created_at", sqlite_where=ANSWERING, postgresql_where=ANSWERING),
    *_indexes_of_jobs("responses", BACKGROUND_JOBS, "kind"),
)

items = Table(
    "items",
    METADATA,
    Column("parent", Text, primary_key=True),
    Column("output", Boolean, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("tokens", LargeBinary),
    Column("blobs", Text),
    Column("owner", Text, nullable=False, server_default=text("''")),
    Index("items_by_id", "id", "owner", "parent", "position"),
    Index(
        "items_with_blobs",
        "parent",
        sqlite_where=text("blobs IS NOT NULL"),
        postgresql_where=text("blobs IS NOT NULL"),
    ),
)

# By the last event of an entry, so that "after event N" is a range of the key.
# `chunks` is the last column, so that SQLite reads the events of an entry without it.
log = Table(
    "log",
    METADATA,
    Column("response_id", Text, primary_key=True),
    Column("last_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("events", LargeBinary, nullable=False),
    Column("chunks", LargeBinary, nullable=False),
)

conversations = Table(
    "conversations",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("next_position", Integer, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False, server_default=text("0")),
    Index("conversations_by_owner", "owner"),
)

completions = Table(
    "completions",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("model", Text, nullable=False),
    Column("expires_at", Double),
    Column("metadata", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("size", BigInteger, nullable=False, server_default=text("0")),
    Index("completions_by_owner", "owner", "created_at", "id"),
    Index("completions_by_model", "owner", "model", "created_at", "id"),
    Index(
        "completions_expiring",
        "expires_at",
        sqlite_where=text("expires_at IS NOT NULL"),
        postgresql_where=text("expires_at IS NOT NULL"),
    ),
)

# Content, by its digest. A blob without one is unfinished or abandoned: the sweep deletes it.
blobs = Table(
    "blobs",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("digest", Text),
    Column("media_type", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Index("blobs_by_digest", "owner", "digest"),
    Index(
        "blobs_expiring",
        "expires_at",
        sqlite_where=text("expires_at IS NOT NULL"),
        postgresql_where=text("expires_at IS NOT NULL"),
    ),
)

blob_pieces = Table(
    "blob_pieces",
    METADATA,
    Column("blob_id", Text, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)

# The holder of a blob: the id of a file, a response, a conversation.
blob_holders = Table(
    "blob_holders",
    METADATA,
    Column("holder", Text, primary_key=True),
    Column("blob_id", Text, primary_key=True),
    Column("expires_at", Double),
    Index("blob_holders_by_blob", "blob_id"),
    Index(
        "blob_holders_expiring",
        "expires_at",
        sqlite_where=text("expires_at IS NOT NULL"),
        postgresql_where=text("expires_at IS NOT NULL"),
    ),
)

files = Table(
    "files",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("expires_at", Double),
    Index("files_by_owner", "owner", "created_at", "id"),
    Index("files_by_purpose", "owner", "purpose", "created_at", "id"),
    Index(
        "files_expiring",
        "expires_at",
        sqlite_where=text("expires_at IS NOT NULL"),
        postgresql_where=text("expires_at IS NOT NULL"),
    ),
)

vector_stores = Table(
    "vector_stores",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("name", Text, nullable=False),
    Column("description", Text),
    Column("metadata", LargeBinary, nullable=False),
    Column("expires_after_seconds", Integer),
    Column("last_active_at", Double, nullable=False),
    Column("expires_at", Double),
    *_file_counts(),
    Column("usage_bytes", BigInteger, nullable=False, server_default=text("0")),
    Index("vector_stores_by_owner", "owner", "created_at", "id"),
    Index(
        "vector_stores_expiring",
        "expires_at",
        sqlite_where=text("expires_at IS NOT NULL"),
        postgresql_where=text("expires_at IS NOT NULL"),
    ),
)

# A file in a vector store, and the job to index it.
vector_store_files = Table(
    "vector_store_files",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("vector_store_id", Text, nullable=False),
    Column("file_id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("batch_id", Text),
    Column("created_at", Double, nullable=False),
    Column("status", Text, nullable=False),
    Column("error", LargeBinary),
    Column("attributes", LargeBinary, nullable=False),
    Column("chunk_size", Integer, nullable=False),
    Column("chunk_overlap", Integer, nullable=False),
    Column("usage_bytes", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("worker", Text),
    Column("lease_until", Double),
    _attached("vector_store_files_by_store"),
    _attached("vector_store_files_by_batch", "batch_id"),
    Index("vector_store_files_by_store_status", "vector_store_id", "status", "created_at", "file_id"),
    Index(
        "vector_store_files_by_batch_status", "vector_store_id", "batch_id", "status", "created_at", "file_id"
    ),
    Index("vector_store_files_by_file", "file_id", "vector_store_id"),
    Index("vector_store_files_by_owner", "owner"),
    Index("vector_store_files_detached", "id", sqlite_where=DETACHED, postgresql_where=DETACHED),
    *_indexes_of_jobs("vector_store_files", INDEXING_JOBS),
)

vector_store_batches = Table(
    "vector_store_batches",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("vector_store_id", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("cancelled", Boolean, nullable=False),
    *_file_counts(),
    Index("vector_store_batches_by_store", "vector_store_id"),
)

# The search index depends on the database, so only the migration makes it: in SQLite the table
# `vector_chunk_terms`, which triggers fill, in PostgreSQL an index.
vector_chunks = Table(
    "vector_chunks",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("parent", Text, nullable=False),
    Column("position", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("terms", Text, nullable=False),
    Column("embedded_by", Text),
    Column("vector", LargeBinary),
    Index("vector_chunks_by_parent", "parent", "position"),
)

# Requests for an approval that were answered, and for which response: each is answered once.
approvals = Table(
    "approvals",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("response_id", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index("approvals_expiring", "expires_at"),
)

containers = Table(
    "containers",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("last_active_at", Double, nullable=False),
    Column("minutes", Integer, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("interpreter", Text),
    Index("containers_by_owner", "owner", "created_at", "id"),
    Index("containers_by_name", "owner", "name", "created_at", "id"),
    Index("containers_expiring", "expires_at"),
)

container_files = Table(
    "container_files",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("container_id", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("path", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Index("container_files_by_container", "container_id", "created_at", "id"),
)

# Parents that are deleted, while rows of them are left: see `delete.py`. The kind is the name of their table.
deletions = Table(
    "deletions",
    METADATA,
    Column("kind", Text, primary_key=True),
    Column("id", Text, primary_key=True),
)

# How many bytes each owner has stored, of all kinds: see `usage.py`.
usage = Table(
    "usage",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("bytes", BigInteger, nullable=False),
)

# The pairs of completions.metadata, for lists: a digest of each (`completions.py`), and the lists' order.
completion_pairs = Table(
    "completion_pairs",
    METADATA,
    Column("completion_id", Text, primary_key=True),
    Column("pair", Text, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Index("completion_pairs_by_owner", "owner", "pair", "created_at", "completion_id"),
)

# Limits of keys over all servers, see `core/shared_limits.py`: a limit per minute is used until `full_at`.
key_limits = Table(
    "key_limits",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("full_at", Double, nullable=False),
)

# Servers that have asked for a lease, and when.
limit_servers = Table(
    "limit_servers",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("seen_at", Double, nullable=False),
)

# The answers at a time that each server may have of an owner.
key_places = Table(
    "key_places",
    METADATA,
    Column("owner", Text, primary_key=True),
    Column("server", Text, primary_key=True),
    Column("places", Integer, nullable=False),
    Column("until", Double, nullable=False),
)

# The work of processes at replicas of models, see `core/shared_loads.py`: JSON, by replica.
replica_loads = Table(
    "replica_loads",
    METADATA,
    Column("process", Text, primary_key=True),
    Column("server", Text, nullable=False),
    Column("told_at", Double, nullable=False),
    Column("loads", LargeBinary, nullable=False),
)

# Replicas that get no requests from any server, until they are resumed.
drained_replicas = Table(
    "drained_replicas",
    METADATA,
    Column("replica", Text, primary_key=True),
    Column("drained_by", Text, nullable=False),
    Column("drained_at", Double, nullable=False),
)
