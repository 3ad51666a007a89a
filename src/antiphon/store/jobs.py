"""Leases of workers on responses: columns of rows, taken with `FOR UPDATE SKIP LOCKED` where that exists.

Which job is taken next: `job_queue.py`.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec import Struct
from sqlalchemy import and_, bindparam, func, select, text, update

from antiphon.core.errors import RequestError
from antiphon.store import items
from antiphon.store.database import Database, ResultRow, one_by_one
from antiphon.store.job_queue import JobQueue
from antiphon.store.records import Heartbeat, ItemRecord, Lease, ResponseKind, ResponseRecord, ResponseStatus
from antiphon.store.responses import create_all, record_of
from antiphon.store.schema import AFTER_ANOTHER, ANSWERING, BACKGROUND_JOBS, DURABLE, RUNNING, responses
from antiphon.store.store import JOBS, cancel_of
from antiphon.store.transaction import PreparedStatement, Transaction

_KINDS = {kind: text(f"kind = '{kind}'") for kind in ResponseKind}
_ANY_JOB = select(responses.c.id).where(BACKGROUND_JOBS).limit(1)
# Servers repeat this query at short intervals, mostly without a result: it is compiled once.
_ABANDONED = (
    select(responses)
    .where(ANSWERING, responses.c.lease_until <= bindparam("now"))
    .order_by(responses.c.created_at, responses.c.id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
_HOLDING = and_(responses.c.id == bindparam("key"), RUNNING, responses.c.worker == bindparam("holder"))
_RENEW = PreparedStatement(update(responses).where(_HOLDING).values(lease_until=bindparam("until")))
_HELD = PreparedStatement(
    select(
        responses.c.id, responses.c.cancel_requested, responses.c.successor_id, responses.c.read_until
    ).where(_HOLDING)
)
_DIED = update(responses).where(_HOLDING).values(engine_deaths=responses.c.engine_deaths + 1)
_DEATHS = select(responses.c.engine_deaths).where(_HOLDING)
_RELEASED = 0.0
"""The end of a lease in 1970, so that the next query of any worker claims what was released."""
_RELEASES = [
    update(responses)
    .where(*jobs, responses.c.worker == bindparam("holder"))
    .values(worker=None, lease_until=_RELEASED)
    for jobs in ((BACKGROUND_JOBS,), (ANSWERING, DURABLE))
]
# Several servers may have readers of one response: the time never becomes earlier. It stays null where it is.
_KEEP = PreparedStatement(
    update(responses)
    .where(responses.c.id == bindparam("key"), RUNNING, responses.c.read_until < bindparam("until"))
    .values(read_until=bindparam("until"))
)


class _Claim(Struct, frozen=True):
    lease: Lease
    now: float
    limit: int
    queue: JobQueue | None = None
    kinds: frozenset[ResponseKind] | None = None
    until: float = 0.0


class _Holding(Struct, frozen=True):
    lease: Lease
    ids: frozenset[str]
    now: float


def _take(transaction: Transaction, lease: Lease, rows: Sequence[ResultRow]) -> list[ResponseRecord]:
    """Take the lease of free jobs."""
    records, status = [record_of(row) for row in rows], ResponseStatus.IN_PROGRESS
    if records:
        taken = update(responses).where(responses.c.id.in_([record.id for record in records]))
        values = {"status": status, "worker": lease.worker, "lease_until": lease.until}
        transaction.execute(taken.values(values))
    return [msgspec.structs.replace(record, status=status, lease=lease) for record in records]


@one_by_one
def _claim(transaction: Transaction, claim: _Claim) -> list[ResponseRecord]:
    assert claim.queue is not None
    only = None if claim.kinds is None else [_KINDS[kind] for kind in claim.kinds]
    taken: list[ResponseRecord] = []
    while len(taken) < claim.limit and (row := claim.queue.next(transaction, claim.now, only)) is not None:
        taken += _take(transaction, claim.lease, [row])
    return taken


@one_by_one
def _claim_abandoned(transaction: Transaction, claim: _Claim) -> list[ResponseRecord]:
    values = {"now": claim.now, "limit": claim.limit}
    rows = transaction.execute(_ABANDONED, values).all()
    until = {
        row.id: _unread_at(claim, row.read_until, row.lease_until)
        for row in rows
        if row.read_until is not None
    }
    records = _take(transaction, claim.lease, rows)
    _keep_until(transaction, until)
    return [msgspec.structs.replace(record, read_until=until.get(record.id)) for record in records]


def _unread_at(claim: _Claim, read_until: float, lease_until: float) -> float:
    """The new time of a durable stream: nobody could read it since the last heartbeat of its server."""
    if lease_until == _RELEASED:
        return max(claim.until, read_until)
    lease_seconds = claim.lease.until - claim.now
    return read_until + claim.now - (lease_until - lease_seconds)


@one_by_one
def _heartbeat(transaction: Transaction, holding: _Holding) -> Heartbeat:
    lease, ids = holding.lease, sorted(holding.ids)  # the same order in all writers avoids deadlocks
    rows = [{"key": response_id, "holder": lease.worker} for response_id in ids]
    transaction.execute_many(_RENEW, [{**row, "until": lease.until} for row in rows])
    held = {row["id"]: row for row in transaction.find(_HELD, rows)}
    cancelled = frozenset(response_id for response_id, row in held.items() if row["cancel_requested"])
    steered = frozenset(response_id for response_id, row in held.items() if row["successor_id"] is not None)
    unread = frozenset(
        response_id for response_id, row in held.items() if (row["read_until"] or holding.now) < holding.now
    )
    return Heartbeat(holding.ids.difference(held), cancelled, steered, unread)


@one_by_one
def _count_death(transaction: Transaction, death: tuple[str, str]) -> int:
    worker, response_id = death
    values = {"key": response_id, "holder": worker}
    transaction.execute(_DIED, values)
    return int(transaction.execute(_DEATHS, values).scalar() or 0)


@one_by_one
def _release(transaction: Transaction, worker: str) -> None:
    for release in _RELEASES:
        transaction.execute(release, {"holder": worker})
    transaction.wake(JOBS)


@one_by_one
def _keep(transaction: Transaction, until: Mapping[str, float]) -> None:
    _keep_until(transaction, until)


def _keep_until(transaction: Transaction, until: Mapping[str, float]) -> None:
    rows = [{"key": response_id, "until": until[response_id]} for response_id in sorted(until)]
    transaction.execute_many(_KEEP, rows)


@one_by_one
def _request_cancel(transaction: Transaction, request: tuple[str, str, float]) -> ResponseRecord | None:
    owner, response_id, now = request
    condition = (responses.c.owner == owner) & (responses.c.id == response_id)
    first = func.coalesce(responses.c.cancel_requested_at, now)
    statement = (
        update(responses).where(condition, RUNNING).values(cancel_requested=True, cancel_requested_at=first)
    )
    transaction.execute(statement)
    row = transaction.execute(select(responses).where(condition)).first()
    transaction.wake(cancel_of(response_id))
    return record_of(row) if row else None


@one_by_one
def _steer(
    transaction: Transaction, steer: tuple[str, ResponseRecord, Sequence[ItemRecord]]
) -> ResponseRecord | RequestError | None:
    """The response that is steered, in its current state; why there is no room for its successor."""
    response_id, successor, inputs = steer
    condition = (responses.c.owner == successor.owner) & (responses.c.id == response_id)
    row = transaction.execute(select(responses).where(condition).with_for_update()).first()
    if row is None:
        return None
    steered = record_of(row)
    if steered.status.terminal or steered.successor_id is not None:
        return steered
    (refusal,) = create_all(transaction, [(successor, inputs)])
    if refusal is not None:
        return refusal
    waiting = update(responses).where(responses.c.id == successor.id)
    transaction.execute(waiting.values(lease_until=AFTER_ANOTHER))
    transaction.execute(update(responses).where(condition).values(successor_id=successor.id))
    transaction.wake(cancel_of(response_id))
    return msgspec.structs.replace(steered, successor_id=successor.id)


@one_by_one
def _announce_successor(transaction: Transaction, announced: tuple[str, str]) -> None:
    response_id, successor_id = announced
    first = and_(responses.c.id == response_id, RUNNING, responses.c.successor_id.is_(None))
    transaction.execute(update(responses).where(first).values(successor_id=successor_id))
    transaction.wake(cancel_of(response_id))


class SqlJobs:
    """`Jobs`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue = JobQueue(responses, BACKGROUND_JOBS, responses.c, [*_KINDS.values()])

    async def claim(
        self,
        worker: str,
        now: float,
        lease_seconds: float,
        limit: int,
        kinds: frozenset[ResponseKind] | None = None,
    ) -> list[ResponseRecord]:
        claim = _Claim(Lease(worker, now + lease_seconds), now, limit, self._queue, kinds)
        return await self._database.write(_claim, claim)

    async def any_background(self) -> bool:
        return await self._database.read(lambda connection: connection.execute(_ANY_JOB).first() is not None)

    async def claim_abandoned(
        self, worker: str, now: float, lease_seconds: float, limit: int, until: float
    ) -> list[ResponseRecord]:
        claim = _Claim(Lease(worker, now + lease_seconds), now, limit, until=until)
        return await self._database.write(_claim_abandoned, claim)

    async def heartbeat(
        self, worker: str, response_ids: Collection[str], now: float, lease_seconds: float
    ) -> Heartbeat:
        holding = _Holding(Lease(worker, now + lease_seconds), frozenset(response_ids), now)
        return await self._database.write(_heartbeat, holding)

    async def keep(self, until: Mapping[str, float]) -> None:
        await self._database.write(_keep, until)

    async def request_cancel(self, owner: str, response_id: str, now: float) -> ResponseRecord | None:
        return await self._database.write(_request_cancel, (owner, response_id, now))

    async def steer(
        self, response_id: str, successor: ResponseRecord, input_items: Sequence[ItemRecord]
    ) -> ResponseRecord | None:
        result = await self._database.write(_steer, (response_id, successor, items.distinct(input_items)))
        if isinstance(result, RequestError):
            raise result
        return result

    async def announce_successor(self, response_id: str, successor_id: str) -> None:
        await self._database.write(_announce_successor, (response_id, successor_id))

    async def count_death(self, worker: str, response_id: str) -> int:
        return await self._database.write(_count_death, (worker, response_id))

    async def release(self, worker: str) -> None:
        await self._database.write(_release, worker)
