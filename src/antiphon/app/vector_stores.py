"""Vector stores without HTTP: created, filled, searched. Their files are indexed by `app/indexing.py`."""

import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.apis.lists import encode_objects
from antiphon.apis.vector_stores.schema import (
    DEFAULT_CHUNK,
    DEFAULT_OVERLAP,
    ChunkingStrategy,
    Counts,
    CreateFileBatch,
    CreateVectorStore,
    CreateVectorStoreFile,
    DeletedVectorStore,
    DeletedVectorStoreFile,
    ExpiresAfter,
    FileBatch,
    FileContent,
    LastError,
    SearchRequest,
    SearchResult,
    SearchResults,
    StaticChunking,
    TextContent,
    UpdateVectorStore,
    UpdateVectorStoreFile,
    UsedChunking,
    VectorStore,
    VectorStoreFile,
)
from antiphon.app.app import App
from antiphon.app.ids import random_id
from antiphon.core.errors import RequestError, missing_extra
from antiphon.core.limits import DAY
from antiphon.store.records import (
    FileCounts,
    IndexedFile,
    IndexStatus,
    Page,
    Paging,
    VectorStoreBatch,
    VectorStoreChange,
    VectorStoreRecord,
)
from antiphon.store.vector_stores import missing
from antiphon.toolkits.file_search.query import (
    FileQuery,
    check_count,
    check_filter,
    check_queries,
    check_ranking,
)

RESULTS = 10
"""The number of results of a search, by default."""


def can_index() -> bool:
    """The packages for indexing and searching files are installed."""
    return find_spec("snowballstemmer") is not None


async def create(app: App, owner: str, wire: CreateVectorStore) -> bytes:
    """A new vector store, whose files are indexed in the background. Raises RequestError."""
    if not can_index():
        raise RequestError(missing_extra("Vector stores", "files"))
    vector_store_id, now = random_id("vs_", 32), time.time()
    seconds = wire.expires_after.days * DAY if wire.expires_after else None
    record = VectorStoreRecord(
        id=vector_store_id,
        owner=owner,
        created_at=now,
        name=wire.name or "",
        description=wire.description,
        metadata=msgspec.json.encode(wire.metadata or {}),
        expires_after_seconds=seconds,
        last_active_at=now,
        expires_at=None if seconds is None else now + seconds,
    )
    size, overlap = _chunking(wire.chunking_strategy, "chunking_strategy")
    attached = [
        _new_file(owner, vector_store_id, file_id, {}, (size, overlap)) for file_id in wire.file_ids or ()
    ]
    return _encode(await app.storage.store.vector_stores.create(record, attached))


async def list_vector_stores(app: App, owner: str, paging: Paging) -> bytes:
    """A page of vector stores. Raises NotFoundError for ids in `paging`."""
    page = await app.storage.store.vector_stores.list(owner, paging)
    return encode_objects([_resource(record) for record in page.data], has_more=page.has_more)


async def retrieve(app: App, owner: str, vector_store_id: str) -> bytes:
    """A vector store. Raises NotFoundError."""
    record = await app.storage.store.vector_stores.get(owner, vector_store_id)
    if record is None:
        raise missing(vector_store_id)
    return _encode(record)


async def update(app: App, owner: str, vector_store_id: str, wire: UpdateVectorStore) -> bytes:
    """Change the fields that the request has. Raises NotFoundError."""
    change = VectorStoreChange()
    if wire.name is not UNSET:
        change.name = wire.name or ""
    if wire.metadata is not UNSET:
        change.metadata = msgspec.json.encode(wire.metadata or {})
    if wire.expires_after is not UNSET:
        seconds = wire.expires_after.days * DAY if wire.expires_after else None
        change.expires_after_seconds = seconds
        change.last_active_at = now = time.time()
        change.expires_at = None if seconds is None else now + seconds
    return _encode(await app.storage.store.vector_stores.update(owner, vector_store_id, change))


async def delete(app: App, owner: str, vector_store_id: str) -> bytes:
    """Delete a vector store. Its files stay. Raises NotFoundError."""
    if not await app.storage.store.vector_stores.delete(owner, vector_store_id):
        raise missing(vector_store_id)
    return msgspec.json.encode(DeletedVectorStore(vector_store_id))


async def search(app: App, owner: str, vector_store_id: str, wire: SearchRequest) -> bytes:
    """The results for a query. Raises RequestError, NotFoundError."""
    if wire.rewrite_query:
        message = "Queries are searched for as they are here. Leave 'rewrite_query' out, or send false."
        raise RequestError(message, param="rewrite_query")
    queries = check_queries(wire.query, "query")
    query = FileQuery(
        (vector_store_id,),
        queries,
        check_count(wire.max_num_results, "max_num_results", RESULTS),
        check_filter(wire.filters, wire.filter),
        check_ranking(wire.ranking_options, "ranking_options"),
    )
    results = await app.searcher.search(owner, query)
    data = [
        SearchResult(
            result.file_id, result.filename, result.score, dict(result.attributes), [TextContent(result.text)]
        )
        for result in results
    ]
    return msgspec.json.encode(SearchResults(list(queries), data))


# Files


async def attach(app: App, owner: str, vector_store_id: str, wire: CreateVectorStoreFile) -> bytes:
    """Attach a file: it is indexed in the background. Raises RequestError, NotFoundError."""
    file = _requested(owner, vector_store_id, wire, "")
    await app.storage.store.vector_stores.attach(owner, vector_store_id, [file])
    return await retrieve_file(app, owner, vector_store_id, wire.file_id)


async def list_files(app: App, owner: str, vector_store_id: str, status: str | None, paging: Paging) -> bytes:
    """A page of the files. Raises NotFoundError."""
    page = await app.storage.store.vector_stores.files(owner, vector_store_id, paging, status)
    return await app.large.run(lambda: _listed_files(page))


async def retrieve_file(app: App, owner: str, vector_store_id: str, file_id: str) -> bytes:
    """A file. Raises NotFoundError."""
    record = await app.storage.store.vector_stores.file(owner, vector_store_id, file_id)
    return msgspec.json.encode(_shown_file(record))


async def update_file(
    app: App, owner: str, vector_store_id: str, file_id: str, wire: UpdateVectorStoreFile
) -> bytes:
    """Replace the attributes of a file. Raises NotFoundError."""
    attributes = msgspec.json.encode(wire.attributes or {})
    store = app.storage.store.vector_stores
    return msgspec.json.encode(
        _shown_file(await store.update_file(owner, vector_store_id, file_id, attributes))
    )


async def detach(app: App, owner: str, vector_store_id: str, file_id: str) -> bytes:
    """Remove a file from the vector store, without deleting it. Raises NotFoundError."""
    await app.storage.store.vector_stores.detach(owner, vector_store_id, file_id)
    return msgspec.json.encode(DeletedVectorStoreFile(file_id))


async def file_content(app: App, owner: str, vector_store_id: str, file_id: str) -> bytes:
    """The chunks of a file. Raises NotFoundError."""
    texts = await app.storage.store.vector_stores.texts(owner, vector_store_id, file_id)
    return msgspec.json.encode(FileContent([TextContent(text) for text in texts]))


# Batches


async def create_batch(app: App, owner: str, vector_store_id: str, wire: CreateFileBatch) -> bytes:
    """Attach several files. Raises RequestError, NotFoundError."""
    if (wire.file_ids is None) == (wire.files is None):
        raise RequestError("Send either 'file_ids' or 'files'.", param="file_ids")
    requests = wire.files or [
        CreateVectorStoreFile(file_id, wire.chunking_strategy, wire.attributes)
        for file_id in wire.file_ids or ()
    ]
    batch = VectorStoreBatch(
        id=random_id("vsfb_", 32), vector_store_id=vector_store_id, owner=owner, created_at=time.time()
    )
    attached = [
        _requested(owner, vector_store_id, request, f"files[{index}]." if wire.files else "", batch.id)
        for index, request in enumerate(requests)
    ]
    await app.storage.store.vector_stores.attach(owner, vector_store_id, attached, batch)
    return await retrieve_batch(app, owner, vector_store_id, batch.id)


async def retrieve_batch(app: App, owner: str, vector_store_id: str, batch_id: str) -> bytes:
    """A batch in its current state. Raises NotFoundError."""
    return _encode_batch(await app.storage.store.vector_stores.batch(owner, vector_store_id, batch_id))


async def cancel_batch(app: App, owner: str, vector_store_id: str, batch_id: str) -> bytes:
    """Index no more of its files. Raises NotFoundError."""
    vector_stores = app.storage.store.vector_stores
    return _encode_batch(await vector_stores.cancel_batch(owner, vector_store_id, batch_id))


async def list_batch_files(  # noqa: PLR0913, PLR0917 - parameters of the path and the query
    app: App, owner: str, vector_store_id: str, batch_id: str, status: str | None, paging: Paging
) -> bytes:
    """A page of the files of a batch. Raises NotFoundError."""
    vector_stores = app.storage.store.vector_stores
    page = await vector_stores.files(owner, vector_store_id, paging, status, batch_id)
    return await app.large.run(lambda: _listed_files(page))


# Between the wire and the store


def _requested(
    owner: str, vector_store_id: str, wire: CreateVectorStoreFile, path: str, batch_id: str | None = None
) -> IndexedFile:
    chunking = _chunking(wire.chunking_strategy, f"{path}chunking_strategy")
    file = _new_file(owner, vector_store_id, wire.file_id, wire.attributes or {}, chunking)
    return msgspec.structs.replace(file, batch_id=batch_id)


def _new_file(
    owner: str, vector_store_id: str, file_id: str, attributes: Mapping[str, Any], chunking: tuple[int, int]
) -> IndexedFile:
    return IndexedFile(
        key=random_id("", 32),
        id=file_id,
        vector_store_id=vector_store_id,
        owner=owner,
        created_at=time.time(),
        status=IndexStatus.IN_PROGRESS,
        attributes=msgspec.json.encode(attributes),
        chunk_size=chunking[0],
        chunk_overlap=chunking[1],
    )


def _chunking(strategy: ChunkingStrategy | None, path: str) -> tuple[int, int]:
    """Size and overlap of chunks. Raises RequestError."""
    if strategy is None or strategy.type == "auto":
        return DEFAULT_CHUNK, DEFAULT_OVERLAP
    if strategy.static is None:
        raise RequestError(f"Missing required parameter: '{path}.static'.", param=f"{path}.static")
    size, overlap = strategy.static.max_chunk_size_tokens, strategy.static.chunk_overlap_tokens
    if overlap > size // 2:
        param = f"{path}.static.chunk_overlap_tokens"
        raise RequestError(f"Invalid value for '{param}': Use half the chunk's size at most.", param=param)
    return size, overlap


def _encode(record: VectorStoreRecord) -> bytes:
    return msgspec.json.encode(_resource(record))


def _resource(record: VectorStoreRecord) -> VectorStore:
    seconds = record.expires_after_seconds
    return VectorStore(
        id=record.id,
        created_at=int(record.created_at),
        name=record.name,
        description=record.description,
        usage_bytes=record.usage_bytes,
        file_counts=_counts(record.counts),
        status="in_progress" if record.counts.in_progress else "completed",
        expires_after=UNSET if seconds is None else ExpiresAfter("last_active_at", seconds // DAY),
        expires_at=None if record.expires_at is None else int(record.expires_at),
        last_active_at=int(record.last_active_at),
        metadata=msgspec.json.decode(record.metadata),
    )


def _counts(counts: FileCounts) -> Counts:
    by_status = msgspec.structs.asdict(counts)
    return Counts(**by_status, total=sum(by_status.values()))


def _shown_file(record: IndexedFile) -> VectorStoreFile:
    return VectorStoreFile(
        id=record.id,
        usage_bytes=record.usage_bytes,
        created_at=int(record.created_at),
        vector_store_id=record.vector_store_id,
        status=record.status,
        last_error=None if record.error is None else msgspec.json.decode(record.error, type=LastError),
        chunking_strategy=UsedChunking(StaticChunking(record.chunk_size, record.chunk_overlap)),
        attributes=msgspec.json.decode(record.attributes),
    )


def _listed_files(page: Page[IndexedFile]) -> bytes:
    """The body of a list of files: there may be thousands."""
    return encode_objects([_shown_file(record) for record in page.data], has_more=page.has_more)


def _encode_batch(batch: VectorStoreBatch) -> bytes:
    running = batch.counts.in_progress
    return msgspec.json.encode(
        FileBatch(
            id=batch.id,
            created_at=int(batch.created_at),
            vector_store_id=batch.vector_store_id,
            status="cancelled" if batch.cancelled else "in_progress" if running else "completed",
            file_counts=_counts(batch.counts),
        )
    )
