"""/v1/conversations: items that responses share."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.conversations.accept import accept_items
from antiphon.apis.conversations.schema import (
    Conversation,
    CreateConversation,
    CreateItems,
    DeletedConversation,
    UpdateConversation,
)
from antiphon.apis.responses.input import references
from antiphon.apis.wire import decode
from antiphon.core.errors import NotFoundError
from antiphon.decode.ids import random_id
from antiphon.http.auth import owner_of
from antiphon.http.body import read_json
from antiphon.http.context import context_of
from antiphon.http.query import Query
from antiphon.http.responses.endpoints import items_of, json
from antiphon.http.responses.projection import as_records
from antiphon.store.records import ConversationRecord, ItemRecord, Page


async def create(request: Request) -> Response:
    """A new conversation."""
    wire = decode(await read_json(request), CreateConversation)
    conversation_id = random_id("conv_", 48)
    items = await _items(request, wire.items, conversation_id)
    record = ConversationRecord(
        id=conversation_id,
        owner=owner_of(request),
        created_at=time.time(),
        metadata=msgspec.json.encode(wire.metadata or {}),
    )
    await context_of(request).worker.store.conversations.create(record, items)
    return _conversation(record)


async def retrieve(request: Request) -> Response:
    """A conversation, without its items."""
    record = await context_of(request).worker.store.conversations.get(owner_of(request), _id(request))
    if record is None:
        raise _not_found(request)
    return _conversation(record)


async def update(request: Request) -> Response:
    """Replace what is noted about a conversation."""
    wire = decode(await read_json(request), UpdateConversation)
    store, metadata = context_of(request).worker.store, msgspec.json.encode(wire.metadata or {})
    with _finding(request):
        return _conversation(await store.conversations.update(owner_of(request), _id(request), metadata))


async def delete(request: Request) -> Response:
    """Forget a conversation. Its responses keep what they have of it."""
    store = context_of(request).worker.store
    if not await store.conversations.delete(owner_of(request), _id(request)):
        raise _not_found(request)
    return json(msgspec.json.encode(DeletedConversation(_id(request))))


async def create_items(request: Request) -> Response:
    """Append items."""
    wire = decode(await read_json(request), CreateItems)
    records = await _items(request, wire.items, random_id("", 32))
    with _finding(request):
        await context_of(request).worker.store.conversations.add(owner_of(request), _id(request), records)
    return json(items_of(Page([*records], has_more=False)))


async def list_items(request: Request) -> Response:
    """Part of the items."""
    store, paging = context_of(request).worker.store, Query(request.query_params).paging()
    with _finding(request):
        return json(items_of(await store.conversations.items(owner_of(request), _id(request), paging)))


async def retrieve_item(request: Request) -> Response:
    """One item."""
    return json((await _item(request)).payload)


async def delete_item(request: Request) -> Response:
    """Forget one item."""
    store, item = context_of(request).worker.store, await _item(request)
    with _finding(request):
        return _conversation(await store.conversations.delete_item(owner_of(request), _id(request), item.id))


async def _item(request: Request) -> ItemRecord:
    """The item that a request names. Raises NotFoundError."""
    store, item_id = context_of(request).worker.store, request.path_params["item_id"]
    item = await store.conversations.item(owner_of(request), _id(request), item_id)
    if item is None:
        message = f"Item with id '{item_id}' not found in conversation '{_id(request)}'."
        raise NotFoundError(message, param="item_id")
    return item


async def _items(request: Request, given: list[Any] | None, source: str) -> tuple[ItemRecord, ...]:
    """Items of a request as they are stored; `source` is what their ids are derived from."""
    context, owner = context_of(request), owner_of(request)
    wanted = references(given)
    referred = await context.worker.store.responses.items(owner, wanted) if wanted else {}
    return as_records(accept_items(given, source, referred, partial(context.sealer.unseal, owner)))


def _conversation(record: ConversationRecord) -> Response:
    metadata = msgspec.json.decode(record.metadata)
    return json(msgspec.json.encode(Conversation(record.id, int(record.created_at), metadata)))


def _id(request: Request) -> str:
    conversation_id: str = request.path_params["conversation_id"]
    return conversation_id


@contextmanager
def _finding(request: Request) -> Iterator[None]:
    """What the store does not find is the conversation, unless it says that it is something else."""
    try:
        yield
    except NotFoundError as error:
        raise error if error.param else _not_found(request) from error


def _not_found(request: Request) -> NotFoundError:
    return NotFoundError(f"Conversation with id '{_id(request)}' not found.", param="conversation_id")
