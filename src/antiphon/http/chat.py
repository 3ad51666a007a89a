"""Batches of POST /v1/chat/completions; the filters for lists of stored ones."""

from starlette.requests import Request

from antiphon.apis.chat.schema import BatchChatRequest
from antiphon.app import chat
from antiphon.http.delivery import FullAnswer
from antiphon.http.request import app_of, owner_of, query_of, read_request, request_id_of
from antiphon.store.records import CompletionFilter


async def create_batch(request: Request) -> FullAnswer:
    """Answer several conversations, each with one choice."""
    app, wire = app_of(request), await read_request(request, BatchChatRequest)
    driver = await chat.create_batch(app, wire, owner_of(request), request_id_of(request))
    return FullAnswer(driver, app.settings)


async def stored_filter(request: Request) -> CompletionFilter:
    """Which stored completions a list is to have: those of a `model`, with these `metadata[KEY]`."""
    query = query_of(request)
    return CompletionFilter(query.text("model"), query.prefixed("metadata"))
