"""Conversations without HTTP: items that responses share."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from antiphon.apis.conversations.accept import accept_items
from antiphon.apis.conversations.schema import (
    Conversation,
    CreateConversation,
    CreateItems,
    DeletedConversation,
    UpdateConversation,
)
from antiphon.app.app import App
from antiphon.app.attachments import shown_page, with_media
from antiphon.app.ids import random_id
from antiphon.app.journal import as_records
from antiphon.app.responses.history import referenced_items
from antiphon.app.responses.stored import encode_items
from antiphon.core.errors import NotFoundError
from antiphon.store.records import ConversationRecord, ItemRecord, Page, Paging


async def create(app: App, owner: str, wire: CreateConversation) -> bytes:
    """A new conversation. Raises RequestError."""
    conversation_id = random_id("conv_", 48)
    items = await _items(app, owner, wire.items, conversation_id)
    metadata = msgspec.json.encode(wire.metadata or {})
    record = ConversationRecord(id=conversation_id, owner=owner, created_at=time.time(), metadata=metadata)
    await app.storage.store.conversations.create(record, items)
    return _encode(record)


async def retrieve(app: App, owner: str, conversation_id: str) -> bytes:
    """A conversation, without its items. Raises NotFoundError."""
    record = await app.storage.store.conversations.get(owner, conversation_id)
    if record is None:
        raise _not_found(conversation_id)
    return _encode(record)


async def update(app: App, owner: str, conversation_id: str, wire: UpdateConversation) -> bytes:
    """Replace the metadata. Raises NotFoundError."""
    metadata = msgspec.json.encode(wire.metadata or {})
    with _finding(conversation_id):
        return _encode(await app.storage.store.conversations.update(owner, conversation_id, metadata))


async def delete(app: App, owner: str, conversation_id: str) -> bytes:
    """Delete a conversation. Its responses keep their items. Raises NotFoundError."""
    if not await app.storage.store.conversations.delete(owner, conversation_id):
        raise _not_found(conversation_id)
    return msgspec.json.encode(DeletedConversation(conversation_id))


async def create_items(app: App, owner: str, conversation_id: str, wire: CreateItems) -> bytes:
    """Append items. Raises RequestError, NotFoundError."""
    source, store = random_id("", 32), app.storage.store
    try:
        records = await _items(app, owner, wire.items, source)
        with _finding(conversation_id):
            await store.conversations.add(owner, conversation_id, records)
    finally:
        await store.blobs.release(owner, source)
    return await _encoded_page(app, owner, Page([*records], has_more=False))


async def list_items(app: App, owner: str, conversation_id: str, paging: Paging) -> bytes:
    """A page of the items. Raises NotFoundError."""
    with _finding(conversation_id):
        page = await app.storage.store.conversations.items(owner, conversation_id, paging)
    return await _encoded_page(app, owner, page)


async def retrieve_item(app: App, owner: str, conversation_id: str, item_id: str) -> bytes:
    """One item. Raises NotFoundError."""
    item = await app.storage.store.conversations.item(owner, conversation_id, item_id)
    if item is None:
        message = f"Item with id '{item_id}' not found in conversation '{conversation_id}'."
        raise NotFoundError(message, param="item_id")
    return await with_media(app.storage.store, owner, item.payload)


async def delete_item(app: App, owner: str, conversation_id: str, item_id: str) -> bytes:
    """Delete one item; returns the conversation. Raises NotFoundError."""
    await retrieve_item(app, owner, conversation_id, item_id)
    with _finding(conversation_id):
        return _encode(await app.storage.store.conversations.delete_item(owner, conversation_id, item_id))


async def _items(app: App, owner: str, items: list[Any] | None, source: str) -> tuple[ItemRecord, ...]:
    """Items of a request as they are stored.

    Their ids are derived from `source`, which also holds their media until they are stored.
    """
    references = await referenced_items(app, owner, items, "items")
    unseal = partial(app.sealer.unseal, owner)
    accepted = accept_items(items, source, references, unseal, app.toolkits.presenters)
    return as_records(await app.contents(owner).keep(accepted, source, "items", fetch=True))


async def _encoded_page(app: App, owner: str, page: Page[ItemRecord]) -> bytes:
    max_bytes = app.limits.page_bytes
    return await encode_items(app, await shown_page(app.storage.store, owner, page, max_bytes))


def _encode(record: ConversationRecord) -> bytes:
    metadata = msgspec.json.decode(record.metadata)
    return msgspec.json.encode(Conversation(record.id, int(record.created_at), metadata))


@contextmanager
def _finding(conversation_id: str) -> Iterator[None]:
    """NotFoundErrors of the store name the conversation, unless they name something else."""
    try:
        yield
    except NotFoundError as error:
        raise error if error.param else _not_found(conversation_id) from error


def _not_found(conversation_id: str) -> NotFoundError:
    return NotFoundError(f"Conversation with id '{conversation_id}' not found.", param="conversation_id")
