"""Deletes parents, and then the rows that belong to them, in small transactions.

Always the parent first: a write that adds to it locks the parent's row. So it either comes first and its
rows are deleted too, or it finds no parent. Rows without a parent are not found any more. The transaction
that deletes the parent deletes the first of them, mostly all. If more are left, the parent is noted in
`deletions`, and `clear` deletes them piece by piece, so that other writes run in between.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from sqlalchemy import ColumnElement, Table, and_, delete, select, tuple_, update

from antiphon.store.database import Database, one_by_one
from antiphon.store.file_counts import count_file
from antiphon.store.records import IndexStatus
from antiphon.store.schema import (
    ATTACHED,
    WAITS_FOR_ANOTHER,
    blob_holders,
    blobs,
    completion_pairs,
    completions,
    container_files,
    containers,
    conversations,
    deletions,
    files,
    items,
    log,
    responses,
    vector_chunks,
    vector_store_batches,
    vector_store_files,
    vector_stores,
)
from antiphon.store.store import JOBS, cancel_of, events_of
from antiphon.store.transaction import Transaction, insertion
from antiphon.store.usage import uncount

_Clear = Callable[[Transaction, Collection[str], int], int]
"""Deletes at most so many rows of parents with these ids; returns their number."""

_NOTE = insertion(deletions)

_COUNTED = (responses, conversations, completions)
"""Parents whose size is counted, with all rows that belong to them."""


def delete_parents(transaction: Transaction, table: Table, ids: Collection[str]) -> bool:
    """Delete parents. Returns whether all rows that belong to them are deleted, too."""
    if table in _COUNTED:
        uncount(transaction, table, table.c.size, table.c.id.in_(ids))
    if table is responses:
        _begin_successors(transaction, ids)
    transaction.execute(delete(table).where(table.c.id.in_(ids)))
    if table is responses:
        for response_id in ids:
            transaction.wake(events_of(response_id), cancel_of(response_id))
    return delete_children(transaction, table, ids)


def _begin_successors(transaction: Transaction, ids: Collection[str]) -> None:
    """Have responses that wait for the end of these looked at: they fail."""
    chosen = responses.c.id.in_(ids) & responses.c.successor_id.is_not(None)
    waiting = transaction.execute(select(responses.c.successor_id).where(chosen)).scalars().all()
    if waiting:
        begun = update(responses).where(responses.c.id.in_(waiting), WAITS_FOR_ANOTHER)
        transaction.execute(begun.values(lease_until=None))
        transaction.wake(JOBS)


def delete_children(transaction: Transaction, table: Table, ids: Collection[str]) -> bool:
    """Delete the rows of parents, which get no more of them. If some are left for `clear`, returns False."""
    done = _clear(transaction, table, ids)
    if not done:
        transaction.execute_many(_NOTE, [{"kind": table.name, "id": parent_id} for parent_id in ids])
    return done


async def delete_parent(database: Database, table: Table, condition: ColumnElement[bool]) -> bool:
    """Delete the parent; returns whether there was one."""
    existed, done = await database.write(_delete_one, (table, condition))
    if not done:
        database.begin(clear)
    return existed


async def clear(database: Database) -> None:
    """Delete what is left of parents that are deleted."""
    while await database.write(_clear_some, database.tuning.sweep):
        pass


@one_by_one
def _delete_one(transaction: Transaction, parent: tuple[Table, ColumnElement[bool]]) -> tuple[bool, bool]:
    """Whether there was such a parent, and whether all of it is deleted."""
    table, condition = parent
    parent_id = transaction.execute(select(table.c.id).where(condition).with_for_update()).scalar()
    return parent_id is not None, parent_id is None or delete_parents(transaction, table, [parent_id])


@one_by_one
def _clear_some(transaction: Transaction, limit: int) -> bool:
    """Delete some of what is left; returns whether there was something."""
    # Another server that clears takes others.
    query = select(deletions).order_by(deletions.c.kind).limit(limit).with_for_update(skip_locked=True)
    rows = transaction.execute(query).all()
    if not rows:
        return False
    kind = rows[0].kind
    ids = [row.id for row in rows if row.kind == kind]
    if _clear(transaction, deletions.metadata.tables[kind], ids):
        transaction.execute(delete(deletions).where(deletions.c.id.in_(ids)))
    return True


def _clear(transaction: Transaction, table: Table, ids: Collection[str]) -> bool:
    """Delete the first rows that belong to parents; returns whether that was all."""
    remaining = transaction.tuning.sweep
    for clear_some in _CHILDREN[table]:
        if remaining > 0:
            remaining -= clear_some(transaction, ids, remaining)
    return remaining > 0


def _of(child: Table, parent: ColumnElement[str]) -> _Clear:
    """Deletes rows of a table, whose parent is in this column."""
    key = tuple_(*child.primary_key.columns)

    def clear_some(transaction: Transaction, ids: Collection[str], limit: int) -> int:
        query = select(*child.primary_key.columns).where(parent.in_(ids)).limit(limit)
        return transaction.execute(delete(child).where(key.in_(query))).rowcount

    return clear_some


def _holders(transaction: Transaction, ids: Collection[str], limit: int) -> int:
    keys = (blob_holders.c.holder, blob_holders.c.blob_id)
    holders = transaction.execute(select(*keys).where(blob_holders.c.holder.in_(ids)).limit(limit)).all()
    release_blobs(transaction, tuple_(*keys).in_(holders))
    return len(holders)


def _container_files(transaction: Transaction, ids: Collection[str], limit: int) -> int:
    query = select(container_files.c.id).where(container_files.c.container_id.in_(ids)).limit(limit)
    file_ids = transaction.execute(query).scalars().all()
    delete_container_files(transaction, file_ids)
    return len(file_ids)


def _attached(parent: ColumnElement[str]) -> _Clear:
    """Takes files out of vector stores."""

    def clear_some(transaction: Transaction, ids: Collection[str], limit: int) -> int:
        query = select(vector_store_files.c.id).where(parent.in_(ids), ATTACHED).limit(limit)
        keys = transaction.execute(query).scalars().all()
        detach_files(transaction, vector_store_files.c.id.in_(keys))
        return len(keys)

    return clear_some


_CHILDREN: Mapping[Table, Sequence[_Clear]] = {
    responses: (_of(items, items.c.parent), _of(log, log.c.response_id), _holders),
    conversations: (_of(items, items.c.parent), _holders),
    completions: (
        _of(items, items.c.parent),
        _of(completion_pairs, completion_pairs.c.completion_id),
        _holders,
    ),
    files: (_attached(vector_store_files.c.file_id), _holders),
    containers: (_container_files,),
    vector_stores: (
        _attached(vector_store_files.c.vector_store_id),
        _of(vector_store_batches, vector_store_batches.c.vector_store_id),
    ),
    vector_store_files: (_of(vector_chunks, vector_chunks.c.parent),),
}
"""What belongs to the parents in each table."""


def delete_container_files(transaction: Transaction, ids: Collection[str]) -> None:
    """Delete files of containers."""
    transaction.execute(delete(container_files).where(container_files.c.id.in_(ids)))
    release_blobs(transaction, blob_holders.c.holder.in_(ids))


def detach_files(transaction: Transaction, files: ColumnElement[bool]) -> None:
    """Remove files from vector stores: they are not found any more, and the sweep deletes their chunks."""
    table = vector_store_files
    condition = files & and_(ATTACHED)
    rows = transaction.execute(select(table).where(condition).order_by(table.c.id).with_for_update()).all()
    for row in rows:
        transaction.count(row.owner, -row.usage_bytes)
        count_file(transaction, row, None)
    gone = {"status": IndexStatus.DELETED, "usage_bytes": 0}
    transaction.execute(update(table).where(condition).values(gone))


def release_blobs(transaction: Transaction, condition: ColumnElement[bool]) -> None:
    """Delete holders of blobs. A blob without holders is marked as abandoned; the sweep deletes its bytes."""
    held = set(transaction.execute(select(blob_holders.c.blob_id).where(condition)).scalars())
    if not held:
        return
    # Locks them first: another server that adds a holder at the same time comes before, or finds no blob.
    transaction.execute(select(blobs.c.id).where(blobs.c.id.in_(held)).order_by(blobs.c.id).with_for_update())
    transaction.execute(delete(blob_holders).where(condition))
    left = select(blob_holders.c.holder).where(blob_holders.c.blob_id == blobs.c.id).exists()
    abandon_blobs(transaction, blobs.c.id.in_(held) & ~left)


def abandon_blobs(transaction: Transaction, condition: ColumnElement[bool]) -> None:
    """Mark blobs as abandoned: they are not counted any more, and the next sweep deletes them."""
    uncount(transaction, blobs, blobs.c.size, condition)
    transaction.execute(update(blobs).where(condition).values(digest=None, size=0, expires_at=0.0))
