"""The sweep: deletes expired objects, in small transactions.

It finds rows in a read and deletes them in a write, so that other writes can run in between.
"""

from collections.abc import Collection, Sequence

from sqlalchemy import Connection, Table, bindparam, delete, select, tuple_

from antiphon.store.approvals import forget_approvals
from antiphon.store.chunk_rows import delete_chunks
from antiphon.store.database import Database, ResultRow, one_by_one
from antiphon.store.delete import clear, delete_parents, release_blobs
from antiphon.store.key_limits import forget_key_limits
from antiphon.store.records import SweepResult
from antiphon.store.replicas import forget_replica_loads
from antiphon.store.schema import (
    DETACHED,
    blob_holders,
    blob_pieces,
    blobs,
    completions,
    containers,
    files,
    responses,
    vector_store_files,
    vector_stores,
)
from antiphon.store.transaction import Transaction
from antiphon.store.usage import uncount

_EXPIRED = {
    table: select(table.c.id).where(table.c.expires_at <= bindparam("now")).limit(bindparam("limit"))
    for table in (responses, completions, files, containers, vector_stores, blobs)
}


async def sweep(database: Database, now: float) -> SweepResult:
    """Delete until nothing is left to delete; returns the number of deleted objects."""
    await clear(database)  # what a server has left that ended
    while await database.write(_forget, (now, database.tuning.sweep)):
        pass
    swept = {
        table: await _sweep(database, table, now)
        for table in (responses, completions, files, containers, vector_stores)
    }
    await _sweep_chunks(database)
    return SweepResult(
        responses=swept[responses],
        completions=swept[completions],
        blobs=await _sweep_blobs(database, now),
        files=swept[files],
        vector_stores=swept[vector_stores],
    )


@one_by_one
def _forget(transaction: Transaction, expired: tuple[float, int]) -> bool:
    """Delete some rows that have no effect any more; returns whether there may be others."""
    forget_key_limits(transaction, expired[0])
    forget_replica_loads(transaction, expired[0])
    return forget_approvals(transaction, *expired)


async def _sweep(database: Database, table: Table, now: float) -> int:
    deleted = 0
    while ids := await database.read(_expired, table, now, database.tuning.sweep):
        if not await database.write(_delete, (table, ids)):
            await clear(database)
        deleted += len(ids)
    return deleted


def _expired(connection: Connection, table: Table, now: float, limit: int) -> Sequence[str]:
    return connection.scalars(_EXPIRED[table], {"now": now, "limit": limit}).all()


@one_by_one
def _delete(transaction: Transaction, expired: tuple[Table, Collection[str]]) -> bool:
    return delete_parents(transaction, *expired)


async def _sweep_chunks(database: Database) -> None:
    """Delete the chunks of files that were taken out of vector stores."""
    limit = database.tuning.sweep
    while keys := await database.read(_detached, limit):
        await delete_chunks(database, keys)
        await database.write(_delete_detached, keys)


def _detached(connection: Connection, limit: int) -> Sequence[str]:
    return connection.scalars(select(vector_store_files.c.id).where(DETACHED).limit(limit)).all()


@one_by_one
def _delete_detached(transaction: Transaction, keys: Sequence[str]) -> None:
    transaction.execute(delete(vector_store_files).where(vector_store_files.c.id.in_(keys)))


async def _sweep_blobs(database: Database, now: float) -> int:
    """Delete the expired holders, then the blobs without holders; returns the number of the latter."""
    limit, deleted = database.tuning.sweep, 0
    while holders := await database.read(_expired_holders, now, limit):
        await database.write(_release, (holders, now))
    while blob_ids := await database.read(_expired_blobs, now, limit):
        while pieces := await database.read(_pieces, blob_ids, limit):
            await database.write(_delete_pieces, pieces)
        await database.write(_delete_blobs, blob_ids)
        deleted += len(blob_ids)
    return deleted


def _expired_holders(connection: Connection, now: float, limit: int) -> Sequence[ResultRow]:
    expired = select(blob_holders.c.holder, blob_holders.c.blob_id).where(blob_holders.c.expires_at <= now)
    return connection.execute(expired.limit(limit)).all()


def _expired_blobs(connection: Connection, now: float, limit: int) -> Sequence[str]:
    return connection.scalars(_EXPIRED[blobs], {"now": now, "limit": limit}).all()


def _pieces(connection: Connection, blob_ids: Collection[str], limit: int) -> Sequence[ResultRow]:
    query = select(blob_pieces.c.blob_id, blob_pieces.c.position).where(blob_pieces.c.blob_id.in_(blob_ids))
    return connection.execute(query.limit(limit)).all()


@one_by_one
def _release(transaction: Transaction, released: tuple[Sequence[ResultRow], float]) -> None:
    holders, now = released
    named = tuple_(blob_holders.c.holder, blob_holders.c.blob_id).in_(holders)
    release_blobs(transaction, named & (blob_holders.c.expires_at <= now))  # unless it was held again since


@one_by_one
def _delete_pieces(transaction: Transaction, pieces: Sequence[ResultRow]) -> None:
    named = tuple_(blob_pieces.c.blob_id, blob_pieces.c.position).in_(pieces)
    transaction.execute(delete(blob_pieces).where(named))


@one_by_one
def _delete_blobs(transaction: Transaction, blob_ids: Sequence[str]) -> None:
    uncount(transaction, blobs, blobs.c.size, blobs.c.id.in_(blob_ids))  # unfinished ones have a size
    transaction.execute(delete(blobs).where(blobs.c.id.in_(blob_ids)))
    transaction.execute(delete(blob_pieces).where(blob_pieces.c.blob_id.in_(blob_ids)))  # written since
