"""The client of a server that is checked: requests, and answers that are read whole within limits.

A stream is read to its end, and then cut into events as the HTML standard says. What a server may send is
bounded in bytes and in time; more is an error, as is what is not HTTP. The same request is sent once: checks
that look at different sides of one answer share it, unless they say that they need a `fresh` one.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from antiphon.core.limits import DEFAULTS
from antiphon.engines.http_client import NO_HEADERS, Exchange, HttpClient, HttpError

MAX_BYTES = 1024 * 1024
"""Bytes of an answer."""

MAX_SHOWN = 160
"""Characters of an answer in evidence."""

SECRET_CHARACTERS = 16
"""A key of so many characters is kept out of evidence. A shorter one may be a word of an answer."""
IN_PATHS = "/?&=:%"
"""Characters that stay in paths. An id of the server must not end the line of a request."""

CONNECT_SECONDS = 10
ANTHROPIC_VERSION = "2023-06-01"


class Event(Struct, frozen=True):
    """An event of a stream: its name, "" if it has none, and its data."""

    name: str
    data: str


class Answer(Struct, frozen=True):
    """An answer of the server, read whole."""

    status: int
    media_type: str
    body: bytes

    def text(self) -> str:
        """Its beginning, for evidence."""
        return self.body[: MAX_SHOWN * 4].decode("utf-8", "replace")[:MAX_SHOWN]

    def events(self) -> list[Event]:
        """Its events. Data after the last empty line are no event."""
        return events_of(self.body)


def events_of(body: bytes) -> list[Event]:
    """The events of an event stream, by the HTML standard."""
    text = body.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    events: list[Event] = []
    name, data = "", list[str]()
    for line in text.split("\n")[:-1]:
        if not line:
            if data:
                events.append(Event(name, "\n".join(data)))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
    return events


class _Whole(Exchange):
    """A response that is read whole, with its media type."""

    def __init__(self, request: bytes) -> None:
        super().__init__(request)
        self.body = bytearray()
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > MAX_BYTES:
            self.abort()
            self.on_end(HttpError(f"the answer is longer than {MAX_BYTES} bytes"))

    def on_end(self, error: HttpError | None) -> None:
        if self.answer.done():
            return
        if error is None:
            media_type = self.media_type.decode("latin-1").partition(";")[0].strip().lower()
            self.answer.set_result(Answer(self.status, media_type, bytes(self.body)))
        else:
            self.answer.set_exception(error)


class Server:
    """The server that is checked, and the model that it is asked for.

    Raises ValueError, with a message for people, if `url` is not a URL.
    """

    def __init__(self, url: str, model: str = "", key: str | None = None, seconds: float = 60) -> None:
        self.model = model
        self.address = urlsplit(url)
        limits = msgspec.structs.replace(DEFAULTS, upstream_bytes=MAX_BYTES)
        self._of_anthropic = {"anthropic-version": ANTHROPIC_VERSION} | ({"x-api-key": key} if key else {})
        self._http = HttpClient(
            url, key, connect_seconds=CONNECT_SECONDS, idle_seconds=seconds, limits=limits
        )
        self._secret = key.encode() if key and len(key) >= SECRET_CHARACTERS else None
        self._seconds = seconds
        self._known: dict[bytes, Answer | HttpError] = {}
        self._stored: list[str] = []

    async def reachable(self) -> None:
        """Raise OSError if nothing listens there."""
        port = self.address.port or (443 if self.address.scheme == "https" else 80)
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(self.address.hostname, port)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def get(self, path: str) -> Answer:
        """What is at a path. Raises HttpError."""
        return await self._send("GET", path, None, fresh=True)

    async def delete(self, path: str) -> Answer:
        """The answer to the deletion of what is at a path. Raises HttpError."""
        return await self._send("DELETE", path, None, fresh=True)

    async def post(self, path: str, body: Mapping[str, Any] | bytes, *, fresh: bool = False) -> Answer:
        """The answer to a body, JSON unless it is bytes. Raises HttpError."""
        encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return await self._send("POST", path, encoded, fresh=fresh)

    async def _send(self, method: str, path: str, body: bytes | None, *, fresh: bool) -> Answer:
        headers = self._of_anthropic if path.startswith("/v1/messages") else NO_HEADERS
        request = self._http.encode(method, quote(path, safe=IN_PATHS), body, headers)
        known = None if fresh else self._known.get(request)
        if known is None:
            known = await self._outcome(request)
        if not fresh:
            self._known[request] = known
        if isinstance(known, HttpError):
            raise HttpError(str(known))
        return known

    async def _outcome(self, request: bytes) -> Answer | HttpError:
        whole = _Whole(request)
        self._http.send(whole)
        try:
            async with asyncio.timeout(self._seconds):
                return self._without_key(await whole.answer)
        except HttpError as error:
            return error
        except TimeoutError:
            return HttpError(f"the answer has no end after {self._seconds:g} seconds (--timeout)")
        finally:
            if whole.answer.cancelled():
                whole.abort()

    def _without_key(self, answer: Answer) -> Answer:
        """The answer without the key, which some servers repeat: reports may be shown to others."""
        if self._secret is None or self._secret not in answer.body:
            return answer
        return msgspec.structs.replace(answer, body=answer.body.replace(self._secret, b"(the key)"))

    def will_store(self, path: str) -> None:
        """Delete what is at this path when the check has ended."""
        self._stored.append(path)

    async def clean_up(self) -> None:
        """Delete what a check has stored, as far as an answer may take. What is gone already has an error."""
        stored, self._stored = self._stored, []
        with suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                for path in reversed(stored):
                    with suppress(HttpError):
                        await self.delete(path)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()
