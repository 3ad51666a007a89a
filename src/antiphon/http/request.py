"""What handlers take from a request, and the plain answers they give. Bodies are JSON, under a limit."""

from collections.abc import Mapping
from typing import TypeVar

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.apis.fields import ParameterNames
from antiphon.apis.wire import decode, decode_request
from antiphon.app.app import App
from antiphon.app.chat import MAX_REQUEST_ID
from antiphon.core.errors import BodyTooLargeError, MediaTypeError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.decode.ids import random_id

log = structlog.get_logger(__name__)

T = TypeVar("T")
REQUEST_ID = "x-request-id"
ANTHROPIC_REQUEST_ID = "request-id"
"""The same id, where Anthropic's clients look for it."""


def app_of(request: HTTPConnection) -> App:
    """What the use cases need, of the application that the request came to."""
    app: App = request.app.state.app
    return app


async def read(request: Request, type_: type[T], limit: str = "body_bytes") -> T:
    """The body of a request as `type_`, which may have so many bytes. Raises RequestError."""
    return decode(await read_json(request, limit), type_, app_of(request).options.limits)


async def read_json(request: Request, limit: str = "body_bytes") -> bytes:
    """The body of a request that must be JSON. Raises RequestError."""
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise MediaTypeError
    most: int = getattr(app_of(request).options.limits, limit)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most:
        raise _too_large(limit, most)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise _too_large(limit, most)
    if not body:
        raise RequestError("The request has no body. Send a JSON object.")
    return bytes(body)


def _too_large(limit: str, most: int) -> BodyTooLargeError:
    message = f"The request body has more than {most} bytes, the limit '{limit}' of this server."
    return BodyTooLargeError(message, code=LIMIT_EXCEEDED)


async def read_request(request: Request, type_: type[T], limit: str = "body_bytes") -> T:
    """The body as a request for an answer, which may have so many bytes. Raises RequestError."""
    return decode_body(request, await read_json(request, limit), type_)


def decode_body(connection: HTTPConnection, body: bytes, type_: type[T]) -> T:
    """A request for an answer; what it has that means nothing is logged. Raises RequestError.

    `connection.state.names` is what it calls its parameters, for errors.
    """
    connection.state.names = names = ParameterNames()
    app = app_of(connection)
    first = app.models.default_name
    missing = first if app.options.default_model else None
    wire = decode_request(body, type_, names, first, missing, app.options.limits)
    if names.ignored:
        log.info("unknown parameters ignored", names=names.ignored)
    return wire


def request_id_headers(request: Request, answer: str) -> Mapping[bytes, bytes]:
    """The header with the id of the request: without one of the client's, that of its answer."""
    own = request.headers.get(REQUEST_ID, answer)
    return {REQUEST_ID.encode(): own.encode("latin-1")}


class RequestIdMiddleware:
    """Gives every response the id of its request, also an error's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the header to the start of the response, unless it is there."""

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                own = headers.get(REQUEST_ID) or id_of(scope)
                headers[REQUEST_ID] = headers[ANTHROPIC_REQUEST_ID] = own
            await send(message)

        await self._app(scope, receive, identified)


def id_of(scope: Scope) -> str:
    """The id of a request: the client's, if a header can hold it, or a new one."""
    given = Headers(scope=scope).get(REQUEST_ID, "")
    fits = 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable()
    return given if fits else random_id("req_", 24)


def json_response(body: bytes) -> Response:
    """A JSON body."""
    return Response(body, media_type="application/json")
