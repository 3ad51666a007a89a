"""The events of responses, and the rules for all writes to a response: fencing and no gaps.

A write to responses first locks their rows and reads their state, decides in Python which writes are
allowed, and performs those in a few statements for all of them.
"""

from collections.abc import Collection, Sequence

from msgspec import Struct
from sqlalchemy import Connection, Integer, LargeBinary, bindparam, func, literal_column, select, update

from antiphon.store.database import Database, ResultRow
from antiphon.store.records import Append, LogEntry, LogTail, ResponseStatus, Verdict
from antiphon.store.schema import log, responses
from antiphon.store.store import events_of
from antiphon.store.transaction import PreparedStatement, Rows, Transaction, Values, insertion
from antiphon.store.usage import size_of

_SEQ_MAX = 2**63 - 1

_LOCK = PreparedStatement(
    select(
        responses.c.id,
        responses.c.status,
        responses.c.worker,
        responses.c.last_seq,
        responses.c.conversation_id,
        responses.c.owner,
        responses.c.size,
        responses.c.successor_id,
        func.length(responses.c.body).label("body_bytes"),
        func.coalesce(func.length(responses.c.prompt_ids), literal_column("0")).label("prompt_bytes"),
    )
    .where(responses.c.id == bindparam("id"))
    .with_for_update()
)
_ADVANCE = PreparedStatement(
    update(responses)
    .where(responses.c.id == bindparam("key"))
    .values(
        last_seq=bindparam("new_seq"),
        prompt_ids=func.coalesce(bindparam("new_ids", type_=LargeBinary), responses.c.prompt_ids),
        calls_begun=func.coalesce(bindparam("new_calls", type_=Integer), responses.c.calls_begun),
        size=bindparam("new_size"),
    )
)
_ADD = insertion(log)
_PROGRESS = select(responses.c.status, responses.c.last_seq).where(
    responses.c.id == bindparam("response_id"), responses.c.owner == bindparam("owner")
)
_AFTER = (
    select(log.c.first_seq, log.c.last_seq, log.c.events)
    .where(log.c.response_id == bindparam("response_id"), log.c.last_seq > bindparam("seq"))
    .order_by(log.c.last_seq)
    .limit(bindparam("limit"))
)


class ResponseState(Struct):
    """The state of a response that a transaction has locked."""

    id: str
    status: ResponseStatus
    worker: str | None
    last_seq: int
    conversation_id: str | None
    owner: str
    size: int
    successor_id: str | None
    body_bytes: int
    prompt_bytes: int

    def judge(self, worker: str | None, entries: Sequence[LogEntry]) -> Verdict:
        """The result of a write by `worker` that adds `entries`."""
        if self.status.terminal:
            return Verdict.ENDED
        if self.worker != worker:
            return Verdict.LOST
        # Entries that are stored already are accepted: a commit without a confirmation is repeated.
        if entries and not (_consecutive(entries) and (self._has(entries) or self._continues(entries))):
            return Verdict.GAP
        return Verdict.ACCEPTED

    def grow(self, size: int, transaction: Transaction) -> None:
        """Add to its size."""
        self.size += size
        transaction.count(self.owner, size)

    def take(self, entries: Sequence[LogEntry], transaction: Transaction) -> Rows:
        """The rows of accepted entries, which are counted; none if they are stored already."""
        if not entries or self._has(entries):
            return []
        self.last_seq = entries[-1].last
        self.grow(sum(size_of(entry.events, entry.chunks) for entry in entries), transaction)
        return [_row(self.id, entry) for entry in entries]

    def _has(self, entries: Sequence[LogEntry]) -> bool:
        return entries[-1].last == self.last_seq

    def _continues(self, entries: Sequence[LogEntry]) -> bool:
        return entries[0].first == self.last_seq + 1


def _consecutive(entries: Sequence[LogEntry]) -> bool:
    expected = entries[0].first
    for entry in entries:
        if not entry.first == expected <= entry.last:
            return False
        expected = entry.last + 1
    return True


def lock(transaction: Transaction, ids: Collection[str]) -> dict[str, ResponseState]:
    """Lock responses until the transaction ends, and read their state."""
    ranked = sorted(set(ids))  # the same order in all writers avoids deadlocks
    rows = transaction.find(_LOCK, [{"id": response_id} for response_id in ranked])
    return {row["id"]: ResponseState(**{**row, "status": ResponseStatus(row["status"])}) for row in rows}


def add_entries(transaction: Transaction, rows: Rows) -> None:
    """Store entries, of any responses."""
    transaction.execute_many(_ADD, rows)


def append_all(transaction: Transaction, calls: Sequence[Sequence[Append]]) -> list[list[Verdict]]:
    """The results of each call's appends."""
    states = lock(transaction, {append.response_id for appends in calls for append in appends})
    changes: list[Values] = []
    entries: list[Values] = []
    quota = transaction.quota

    def take(append: Append) -> Verdict:
        state = states.get(append.response_id)
        verdict = state.judge(append.worker, append.entries) if state else Verdict.GONE
        if not state or verdict is not Verdict.ACCEPTED:
            return verdict
        entries.extend(state.take(append.entries, transaction))
        if append.prompt_ids is not None:
            state.grow(len(append.prompt_ids) - state.prompt_bytes, transaction)
            state.prompt_bytes = len(append.prompt_ids)
        changes.append(
            {
                "key": state.id,
                "new_seq": state.last_seq,
                "new_ids": append.prompt_ids,
                "new_calls": append.calls_begun,
                "new_size": state.size,
            }
        )
        # Stored in spite of the limit: the verdict stops the answer, and what was generated before it is
        # kept.
        over = "response_bytes" if state.size > quota.limits.response_bytes else quota.exceeded(state.owner)
        return Verdict(over) if over else verdict

    verdicts = [[take(append) for append in appends] for appends in calls]
    transaction.execute_many(_ADVANCE, changes)
    add_entries(transaction, entries)
    transaction.wake(*(events_of(change["key"]) for change in changes))
    return verdicts


def _row(response_id: str, entry: LogEntry) -> Values:
    return {
        "response_id": response_id,
        "first_seq": entry.first,
        "last_seq": entry.last,
        "events": entry.events,
        "chunks": entry.chunks,
    }


def tail(connection: Connection, owner: str, response_id: str, seq: int, limit: int) -> LogTail | None:
    """The log after `seq`, and its last sequence number."""
    # In this order, so that entries committed in between make the list longer, never shorter.
    progress = connection.execute(_PROGRESS, {"response_id": response_id, "owner": owner}).first()
    if progress is None:
        return None
    after = {"response_id": response_id, "seq": min(max(seq, -1), _SEQ_MAX), "limit": limit}
    entries = [_entry(row) for row in connection.execute(_AFTER, after)]
    return LogTail(ResponseStatus(progress.status), progress.last_seq, entries)


def whole(connection: Connection, response_id: str) -> list[LogEntry]:
    """The log with chunks."""
    entries = select(log).where(log.c.response_id == response_id).order_by(log.c.last_seq)
    return [_entry(row, row.chunks) for row in connection.execute(entries)]


def _entry(row: ResultRow, chunks: bytes = b"") -> LogEntry:
    return LogEntry(row.first_seq, row.last_seq, row.events, chunks)


class SqlLog:
    """`Log`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, *appends: Append) -> list[Verdict]:
        return await self._database.write(append_all, appends)

    async def events_after(
        self, owner: str, response_id: str, seq: int, most: int | None = None
    ) -> LogTail | None:
        limit = self._database.tuning.entries
        limit = limit if most is None else min(limit, most)
        return await self._database.read(tail, owner, response_id, seq, limit)

    async def read(self, response_id: str) -> list[LogEntry]:
        return await self._database.read(whole, response_id)
