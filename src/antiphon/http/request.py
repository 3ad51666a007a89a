"""What handlers take from a request, and the plain answers they give. Bodies are JSON, under a limit."""

from collections.abc import Mapping

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from antiphon.app.app import App
from antiphon.core.errors import BodyTooLargeError, MediaTypeError, RequestError

REQUEST_ID = "x-request-id"


def app_of(request: HTTPConnection) -> App:
    """What the use cases need, of the application that the request came to."""
    app: App = request.app.state.app
    return app


async def read_json(request: Request) -> bytes:
    """The body of a request that must be JSON. Raises RequestError."""
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise MediaTypeError
    limit = app_of(request).options.max_body_bytes
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise BodyTooLargeError(f"The request body is larger than the limit of {limit} bytes.")
    if not body:
        raise RequestError("The request has no body. Send a JSON object.")
    return bytes(body)


def request_id_headers(request: Request, answer: str) -> Mapping[bytes, bytes]:
    """The header with the id of the request."""
    own = request.headers.get(REQUEST_ID, answer)
    return {REQUEST_ID.encode(): own.encode("latin-1")}


def json_response(body: bytes) -> Response:
    """A JSON body."""
    return Response(body, media_type="application/json")
