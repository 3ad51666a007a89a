"""Requests for an approval that were answered: the row of each is made once."""

from msgspec import Struct
from sqlalchemy import Connection, delete, insert, select, tuple_

from antiphon.core.errors import StoreError
from antiphon.store.database import Database, one_by_one
from antiphon.store.schema import approvals
from antiphon.store.transaction import Transaction


class _Claim(Struct, frozen=True):
    owner: str
    id: str
    response_id: str
    expires_at: float


def _claimed_for(connection: Connection, owner: str, request_id: str) -> str | None:
    named = (approvals.c.owner == owner) & (approvals.c.id == request_id)
    return connection.execute(select(approvals.c.response_id).where(named)).scalar()


@one_by_one
def _claim(transaction: Transaction, claim: _Claim) -> bool:
    claimed = _claimed_for(transaction.connection, claim.owner, claim.id)
    if claimed is None:
        values = {"owner": claim.owner, "id": claim.id, "response_id": claim.response_id}
        transaction.execute(insert(approvals).values(**values, expires_at=claim.expires_at))
    return claimed in (None, claim.response_id)


def forget_approvals(transaction: Transaction, now: float, limit: int) -> bool:
    """Delete some that have expired; returns whether there were some."""
    key = (approvals.c.owner, approvals.c.id)
    rows = select(*key).where(approvals.c.expires_at <= now).limit(limit)
    return transaction.execute(delete(approvals).where(tuple_(*key).in_(rows))).rowcount > 0


class SqlApprovals:
    """`Approvals`, on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, owner: str, request_id: str, response_id: str, expires_at: float) -> bool:
        try:
            return await self._database.write(_claim, _Claim(owner, request_id, response_id, expires_at))
        except StoreError:
            # Another server may have made the row at the same moment.
            claimed = await self._database.read(_claimed_for, owner, request_id)
            if claimed is None:
                raise
            return claimed == response_id
