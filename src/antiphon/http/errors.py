"""Errors → responses. Clients get a status, a message and the parameter; the log gets the cause."""

from collections.abc import Mapping
from math import ceil

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from antiphon.core.encodings import supported
from antiphon.core.errors import (
    AntiphonError,
    AuthenticationError,
    ClientBusyError,
    ContentEncodingError,
    EngineBusyError,
    EngineNotReadyError,
    MethodNotAllowedError,
    NotFoundError,
    RequestError,
)
from antiphon.http.routes import apis_of
from antiphon.log import log_failure

_SERVED = (
    "Antiphon serves /v1/chat/completions, /v1/responses, /v1/messages, /v1/completions, /v1/decisions, "
    "/v1/embeddings, /v1/rerank, /v1/moderations and /v1/models."
)
NOT_SERVED: Mapping[str, str] = {
    "/v1/assistants": "Assistants are not served. Use /v1/responses and /v1/conversations.",
    "/v1/audio/speech": f"Speech is not served: answers are text. {_SERVED}",
    "/v1/fine_tuning": f"Models are not trained here. {_SERVED}",
    "/v1/images": f"Images are not made here; models may see them. {_SERVED}",
    "/v1/realtime": f"Spoken conversations are not served. {_SERVED}",
    "/v1/threads": "Threads are not served. Use /v1/conversations.",
    "/v1/videos": f"Videos are not made here. {_SERVED}",
}
"""Path prefixes of other servers → the remedy in the error."""

_BY_STATUS: dict[int, type[RequestError]] = {404: NotFoundError, 405: MethodNotAllowedError}
_HEADERS: dict[type[AntiphonError], dict[str, str]] = {
    AuthenticationError: {"www-authenticate": "Bearer"},
    ClientBusyError: {"retry-after": "1"},
    EngineBusyError: {"retry-after": "1"},
    EngineNotReadyError: {"retry-after": "1"},
}


def error_response(error: AntiphonError, scope: Scope) -> Response:
    """The response for an error, in the shape of the request's API."""
    headers = _HEADERS.get(type(error))
    if isinstance(error, ContentEncodingError):
        headers = {"accept-encoding": ", ".join(supported())}
    if error.retry_after is not None:
        headers = {"retry-after": str(ceil(error.retry_after))}
    api = apis_of(scope).of(scope)
    return Response(api.encode_error(error), api.status(error), headers, media_type="application/json")


def response_to(error: Exception, scope: Scope) -> Response:
    """The response for anything that a handler, or the router, has raised."""
    if isinstance(error, HTTPException):  # the router's: no such path, or not this method
        path = scope["path"]
        message = next((message for start, message in NOT_SERVED.items() if path.startswith(start)), None)
        if allowed := (error.headers or {}).get("Allow"):
            message = f"This path does not take {scope['method']}. Use {allowed.replace(', ', ' or ')}."
        ours = _BY_STATUS.get(error.status_code, RequestError)(message)
        response = error_response(ours, scope)
        response.headers.update(error.headers or {})
        return response
    log_failure(error)
    if not isinstance(error, AntiphonError):  # a bug, which is not shown
        error = AntiphonError("Something went wrong inside the server. See its log.")
    elif (names := scope.get("state", {}).get("names")) is not None:
        names.restore(error)
    return error_response(error, scope)
