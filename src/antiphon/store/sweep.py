"""The sweep: deletes what has expired and what is over the limits, in small transactions.

It finds rows in a read and deletes them in a write, so that other writes can run in between.
"""

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Table, func, select, true

from antiphon.store.database import Database
from antiphon.store.delete import delete_completions, delete_responses
from antiphon.store.records import ResponseStatus, Swept
from antiphon.store.schema import completions, responses
from antiphon.store.transaction import Transaction


class _Kind(Struct, frozen=True):
    """What is swept: a table, what of it may go for room, and how."""

    table: Table
    idle: ColumnElement[bool]
    delete: Callable[[Transaction, Collection[str]], None]


_RUNNING = [status for status in ResponseStatus if not status.terminal]
_RESPONSES = _Kind(responses, responses.c.status.not_in(_RUNNING), delete_responses)
_COMPLETIONS = _Kind(completions, true(), delete_completions)


async def sweep(database: Database, now: float) -> Swept:
    """Delete until nothing is left to delete; how much it was."""
    limits = database.limits
    return Swept(
        await _sweep(database, _RESPONSES, now, limits.responses),
        await _sweep(database, _COMPLETIONS, now, limits.completions),
    )


async def _sweep(database: Database, kind: _Kind, now: float, keep: int) -> int:
    deleted = 0
    while ids := await database.read(_surplus, kind, now, keep, database.limits.sweep):
        await database.write(_delete, (kind, ids))
        deleted += len(ids)
    return deleted


def _surplus(connection: Connection, kind: _Kind, now: float, keep: int, most: int) -> Sequence[str]:
    """Ids of what has expired; if nothing has, of the oldest beyond those to keep."""
    table = kind.table
    expired = connection.scalars(select(table.c.id).where(table.c.expires_at <= now).limit(most)).all()
    if expired:
        return expired
    excess = connection.execute(select(func.count()).select_from(table)).scalar_one() - keep
    if excess <= 0:
        return []
    oldest = select(table.c.id).where(kind.idle).order_by(table.c.created_at)
    return connection.scalars(oldest.limit(min(excess, most))).all()


def _delete(transaction: Transaction, deletions: Sequence[tuple[_Kind, Collection[str]]]) -> list[None]:
    for kind, ids in deletions:
        kind.delete(transaction, ids)
    return [None] * len(deletions)
