"""POST /v1/batches. All other endpoints of batches are in `http/app.py`."""

from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.batches.schema import CreateBatch
from antiphon.app import batches
from antiphon.app.metrics import CLIENT_CLOSED
from antiphon.http.request import (
    app_of,
    json_response,
    owner_of,
    read_body,
    unless_disconnected,
)


async def create(request: Request) -> Response:
    """Create a batch of the requests in a file, which is checked first."""
    wire = await read_body(request, CreateBatch, "small_body_bytes")
    body = await unless_disconnected(request, batches.create(app_of(request), owner_of(request), wire))
    return Response(status_code=CLIENT_CLOSED) if body is None else json_response(body)
