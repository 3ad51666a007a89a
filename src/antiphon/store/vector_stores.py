"""Vector stores: files that are cut into chunks, and found by the terms of these.

A file is attached as a row, which is at the same time the job to index it: it is claimed under a lease, its
chunks are written, and it is completed or failed. Chunks belong to that row, and are found only when it is
completed (`chunk_rows.py`). A detached file is marked, and the sweep deletes it.
"""

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace
from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    func,
    insert,
    select,
    update,
)

from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store import chunk_rows
from antiphon.store.database import Database, ResultRow, one_by_one
from antiphon.store.delete import clear, delete_children, delete_parent, detach_files
from antiphon.store.file_counts import count_file, count_new_file, file_counts
from antiphon.store.files import missing_file
from antiphon.store.job_queue import JobQueue
from antiphon.store.pages import Listing, existing, page
from antiphon.store.records import (
    ChunkRecord,
    IndexedFile,
    IndexEnd,
    IndexStatus,
    Lease,
    NewChunk,
    Page,
    Paging,
    Postings,
    VectorStoreBatch,
    VectorStoreChange,
    VectorStoreRecord,
)
from antiphon.store.schema import (
    ATTACHED,
    INDEXING_JOBS,
    files,
    vector_chunks,
    vector_store_batches,
    vector_store_files,
    vector_stores,
)
from antiphon.store.store import INDEXING
from antiphon.store.transaction import Transaction

_STORE = tuple(vector_stores.c)
_FILE = (
    vector_store_files.c.id.label("key"),
    vector_store_files.c.file_id.label("id"),
    vector_store_files.c.vector_store_id,
    vector_store_files.c.owner,
    vector_store_files.c.batch_id,
    vector_store_files.c.created_at,
    vector_store_files.c.status,
    vector_store_files.c.error,
    vector_store_files.c.attributes,
    vector_store_files.c.chunk_size,
    vector_store_files.c.chunk_overlap,
    vector_store_files.c.usage_bytes,
    vector_store_files.c.attempts,
)
"""Those of an `IndexedFile`."""
_THERE = and_(ATTACHED)


def _indexed(row: ResultRow) -> IndexedFile:
    values = {name: value for name, value in row._mapping.items() if name != "worker"}
    return IndexedFile(**{**values, "status": IndexStatus(row.status)})


def missing(vector_store_id: str) -> NotFoundError:
    """The vector store does not exist, or belongs to another owner."""
    return NotFoundError(f"Vector store with id {vector_store_id!r} not found.", param="vector_store_id")


def _missing_file(vector_store_id: str, file_id: str) -> NotFoundError:
    message = f"No file found with id {file_id!r} in vector store {vector_store_id!r}."
    return NotFoundError(message, param="file_id")


def _missing_batch(batch_id: str) -> NotFoundError:
    return NotFoundError(f"File batch with id {batch_id!r} not found.", param="batch_id")


def _owned(owner: str, vector_store_id: str) -> ColumnElement[bool]:
    return (vector_stores.c.id == vector_store_id) & (vector_stores.c.owner == owner)


def _attached(owner: str, vector_store_id: str) -> ColumnElement[bool]:
    """The files of a vector store. It must exist: of a deleted one, files may be left."""
    condition = vector_store_files.c.vector_store_id == vector_store_id
    exists = select(vector_stores.c.id).where(_owned(owner, vector_store_id)).exists()
    return condition & (vector_store_files.c.owner == owner) & _THERE & exists


def _lock(transaction: Transaction, owner: str, vector_store_id: str) -> None:
    """Lock it against attaching and deleting until the transaction ends. Raises NotFoundError."""
    query = select(vector_stores.c.id).where(_owned(owner, vector_store_id)).with_for_update()
    if transaction.execute(query).first() is None:
        raise missing(vector_store_id)


# Vector stores


def _record(row: ResultRow) -> VectorStoreRecord:
    values = dict(row._mapping)
    return VectorStoreRecord(counts=file_counts(values), **values)


def find(connection: Connection, owner: str, vector_store_id: str) -> VectorStoreRecord | None:
    """The vector store."""
    row = connection.execute(select(*_STORE).where(_owned(owner, vector_store_id))).first()
    return _record(row) if row else None


def _require(connection: Connection, owner: str, vector_store_id: str) -> None:
    """Raise NotFoundError if it does not exist."""
    query = select(vector_stores.c.id).where(_owned(owner, vector_store_id))
    if connection.execute(query).first() is None:
        raise missing(vector_store_id)


def _list(connection: Connection, owner: str, paging: Paging) -> Page[VectorStoreRecord]:
    query = select(*_STORE).where(vector_stores.c.owner == owner)
    row_page = page(connection, Listing(query, (vector_stores.c.created_at, vector_stores.c.id)), paging)
    return Page([_record(row) for row in row_page.data], row_page.has_more)


@one_by_one
def _create(
    transaction: Transaction, creation: tuple[VectorStoreRecord, Sequence[IndexedFile]]
) -> VectorStoreRecord | None:
    record, attached = creation
    values = {name: value for name, value in asdict(record).items() if name in vector_stores.c}
    transaction.execute(insert(vector_stores).values(values))
    count = select(func.count()).select_from(vector_stores).where(vector_stores.c.owner == record.owner)
    if transaction.execute(count).scalar_one() > transaction.quota.limits.vector_stores:
        message = "You have as many vector stores as the limit 'vector_stores' of this server allows."
        raise RequestError(message, code=LIMIT_EXCEEDED)
    _attach_all(transaction, attached, "file_ids")
    transaction.store_sums()
    return find(transaction.connection, record.owner, record.id)


@one_by_one
def _update(
    transaction: Transaction, changed: tuple[str, str, VectorStoreChange]
) -> VectorStoreRecord | None:
    owner, vector_store_id, change = changed
    values = {name: value for name, value in asdict(change).items() if value is not UNSET}
    if values:
        transaction.execute(update(vector_stores).where(_owned(owner, vector_store_id)).values(values))
    transaction.store_sums()
    return find(transaction.connection, owner, vector_store_id)


@one_by_one
def _touch(transaction: Transaction, touched: tuple[str, Collection[str], float]) -> None:
    owner, ids, now = touched
    condition = vector_stores.c.id.in_(ids) & (vector_stores.c.owner == owner)
    expires_at = now + vector_stores.c.expires_after_seconds  # NULL for one that never expires
    transaction.execute(
        update(vector_stores).where(condition).values(last_active_at=now, expires_at=expires_at)
    )


# Their files


def _attach_all(transaction: Transaction, attached: Sequence[IndexedFile], param: str) -> None:
    """Attach files of their owner, to be indexed. Those that are attached already are indexed again.

    Raises NotFoundError, which blames `param`.
    """
    if not attached:
        return
    owner, vector_store_id = attached[0].owner, attached[0].vector_store_id
    ids = {record.id for record in attached}
    own = select(files.c.id).where(files.c.owner == owner, files.c.id.in_(ids))
    for file_id in ids.difference(transaction.execute(own).scalars()):
        raise missing_file(file_id, param)
    detach_files(transaction, _attached(owner, vector_store_id) & vector_store_files.c.file_id.in_(ids))
    for record in {record.id: record for record in attached}.values():
        values = asdict(record)
        values["file_id"], values["id"] = values["id"], values.pop("key")
        transaction.execute(insert(vector_store_files).values(values))
        count_new_file(transaction, record.vector_store_id, record.batch_id)
    transaction.wake(INDEXING)


@one_by_one
def _attach(
    transaction: Transaction, attachment: tuple[str, str, Sequence[IndexedFile], VectorStoreBatch | None]
) -> None:
    owner, vector_store_id, attached, batch = attachment
    _lock(transaction, owner, vector_store_id)
    if batch is not None:
        values = {name: value for name, value in asdict(batch).items() if name in vector_store_batches.c}
        transaction.execute(insert(vector_store_batches).values(values))
    _attach_all(transaction, attached, "file_id" if batch is None else "file_ids")


@one_by_one
def _update_file(transaction: Transaction, change: tuple[str, str, str, bytes]) -> IndexedFile:
    owner, vector_store_id, file_id, attributes = change
    condition = _attached(owner, vector_store_id) & (vector_store_files.c.file_id == file_id)
    transaction.execute(update(vector_store_files).where(condition).values(attributes=attributes))
    return _require_file(transaction.connection, owner, vector_store_id, file_id)


@one_by_one
def _detach(transaction: Transaction, named: tuple[str, str, str]) -> None:
    owner, vector_store_id, file_id = named
    _require_file(transaction.connection, owner, vector_store_id, file_id)
    detach_files(transaction, _attached(owner, vector_store_id) & (vector_store_files.c.file_id == file_id))


def _require_file(connection: Connection, owner: str, vector_store_id: str, file_id: str) -> IndexedFile:
    condition = _attached(owner, vector_store_id) & (vector_store_files.c.file_id == file_id)
    row = connection.execute(select(*_FILE).where(condition)).first()
    if row is None:
        _require(connection, owner, vector_store_id)
        raise _missing_file(vector_store_id, file_id)
    return _indexed(row)


def _files(  # noqa: PLR0913, PLR0917 - the filters of a list
    connection: Connection,
    owner: str,
    vector_store_id: str,
    paging: Paging,
    status: str | None,
    batch_id: str | None,
) -> Page[IndexedFile]:
    keys = (vector_store_files.c.created_at, vector_store_files.c.file_id)
    unfiltered = Listing(select(*_FILE).where(_attached(owner, vector_store_id)), keys)
    query = unfiltered.rows
    if status is not None:
        query = query.where(vector_store_files.c.status == status)
    if batch_id is not None:
        query = query.where(vector_store_files.c.batch_id == batch_id)

    def require() -> None:
        _require(connection, owner, vector_store_id)
        if batch_id is not None:
            _batch_row(connection, owner, vector_store_id, batch_id)

    with existing(require):
        row_page = page(connection, Listing(query, keys, unfiltered), paging)
    return Page([_indexed(row) for row in row_page.data], row_page.has_more)


def _texts(connection: Connection, file: IndexedFile, after: int, limit: int) -> list[ResultRow]:
    """Some chunks of a file, in order. Raises NotFoundError if it was taken out meanwhile."""
    chunk = vector_chunks.c
    query = select(chunk.position, chunk.text).where(chunk.parent == file.key, chunk.position > after)
    rows = list(connection.execute(query.order_by(chunk.position).limit(limit)))
    if _require_file(connection, file.owner, file.vector_store_id, file.id).key != file.key:
        raise _missing_file(file.vector_store_id, file.id)
    return rows


# Batches


def _batch_row(connection: Connection, owner: str, vector_store_id: str, batch_id: str) -> ResultRow:
    batches = vector_store_batches.c
    condition = (
        (batches.id == batch_id) & (batches.vector_store_id == vector_store_id) & (batches.owner == owner)
    )
    row = connection.execute(select(*batches).where(condition)).first()
    if row is None:
        raise _missing_batch(batch_id)
    return row


def _require_batch(
    connection: Connection, owner: str, vector_store_id: str, batch_id: str
) -> VectorStoreBatch:
    values = dict(_batch_row(connection, owner, vector_store_id, batch_id)._mapping)
    return VectorStoreBatch(counts=file_counts(values), **values)


@one_by_one
def _cancel_batch(transaction: Transaction, named: tuple[str, str, str]) -> tuple[VectorStoreBatch, bool]:
    """The batch, and whether all chunks of its cancelled files are deleted."""
    owner, vector_store_id, batch_id = named
    _require_batch(transaction.connection, owner, vector_store_id, batch_id)
    table, cancelled = vector_store_files, IndexStatus.CANCELLED
    waiting = _attached(owner, vector_store_id) & (table.c.status == IndexStatus.IN_PROGRESS)
    waiting &= table.c.batch_id == batch_id
    rows = transaction.execute(select(table).where(waiting).order_by(table.c.id).with_for_update()).all()
    for row in rows:
        transaction.count(row.owner, -row.usage_bytes)
        count_file(transaction, row, cancelled)
    transaction.execute(update(table).where(waiting).values(status=cancelled, usage_bytes=0))
    transaction.store_sums()
    condition = vector_store_batches.c.id == batch_id
    transaction.execute(update(vector_store_batches).where(condition).values(cancelled=True))
    batch = _require_batch(transaction.connection, owner, vector_store_id, batch_id)
    return batch, delete_children(transaction, table, [row.id for row in rows if row.usage_bytes])


# Indexing


class _Claim(Struct, frozen=True):
    lease: Lease
    now: float
    held: Collection[str]
    queue: JobQueue


@one_by_one
def _claim(transaction: Transaction, claim: _Claim) -> IndexedFile | None:
    lease = claim.lease
    row = claim.queue.next(transaction, claim.now)
    # The worker has it: its lease was renewed too late, and nobody has taken it.
    while row is not None and row.key in claim.held:
        _renew_now(transaction, lease, [row.key])
        row = claim.queue.next(transaction, claim.now)
    if row is None:
        return None
    record = _indexed(row)
    # One that has it itself lives: it was not told that it has it, or could not give it back.
    crashed = row.worker not in (None, lease.worker)
    values: dict[str, Any] = {"worker": lease.worker, "lease_until": lease.until}
    values |= {"attempts": record.attempts + crashed, "usage_bytes": 0}
    transaction.execute(
        update(vector_store_files).where(vector_store_files.c.id == record.key).values(values)
    )
    transaction.count(record.owner, -record.usage_bytes)
    count_file(transaction, row, record.status)
    return replace(record, usage_bytes=0, attempts=values["attempts"])


def _renew_now(transaction: Transaction, lease: Lease, keys: Collection[str]) -> None:
    held = update(vector_store_files).where(_held(lease.worker, keys))
    transaction.execute(held.values(lease_until=lease.until))


def _held(worker: str, keys: Collection[str]) -> ColumnElement[bool]:
    condition = (vector_store_files.c.worker == worker) & vector_store_files.c.id.in_(keys)
    return condition & (vector_store_files.c.status == IndexStatus.IN_PROGRESS)


@one_by_one
def _renew(transaction: Transaction, holding: tuple[Lease, Collection[str]]) -> None:
    _renew_now(transaction, *holding)


_GIVE_BACK = (
    update(vector_store_files)
    .where(INDEXING_JOBS, vector_store_files.c.worker == bindparam("holder"))
    .values(worker=None, lease_until=bindparam("until"))
)
# Another has taken it, as if this one had crashed.
_ALIVE = (
    update(vector_store_files)
    .where(INDEXING_JOBS, vector_store_files.c.worker != bindparam("holder"))
    .where(vector_store_files.c.attempts > 0)
    .values(attempts=vector_store_files.c.attempts - 1)
)


@one_by_one
def _release(transaction: Transaction, worker: str) -> None:
    # A lease that ended in 1970, so that the next query of any worker claims them.
    transaction.execute(_GIVE_BACK, {"holder": worker, "until": 0.0})
    transaction.wake(INDEXING)


@one_by_one
def _postpone(transaction: Transaction, postponed: tuple[str, str, float]) -> bool:
    worker, key, until = postponed
    this = vector_store_files.c.id == key
    held = bool(transaction.execute(_GIVE_BACK.where(this), {"holder": worker, "until": until}).rowcount)
    if not held:
        transaction.execute(_ALIVE.where(this), {"holder": worker})
    return held


@one_by_one
def _add(transaction: Transaction, addition: tuple[str, str, Sequence[NewChunk]]) -> bool:
    worker, key, chunks = addition
    query = select(vector_store_files).where(_held(worker, [key])).with_for_update()
    row = transaction.execute(query).first()
    if row is None:
        return False
    size = sum(map(chunk_rows.size, chunks))
    grown = update(vector_store_files).where(vector_store_files.c.id == key)
    transaction.execute(grown.values(usage_bytes=row.usage_bytes + size))
    transaction.count(row.owner, size)
    count_file(transaction, row, row.status, row.usage_bytes + size)
    transaction.quota.check(row.owner)
    chunk_rows.add(transaction, key, row.vector_store_id, chunks)
    return True


@one_by_one
def _finish(transaction: Transaction, end: IndexEnd) -> tuple[bool, bool]:
    """Whether the file was held, and whether chunks that it must not have are deleted."""
    held = _held(end.worker, [end.key])
    row = transaction.execute(select(vector_store_files).where(held).with_for_update()).first()
    if row is None:
        return False, True
    values: dict[str, Any] = {"status": end.status, "error": end.error, "worker": None, "lease_until": None}
    usage_bytes = row.usage_bytes
    if end.status is not IndexStatus.COMPLETED:
        values["usage_bytes"] = usage_bytes = 0
    transaction.count(row.owner, usage_bytes - row.usage_bytes)
    count_file(transaction, row, end.status, usage_bytes)
    transaction.execute(update(vector_store_files).where(held).values(values))
    if end.status is IndexStatus.COMPLETED:
        return True, True
    return True, delete_children(transaction, vector_store_files, [end.key])


class SqlVectorStores:
    """`VectorStores`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue = JobQueue(vector_store_files, INDEXING_JOBS, (*_FILE, vector_store_files.c.worker))

    async def create(self, record: VectorStoreRecord, attached: Sequence[IndexedFile]) -> VectorStoreRecord:
        made = await self._database.write(_create, (record, attached))
        assert made is not None  # it was made in the same transaction
        return made

    async def get(self, owner: str, vector_store_id: str) -> VectorStoreRecord | None:
        return await self._database.read(find, owner, vector_store_id)

    async def list(self, owner: str, paging: Paging) -> Page[VectorStoreRecord]:
        return await self._database.read(_list, owner, paging)

    async def update(self, owner: str, vector_store_id: str, change: VectorStoreChange) -> VectorStoreRecord:
        record = await self._database.write(_update, (owner, vector_store_id, change))
        if record is None:
            raise missing(vector_store_id)
        return record

    async def touch(self, owner: str, vector_store_ids: Collection[str], now: float) -> None:
        await self._database.write(_touch, (owner, vector_store_ids, now))

    async def delete(self, owner: str, vector_store_id: str) -> bool:
        return await delete_parent(self._database, vector_stores, _owned(owner, vector_store_id))

    async def attach(
        self,
        owner: str,
        vector_store_id: str,
        attached: Sequence[IndexedFile],
        batch: VectorStoreBatch | None = None,
    ) -> None:
        await self._database.write(_attach, (owner, vector_store_id, attached, batch))

    async def file(self, owner: str, vector_store_id: str, file_id: str) -> IndexedFile:
        return await self._database.read(_require_file, owner, vector_store_id, file_id)

    async def files(
        self,
        owner: str,
        vector_store_id: str,
        paging: Paging,
        status: str | None = None,
        batch_id: str | None = None,
    ) -> Page[IndexedFile]:
        return await self._database.read(_files, owner, vector_store_id, paging, status, batch_id)

    async def update_file(
        self, owner: str, vector_store_id: str, file_id: str, attributes: bytes
    ) -> IndexedFile:
        return await self._database.write(_update_file, (owner, vector_store_id, file_id, attributes))

    async def detach(self, owner: str, vector_store_id: str, file_id: str) -> None:
        await self._database.write(_detach, (owner, vector_store_id, file_id))

    async def texts(self, owner: str, vector_store_id: str, file_id: str) -> Sequence[str]:
        file = await self.file(owner, vector_store_id, file_id)
        texts, after, limit = list[str](), -1, self._database.tuning.entries
        while rows := await self._database.read(_texts, file, after, limit):
            texts += [row.text for row in rows]
            after = rows[-1].position
        return texts

    async def batch(self, owner: str, vector_store_id: str, batch_id: str) -> VectorStoreBatch:
        return await self._database.read(_require_batch, owner, vector_store_id, batch_id)

    async def cancel_batch(self, owner: str, vector_store_id: str, batch_id: str) -> VectorStoreBatch:
        named = (owner, vector_store_id, batch_id)
        batch, done = await self._database.write(_cancel_batch, named)
        if not done:
            self._database.begin(clear)
        return batch

    async def claim(
        self, worker: str, now: float, lease_seconds: float, held: Collection[str] = ()
    ) -> IndexedFile | None:
        lease = Lease(worker, now + lease_seconds)
        record = await self._database.write(_claim, _Claim(lease, now, held, self._queue))
        if record is not None:
            await chunk_rows.delete_chunks(self._database, [record.key])  # of an earlier worker
        return record

    async def renew(self, worker: str, keys: Collection[str], now: float, lease_seconds: float) -> None:
        await self._database.write(_renew, (Lease(worker, now + lease_seconds), keys))

    async def release(self, worker: str) -> None:
        await self._database.write(_release, worker)

    async def postpone(self, worker: str, key: str, until: float) -> bool:
        return await self._database.write(_postpone, (worker, key, until))

    async def add_chunks(self, worker: str, key: str, chunks: Sequence[NewChunk]) -> bool:
        return await self._database.write(_add, (worker, key, chunks))

    async def finish(self, end: IndexEnd) -> bool:
        held, done = await self._database.write(_finish, end)
        if not done:
            self._database.begin(clear)
        return held

    async def attributes(self, owner: str, vector_store_ids: Sequence[str]) -> dict[str, bytes]:
        return await self._database.read(chunk_rows.attributes, owner, vector_store_ids)

    async def postings(
        self,
        owner: str,
        vector_store_ids: Sequence[str],
        terms: Sequence[str],
        keys: Collection[str] | None = None,
    ) -> Postings:
        return await self._database.read(chunk_rows.postings, owner, vector_store_ids, terms, keys)

    async def vectors(
        self, owner: str, vector_store_ids: Sequence[str], keys: Collection[str], model: str
    ) -> Sequence[tuple[int, bytes]]:
        return await self._database.read(chunk_rows.vectors, owner, vector_store_ids, keys, model)

    async def chunks(self, owner: str, chunk_ids: Sequence[int]) -> Sequence[ChunkRecord]:
        return await self._database.read(chunk_rows.chunks_of, owner, chunk_ids)
