"""Deleting parents with what belongs to them.

Always the parent first: whoever adds to it locks its row before, so that either he
comes first and what he added is deleted too, or he finds it gone.
"""

from collections.abc import Collection

from sqlalchemy import delete

from antiphon.store.database import Transaction
from antiphon.store.schema import completion_metadata, completions, conversations, items, log, responses
from antiphon.store.store import cancel_of, events_of


def delete_responses(transaction: Transaction, ids: Collection[str]) -> None:
    """Delete responses, and tell who reads them or works on them."""
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
