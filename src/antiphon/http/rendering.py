"""POST …/render of each API: a request as the ids of its prompt."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.api import OPENAI, Api
from antiphon.apis.chat.schema import ChatRequest
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.messages.api import MESSAGES
from antiphon.apis.messages.schema import CreateMessage
from antiphon.apis.responses.schema import CreateResponse
from antiphon.app import rendering
from antiphon.app.metrics import CLIENT_CLOSED
from antiphon.http.request import (
    Handler,
    app_of,
    json_response,
    owner_of,
    read_request,
    request_id_of,
    unless_disconnected,
)


def _renders(type_: type[Any], use_case: Callable[..., Awaitable[Any]], api: Api = OPENAI) -> Handler:
    async def handle(request: Request) -> Response:
        wire = await read_request(request, type_, api=api)
        work = use_case(app_of(request), wire, owner_of(request), request_id_of(request))
        answer = await unless_disconnected(request, work)
        if answer is None:
            return Response(status_code=CLIENT_CLOSED)
        return json_response(msgspec.json.encode(answer))

    handle.__doc__ = use_case.__doc__
    return handle


chat = _renders(ChatRequest, rendering.chat)
completion = _renders(CompletionRequest, rendering.completion)
message = _renders(CreateMessage, rendering.message, MESSAGES)
response = _renders(CreateResponse, rendering.response)
