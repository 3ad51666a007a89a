"""The ids of objects and answers, and the fingerprints of answers."""

from functools import lru_cache
from hashlib import sha256
from os import urandom
from time import time

from antiphon import __version__
from antiphon.core.errors import RequestError
from antiphon.core.stream_record import STREAM_RECORD

MAX_REQUEST_ID = 128
"""The most characters in a client's id of its request."""


def random_id(prefix: str, digits: int) -> str:
    """The prefix and this many random hexadecimal digits, an even number of them."""
    record = STREAM_RECORD.get()
    return prefix + (urandom(digits // 2).hex() if record is None else record.hex(digits))


def created_now() -> float:
    """The time of an answer that is created, in seconds since 1970."""
    record = STREAM_RECORD.get()
    return time() if record is None else record.created


def answer_id(prefix: str, request_id: str | None, header: str | None) -> str:
    """The id of an answer: that of the request, after the prefix, if the client has set one.

    Raises RequestError.
    """
    client_id = request_id or header
    if not client_id:
        return random_id(prefix, 24)
    if len(client_id) > MAX_REQUEST_ID or not (client_id.isascii() and client_id.isprintable()):
        message = f"Use at most {MAX_REQUEST_ID} printable ASCII characters."
        raise RequestError(message, param="request_id" if request_id else "x-request-id")
    return client_id if client_id.startswith(prefix) else prefix + client_id


@lru_cache(256)
def fingerprint(model: str) -> str:
    """The `system_fingerprint` of answers: that of a model name, and a version of this server."""
    return f"fp_{sha256(f'{__version__} {model}'.encode(errors='replace')).hexdigest()[:10]}"
