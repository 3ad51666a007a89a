"""Pages of lists that are ordered by columns, with ids as cursors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, tuple_

from antiphon.core.errors import NotFoundError
from antiphon.store.database import Found
from antiphon.store.records import Page, Paging


@contextmanager
def existing(require: Callable[[], object]) -> Iterator[None]:
    """Read the children of an object in the block. `require` raises if the object does not exist.

    It is called after the read: other transactions may delete the object between two statements.
    """
    require()
    yield
    require()


def page(
    connection: Connection, rows: Select[Any], keys: Sequence[ColumnElement[Any]], paging: Paging
) -> Page[Found]:
    """Part of `rows`, ordered by `keys`; ids are in the selected column `id`.

    Raises NotFoundError if `rows` have no such id.
    """
    ascending = paging.order == "asc"
    wanted = rows
    if paging.after is not None:
        wanted = wanted.where(_beyond(keys, _place(connection, rows, keys, paging, "after"), ascending))
    if paging.before is not None:
        wanted = wanted.where(_beyond(keys, _place(connection, rows, keys, paging, "before"), not ascending))
    # Reading backwards, those nearest to `before` come first.
    backwards = paging.before is not None and paging.after is None
    order = [key.asc() if ascending != backwards else key.desc() for key in keys]
    found = connection.execute(wanted.order_by(*order).limit(paging.limit + 1)).all()
    data = list(found[: paging.limit])
    return Page(data[::-1] if backwards else data, len(found) > paging.limit)


def _place(
    connection: Connection, rows: Select[Any], keys: Sequence[ColumnElement[Any]], paging: Paging, param: str
) -> Found:
    """The keys of the row of a cursor; of the first one if there are several."""
    cursor = getattr(paging, param)
    named = rows.with_only_columns(*keys).where(rows.selected_columns.id == cursor)
    place = connection.execute(named.order_by(*keys).limit(1)).first()
    if place is None:
        raise NotFoundError(f"There is no {cursor!r} in this list. Use the id of an entry.", param=param)
    return place


def _beyond(keys: Sequence[ColumnElement[Any]], place: Found, ascending: bool) -> ColumnElement[bool]:
    here, there = tuple_(*keys), tuple_(*place)
    return here > there if ascending else here < there
