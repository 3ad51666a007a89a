"""POST /v1/messages/count_tokens."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.messages.api import MESSAGES
from antiphon.apis.messages.schema import CountTokens
from antiphon.app import messages
from antiphon.http.request import app_of, json_response, owner_of, read_request


async def count_tokens(request: Request) -> Response:
    """The number of tokens of a request's prompt, without a limit."""
    wire = await read_request(request, CountTokens, api=MESSAGES)
    count = await messages.count_tokens(app_of(request), wire, owner_of(request))
    return json_response(msgspec.json.encode(count))
