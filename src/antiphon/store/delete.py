"""Deleting parents with what belongs to them.

Always the parent first: a write that adds to it locks the parent's row, so either it
comes first and its rows are deleted too, or it finds no parent.
"""

from collections.abc import Collection

from sqlalchemy import delete

from antiphon.store.schema import completion_metadata, completions, conversations, items, log, responses
from antiphon.store.store import cancel_of, events_of
from antiphon.store.transaction import Transaction


def delete_responses(transaction: Transaction, ids: Collection[str]) -> None:
    """Delete responses, and wake their readers and workers."""
    transaction.execute(delete(responses).where(responses.c.id.in_(ids)))
    transaction.execute(delete(items).where(items.c.parent.in_(ids)))
    transaction.execute(delete(log).where(log.c.response_id.in_(ids)))
    for response_id in ids:
        transaction.wake(events_of(response_id), cancel_of(response_id))


def delete_conversation(transaction: Transaction, conversation_id: str) -> None:
    """Delete a conversation."""
    transaction.execute(delete(conversations).where(conversations.c.id == conversation_id))
    transaction.execute(delete(items).where(items.c.parent == conversation_id))


def delete_completions(transaction: Transaction, ids: Collection[str]) -> None:
    """Delete stored completions."""
    transaction.execute(delete(completions).where(completions.c.id.in_(ids)))
    transaction.execute(delete(items).where(items.c.parent.in_(ids)))
    transaction.execute(delete(completion_metadata).where(completion_metadata.c.completion_id.in_(ids)))
