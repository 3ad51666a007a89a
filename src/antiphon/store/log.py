"""The events of responses, and the rules for writing to a response at all: fencing and no gaps.

A write to responses first locks their rows and reads how they stand, judges in
Python what each may do, and writes the rest in a few statements for all of them.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, bindparam, insert, select, update

from antiphon.store.database import Database, Rows, Transaction
from antiphon.store.records import Append, Entry, ResponseStatus, Tail, Verdict
from antiphon.store.schema import log, responses
from antiphon.store.store import events_of

_SEQ_MAX = 2**63 - 1
_IDS_PER_STATEMENT = 1000

_LOCK = (
    select(
        responses.c.id,
        responses.c.status,
        responses.c.worker,
        responses.c.last_seq,
        responses.c.conversation_id,
    )
    .where(responses.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(responses.c.id)
    .with_for_update()
)
_CHANGE = update(responses).where(responses.c.id == bindparam("key"))
_ADD = insert(log)
_HOW_FAR = select(responses.c.status, responses.c.last_seq).where(
    responses.c.id == bindparam("response_id"), responses.c.owner == bindparam("owner")
)
_AFTER = (
    select(log.c.first_seq, log.c.last_seq, log.c.events)
    .where(log.c.response_id == bindparam("response_id"), log.c.last_seq > bindparam("seq"))
    .order_by(log.c.last_seq)
    .limit(bindparam("limit"))
)


class Standing(Struct):
    """How a response stands while a transaction writes to it."""

    id: str
    status: ResponseStatus
    worker: str | None
    last_seq: int
    conversation_id: str | None

    def judge(self, worker: str | None, entries: Sequence[Entry]) -> Verdict:
        """What becomes of a write by `worker` that adds `entries`."""
        if self.status.terminal:
            return Verdict.ENDED
        if self.worker != worker:
            return Verdict.LOST
        if entries and not (_in_a_row(entries) and (self._has(entries) or self._continues(entries))):
            return Verdict.GAP
        return Verdict.ACCEPTED

    def take(self, entries: Sequence[Entry]) -> Rows:
        """The rows of accepted entries; none if they are stored already."""
        if not entries or self._has(entries):
            return []
        self.last_seq = entries[-1].last
        return [_row(self.id, entry) for entry in entries]

    def _has(self, entries: Sequence[Entry]) -> bool:
        return entries[-1].last == self.last_seq

    def _continues(self, entries: Sequence[Entry]) -> bool:
        return entries[0].first == self.last_seq + 1


def _in_a_row(entries: Sequence[Entry]) -> bool:
    return all(entry.first <= entry.last for entry in entries) and all(
        one.last + 1 == next_one.first for one, next_one in pairwise(entries)
    )


def standings(transaction: Transaction, ids: Collection[str]) -> dict[str, Standing]:
    """How responses stand, which nobody else changes before the transaction ends."""
    ranked = sorted(set(ids))  # all writers lock in one order, so that none waits for another in a ring
    found: dict[str, Standing] = {}
    for start in range(0, len(ranked), _IDS_PER_STATEMENT):
        for row in transaction.execute(_LOCK, {"ids": ranked[start : start + _IDS_PER_STATEMENT]}):
            found[row.id] = Standing(
                row.id, ResponseStatus(row.status), row.worker, row.last_seq, row.conversation_id
            )
    return found


def change(transaction: Transaction, changes: Iterable[dict[str, Any]]) -> None:
    """Set columns of responses; the one whose id is under `key`."""
    alike: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in changes:
        alike[tuple(row)].append(row)
    for rows in alike.values():
        transaction.each(_CHANGE, rows)


def add_entries(transaction: Transaction, rows: Rows) -> None:
    """Store entries, of any responses."""
    transaction.each(_ADD, rows)


def append_all(transaction: Transaction, calls: Sequence[Sequence[Append]]) -> list[list[Verdict]]:
    """What became of the appends of each call."""
    standing = standings(transaction, {append.response_id for call in calls for append in call})
    changes: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    entries: list[dict[str, Any]] = []

    def take(append: Append) -> Verdict:
        at = standing.get(append.response_id)
        verdict = at.judge(append.worker, append.entries) if at else Verdict.GONE
        if at and verdict is Verdict.ACCEPTED:
            entries.extend(at.take(append.entries))
            changes[at.id].update(key=at.id, last_seq=at.last_seq, **_replaced(append))
        return verdict

    verdicts = [[take(append) for append in call] for call in calls]
    change(transaction, changes.values())
    add_entries(transaction, entries)
    transaction.wake(*(events_of(response_id) for response_id in changes))
    return verdicts


def _replaced(append: Append) -> dict[str, bytes]:
    values = {"body": append.body, "prompt_ids": append.prompt_ids}
    return {name: value for name, value in values.items() if value is not None}


def _row(response_id: str, entry: Entry) -> dict[str, Any]:
    return {
        "response_id": response_id,
        "last_seq": entry.last,
        "first_seq": entry.first,
        "events": entry.events,
        "chunks": entry.chunks,
    }


def tail(connection: Connection, owner: str, response_id: str, seq: int, limit: int) -> Tail | None:
    """The log after `seq`, and how far it goes."""
    # First how far, then the entries: what comes in between makes them more, never fewer.
    at = connection.execute(_HOW_FAR, {"response_id": response_id, "owner": owner}).first()
    if at is None:
        return None
    after = {"response_id": response_id, "seq": min(max(seq, -1), _SEQ_MAX), "limit": limit}
    entries = [Entry(*row) for row in connection.execute(_AFTER, after)]
    return Tail(ResponseStatus(at.status), at.last_seq, entries)


def whole(connection: Connection, response_id: str) -> list[Entry]:
    """The log with chunks."""
    columns = (log.c.first_seq, log.c.last_seq, log.c.events, log.c.chunks)
    entries = select(*columns).where(log.c.response_id == response_id).order_by(log.c.last_seq)
    return [Entry(*row) for row in connection.execute(entries)]


class SqlLog:
    """`Log`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, *appends: Append) -> list[Verdict]:  # noqa: D102 - see the protocol
        return await self._database.write(append_all, appends)

    async def events_after(self, owner: str, response_id: str, seq: int) -> Tail | None:  # noqa: D102
        limit = self._database.limits.entries
        return await self._database.read(tail, owner, response_id, seq, limit)

    async def read(self, response_id: str) -> list[Entry]:  # noqa: D102
        return await self._database.read(whole, response_id)
