"""Blobs: content by its digest, in pieces, so that no statement and no buffer is large.

A blob is written under a random id. Its last piece sets its digest, and its first holder; if the owner has a
blob with that digest, the holder gets that one instead. If two servers store the same content at the same
time, it is stored twice, without a visible effect. Blobs without a digest (unfinished, or not held any more)
cannot be found, and are deleted by the sweep.
"""

from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable
from contextlib import suppress
from hashlib import sha256
from uuid import uuid4

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Select, delete, insert, select, update

from antiphon.core.errors import NotFoundError, RequestError, StoreError
from antiphon.store.database import Database, ResultRow, one_by_one
from antiphon.store.delete import abandon_blobs, release_blobs
from antiphon.store.records import BlobRecord, ItemRecord, NewBlob
from antiphon.store.schema import blob_holders, blob_pieces, blobs
from antiphon.store.transaction import Transaction, insertion

PIECE_BYTES = 256 * 1024
UNFINISHED_SECONDS = 24 * 60 * 60
"""The most time to write a blob."""

_ADD_PIECE = insertion(blob_pieces)
_COLUMNS = (blobs.c.digest, blobs.c.media_type, blobs.c.size, blobs.c.created_at)


class _Writing(Struct, frozen=True):
    """The next part of a blob that is being written. The last piece has the digest."""

    id: str
    new: NewBlob
    position: int
    piece: bytes
    digest: str | None


class BlobHold(Struct, frozen=True):
    """A new holder of a blob, and the time until which it holds it."""

    owner: str
    digest: str
    holder: str
    expires_at: float | None


def missing(digest: str) -> NotFoundError:
    """The blob does not exist, or belongs to another owner, or has no holder any more."""
    return NotFoundError(f"Content with the digest {digest!r} not found.")


def _owned(owner: str, digest: str) -> ColumnElement[bool]:
    return (blobs.c.owner == owner) & (blobs.c.digest == digest)


def _of(owner: str, digest: str) -> Select[tuple[str]]:
    return select(blobs.c.id).where(_owned(owner, digest)).order_by(blobs.c.id).limit(1)


def find(connection: Connection, owner: str, digest: str) -> BlobRecord | None:
    """The blob."""
    row = connection.execute(select(*_COLUMNS).where(_owned(owner, digest)).limit(1)).first()
    return BlobRecord(*row) if row else None


def hold(transaction: Transaction, holding: BlobHold) -> bool:
    """Add a holder to a blob; returns whether there is one."""
    query = _of(holding.owner, holding.digest).with_for_update()
    blob_id = transaction.execute(query).scalar()
    if blob_id is None:
        return False
    # Deleted and inserted, for each database has an "insert or update" of its own.
    same = (blob_holders.c.holder == holding.holder) & (blob_holders.c.blob_id == blob_id)
    transaction.execute(delete(blob_holders).where(same))
    values = {"holder": holding.holder, "blob_id": blob_id, "expires_at": holding.expires_at}
    transaction.execute(insert(blob_holders).values(values))
    return True


def hold_for(transaction: Transaction, owner: str, parent: str, records: Iterable[ItemRecord]) -> None:
    """Make a parent hold the blobs that its items refer to. Raises NotFoundError if a blob is gone."""
    for digest in sorted({digest for record in records for digest in record.blobs}):
        if not hold(transaction, BlobHold(owner, digest, parent, None)):
            raise missing(digest)


def release_from(transaction: Transaction, parent: str, digests: Collection[str]) -> None:
    """Release blobs that no item of a parent refers to any more."""
    named = select(blobs.c.id).where(blobs.c.digest.in_(digests))
    release_blobs(transaction, (blob_holders.c.holder == parent) & blob_holders.c.blob_id.in_(named))


@one_by_one
def _write(transaction: Transaction, writing: _Writing) -> BlobRecord | None:
    """Add a piece; with the last one, returns the blob as it is stored."""
    if writing.position == 0:
        _begin(transaction, writing.id, writing.new)
    condition = (blobs.c.id == writing.id) & (blobs.c.expires_at > 0)
    grown = update(blobs).where(condition).values(size=blobs.c.size + len(writing.piece))
    if not transaction.execute(grown).rowcount:
        raise RequestError(
            f"Sending the content took more than {UNFINISHED_SECONDS} seconds. Send it faster."
        )
    transaction.execute_many(
        _ADD_PIECE, [{"blob_id": writing.id, "position": writing.position, "data": writing.piece}]
    )
    transaction.count(writing.new.owner, len(writing.piece))
    if writing.digest is not None:
        _finish(transaction, writing, writing.digest)
    # Counted after it was written, which an error undoes: several uploads together do not pass the limit.
    transaction.quota.check(writing.new.owner)
    return None if writing.digest is None else find(transaction.connection, writing.new.owner, writing.digest)


def _begin(transaction: Transaction, blob_id: str, new: NewBlob) -> None:
    values = {"id": blob_id, "owner": new.owner, "media_type": new.media_type, "size": 0}
    times = {"created_at": new.created_at, "expires_at": new.created_at + UNFINISHED_SECONDS}
    transaction.execute(insert(blobs).values(values | times))


def _finish(transaction: Transaction, writing: _Writing, digest: str) -> None:
    holding = BlobHold(writing.new.owner, digest, writing.new.holder, writing.new.expires_at)
    if hold(transaction, holding):
        abandon_blobs(transaction, blobs.c.id == writing.id)
    else:
        named = update(blobs).where(blobs.c.id == writing.id).values(digest=digest, expires_at=None)
        transaction.execute(named)
        hold(transaction, holding)


@one_by_one
def _abandon(transaction: Transaction, blob_id: str) -> None:
    abandon_blobs(transaction, (blobs.c.id == blob_id) & blobs.c.digest.is_(None))


@one_by_one
def _hold(transaction: Transaction, holding: BlobHold) -> bool:
    return hold(transaction, holding)


@one_by_one
def _release(transaction: Transaction, released: tuple[str, str]) -> None:
    owner, holder = released
    condition = (
        select(blobs.c.id).where(blobs.c.owner == owner, blobs.c.id == blob_holders.c.blob_id).exists()
    )
    release_blobs(transaction, (blob_holders.c.holder == holder) & condition)


def _find_id(connection: Connection, owner: str, digest: str) -> ResultRow | None:
    named = select(blobs.c.id, blobs.c.size).where(_owned(owner, digest)).order_by(blobs.c.id)
    return connection.execute(named.limit(1)).first()


def _piece(connection: Connection, blob_id: str, position: int) -> bytes | None:
    condition = (blob_pieces.c.blob_id == blob_id) & (blob_pieces.c.position == position)
    return connection.execute(select(blob_pieces.c.data).where(condition)).scalar()


async def _pieces(content: AsyncIterable[bytes] | bytes) -> AsyncIterator[tuple[bytes, bool]]:
    """Pieces of one size, and whether each is the last; empty content is one empty piece."""
    buffer = bytearray()
    async for chunk in _chunks(content):
        buffer += chunk
        while len(buffer) > PIECE_BYTES:  # not `>=`: a full piece may be the last, which has the digest
            piece = bytes(buffer[:PIECE_BYTES])
            del buffer[:PIECE_BYTES]
            yield piece, False
    yield bytes(buffer), True


async def _chunks(content: AsyncIterable[bytes] | bytes) -> AsyncIterator[bytes]:
    """Chunks of a bounded size, so that cutting pieces off is linear."""
    if isinstance(content, bytes):
        for start in range(0, len(content), PIECE_BYTES):
            yield content[start : start + PIECE_BYTES]
        return
    async for chunk in content:
        for start in range(0, len(chunk), PIECE_BYTES):
            yield chunk[start : start + PIECE_BYTES]


class SqlBlobs:
    """`Blobs`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, new: NewBlob, content: AsyncIterable[bytes] | bytes) -> BlobRecord:
        blob_id, digest, position = uuid4().hex, sha256(), 0
        try:
            async for piece, last in _pieces(content):
                digest.update(piece)
                named = digest.hexdigest() if last else None
                writing = _Writing(blob_id, new, position, piece, named)
                record = await self._database.write(_write, writing)
                position += 1
        except BaseException:
            with suppress(StoreError):  # otherwise the sweep deletes it later
                await self._database.write(_abandon, blob_id)
            raise
        assert record is not None  # the last piece returns it
        return record

    async def get(self, owner: str, digest: str) -> BlobRecord | None:
        return await self._database.read(find, owner, digest)

    async def read(self, owner: str, digest: str, start: int = 0) -> AsyncIterator[bytes]:
        row = await self._database.read(_find_id, owner, digest)
        if row is None:
            raise missing(digest)
        position, skipped = divmod(start, PIECE_BYTES)
        remaining = row.size - position * PIECE_BYTES
        while remaining > 0:
            piece = await self._database.read(_piece, row.id, position)
            if piece is None:
                raise missing(digest)
            if rest := piece[skipped:]:
                yield rest
            skipped = 0
            remaining -= len(piece)
            position += 1

    async def hold(self, owner: str, digest: str, holder: str, expires_at: float | None = None) -> bool:
        return await self._database.write(_hold, BlobHold(owner, digest, holder, expires_at))

    async def release(self, owner: str, holder: str) -> None:
        await self._database.write(_release, (owner, holder))
