"""Reads request bodies: JSON only, and not without end."""

from starlette.requests import Request

from antiphon.core.errors import BodyTooLargeError, MediaTypeError, RequestError
from antiphon.http.context import context_of


async def read_json(request: Request) -> bytes:
    """The body of a request that must be JSON. Raises RequestError."""
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise MediaTypeError
    limit = context_of(request).options.max_body_bytes
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise BodyTooLargeError(f"The request body is larger than the limit of {limit} bytes.")
    if not body:
        raise RequestError("The request has no body. Send a JSON object.")
    return bytes(body)
