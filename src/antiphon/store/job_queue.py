"""Rows that are jobs: which of them the next worker gets, in fair shares of their owners.

A worker gets a job of the owner with the fewest that run; among equals, owners take turns in the order of
their names. The jobs of one owner come in the order of their creation. A claim looks at the next owners only,
and at one waiting row of each, however many wait.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, TextClause, bindparam, func, select, text

from antiphon.store.database import Found
from antiphon.store.quota import counted_with
from antiphon.store.transaction import Transaction

OWNERS = 32
"""How many owners a claim looks at."""

# An index is searched once for each owner: with DISTINCT, all rows of all owners would be read.
_OWNERS = """
    WITH RECURSIVE waiting (name, place) AS (
        SELECT (SELECT owner FROM {table} WHERE {waits} AND owner > :after ORDER BY owner LIMIT 1), 1
        UNION ALL
        SELECT (SELECT owner FROM {table} WHERE {waits} AND owner > name ORDER BY owner LIMIT 1), place + 1
        FROM waiting WHERE name IS NOT NULL AND place < :most
    )
    SELECT name FROM waiting WHERE name IS NOT NULL ORDER BY place
"""
_RUNNING = """
    SELECT owner, count(*) AS running FROM {table}
    WHERE {jobs} AND worker IS NOT NULL AND lease_until > :now GROUP BY owner
"""


class JobQueue:
    """The rows of `table` for which `jobs` holds, the condition of its indexes, read as `columns`.

    The table has the columns `id`, `owner`, `created_at`, `worker` and `lease_until`.
    """

    def __init__(self, table: Table, jobs: TextClause, columns: Iterable[ColumnElement[Any]]) -> None:
        free = func.coalesce(table.c.lease_until, 0.0) <= bindparam("now")
        waits = f"{jobs} AND coalesce(lease_until, 0.0) <= :now"
        self._owners = text(_OWNERS.format(table=table.name, waits=waits))
        self._running = text(_RUNNING.format(table=table.name, jobs=jobs))
        self._first: Select[Any] = (
            select(*columns)
            .where(jobs, table.c.owner == bindparam("owner"), free)
            .order_by(table.c.created_at, table.c.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        self._last = ""  # the owner that was served last

    def next(self, transaction: Transaction, now: float) -> Found | None:
        """The job to take next, locked for that."""
        for owner in self._in_turn(transaction, now):
            row = transaction.execute(self._first, {"owner": owner, "now": now}).first()
            if row is not None:  # else other servers have taken its jobs meanwhile
                self._last = owner
                return row
        return None

    def _in_turn(self, transaction: Transaction, now: float) -> Iterator[str]:
        owners = [*self._after(transaction, self._last, now)]
        if self._last and len(owners) < OWNERS:
            owners = [*dict.fromkeys((*owners, *self._after(transaction, "", now)))][:OWNERS]
        if len(owners) < 2:
            return iter(owners)
        running = Counter[str]()
        for row in transaction.execute(self._running, {"now": now}):
            running[counted_with(row.owner)] += row.running
        return iter(sorted(owners, key=lambda owner: running[counted_with(owner)]))  # stable: else by turns

    def _after(self, transaction: Transaction, owner: str, now: float) -> Collection[str]:
        """The owners with jobs that wait whose names come after this one."""
        wanted = {"after": owner, "most": OWNERS, "now": now}
        return transaction.execute(self._owners, wanted).scalars().all()
