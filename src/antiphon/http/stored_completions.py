"""GET, POST and DELETE of /v1/chat/completions/{id}: chat completions that were stored, and lists of them."""

from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.chat.stored import UpdateRequest
from antiphon.app import stored_completions
from antiphon.app.app import App
from antiphon.http.auth import owner_of
from antiphon.http.query import Query
from antiphon.http.request import app_of, json_response, read
from antiphon.store.records import CompletionFilter


async def list_completions(request: Request) -> Response:
    """The completions of this key: those of a `model`, with these `metadata[KEY]`."""
    app, owner, query = app_of(request), owner_of(request), Query(request.query_params)
    only = CompletionFilter(query.text("model"), query.prefixed("metadata"))
    return json_response(await stored_completions.list_completions(app, owner, only, query.paging("asc")))


async def retrieve(request: Request) -> Response:
    """One completion."""
    return json_response((await stored_completions.retrieve(*_target(request))).body)


async def update(request: Request) -> Response:
    """Replace the metadata of a completion."""
    wire = await read(request, UpdateRequest, "small_body_bytes")
    return json_response(await stored_completions.update(*_target(request), wire))


async def delete(request: Request) -> Response:
    """Delete a completion."""
    return json_response(await stored_completions.delete(*_target(request)))


async def list_messages(request: Request) -> Response:
    """The messages that a completion answered."""
    paging = Query(request.query_params).paging("asc")
    return json_response(await stored_completions.list_messages(*_target(request), paging))


def _target(request: Request) -> tuple[App, str, str]:
    """Where the completion is, whose it is, and which."""
    return app_of(request), owner_of(request), request.path_params["completion_id"]
