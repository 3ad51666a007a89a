"""Errors in Ollama's form, and the names of parameters of this API."""

import msgspec
from msgspec import Struct

from antiphon.core.errors import AntiphonError

PARAMETERS = {
    "alternatives": "top_logprobs",
    "conversation": "messages",
    "max_tokens": "num_predict",
    "prefix": "messages",
    "prompt": "messages",
    "reasoning_effort": "think",
    "enable_thinking": "think",
}
"""Neutral name → parameter, where they differ; see `Turn.parameters`."""


class ErrorBody(Struct):
    """The body of an error, and the line that ends a stream."""

    error: str


def encode_error(error: AntiphonError) -> bytes:
    """The body of an error. There is no field for the parameter, so the message names it."""
    message = error.message
    if error.param and error.param not in message:
        message = f"{error.param}: {message}"
    return msgspec.json.encode(ErrorBody(message))
