"""What each owner has stored, in bytes: counted where it changes, in the transaction that changes it.

Counted are blobs, chunks of vector stores, responses, conversations and stored completions, with all rows
that belong to them. A parent has its size in its own row, so that deleting it reads nothing of what goes.
`Transaction.count` collects the differences of a transaction; one statement for each owner adds them to its
counter. So no table is ever read for it, and each server adds its own differences, whoever writes beside it.

What is new is refused where there is no room for it. What an answer adds at its end is always stored:
nobody loses an answer because of what was stored while it was given.

An owner `KIND:OWNER` is OWNER with a list of its own: what it has is counted with the rest.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Table, bindparam, func, literal, select

from antiphon.core.errors import RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store.database import Database
from antiphon.store.records import Limits
from antiphon.store.schema import conversations, usage
from antiphon.store.transaction import Transaction, counted_with

ROW_BYTES = 256
"""What a row counts beside its content: for ids, times and indexes."""

PLENTY = 1024**3
"""Bytes: more than is stored within `LASTING` seconds."""
LASTING = 1.0
"""Seconds for which `PLENTY` is enough: to look up what is left costs each request as much as its storing."""

_OWN = select(usage.c.owner, usage.c.bytes).where(usage.c.owner.in_(bindparam("owners", expanding=True)))
_ALL = select(func.coalesce(func.sum(usage.c.bytes), 0))  # there are as many as keys
_CONVERSATION = select(conversations.c.size).where(
    conversations.c.owner == bindparam("owner"), conversations.c.id == bindparam("id")
)
_NOTHING: Mapping[str, int] = {}

_REFUSALS = {
    "response_bytes": ("This response", "Send less, or send it with 'store: false'."),
    "conversation_bytes": ("This conversation", "Delete some of its items, or begin another."),
    "stored_bytes": ("What you have stored", "Delete what you no longer need."),
    "all_stored_bytes": ("What all clients have stored", "Tell whoever runs the server."),
}


def size_of(*contents: bytes | None) -> int:
    """What a row with this content counts."""
    return ROW_BYTES + sum(len(content) for content in contents if content)


def stored_size(*columns: ColumnElement[Any]) -> ColumnElement[int]:
    """The same of rows that are stored, with these columns."""
    return sum((func.coalesce(func.length(column), 0) for column in columns), start=literal(ROW_BYTES))


def refusal(limit: str, limits: Limits, param: str | None) -> RequestError:
    """The error for what would be over a limit."""
    what, remedy = _REFUSALS[limit]
    most = getattr(limits, limit.removesuffix("_bytes"))
    message = f"{what} would have more than {most} bytes, the limit '{limit}' of this server. {remedy}"
    return RequestError(message, param=param, code=LIMIT_EXCEEDED)


def uncount(
    transaction: Transaction, table: Table, size: ColumnElement[Any], which: ColumnElement[bool]
) -> None:
    """Count rows no more that are about to go. It locks them: whoever else deletes them finds none."""
    rows = select(table.c.owner, size.label("size")).where(which).order_by(table.c.id).with_for_update()
    for row in transaction.execute(rows).all():
        transaction.count(row.owner, -row.size)


class Room:
    """How much owners may still store. `grown` are bytes that a transaction has counted, and counts yet."""

    def __init__(
        self,
        connection: Connection,
        owners: Iterable[str],
        limits: Limits,
        grown: Mapping[str, int] = _NOTHING,
    ) -> None:
        self._limits = limits
        self._grown = grown
        named = {counted_with(owner) for owner in owners}
        own = connection.execute(_OWN, {"owners": [*named]})
        self._own = Counter({row.owner: int(row.bytes) for row in own})
        self._all = int(connection.execute(_ALL).scalar_one())

    def exceeded(self, owner: str, adding: int = 0) -> str | None:
        """The name of the limit that an owner is over with so many more bytes."""
        if self.left(owner) >= adding:
            return None
        return "stored_bytes" if self._left_of(owner) < adding else "all_stored_bytes"

    def left(self, owner: str) -> int:
        """The bytes that an owner may still store."""
        return min(self._left_of(owner), self._limits.all_stored - self._all - sum(self._grown.values()))

    def _left_of(self, owner: str) -> int:
        """The bytes up to its own limit."""
        owner = counted_with(owner)
        return self._limits.stored - self._own[owner] - self._grown.get(owner, 0)


def check_room(transaction: Transaction, owner: str, limits: Limits, param: str | None = None) -> None:
    """Raise RequestError if an owner is over a limit, with what the transaction has counted so far."""
    over = Room(transaction.connection, (owner,), limits, transaction.grown).exceeded(owner)
    if over is not None:
        raise refusal(over, limits, param)


class _Wanted(Struct, frozen=True):
    owner: str
    adding: int
    param: str
    conversation_id: str | None


def _of(connection: Connection, owner: str) -> int:
    row = connection.execute(_OWN, {"owners": [owner]}).first()
    return int(row.bytes) if row else 0


def _check(connection: Connection, wanted: _Wanted, limits: Limits) -> int:
    """The bytes that are left. Raises RequestError."""
    room = Room(connection, (wanted.owner,), limits)
    over = room.exceeded(wanted.owner, ROW_BYTES + wanted.adding)
    if wanted.adding > limits.response:
        over = "response_bytes"
    if over is not None:
        raise refusal(over, limits, wanted.param)
    if wanted.conversation_id is not None:
        named = {"owner": wanted.owner, "id": wanted.conversation_id}
        size = connection.execute(_CONVERSATION, named).scalar()
        if size is not None and size + wanted.adding > limits.conversation:
            raise refusal("conversation_bytes", limits, "conversation")
    return room.left(wanted.owner)


class SqlUsage:
    """`Usage`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._plenty: dict[str, float] = {}  # by owner: until when there is room for certain

    async def of(self, owner: str) -> int:
        return await self._database.read(_of, owner)

    async def check(self, owner: str, adding: int, param: str, conversation_id: str | None = None) -> None:
        now, limits = asyncio.get_running_loop().time(), self._database.limits
        if conversation_id is None and adding <= limits.response and now < self._plenty.get(owner, 0.0):
            return
        wanted = _Wanted(owner, adding, param, conversation_id)
        if await self._database.read(_check, wanted, limits) > PLENTY:
            self._plenty[owner] = now + LASTING
