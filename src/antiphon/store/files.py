"""Uploaded files: their descriptions. Their content is in blobs."""

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store.blobs import BlobHold, hold, missing
from antiphon.store.database import Database, ResultRow, one_by_one
from antiphon.store.delete import delete_parent, release_blobs
from antiphon.store.pages import Listing, page
from antiphon.store.records import FileRecord, Page, Paging
from antiphon.store.schema import blob_holders, files
from antiphon.store.transaction import Transaction


def missing_file(file_id: str, param: str = "file_id") -> NotFoundError:
    """The file does not exist, or belongs to another owner."""
    return NotFoundError(f"No such File object: {file_id}", param=param)


def _owned(owner: str, file_id: str) -> ColumnElement[bool]:
    return (files.c.id == file_id) & (files.c.owner == owner)


def _record(row: ResultRow) -> FileRecord:
    return FileRecord(**row._mapping)


@one_by_one
def _replace(transaction: Transaction, record: FileRecord) -> None:
    transaction.execute(delete(files).where(_owned(record.owner, record.id)))
    release_blobs(transaction, blob_holders.c.holder == record.id)
    _insert(transaction, record)


@one_by_one
def _create(transaction: Transaction, record: FileRecord) -> None:
    _insert(transaction, record)


def _insert(transaction: Transaction, record: FileRecord) -> None:
    if not hold(transaction, BlobHold(record.owner, record.digest, record.id, record.expires_at)):
        raise missing(record.digest)
    transaction.execute(insert(files).values(**{name: getattr(record, name) for name in files.c.keys()}))  # noqa: SIM118
    count = select(func.count()).select_from(files).where(files.c.owner == record.owner)
    limit = transaction.quota.limits.files
    if transaction.execute(count).scalar_one() > limit:
        message = f"You have {limit} files, the limit 'files' of this server. Delete those not needed."
        raise RequestError(message, code=LIMIT_EXCEEDED)


def find(connection: Connection, owner: str, file_id: str) -> FileRecord | None:
    """The file."""
    row = connection.execute(select(files).where(_owned(owner, file_id))).first()
    return _record(row) if row else None


def _list(connection: Connection, owner: str, purpose: str | None, paging: Paging) -> Page[FileRecord]:
    listing = Listing(select(files).where(files.c.owner == owner), (files.c.created_at, files.c.id))
    if purpose is not None:
        listing = replace(listing, rows=listing.rows.where(files.c.purpose == purpose), unfiltered=listing)
    row_page = page(connection, listing, paging)
    return Page([_record(row) for row in row_page.data], row_page.has_more)


class SqlFiles:
    """`Files`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, record: FileRecord) -> None:
        await self._database.write(_create, record)

    async def replace(self, record: FileRecord) -> None:
        await self._database.write(_replace, record)

    async def get(self, owner: str, file_id: str) -> FileRecord | None:
        return await self._database.read(find, owner, file_id)

    async def list(self, owner: str, purpose: str | None, paging: Paging) -> Page[FileRecord]:
        return await self._database.read(_list, owner, purpose, paging)

    async def delete(self, owner: str, file_id: str) -> bool:
        return await delete_parent(self._database, files, _owned(owner, file_id))
