"""Items of a parent: a response, a conversation or a stored completion."""

from collections.abc import Iterable, Sequence
from itertools import count
from secrets import token_hex
from typing import Any

import msgspec
from msgspec.structs import asdict, replace
from sqlalchemy import Connection, Select, bindparam, func, select

from antiphon.core.errors import RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store.database import ResultRow
from antiphon.store.pages import Listing, page_within
from antiphon.store.records import ItemRecord, Page, Paging
from antiphon.store.schema import items
from antiphon.store.transaction import PreparedStatement, Rows, Transaction, Values, insertion
from antiphon.store.usage import size_of, stored_size

COLUMNS = (items.c.id, items.c.type, items.c.payload, items.c.created_at, items.c.tokens, items.c.blobs)
"""Those of an `ItemRecord`."""

SIZE = stored_size(items.c.payload, items.c.tokens)
"""The size of an item."""

_BYTES = func.coalesce(func.length(items.c.payload), 0)

_ADD = insertion(items)
_WITH_ID = PreparedStatement(
    select(items.c.id).where(items.c.id == bindparam("item_id"), items.c.parent == bindparam("parent_id"))
)

MAX_PREFIX = 16
"""Characters of an id that say what it is of."""


def input_rows(owner: str, parent: str, records: Iterable[ItemRecord], start: int = 0) -> Rows:
    """Rows for input items, from position `start` on."""
    return [_row(owner, parent, False, position, record) for position, record in zip(count(start), records)]


def distinct(records: Sequence[ItemRecord], taken: Iterable[str] = ()) -> Sequence[ItemRecord]:
    """The items, each with an id of its own: ids are the cursors of lists.

    One whose id is `taken`, or that of an item before it, gets another.
    """
    ids, uniques = {*taken}, []
    for record in records:
        unique = _renamed(record) if record.id in ids else record
        ids.add(unique.id)
        uniques.append(unique)
    return uniques


def _renamed(record: ItemRecord) -> ItemRecord:
    new = f"{record.id.partition('_')[0][:MAX_PREFIX]}_{token_hex(24)}"
    old = b'"id":' + msgspec.json.encode(record.id)  # the second member of any payload
    return replace(record, id=new, payload=record.payload.replace(old, b'"id":"%b"' % new.encode(), 1))


def taken(transaction: Transaction, parent: str, records: Iterable[ItemRecord]) -> list[str]:
    """Which of the ids of these records items of the parent have."""
    values = [{"item_id": record.id, "parent_id": parent} for record in records]
    return [row["id"] for row in transaction.find(_WITH_ID, values)]


def output_rows(owner: str, parent: str, records: Iterable[ItemRecord]) -> Rows:
    """Rows for output items."""
    return [_row(owner, parent, True, position, record) for position, record in enumerate(records)]


def size(records: Iterable[ItemRecord]) -> int:
    """The size of items."""
    return sum(size_of(record.payload, record.tokens) for record in records)


def add(transaction: Transaction, rows: Rows) -> None:
    """Store rows, of any parents."""
    transaction.execute_many(_ADD, rows)


def inputs_of(owner: str, parent: str) -> Select[Any]:
    """The input items, in no order."""
    query = select(*COLUMNS).where(items.c.parent == parent, items.c.output.is_(False))
    return query.where(items.c.owner == owner)


def input_page(
    connection: Connection, owner: str, parent: str, paging: Paging, max_bytes: int
) -> Page[ItemRecord]:
    """A page of input items: at least one, and further ones up to a limit of bytes."""
    listing = Listing(inputs_of(owner, parent), (items.c.position,), repeats=True)
    row_page = page_within(connection, listing, _BYTES, paging, max_bytes)
    return Page([record(row) for row in row_page.data], row_page.has_more)


def within(max_bytes: int, rows: Iterable[Any], param: str) -> list[Any]:
    """Items, or their rows, of at most this number of bytes; no more are read.

    Raises RequestError for `param`.
    """
    read, left = [], max_bytes
    for row in rows:
        left -= len(row.payload or b"")
        if left < 0:
            message = (
                f"This history has more than {max_bytes} bytes, the limit 'history_bytes' of this server."
            )
            raise RequestError(message, param=param, code=LIMIT_EXCEEDED)
        read.append(row)
    return read


def record(row: ResultRow) -> ItemRecord:
    """An item from a row with its `COLUMNS`."""
    blobs = tuple((row.blobs or "").split())
    return ItemRecord(row.id, row.type, row.payload, row.created_at, row.tokens, blobs)


def _row(owner: str, parent: str, output: bool, position: int, record: ItemRecord) -> Values:
    place = {"owner": owner, "parent": parent, "output": output, "position": position}
    return {**place, **asdict(record), "blobs": " ".join(record.blobs) or None}
