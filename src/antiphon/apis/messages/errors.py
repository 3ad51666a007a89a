"""Errors in Anthropic's form, and the names of parameters of this API."""

import msgspec
from msgspec import UNSET

from antiphon.apis.messages.resource import ErrorBody, ErrorDetails, ErrorPayload
from antiphon.core.errors import AntiphonError
from antiphon.core.observation import observed

PARAMETERS = {
    "conversation": "messages",
    "format": "output_config.format",
    "prefix": "messages",
    "prompt": "messages",
    "reasoning_effort": "output_config.effort",
    "reasoning_limit": "thinking.budget_tokens",
    "tool_limit": "tools",
}
"""Neutral name → parameter, where they differ; see `Turn.parameters`."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Status → type, for statuses that are neither a wrong request nor a failure of the server."""


def error_type(status: int) -> str:
    """Anthropic's type of errors with a status."""
    return _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def encode_error(error: AntiphonError) -> bytes:
    """The body of an HTTP error, and the event that ends a stream.

    There is no field for the parameter, so the message names it. `error_code` is OpenAI's `code`;
    `request_id` is that of the header `request-id`, and of the log.
    """
    message = error.message
    if error.param and error.param not in message:
        message = f"{error.param}: {message}"
    details = ErrorDetails(error.code) if error.code else UNSET
    payload = ErrorPayload(error_type(error.status), message, details)
    return msgspec.json.encode(ErrorBody(payload, observed().request_id or None))
