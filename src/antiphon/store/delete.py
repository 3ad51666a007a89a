"""Deletes parents and the rows that belong to them.

Always the parent first: a write that adds to it locks the parent's row. So it either comes first and its
rows are deleted too, or it finds no parent.
"""

from collections.abc import Collection

from sqlalchemy import ColumnElement, delete, select, update

from antiphon.store.records import IndexStatus
from antiphon.store.schema import (
    blob_holders,
    blobs,
    completion_metadata,
    completions,
    container_files,
    containers,
    conversations,
    files,
    items,
    log,
    responses,
    vector_store_batches,
    vector_store_files,
    vector_stores,
)
from antiphon.store.store import cancel_of, events_of
from antiphon.store.transaction import Transaction
from antiphon.store.usage import uncount


def delete_responses(transaction: Transaction, ids: Collection[str]) -> None:
    """Delete responses, and wake their readers and workers."""
    uncount(transaction, responses, responses.c.size, responses.c.id.in_(ids))
    transaction.execute(delete(responses).where(responses.c.id.in_(ids)))
    transaction.execute(delete(items).where(items.c.parent.in_(ids)))
    transaction.execute(delete(log).where(log.c.response_id.in_(ids)))
    release_blobs(transaction, blob_holders.c.holder.in_(ids))
    for response_id in ids:
        transaction.wake(events_of(response_id), cancel_of(response_id))


def delete_conversation(transaction: Transaction, conversation_id: str) -> None:
    """Delete a conversation."""
    uncount(transaction, conversations, conversations.c.size, conversations.c.id == conversation_id)
    transaction.execute(delete(conversations).where(conversations.c.id == conversation_id))
    transaction.execute(delete(items).where(items.c.parent == conversation_id))
    release_blobs(transaction, blob_holders.c.holder == conversation_id)


def delete_completions(transaction: Transaction, ids: Collection[str]) -> None:
    """Delete stored completions."""
    uncount(transaction, completions, completions.c.size, completions.c.id.in_(ids))
    transaction.execute(delete(completions).where(completions.c.id.in_(ids)))
    transaction.execute(delete(items).where(items.c.parent.in_(ids)))
    transaction.execute(delete(completion_metadata).where(completion_metadata.c.completion_id.in_(ids)))
    release_blobs(transaction, blob_holders.c.holder.in_(ids))


def delete_files(transaction: Transaction, ids: Collection[str]) -> None:
    """Delete files, also from vector stores."""
    transaction.execute(delete(files).where(files.c.id.in_(ids)))
    detach_files(transaction, vector_store_files.c.file_id.in_(ids))
    release_blobs(transaction, blob_holders.c.holder.in_(ids))


def delete_containers(transaction: Transaction, ids: Collection[str]) -> None:
    """Delete containers with their files."""
    transaction.execute(delete(containers).where(containers.c.id.in_(ids)))
    its = select(container_files.c.id).where(container_files.c.container_id.in_(ids))
    delete_container_files(transaction, transaction.execute(its).scalars().all())


def delete_container_files(transaction: Transaction, ids: Collection[str]) -> None:
    """Delete files of containers."""
    transaction.execute(delete(container_files).where(container_files.c.id.in_(ids)))
    release_blobs(transaction, blob_holders.c.holder.in_(ids))


def delete_vector_stores(transaction: Transaction, ids: Collection[str]) -> None:
    """Delete vector stores. Their files stay."""
    transaction.execute(delete(vector_stores).where(vector_stores.c.id.in_(ids)))
    transaction.execute(delete(vector_store_batches).where(vector_store_batches.c.vector_store_id.in_(ids)))
    detach_files(transaction, vector_store_files.c.vector_store_id.in_(ids))


def detach_files(transaction: Transaction, which: ColumnElement[bool]) -> None:
    """Remove files from vector stores: they are not found any more, and the sweep deletes their chunks."""
    uncount(transaction, vector_store_files, vector_store_files.c.usage_bytes, which)
    gone = {"status": IndexStatus.DELETED, "usage_bytes": 0}
    transaction.execute(update(vector_store_files).where(which).values(gone))


def release_blobs(transaction: Transaction, which: ColumnElement[bool]) -> None:
    """Delete holders of blobs. A blob without holders is marked as abandoned; the sweep deletes its bytes."""
    held = set(transaction.execute(select(blob_holders.c.blob_id).where(which)).scalars())
    if not held:
        return
    # Locks them first: another server that adds a holder at the same time comes before, or finds no blob.
    transaction.execute(select(blobs.c.id).where(blobs.c.id.in_(held)).order_by(blobs.c.id).with_for_update())
    transaction.execute(delete(blob_holders).where(which))
    left = select(blob_holders.c.holder).where(blob_holders.c.blob_id == blobs.c.id).exists()
    abandon_blobs(transaction, blobs.c.id.in_(held) & ~left)


def abandon_blobs(transaction: Transaction, which: ColumnElement[bool]) -> None:
    """Mark blobs as abandoned: they are not counted any more, and the next sweep deletes them."""
    uncount(transaction, blobs, blobs.c.size, which)
    transaction.execute(update(blobs).where(which).values(digest=None, size=0, expires_at=0.0))
