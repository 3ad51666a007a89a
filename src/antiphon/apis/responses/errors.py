"""This API's own forms of errors, besides the bodies of `apis/errors.py`: in responses, streams and sockets.

Events combine both specifications: OpenAI's fields, and Open Responses' `error`.
"""

import msgspec
from msgspec import Struct

from antiphon.core.errors import AntiphonError, EngineBusyError, RequestError


class ErrorPayload(Struct):
    """An error as Open Responses has it inside the event."""

    type: str
    code: str | None
    message: str
    param: str | None


class ErrorEvent(Struct, tag_field="type", tag="error"):
    """The error that a stream ends with; `response.failed` follows."""

    sequence_number: int
    code: str | None
    message: str
    param: str | None
    error: ErrorPayload


class SocketError(ErrorEvent, tag="error"):
    """The event on a WebSocket, with the HTTP status in it. It is not part of a stream."""

    status: int


def error_fields(error: AntiphonError) -> tuple[str | None, str, str | None, ErrorPayload]:
    """The fields of an event after its sequence number."""
    payload = ErrorPayload(error.type, error.code, error.message, error.param)
    return error.code, error.message, error.param, payload


def encode_socket_error(error: AntiphonError) -> bytes:
    """The message of a WebSocket with an error; Open Responses wants a code in any case."""
    code = error.code or error.type
    payload = ErrorPayload(error.type, code, error.message, error.param)
    return msgspec.json.encode(SocketError(0, code, error.message, error.param, payload, error.status))


def encode_stream_error(error: AntiphonError) -> bytes:
    """The last event for the reader of a stored stream that cannot be read further.

    It has no sequence number, because it is not an event of the response: a reader resumes after the last
    one with a number.
    """
    code, message, param, payload = error_fields(error)
    fields = {"code": code, "message": message, "param": param, "error": payload}
    return msgspec.json.encode({"type": "error", **fields})


def response_error_code(error: AntiphonError) -> str:
    """The code of a failed response, one of those in OpenAI's document."""
    match error:
        case EngineBusyError():
            return "rate_limit_exceeded"
        case RequestError():
            return "invalid_prompt"
    return "server_error"
