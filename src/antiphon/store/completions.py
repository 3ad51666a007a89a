"""Stored chat completions, and their messages as items."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, delete, select, update

from antiphon.core.errors import NotFoundError
from antiphon.store import blobs, items
from antiphon.store.database import Database, Found, one_by_one
from antiphon.store.delete import delete_completions
from antiphon.store.pages import existing, page
from antiphon.store.records import CompletionFilter, CompletionRecord, ItemRecord, Page, Paging
from antiphon.store.schema import checked, completions
from antiphon.store.schema import completion_metadata as pairs
from antiphon.store.transaction import Rows, Transaction, insertion
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


def _record(row: Found) -> CompletionRecord:
    values = dict(row._mapping)
    metadata = msgspec.json.decode(values.pop("metadata"), type=dict[str, str])
    del values["size"]
    return CompletionRecord(metadata=metadata, **values)


def _encoded(metadata: Mapping[str, str]) -> bytes:
    return msgspec.json.encode({checked(key): checked(value) for key, value in metadata.items()})


def _row(it: CompletionRecord, metadata: bytes, size: int) -> tuple[Any, ...]:
    return it.id, it.owner, it.created_at, it.model, it.expires_at, metadata, it.body, size


def _pair_rows(completion_id: str, metadata: Mapping[str, str]) -> Rows:
    return [(completion_id, key, value) for key, value in metadata.items()]


def save_all(
    transaction: Transaction, saves: Sequence[tuple[CompletionRecord, Sequence[ItemRecord]]]
) -> list[None]:
    """Store completions with their messages."""
    rows: list[tuple[Any, ...]] = []
    for it, messages in saves:
        metadata = _encoded(it.metadata)
        size = size_of(it.body, metadata) + items.size(messages)
        rows.append(_row(it, metadata, size))
        transaction.count(it.owner, size)
    transaction.each(_SAVE, rows)
    transaction.each(_PAIR, [row for it, _ in saves for row in _pair_rows(it.id, it.metadata)])
    items.add(transaction, [row for it, messages in saves for row in items.input_rows(it.id, messages)])
    for it, messages in saves:
        blobs.hold_for(transaction, it.owner, it.id, messages)
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
    transaction.each(_PAIR, _pair_rows(change.id, change.metadata))
    return find(transaction.connection, change.owner, change.id)


@one_by_one
def _delete(transaction: Transaction, owned: tuple[str, str]) -> bool:
    found = select(completions.c.id).where(_owned(*owned)).with_for_update()
    if transaction.execute(found).first() is None:
        return False
    delete_completions(transaction, [owned[1]])
    return True


def find(connection: Connection, owner: str, completion_id: str) -> CompletionRecord | None:
    """The completion."""
    row = connection.execute(select(completions).where(_owned(owner, completion_id))).first()
    return _record(row) if row else None


def _list(
    connection: Connection, owner: str, only: CompletionFilter, paging: Paging
) -> Page[CompletionRecord]:
    wanted = select(completions).where(completions.c.owner == owner)
    if only.model is not None:
        wanted = wanted.where(completions.c.model == only.model)
    for key, value in only.metadata.items():
        its = (pairs.c.completion_id == completions.c.id) & (pairs.c.key == key) & (pairs.c.value == value)
        wanted = wanted.where(select(pairs.c.key).where(its).exists())
    found = page(connection, wanted, (completions.c.created_at, completions.c.id), paging)
    return Page([_record(row) for row in found.data], found.has_more)


def _messages(
    connection: Connection, owner: str, completion_id: str, paging: Paging, max_bytes: int
) -> Page[ItemRecord]:
    with existing(lambda: _require(connection, owner, completion_id)):
        return items.input_page(connection, completion_id, paging, max_bytes)


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
        return await self._database.read(_list, owner, only, paging)

    async def update(
        self, owner: str, completion_id: str, metadata: Mapping[str, str], body: bytes
    ) -> CompletionRecord:
        record = await self._database.write(_update, _Change(owner, completion_id, metadata, body))
        if record is None:
            raise missing(completion_id)
        return record

    async def delete(self, owner: str, completion_id: str) -> bool:
        return await self._database.write(_delete, (owner, completion_id))

    async def messages(self, owner: str, completion_id: str, paging: Paging) -> Page[ItemRecord]:
        return await self._database.read(_messages, owner, completion_id, paging, self._database.limits.page)
