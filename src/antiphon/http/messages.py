"""POST /v1/messages, and its counts of tokens."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.messages.schema import CountTokens, CreateMessage
from antiphon.apis.messages.stream import PING
from antiphon.app import messages
from antiphon.http.delivery import EventStream, FullAnswer
from antiphon.http.request import app_of, json_response, owner_of, read_request, request_id_of


class MessageEvents(EventStream):
    """The stream of a message."""

    __slots__ = ()

    silence = PING


async def create(request: Request) -> MessageEvents | FullAnswer:
    """Answer a conversation."""
    app, wire = app_of(request), await read_request(request, CreateMessage)
    driver = await messages.create(app, wire, owner_of(request), request_id_of(request))
    if wire.stream:
        return MessageEvents(driver, app.options)
    return FullAnswer(driver, app.options)


async def count_tokens(request: Request) -> Response:
    """The number of tokens of a request's prompt, without a limit."""
    wire = await read_request(request, CountTokens)
    count = await messages.count_tokens(app_of(request), wire, owner_of(request))
    return json_response(msgspec.json.encode(count))
