"""Leases of workers on responses: columns of rows, taken with `FOR UPDATE SKIP LOCKED` where that exists."""

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, Select, TextClause, and_, bindparam, func, select, update

from antiphon.store.database import Database, one_by_one
from antiphon.store.records import Heartbeat, Lease, ResponseRecord, ResponseStatus
from antiphon.store.responses import record_of
from antiphon.store.schema import RUNNING, responses
from antiphon.store.store import JOBS, cancel_of
from antiphon.store.transaction import PreparedStatement, Transaction, Values

Condition = ColumnElement[bool] | TextClause


def _free(*which: Condition) -> Select[Any]:
    """The oldest running responses for which `which` holds."""
    return (
        select(responses)
        .where(RUNNING, *which)
        .order_by(responses.c.created_at, responses.c.id)
        .limit(bindparam("limit"))
        .with_for_update(skip_locked=True)
    )


# Servers repeat these queries at short intervals, mostly without a result: they are compiled once.
_JOBS = _free(responses.c.background, func.coalesce(responses.c.lease_until, 0.0) <= bindparam("now"))
_ANY_JOB = select(responses.c.id).where(RUNNING, responses.c.background).limit(1)
_ABANDONED = _free(~responses.c.background, responses.c.lease_until <= bindparam("now"))
_HELD = and_(
    responses.c.id.in_(bindparam("ids", expanding=True)), RUNNING, responses.c.worker == bindparam("holder")
)
_MINE = and_(responses.c.id == bindparam("key"), RUNNING, responses.c.worker == bindparam("holder"))
_RENEW = PreparedStatement(
    update(responses).where(_MINE).values(lease_until=bindparam("until")),
    [responses.c.lease_until, responses.c.id, responses.c.worker],
)
_KEPT = PreparedStatement(
    select(responses.c.id, responses.c.cancel_requested).where(_MINE), [responses.c.id, responses.c.worker]
)
_RELEASE = update(responses).where(_HELD).values(worker=None, lease_until=bindparam("until"))


class _Claim(Struct, frozen=True):
    lease: Lease
    now: float
    limit: int


class _Holding(Struct, frozen=True):
    lease: Lease
    ids: frozenset[str]

    @property
    def held(self) -> Values:
        """The parameters of `_HELD`."""
        return {"ids": [*self.ids], "holder": self.lease.worker}


def _take(transaction: Transaction, claim: _Claim, free: Select[Any]) -> list[ResponseRecord]:
    """Take the lease of free jobs."""
    wanted = {"now": claim.now, "limit": claim.limit}
    found = [record_of(row) for row in transaction.execute(free, wanted)]
    if found:
        status, (worker, until) = ResponseStatus.IN_PROGRESS, msgspec.structs.astuple(claim.lease)
        taken = update(responses).where(responses.c.id.in_([record.id for record in found]))
        transaction.execute(taken.values(status=status, worker=worker, lease_until=until))
    return [
        msgspec.structs.replace(record, status=ResponseStatus.IN_PROGRESS, lease=claim.lease)
        for record in found
    ]


@one_by_one
def _claim(transaction: Transaction, claim: _Claim) -> list[ResponseRecord]:
    return _take(transaction, claim, _JOBS)


@one_by_one
def _claim_abandoned(transaction: Transaction, claim: _Claim) -> list[ResponseRecord]:
    return _take(transaction, claim, _ABANDONED)


@one_by_one
def _heartbeat(transaction: Transaction, holding: _Holding) -> Heartbeat:
    lease, ids = holding.lease, sorted(holding.ids)  # the same order in all writers avoids deadlocks
    transaction.each(_RENEW, [(lease.until, response_id, lease.worker) for response_id in ids])
    wanted = dict(transaction.find(_KEPT, [(response_id, lease.worker) for response_id in ids]))
    cancelled = frozenset(response_id for response_id, cancel in wanted.items() if cancel)
    return Heartbeat(holding.ids.difference(wanted), cancelled)


@one_by_one
def _release(transaction: Transaction, holding: _Holding) -> None:
    transaction.execute(_RELEASE, {**holding.held, "until": holding.lease.until})
    transaction.wake(JOBS)


@one_by_one
def _request_cancel(transaction: Transaction, wanted: tuple[str, str, float]) -> ResponseRecord | None:
    owner, response_id, now = wanted
    its = (responses.c.owner == owner) & (responses.c.id == response_id)
    first = func.coalesce(responses.c.cancel_requested_at, now)
    asked = update(responses).where(its, RUNNING).values(cancel_requested=True, cancel_requested_at=first)
    transaction.execute(asked)
    row = transaction.execute(select(responses).where(its)).first()
    transaction.wake(cancel_of(response_id))
    return record_of(row) if row else None


class SqlJobs:
    """`Jobs`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, worker: str, now: float, lease_seconds: float, limit: int) -> list[ResponseRecord]:
        claim = _Claim(Lease(worker, now + lease_seconds), now, limit)
        return await self._database.write(_claim, claim)

    async def any_background(self) -> bool:
        return await self._database.read(lambda connection: connection.execute(_ANY_JOB).first() is not None)

    async def claim_abandoned(
        self, worker: str, now: float, lease_seconds: float, limit: int
    ) -> list[ResponseRecord]:
        claim = _Claim(Lease(worker, now + lease_seconds), now, limit)
        return await self._database.write(_claim_abandoned, claim)

    async def heartbeat(
        self, worker: str, response_ids: Collection[str], now: float, lease_seconds: float
    ) -> Heartbeat:
        holding = _Holding(Lease(worker, now + lease_seconds), frozenset(response_ids))
        return await self._database.write(_heartbeat, holding)

    async def request_cancel(self, owner: str, response_id: str, now: float) -> ResponseRecord | None:
        return await self._database.write(_request_cancel, (owner, response_id, now))

    async def release(self, worker: str, response_ids: Collection[str]) -> None:
        # A lease that ended in 1970, so that the next query of any worker claims them.
        await self._database.write(_release, _Holding(Lease(worker, 0.0), frozenset(response_ids)))
