"""Errors → responses. Clients get a status, a message and the parameter; the log gets the cause."""

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from antiphon.core.errors import (
    AntiphonError,
    AuthenticationError,
    EngineBusyError,
    EngineNotReadyError,
    MethodNotAllowedError,
    NotFoundError,
    RequestError,
)

_log = structlog.get_logger(__name__)

_BY_STATUS: dict[int, type[RequestError]] = {404: NotFoundError, 405: MethodNotAllowedError}
_HEADERS: dict[type[AntiphonError], dict[str, str]] = {
    AuthenticationError: {"www-authenticate": "Bearer"},
    EngineBusyError: {"retry-after": "1"},
    EngineNotReadyError: {"retry-after": "1"},
}


def encode_error(error: AntiphonError) -> bytes:
    """OpenAI's error body."""
    shape = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return msgspec.json.encode({"error": shape})


def error_response(error: AntiphonError) -> Response:
    """The response that tells a client of an error."""
    headers = _HEADERS.get(type(error))
    return Response(encode_error(error), error.status, headers, media_type="application/json")


async def on_antiphon_error(request: Request, error: Exception) -> Response:
    """Answer an error of ours."""
    assert isinstance(error, AntiphonError)
    log_failure(error)
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: no such path, or not this method."""
    assert isinstance(error, HTTPException)
    ours = _BY_STATUS.get(error.status_code, RequestError)()
    response = error_response(ours)
    response.headers.update(error.headers or {})
    return response


async def on_exception(request: Request, error: Exception) -> Response:
    """Answer a bug without showing it."""
    log_failure(error)
    return error_response(AntiphonError("Something went wrong inside the server. Its log says what."))


def log_failure(error: Exception) -> None:
    """Write a failure and its causes to the log; what was only refused, in one line, for who looks for it."""
    if isinstance(error, AntiphonError) and error.status != AntiphonError.status:
        _log.debug("request refused", error=str(error), param=error.param)
    else:
        _log.error("request failed", error=str(error), exc_info=error)
