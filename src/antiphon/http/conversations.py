"""/v1/conversations: items that responses share."""

from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.conversations.schema import CreateConversation, CreateItems, UpdateConversation
from antiphon.app import conversations
from antiphon.app.app import App
from antiphon.http.auth import owner_of
from antiphon.http.query import Query
from antiphon.http.request import app_of, json_response, read


async def create(request: Request) -> Response:
    """A new conversation."""
    wire = await read(request, CreateConversation)
    return json_response(await conversations.create(app_of(request), owner_of(request), wire))


async def retrieve(request: Request) -> Response:
    """A conversation, without its items."""
    return json_response(await conversations.retrieve(*_target(request)))


async def update(request: Request) -> Response:
    """Replace the metadata of a conversation."""
    wire = await read(request, UpdateConversation, "small_body_bytes")
    return json_response(await conversations.update(*_target(request), wire))


async def delete(request: Request) -> Response:
    """Delete a conversation."""
    return json_response(await conversations.delete(*_target(request)))


async def create_items(request: Request) -> Response:
    """Append items."""
    wire = await read(request, CreateItems)
    return json_response(await conversations.create_items(*_target(request), wire))


async def list_items(request: Request) -> Response:
    """A page of the items."""
    paging = Query(request.query_params).paging()
    return json_response(await conversations.list_items(*_target(request), paging))


async def retrieve_item(request: Request) -> Response:
    """One item."""
    return json_response(await conversations.retrieve_item(*_target(request), request.path_params["item_id"]))


async def delete_item(request: Request) -> Response:
    """Delete one item."""
    return json_response(await conversations.delete_item(*_target(request), request.path_params["item_id"]))


def _target(request: Request) -> tuple[App, str, str]:
    """Where the conversation is, whose it is, and which."""
    return app_of(request), owner_of(request), request.path_params["conversation_id"]
