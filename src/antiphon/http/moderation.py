"""POST /v1/moderations: what a guard model says of texts."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.moderation import CreateModeration
from antiphon.app import moderation
from antiphon.app.metrics import CLIENT_CLOSED
from antiphon.http.request import (
    app_of,
    json_response,
    owner_of,
    read_body,
    unless_disconnected,
)


async def create(request: Request) -> Response:
    """Say which texts are harmful, and how."""
    wire = await read_body(request, CreateModeration)
    work = moderation.moderations(app_of(request), wire, owner_of(request))
    answer = await unless_disconnected(request, work)
    if answer is None:
        return Response(status_code=CLIENT_CLOSED)
    return json_response(msgspec.json.encode(answer))
