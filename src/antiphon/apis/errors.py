"""OpenAI's error body, which its APIs share."""

import msgspec

from antiphon.core.errors import AntiphonError


def encode_error(error: AntiphonError) -> bytes:
    """The body of an HTTP error, and the payload that ends a stream of the older APIs."""
    shape = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return msgspec.json.encode({"error": shape})
