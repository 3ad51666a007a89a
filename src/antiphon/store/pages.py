"""Pages of lists that are ordered by columns, with ids as cursors.

An index finds the rows of a list in their order, so that a page costs the same however long the list is. A
condition that no index knows is the list's `sieve`: rows are looked at in pieces, each a read of its own, so
that other reads run in between. Such a page may end before it is full. It has at least one row unless
nothing follows: clients take an empty page for the end of a list.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, count
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, Select, tuple_

from antiphon.core.errors import NotFoundError
from antiphon.store.database import Database, ResultRow
from antiphon.store.records import Page, Paging

T = TypeVar("T")

LOOKED_AT = 500
"""The most rows that one read puts through a sieve."""

PIECES = 40
"""The number of such reads after which a page with at least one row ends."""


class Listing(Struct, frozen=True):
    """A list: `rows` with a column `id`, ordered by `keys`, which an index has in this order.

    `unfiltered` is the list without filters, if it has some: a row that does not match any more is still a
    place in the list, which a cursor may name. Where an id `repeats`, as in older stores, the last row with
    it is the place, so that every walk through the list ends.
    """

    rows: Select[Any]
    keys: Sequence[ColumnElement[Any]]
    unfiltered: "Listing | None" = None
    sieve: ColumnElement[bool] | None = None
    repeats: bool = False


@contextmanager
def existing(require: Callable[[], object]) -> Iterator[None]:
    """Read the children of an object in the block. `require` raises if the object does not exist.

    It is called after the read: other transactions may delete the object between two statements.
    """
    require()
    yield
    require()


def page(connection: Connection, listing: Listing, paging: Paging) -> Page[ResultRow]:
    """Part of a list without a sieve. Raises NotFoundError for ids in `paging`."""
    query = _between(connection, listing, paging)
    return _first(connection.execute(query.limit(paging.limit + 1)).all(), paging)


def page_within(
    connection: Connection, listing: Listing, size: ColumnElement[int], paging: Paging, max_bytes: int
) -> Page[ResultRow]:
    """The same, of at least one row, and further ones up to a limit of bytes. No others are read."""
    ids = listing.rows.selected_columns.id
    sizes = replace(listing, rows=listing.rows.with_only_columns(ids, size.label("size")))
    fitting = fit(page(connection, sizes, paging), paging, max_bytes)
    return page(connection, listing, replace(paging, limit=max(1, len(fitting.data))))


def fit(row_page: Page[ResultRow], paging: Paging, max_bytes: int) -> Page[ResultRow]:
    """At least one row, and further ones while the sum of their `size` is within a limit."""
    rows = row_page.data[::-1] if _is_backwards(paging) else row_page.data
    fitting = max(1, sum(total <= max_bytes for total in accumulate(row.size for row in rows)))
    first = _first(rows, replace(paging, limit=fitting))
    return replace(first, has_more=row_page.has_more or first.has_more)


async def filled(
    read: Callable[[], Awaitable[Page[ResultRow]]], find: Callable[[Sequence[str]], Awaitable[list[T]]]
) -> Page[T]:
    """The page of the records of the ids that `read` returns.

    All of them may be deleted before `find` returns them. It is read again then: an empty page would be taken
    for the end of the list.
    """
    while True:
        row_page = await read()
        records = await find([row.id for row in row_page.data])
        if records or not row_page.has_more:
            return Page(records, row_page.has_more)


async def sifted(database: Database, listing: Listing, paging: Paging) -> Page[ResultRow]:
    """Part of a list with a sieve. Raises NotFoundError for ids in `paging`."""
    rows: list[ResultRow] = []
    last: ResultRow | None = None
    size, more = paging.limit + 1, True
    for number in count(1):
        piece = await database.read(_piece, listing, paging, size, last)
        rows += [row for row in piece if row.passes]
        more = len(piece) == size
        if not more or len(rows) > paging.limit or (rows and number >= PIECES):
            break
        last, size = piece[-1], LOOKED_AT
    first = _first(rows, paging)
    return replace(first, has_more=more or first.has_more)


def _piece(
    connection: Connection, listing: Listing, paging: Paging, size: int, last: ResultRow | None
) -> Sequence[ResultRow]:
    """The next rows after the last one, and whether each passes the sieve."""
    assert listing.sieve is not None
    keys = None if last is None else last[-len(listing.keys) :]
    query = _between(connection, listing, paging, keys)
    return connection.execute(
        query.add_columns(listing.sieve.label("passes"), *listing.keys).limit(size)
    ).all()


def _first(rows: Sequence[ResultRow], paging: Paging) -> Page[ResultRow]:
    """The page of rows that were read, of which there may be more than it has."""
    data = list(rows[: paging.limit])
    return Page(data[::-1] if _is_backwards(paging) else data, len(rows) > paging.limit)


def _is_backwards(paging: Paging) -> bool:
    """Whether it is read against the order of the list: those nearest to `before` come first."""
    return paging.before is not None and paging.after is None


def _is_read_upwards(paging: Paging) -> bool:
    return (paging.order == "asc") != _is_backwards(paging)


def _between(
    connection: Connection, listing: Listing, paging: Paging, last: Sequence[Any] | None = None
) -> Select[Any]:
    """The rows between the cursors, in the order in which they are read; only those after the `last` keys."""
    rows, upwards = listing.rows, _is_read_upwards(paging)
    first = "before" if _is_backwards(paging) else "after"
    # In the place of the cursor, not besides: an index begins to read at one of two conditions only.
    begin = last if last is not None else _place(connection, listing, paging, first)
    if begin is not None:
        rows = rows.where(_beyond(listing.keys, begin, upwards))
    if first == "after" and (end := _place(connection, listing, paging, "before")) is not None:
        rows = rows.where(_beyond(listing.keys, end, not upwards))
    return rows.order_by(*(key.asc() if upwards else key.desc() for key in listing.keys))


def _place(connection: Connection, listing: Listing, paging: Paging, param: str) -> ResultRow | None:
    """The keys of the row of a cursor, if there is one."""
    cursor, unfiltered = getattr(paging, param), listing.unfiltered or listing
    if cursor is None:
        return None
    query = unfiltered.rows.with_only_columns(*unfiltered.keys).where(
        unfiltered.rows.selected_columns.id == cursor
    )
    upwards = _is_read_upwards(paging)
    # Not ordered without need: SQLite would look for the id in the order of the list.
    if unfiltered.repeats:
        query = query.order_by(*(key.desc() if upwards else key.asc() for key in unfiltered.keys))
    place = connection.execute(query.limit(1)).first()
    if place is None:
        raise NotFoundError(f"There is no {cursor!r} in this list. Use the id of an entry.", param=param)
    return place


def _beyond(keys: Sequence[ColumnElement[Any]], place: Sequence[Any], ascending: bool) -> ColumnElement[bool]:
    columns, values = tuple_(*keys), tuple_(*place)
    return columns > values if ascending else columns < values
