"""Stored chat completions, and their messages as items.

Each filter of their list is found by an index: the model, and each pair of metadata by its digest, which is
as short for a long pair. Of several filters the narrowest finds the rows, and the others are the sieve.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256

import msgspec
from msgspec.structs import asdict, replace
from sqlalchemy import ColumnElement, Connection, and_, delete, func, select, update

from antiphon.core.errors import NotFoundError
from antiphon.store import blobs, items
from antiphon.store.database import Database, ResultRow, one_by_one
from antiphon.store.delete import delete_parent
from antiphon.store.pages import LOOKED_AT, Listing, existing, filled, fit, page, sifted
from antiphon.store.records import CompletionFilter, CompletionRecord, ItemRecord, Page, Paging
from antiphon.store.schema import checked, completions
from antiphon.store.schema import completion_pairs as pairs
from antiphon.store.transaction import Rows, Transaction, Values, insertion
from antiphon.store.usage import size_of, stored_size

_SAVE = insertion(completions)
_PAIR = insertion(pairs)


class _Change(msgspec.Struct, frozen=True):
    owner: str
    id: str
    metadata: Mapping[str, str]
    body: bytes


def missing(completion_id: str) -> NotFoundError:
    """The completion does not exist, or belongs to another owner."""
    return NotFoundError(f"Chat completion with id {completion_id!r} not found.")


def _owned(owner: str, completion_id: str) -> ColumnElement[bool]:
    return (completions.c.id == completion_id) & (completions.c.owner == owner)


def _record(row: ResultRow) -> CompletionRecord:
    values = dict(row._mapping)
    metadata = msgspec.json.decode(values.pop("metadata"), type=dict[str, str])
    del values["size"]
    return CompletionRecord(metadata=metadata, **values)


def _encoded(metadata: Mapping[str, str]) -> bytes:
    return msgspec.json.encode({checked(key): checked(value) for key, value in metadata.items()})


def digest(key: str, value: str) -> str:
    """The digest of a pair of metadata."""
    return sha256(f"{checked(key)}\0{checked(value)}".encode()).hexdigest()[:32]


def _pair_rows(record: CompletionRecord) -> Rows:
    key = {"completion_id": record.id, "owner": record.owner, "created_at": record.created_at}
    return [{**key, "pair": digest(*pair)} for pair in record.metadata.items()]


def save_all(
    transaction: Transaction, saves: Sequence[tuple[CompletionRecord, Sequence[ItemRecord]]]
) -> list[None]:
    """Store completions with their messages."""
    rows: list[Values] = []
    for record, messages in saves:
        metadata = _encoded(record.metadata)
        size = size_of(record.body, metadata) + items.size(messages)
        rows.append({**asdict(record), "metadata": metadata, "size": size})
        transaction.count(record.owner, size)
    transaction.execute_many(_SAVE, rows)
    transaction.execute_many(_PAIR, [row for record, _ in saves for row in _pair_rows(record)])
    items.add(
        transaction,
        [row for record, messages in saves for row in items.input_rows(record.owner, record.id, messages)],
    )
    for record, messages in saves:
        blobs.hold_for(transaction, record.owner, record.id, messages)
    return [None] * len(saves)


@one_by_one
def _update(transaction: Transaction, change: _Change) -> CompletionRecord | None:
    owned = _owned(change.owner, change.id)
    size = stored_size(completions.c.body, completions.c.metadata)
    before = transaction.execute(select(size).where(owned).with_for_update()).scalar()
    if before is None:
        return None
    metadata = _encoded(change.metadata)
    more = size_of(change.body, metadata) - before
    values = {"metadata": metadata, "body": change.body, "size": completions.c.size + more}
    transaction.execute(update(completions).where(owned).values(values))
    transaction.count(change.owner, more)
    transaction.execute(delete(pairs).where(pairs.c.completion_id == change.id))
    record = find(transaction.connection, change.owner, change.id)
    assert record is not None  # it is locked
    transaction.execute_many(_PAIR, _pair_rows(record))
    return record


def find(connection: Connection, owner: str, completion_id: str) -> CompletionRecord | None:
    """The completion."""
    row = connection.execute(select(completions).where(_owned(owner, completion_id))).first()
    return _record(row) if row else None


_BYTES = func.length(completions.c.body).label("size")


def _listing(owner: str) -> Listing:
    """The ids and sizes of an owner's completions."""
    query = select(completions.c.id, _BYTES).where(completions.c.owner == owner)
    return Listing(query, (completions.c.created_at, completions.c.id))


class _Filter(msgspec.Struct, frozen=True):
    """A filter of the list: the rows that an index finds for it, and its condition for the rows of others."""

    listing: Listing
    holds: ColumnElement[bool]


def _by_model(owner: str, model: str) -> _Filter:
    listing, holds = _listing(owner), completions.c.model == model
    return _Filter(replace(listing, rows=listing.rows.where(holds)), holds)


def _by_pair(owner: str, key: str, value: str) -> _Filter:
    pair = digest(key, value)
    condition = (pairs.c.owner == owner) & (pairs.c.pair == pair)
    query = select(completions.c.id, _BYTES).join_from(
        pairs, completions, pairs.c.completion_id == completions.c.id
    )
    listing = Listing(query.where(condition), (pairs.c.created_at, pairs.c.completion_id))
    alias = pairs.alias()
    same = (alias.c.completion_id == completions.c.id) & (alias.c.pair == pair)
    # A scalar, and not EXISTS: PostgreSQL might read all pairs for that.
    return _Filter(listing, select(alias.c.pair).where(same).scalar_subquery().is_not(None))


def _filters(owner: str, only: CompletionFilter) -> list[_Filter]:
    filters = [_by_pair(owner, key, value) for key, value in only.metadata.items()]
    return filters if only.model is None else [*filters, _by_model(owner, only.model)]


def _ranked(connection: Connection, filters: Sequence[_Filter]) -> list[_Filter]:
    """The narrowest first, as far as a bounded number of rows shows it."""

    def count(candidate: _Filter) -> int:
        rows = candidate.listing.rows.with_only_columns(*candidate.listing.keys).limit(LOOKED_AT).subquery()
        return connection.execute(select(func.count()).select_from(rows)).scalar_one()

    return sorted(filters, key=count)


def _records(connection: Connection, ids: Sequence[str]) -> list[CompletionRecord]:
    """Those that are still there."""
    rows = connection.execute(select(completions).where(completions.c.id.in_(ids)))
    records = {row.id: _record(row) for row in rows}
    return [records[completion_id] for completion_id in ids if completion_id in records]


def _messages(
    connection: Connection, owner: str, completion_id: str, paging: Paging, max_bytes: int
) -> Page[ItemRecord]:
    with existing(lambda: _require(connection, owner, completion_id)):
        return items.input_page(connection, owner, completion_id, paging, max_bytes)


def _require(connection: Connection, owner: str, completion_id: str) -> None:
    if connection.execute(select(completions.c.id).where(_owned(owner, completion_id))).first() is None:
        raise missing(completion_id)


class SqlCompletions:
    """`Completions`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, record: CompletionRecord, messages: Sequence[ItemRecord]) -> None:
        await self._database.write(save_all, (record, messages))

    async def get(self, owner: str, completion_id: str) -> CompletionRecord | None:
        return await self._database.read(find, owner, completion_id)

    async def list(self, owner: str, only: CompletionFilter, paging: Paging) -> Page[CompletionRecord]:
        async def read() -> Page[ResultRow]:
            return fit(await self._row_page(owner, only, paging), paging, self._database.limits.page_bytes)

        return await filled(read, partial(self._database.read, _records))

    async def _row_page(self, owner: str, only: CompletionFilter, paging: Paging) -> Page[ResultRow]:
        """The ids and sizes on a page."""
        unfiltered, filters = _listing(owner), _filters(owner, only)
        if len(filters) > 1:
            filters = await self._database.read(_ranked, filters)
        listing = replace(filters[0].listing, unfiltered=unfiltered) if filters else unfiltered
        if others := filters[1:]:
            sieve = and_(*(other.holds for other in others))
            return await sifted(self._database, replace(listing, sieve=sieve), paging)
        return await self._database.read(page, listing, paging)

    async def update(
        self, owner: str, completion_id: str, metadata: Mapping[str, str], body: bytes
    ) -> CompletionRecord:
        record = await self._database.write(_update, _Change(owner, completion_id, metadata, body))
        if record is None:
            raise missing(completion_id)
        return record

    async def delete(self, owner: str, completion_id: str) -> bool:
        return await delete_parent(self._database, completions, _owned(owner, completion_id))

    async def messages(self, owner: str, completion_id: str, paging: Paging) -> Page[ItemRecord]:
        return await self._database.read(
            _messages, owner, completion_id, paging, self._database.limits.page_bytes
        )
