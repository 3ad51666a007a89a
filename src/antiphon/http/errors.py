"""Errors → responses. Clients get a status, a message and the parameter; the log gets the cause."""

from collections.abc import Callable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from antiphon.apis.errors import encode_error
from antiphon.apis.messages import errors as messages
from antiphon.core.errors import (
    AntiphonError,
    AuthenticationError,
    ClientBusyError,
    EngineBusyError,
    EngineNotReadyError,
    MethodNotAllowedError,
    NotFoundError,
    RequestError,
)
from antiphon.core.observation import observed
from antiphon.http.request import REQUEST_ID
from antiphon.log import log_failure

ENCODERS: Mapping[str, Callable[[AntiphonError], bytes]] = {
    "/": encode_error,
    "/v1/messages": messages.encode_error,
}
"""What makes the body of an error, by the beginning of the path: each API has its own. The longest counts."""

_BY_STATUS: dict[int, type[RequestError]] = {404: NotFoundError, 405: MethodNotAllowedError}
_HEADERS: dict[type[AntiphonError], dict[str, str]] = {
    AuthenticationError: {"www-authenticate": "Bearer"},
    ClientBusyError: {"retry-after": "1"},
    EngineBusyError: {"retry-after": "1"},
    EngineNotReadyError: {"retry-after": "1"},
}


def error_response(error: AntiphonError, path: str) -> Response:
    """The response for an error, in the shape of the API at this path."""
    prefix = max((prefix for prefix in ENCODERS if path.startswith(prefix)), key=len)
    headers = _HEADERS.get(type(error))
    return Response(ENCODERS[prefix](error), error.status, headers, media_type="application/json")


async def on_antiphon_error(request: Request, error: Exception) -> Response:
    """Answer an error of ours."""
    assert isinstance(error, AntiphonError)
    log_failure(error)
    if (names := getattr(request.state, "names", None)) is not None:
        names.restore(error)
    return error_response(error, request.url.path)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: no such path, or not this method."""
    assert isinstance(error, HTTPException)
    ours = _BY_STATUS.get(error.status_code, RequestError)()
    response = error_response(ours, request.url.path)
    response.headers.update(error.headers or {})
    return response


async def on_exception(request: Request, error: Exception) -> Response:
    """Answer a bug without showing it."""
    log_failure(error)
    internal = AntiphonError("Something went wrong inside the server. See its log.")
    response = error_response(internal, request.url.path)
    response.headers[REQUEST_ID] = observed().request_id  # no middleware is around this
    return response
