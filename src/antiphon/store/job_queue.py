"""Rows that are jobs: which of them the next worker gets, in fair shares of their owners.

A worker gets a job of the owner with the fewest that run; among equals, owners take turns in the order of
their names. The jobs of one owner come in the order of their creation. A claim looks at the next owners only,
and at one waiting row of each, however many wait. Where jobs have kinds, the owners of one kind come after
those of another, so that an owner has a turn for each kind.

To add a queue: owners take turns here; `tests/http/test_fair_queues.py`, `tests/store/test_work.py`.
"""

from collections.abc import Container, Iterable, Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Select, Table, TextClause, bindparam, func, select, text

from antiphon.store.database import ResultRow
from antiphon.store.transaction import Transaction

OWNERS = 32
"""How many owners a claim looks at."""

ANY = text("true")
"""The condition of the only kind."""

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


class _Kind(Struct, frozen=True, eq=False):
    """The jobs of one kind: the query for owners that have some that wait, and for the first of an owner."""

    condition: TextClause
    owners: TextClause
    first: Select[Any]

    def owners_after(self, transaction: Transaction, owner: str, now: float) -> "list[_Turn]":
        """The turns of owners whose names come after this one."""
        values = {"after": owner, "most": OWNERS, "now": now}
        return [_Turn(self, name) for name in transaction.execute(self.owners, values).scalars()]


class _Turn(Struct, frozen=True):
    kind: _Kind
    owner: str


class JobQueue:
    """The rows of `table` for which `jobs` holds, the condition of its indexes, read as `columns`.

    The table has the columns `id`, `owner`, `created_at`, `worker` and `lease_until`. Each of `kinds` is the
    condition for the jobs of one kind.
    """

    def __init__(
        self,
        table: Table,
        jobs: TextClause,
        columns: Iterable[ColumnElement[Any]],
        kinds: Sequence[TextClause] = (ANY,),
    ) -> None:
        free = func.coalesce(table.c.lease_until, 0.0) <= bindparam("now")
        first: Select[Any] = (
            select(*columns)
            .where(jobs, table.c.owner == bindparam("owner"), free)
            .order_by(table.c.created_at, table.c.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        self._running = text(_RUNNING.format(table=table.name, jobs=jobs))
        waits = f"{jobs} AND coalesce(lease_until, 0.0) <= :now"
        self._kinds = [
            _Kind(
                kind, text(_OWNERS.format(table=table.name, waits=f"{waits} AND {kind}")), first.where(kind)
            )
            for kind in kinds
        ]
        self._last = _Turn(self._kinds[0], "")

    def next(
        self, transaction: Transaction, now: float, only: Container[TextClause] | None = None
    ) -> ResultRow | None:
        """The job to take next, locked for that; of all kinds, or `only` of these."""
        for turn in self._in_turn(transaction, now, only):
            row = transaction.execute(turn.kind.first, {"owner": turn.owner, "now": now}).first()
            if row is not None:  # else other servers have taken its jobs meanwhile
                self._last = turn
                return row
        return None

    def _in_turn(
        self, transaction: Transaction, now: float, only: Container[TextClause] | None
    ) -> Sequence[_Turn]:
        """The turns after the last one, and then those before it, up to a number of them."""
        last, turns = self._last, list[_Turn]()
        if only is None or last.kind.condition in only:
            turns += last.kind.owners_after(transaction, last.owner, now)
        place = self._kinds.index(last.kind) + 1
        for kind in (*self._kinds[place:], *self._kinds[:place]):
            if len(turns) < OWNERS and (only is None or kind.condition in only):
                turns += kind.owners_after(transaction, "", now)
        turns = [*dict.fromkeys(turns)][:OWNERS]
        if len(turns) < 2:
            return turns
        rows = transaction.execute(self._running, {"now": now})
        running = {row.owner: row.running for row in rows}
        return sorted(turns, key=lambda turn: running.get(turn.owner, 0))  # stable: else by turns
