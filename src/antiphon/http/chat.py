"""Batches and prompts of POST /v1/chat/completions; the filters for lists of stored ones."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.chat.schema import BatchChatRequest, ChatRequest
from antiphon.app import chat
from antiphon.http.delivery import FullAnswer
from antiphon.http.request import app_of, json_response, owner_of, query_of, read_request, request_id_of
from antiphon.store.records import CompletionFilter


async def create_batch(request: Request) -> FullAnswer:
    """Answer several conversations, each with one choice."""
    app, wire = app_of(request), await read_request(request, BatchChatRequest)
    driver = await chat.create_batch(app, wire, owner_of(request), request_id_of(request))
    return FullAnswer(driver, app.settings)


async def render(request: Request) -> Response:
    """The prompt that a request would give."""
    wire = await read_request(request, ChatRequest)
    return json_response(msgspec.json.encode(await chat.render(app_of(request), wire, owner_of(request))))


async def stored_filter(request: Request) -> CompletionFilter:
    """Which stored completions a list is to have: those of a `model`, with these `metadata[KEY]`."""
    query = query_of(request)
    return CompletionFilter(query.text("model"), query.prefixed("metadata"))
