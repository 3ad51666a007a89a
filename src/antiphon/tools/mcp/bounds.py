"""Bounds of what an MCP server sends, checked before the SDK reads it.

The SDK reads a message at once, on the event loop, and takes a hundred times as long for many values as for
as many bytes of one text. So a message with too many values never gets there. Messages are passed on one by
one, in pieces, with a turn of the loop between them, however many a server sends at a time.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import accumulate

import httpx2

from antiphon.core.encodings import IDENTITY, applied_encodings
from antiphon.core.limits import Limits

PIECE = 16 * 1024
"""Bytes that are passed on at once."""
MAX_ENCODING = 40
"""Characters of the name of an encoding that an error shows."""
MAX_LEVELS = 180
"""Levels of objects and lists: the SDK reads two hundred at most, and waits for another answer then."""
_EVENT_END = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LONGEST_END = 4
_STRINGS = 4
"""Quotation marks of a value and its name."""


class TooMuchError(httpx2.ReadError):
    """A server sends more than it may."""


class Bounds:
    """Counts what one server sends. `refusal` says why it was refused, for clients."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.refusal: str | None = None
        self._messages = 0

    def reset(self) -> None:
        """Something new is requested of the server."""
        self.refusal = None
        self._messages = 0

    def take(self, message: bytes) -> None:
        """Count a message, and check it. Raises TooMuchError."""
        self._messages += 1
        if self._messages > self.limits.mcp_messages:
            self.refuse(f"It sends more than {self.limits.mcp_messages} messages, the limit 'mcp_messages'.")
        self.check(message)

    def check(self, message: bytes) -> None:
        """Raise TooMuchError for JSON with more bytes, values, or levels, than an answer may have."""
        self.check_size(len(message))
        if has_more_values(message, self.limits.mcp_values):
            self.refuse(f"Its answer has more than {self.limits.mcp_values} values, the limit 'mcp_values'.")
        if has_more_levels(message, MAX_LEVELS):
            self.refuse(f"Its answer is nested more deeply than {MAX_LEVELS} levels.")

    def check_size(self, size: int) -> None:
        """Raise TooMuchError for more bytes than an answer may have."""
        if size > self.limits.mcp_bytes:
            self.refuse(f"Its answer has more than {self.limits.mcp_bytes} bytes, the limit 'mcp_bytes'.")

    def refuse(self, why: str) -> None:
        """Raise TooMuchError, and keep the reason."""
        self.refusal = why
        raise TooMuchError(why)


def has_more_values(message: bytes, limit: int) -> bool:
    """Whether JSON has more than this number of values. What is in strings is not counted."""
    if _separators(message) <= limit:
        return False
    plain = _without_escapes(message)
    if plain.count(b'"') > _STRINGS * (limit + 1):
        return True
    return sum(map(_separators, plain.split(b'"')[::2])) > limit


def has_more_levels(message: bytes, limit: int) -> bool:
    """Whether JSON has more than this number of levels of objects and lists. Brackets in strings are none."""
    if message.count(b"{") + message.count(b"[") <= limit:
        return False
    brackets = b"".join(_without_escapes(message).split(b'"')[::2]).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(1 if step else -1 for step in brackets), default=0) > limit


def _without_escapes(message: bytes) -> bytes:
    return message.replace(b"\\\\", b"").replace(b'\\"', b"")


_STEPS = bytes(byte in b"{[" for byte in range(256))
_NO_BRACKETS = bytes({*range(256)} - {*b"{}[]"})


def _separators(data: bytes) -> int:
    """Each value of JSON follows one of these characters, but for the outermost."""
    return len(data) - len(data.translate(None, b",{["))


def bounded(response: httpx2.Response, bounds: Bounds, *, endless: bool) -> httpx2.AsyncByteStream:
    """The body of the response of a server, in bounds. An `endless` one has no end, only its messages have.

    Raises TooMuchError if it is compressed: nobody asked for it.
    """
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    fields = [value for name, value in response.headers.raw if name.lower() == b"content-encoding"]
    if names := applied_encodings(fields):
        shown = ", ".join(names)[:MAX_ENCODING]
        bounds.refuse(f"Its answer is compressed ({shown}), although '{IDENTITY}' was asked for.")
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "text/event-stream":
        return _Events(response.stream, bounds, endless=endless)
    return _Whole(response.stream, bounds)


class _Whole(httpx2.AsyncByteStream):
    """A body that is one message."""

    def __init__(self, inner: httpx2.AsyncByteStream, bounds: Bounds) -> None:
        self._inner = inner
        self._bounds = bounds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for piece in self._inner:
            body += piece
            self._bounds.check_size(len(body))
        self._bounds.take(bytes(body))
        async for piece in _in_pieces(bytes(body)):
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Events(_Whole):
    """A body of events, each with a message."""

    def __init__(self, inner: httpx2.AsyncByteStream, bounds: Bounds, *, endless: bool) -> None:
        super().__init__(inner, bounds)
        self._endless = endless

    async def __aiter__(self) -> AsyncIterator[bytes]:
        buffer, size = bytearray(), 0
        async for piece in self._inner:
            searched = max(0, len(buffer) - _LONGEST_END)
            buffer += piece
            size += len(piece)
            if not self._endless:
                self._bounds.check_size(size)
            start = 0
            while (end := _EVENT_END.search(buffer, searched)) is not None:
                message = bytes(memoryview(buffer)[start : end.end()])
                start = searched = end.end()
                self._bounds.take(message)
                async for part in _in_pieces(message):
                    yield part
            del buffer[:start]
            self._bounds.check_size(len(buffer))
        yield bytes(buffer)


async def _in_pieces(message: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(message), PIECE):
        yield message[start : start + PIECE]
        await asyncio.sleep(0)
