"""Bounds what the library of the hub reads into memory: it decodes what is compressed, and reads all JSON.

Files of models go to the disk, whose room is the operator's: they are not bounded.
"""

from collections.abc import Iterator
from types import ModuleType

import httpx2

from antiphon.core.encodings import IDENTITY, applied_encodings
from antiphon.core.errors import EngineError

JSON_BYTES = 64 * 1024 * 1024
"""The most bytes of an answer in JSON."""
SHOWN = 40
"""Characters of the name of an encoding that an error shows."""


class _Bounded(httpx2.SyncByteStream):
    """The body of an answer, which ends with an error when it is too long."""

    def __init__(self, inner: httpx2.SyncByteStream) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[bytes]:
        left = JSON_BYTES
        for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise EngineError(f"The hub's answer has more than {JSON_BYTES} bytes. Is it the hub?")
            yield piece

    def close(self) -> None:
        self._inner.close()


def bound(hub: ModuleType) -> None:
    """Bound the answers to the library's client from now on."""
    client: httpx2.Client = hub.get_session()
    if _check not in client.event_hooks["response"]:
        client.event_hooks["response"].append(_check)
        client.headers["Accept-Encoding"] = IDENTITY


def _check(response: httpx2.Response) -> None:
    """Bound an answer before it is read. Raises EngineError if it is compressed."""
    fields = [value for name, value in response.headers.raw if name.lower() == b"content-encoding"]
    if names := applied_encodings(fields):
        shown = ", ".join(names)[:SHOWN]
        raise EngineError(f"The hub's answer is compressed ({shown}), although '{IDENTITY}' was asked for.")
    if "json" in response.headers.get("content-type", ""):
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = _Bounded(response.stream)
