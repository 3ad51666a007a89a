"""Conversations: a counter row, and items numbered by it."""

from collections.abc import Collection, Sequence

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, Connection, func, select, update
from sqlalchemy import delete as delete_from

from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store import blobs, items
from antiphon.store.database import Database, ResultRow, one_by_one
from antiphon.store.delete import delete_parent
from antiphon.store.pages import existing
from antiphon.store.quota import refusal
from antiphon.store.records import ConversationRecord, ItemRecord, Page, Paging
from antiphon.store.schema import conversations
from antiphon.store.schema import items as item_table
from antiphon.store.transaction import Transaction, insertion
from antiphon.store.usage import size_of

COLUMNS = (conversations.c.id, conversations.c.owner, conversations.c.created_at, conversations.c.metadata)

_CREATE = insertion(conversations)


def missing(conversation_id: str, **details: str) -> NotFoundError:
    """The conversation does not exist, or belongs to another owner."""
    return NotFoundError(f"Conversation with id {conversation_id!r} not found.", **details)


def owners(transaction: Transaction, ids: Collection[str]) -> dict[str, str]:
    """Whose conversations these are, as far as they exist."""
    if not ids:
        return {}
    named = select(conversations.c.id, conversations.c.owner).where(conversations.c.id.in_(ids))
    return {row.id: row.owner for row in transaction.execute(named)}


def append(transaction: Transaction, conversation_id: str, records: Sequence[ItemRecord]) -> None:
    """Append items. If the conversation was deleted, nothing is written."""
    condition = conversations.c.id == conversation_id
    records = items.distinct(records, items.taken(transaction, conversation_id, records))
    counter, size = conversations.c.next_position, items.size(records)
    # Incrementing the count locks the row: concurrent appends wait, and get the following numbers.
    grown = {"next_position": counter + len(records), "size": conversations.c.size + size}
    if transaction.execute(update(conversations).where(condition).values(grown)).rowcount:
        now = transaction.execute(select(counter, conversations.c.owner).where(condition)).one()
        start = now.next_position - len(records)
        items.add(transaction, items.input_rows(now.owner, conversation_id, records, start))
        blobs.hold_for(transaction, now.owner, conversation_id, records)
        transaction.count(now.owner, size)


def _owned(owner: str, conversation_id: str) -> ColumnElement[bool]:
    return (conversations.c.id == conversation_id) & (conversations.c.owner == owner)


def find(connection: Connection, owner: str, conversation_id: str) -> ConversationRecord | None:
    """The conversation."""
    return _record(connection.execute(select(*COLUMNS).where(_owned(owner, conversation_id))).first())


def _record(row: ResultRow | None) -> ConversationRecord | None:
    return ConversationRecord(**row._mapping) if row else None


def _find_locked(transaction: Transaction, owner: str, conversation_id: str) -> ConversationRecord | None:
    """The conversation, which cannot be deleted before the transaction ends."""
    query = select(*COLUMNS).where(_owned(owner, conversation_id)).with_for_update()
    return _record(transaction.execute(query).first())


def _require(connection: Connection, owner: str, conversation_id: str) -> None:
    if find(connection, owner, conversation_id) is None:
        raise missing(conversation_id)


@one_by_one
def _create(transaction: Transaction, creation: tuple[ConversationRecord, Sequence[ItemRecord]]) -> None:
    record, first = creation
    size = size_of(record.metadata) + items.size(first)
    transaction.execute_many(_CREATE, [{**asdict(record), "next_position": len(first), "size": size}])
    count = select(func.count()).select_from(conversations).where(conversations.c.owner == record.owner)
    limit = transaction.quota.limits.conversations
    if transaction.execute(count).scalar_one() > limit:
        message = f"You have {limit} conversations, the limit 'conversations' of this server. Delete some."
        raise RequestError(message, code=LIMIT_EXCEEDED)
    items.add(transaction, items.input_rows(record.owner, record.id, first))
    blobs.hold_for(transaction, record.owner, record.id, first)
    transaction.count(record.owner, size)
    _check_size(transaction, record.owner, size)


def _check_size(transaction: Transaction, owner: str, size: int) -> None:
    """Raise RequestError if a conversation is too large, or its owner has no room for it."""
    quota = transaction.quota
    if size > quota.limits.conversation_bytes:
        raise refusal("conversation_bytes", quota.limits, "items")
    quota.check(owner, param="items")


@one_by_one
def _update(transaction: Transaction, change: tuple[str, str, bytes]) -> ConversationRecord | None:
    owner, conversation_id, metadata = change
    before = _find_locked(transaction, owner, conversation_id)
    if before is None:
        return None
    more = len(metadata) - len(before.metadata)
    changed = {"metadata": metadata, "size": conversations.c.size + more}
    transaction.execute(update(conversations).where(_owned(owner, conversation_id)).values(changed))
    transaction.count(owner, more)
    return find(transaction.connection, owner, conversation_id)


@one_by_one
def _add(transaction: Transaction, addition: tuple[str, str, Sequence[ItemRecord]]) -> bool:
    owner, conversation_id, records = addition
    if _find_locked(transaction, owner, conversation_id) is None:
        return False
    append(transaction, conversation_id, records)
    size = select(conversations.c.size).where(conversations.c.id == conversation_id)
    _check_size(transaction, owner, transaction.execute(size).scalar_one())
    return True


@one_by_one
def _delete_item(
    transaction: Transaction, named: tuple[str, str, str]
) -> tuple[ConversationRecord | None, int]:
    """The conversation, and how many items were deleted: of many with this id, some are left."""
    owner, conversation_id, item_id = named
    conversation = _find_locked(transaction, owner, conversation_id)
    if conversation is None:
        return None, 0
    condition = item_table.c.parent == conversation_id
    same = condition & (item_table.c.id == item_id) & (item_table.c.owner == owner)
    query = select(item_table.c.position).where(same).order_by(item_table.c.position)
    positions = transaction.execute(query.limit(transaction.tuning.sweep)).scalars().all()
    entries = condition & item_table.c.output.is_(False) & item_table.c.position.in_(positions)
    held = _blobs(transaction, entries)
    size = int(
        transaction.execute(select(func.coalesce(func.sum(items.SIZE), 0)).where(entries)).scalar_one()
    )
    transaction.execute(delete_from(item_table).where(entries))
    less = {"size": conversations.c.size - size}
    transaction.execute(update(conversations).where(conversations.c.id == conversation_id).values(less))
    transaction.count(owner, -size)
    if held and (unused := held - _blobs(transaction, condition)):
        blobs.release_from(transaction, conversation_id, unused)
    return conversation, len(positions)


def _blobs(transaction: Transaction, condition: ColumnElement[bool]) -> set[str]:
    """The digests that these items refer to."""
    named = select(item_table.c.blobs).where(condition, item_table.c.blobs.is_not(None))
    return {digest for row in transaction.execute(named) for digest in row.blobs.split()}


def _page(
    connection: Connection, owner: str, conversation_id: str, paging: Paging, max_bytes: int
) -> Page[ItemRecord]:
    with existing(lambda: _require(connection, owner, conversation_id)):
        return items.input_page(connection, owner, conversation_id, paging, max_bytes)


def _history(connection: Connection, owner: str, conversation_id: str, max_bytes: int) -> list[ItemRecord]:
    ordered = items.inputs_of(owner, conversation_id).order_by(item_table.c.position)
    with existing(lambda: _require(connection, owner, conversation_id)):
        return [
            items.record(row) for row in items.within(max_bytes, connection.execute(ordered), "conversation")
        ]


def _item(connection: Connection, owner: str, conversation_id: str, item_id: str) -> ItemRecord | None:
    owned = select(conversations.c.id).where(_owned(owner, conversation_id)).scalar_subquery()
    condition = (item_table.c.id == item_id) & (item_table.c.owner == owner)
    named = select(*items.COLUMNS).where(item_table.c.parent == owned, condition)
    row = connection.execute(named.order_by(item_table.c.position).limit(1)).first()
    return items.record(row) if row else None


class SqlConversations:
    """`Conversations`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, record: ConversationRecord, first: Sequence[ItemRecord]) -> None:
        await self._database.write(_create, (record, items.distinct(first)))

    async def get(self, owner: str, conversation_id: str) -> ConversationRecord | None:
        return await self._database.read(find, owner, conversation_id)

    async def update(self, owner: str, conversation_id: str, metadata: bytes) -> ConversationRecord:
        record = await self._database.write(_update, (owner, conversation_id, metadata))
        if record is None:
            raise missing(conversation_id)
        return record

    async def delete(self, owner: str, conversation_id: str) -> bool:
        return await delete_parent(self._database, conversations, _owned(owner, conversation_id))

    async def add(self, owner: str, conversation_id: str, items: Sequence[ItemRecord]) -> None:
        if not await self._database.write(_add, (owner, conversation_id, items)):
            raise missing(conversation_id)

    async def items(self, owner: str, conversation_id: str, paging: Paging) -> Page[ItemRecord]:
        return await self._database.read(
            _page, owner, conversation_id, paging, self._database.limits.page_bytes
        )

    async def history(self, owner: str, conversation_id: str) -> list[ItemRecord]:
        return await self._database.read(
            _history, owner, conversation_id, self._database.limits.history_bytes
        )

    async def item(self, owner: str, conversation_id: str, item_id: str) -> ItemRecord | None:
        return await self._database.read(_item, owner, conversation_id, item_id)

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> ConversationRecord:
        named, count = (owner, conversation_id, item_id), 0
        while True:
            record, deleted = await self._database.write(_delete_item, named)
            if record is None:
                raise missing(conversation_id)
            count += deleted
            if deleted < self._database.tuning.sweep:
                break
        if not count:
            raise NotFoundError(f"Item with id {item_id!r} not found in the conversation.")
        return record
