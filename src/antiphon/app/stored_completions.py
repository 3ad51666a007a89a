"""Stored chat completions without HTTP: listed, changed and deleted."""

import msgspec

from antiphon.apis.chat.stored import Deleted, UpdateRequest, with_metadata
from antiphon.apis.lists import encode_stored
from antiphon.app.app import App
from antiphon.app.attachments import shown_page
from antiphon.core.errors import NotFoundError
from antiphon.store.records import CompletionFilter, Paging


async def list_completions(app: App, owner: str, only: CompletionFilter, paging: Paging) -> bytes:
    """A page of the completions of this owner."""
    page = await app.storage.store.completions.list(owner, only, paging)
    return encode_stored([(record.id, record.body) for record in page.data], has_more=page.has_more)


async def retrieve(app: App, owner: str, completion_id: str) -> bytes:
    """One completion. Raises NotFoundError."""
    record = await app.storage.store.completions.get(owner, completion_id)
    if record is None:
        raise _not_found(completion_id)
    return record.body


async def update(app: App, owner: str, completion_id: str, wire: UpdateRequest) -> bytes:
    """Replace the metadata. Raises NotFoundError."""
    metadata = wire.metadata or {}
    body = with_metadata(await retrieve(app, owner, completion_id), metadata)
    return (await app.storage.store.completions.update(owner, completion_id, metadata, body)).body


async def delete(app: App, owner: str, completion_id: str) -> bytes:
    """Delete a completion. Raises NotFoundError."""
    if not await app.storage.store.completions.delete(owner, completion_id):
        raise _not_found(completion_id)
    return msgspec.json.encode(Deleted(completion_id))


async def list_messages(app: App, owner: str, completion_id: str, paging: Paging) -> bytes:
    """A page of the messages that a completion answered. Raises NotFoundError."""
    await retrieve(app, owner, completion_id)
    page = await app.storage.store.completions.messages(owner, completion_id, paging)
    shown = await shown_page(app.storage.store, owner, page, app.limits.page_bytes)
    return encode_stored([(item.id, item.payload) for item in shown.data], has_more=shown.has_more)


def _not_found(completion_id: str) -> NotFoundError:
    return NotFoundError(f"Chat completion with id '{completion_id}' not found.", param="completion_id")
