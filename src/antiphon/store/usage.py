"""The bytes that each owner has stored: counted in the transaction that changes them.

Blobs, chunks of vector stores, responses, conversations and stored completions are counted, with all rows
that belong to them. A parent has its size in its own row, so that deleting it need not read its children.
`Transaction.count` collects the differences of a transaction; one statement for each owner adds them to its
counter. So no table is read for it, and concurrent servers each add their own differences. The limit is in
`quota.py`.
"""

import asyncio
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Table, bindparam, func, literal, select

from antiphon.store.database import Database
from antiphon.store.quota import refusal
from antiphon.store.schema import conversations, usage
from antiphon.store.transaction import Transaction

ROW_BYTES = 256
"""The size of a row besides its content: for ids, times and indexes."""

_OWN = select(usage.c.bytes).where(usage.c.owner == bindparam("owner"))
_CONVERSATION = select(conversations.c.size).where(
    conversations.c.owner == bindparam("owner"), conversations.c.id == bindparam("id")
)


def size_of(*contents: bytes | None) -> int:
    """The size of a row with this content."""
    return ROW_BYTES + sum(len(content) for content in contents if content)


def stored_size(*columns: ColumnElement[Any]) -> ColumnElement[int]:
    """The same of rows that are stored, with these columns."""
    return sum((func.coalesce(func.length(column), 0) for column in columns), start=literal(ROW_BYTES))


def uncount(
    transaction: Transaction, table: Table, size: ColumnElement[Any], condition: ColumnElement[bool]
) -> None:
    """Uncount rows that are deleted next. It locks them: concurrent transactions find none."""
    rows = select(table.c.owner, size.label("size")).where(condition).order_by(table.c.id).with_for_update()
    for row in transaction.execute(rows).all():
        transaction.count(row.owner, -row.size)


class _Addition(Struct, frozen=True):
    owner: str
    size: int
    param: str
    conversation_id: str | None


def _of(connection: Connection, owner: str) -> int:
    return int(connection.execute(_OWN, {"owner": owner}).scalar() or 0)


def _check(connection: Connection, database: Database, addition: _Addition, now: float) -> None:
    quota, limits = database.quota(connection, now), database.limits
    if addition.size > limits.response_bytes:
        raise refusal("response_bytes", limits, addition.param)
    quota.check(addition.owner, ROW_BYTES + addition.size, addition.param)
    if addition.conversation_id is not None:
        values = {"owner": addition.owner, "id": addition.conversation_id}
        size = connection.execute(_CONVERSATION, values).scalar()
        if size is not None and size + addition.size > limits.conversation_bytes:
            raise refusal("conversation_bytes", limits, "conversation")


class SqlStorageUsage:
    """`StorageUsage`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._checking: dict[str, asyncio.Future[None]] = {}

    async def of(self, owner: str) -> int:
        return await self._database.read(_of, owner)

    async def check(self, owner: str, adding: int, param: str, conversation_id: str | None = None) -> None:
        addition = _Addition(owner, adding, param, conversation_id)
        # Requests that come together need not all look it up: mostly, the first finds enough of it.
        first = None if self._has_room(addition) else self._checking.get(owner)
        if first is not None:
            await asyncio.wait((first,))
        if not self._has_room(addition):
            await self._look_up(addition)

    def _has_room(self, addition: _Addition) -> bool:
        """There is room for certain."""
        now = asyncio.get_running_loop().time()
        limits, enough = self._database.limits, now < self._database.enough_until.get(addition.owner, 0.0)
        return enough and addition.conversation_id is None and addition.size <= limits.response_bytes

    async def _look_up(self, addition: _Addition) -> None:
        loop = asyncio.get_running_loop()
        done = self._checking[addition.owner] = loop.create_future()
        try:
            await self._database.read(_check, self._database, addition, loop.time())
        finally:
            done.set_result(None)
            if self._checking.get(addition.owner) is done:
                del self._checking[addition.owner]
