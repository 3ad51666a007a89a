"""Requests to one HTTP server, over connections that are kept.

A response is delivered piece by piece as it is read, by plain calls on the event loop: a stream
costs neither a task nor an `await` for each of its tokens. That is why this is not a client library,
see `docs/decisions/0011-upstream-engines.md`.

Everything that a server may send is bounded: a body that is read whole, a line of a stream, and what is not
part of a body. A compressed answer, which was not asked for, is refused. Who needs time for a piece pauses
its exchange: the server then sends no more than fits into the buffers of the connection.
"""

import asyncio
import re
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httptools
import msgspec

from antiphon import __version__
from antiphon.core.encodings import IDENTITY, applied_encodings
from antiphon.core.errors import ReportedError
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.untrusted_json import decode_untrusted

MAX_HEAD = 256 * 1024
"""Bytes that come without any byte of a body: a head, trailers, extensions of chunks. More is a failure."""

MAX_RETRY_AFTER = 24 * 3600.0
"""The most seconds for which a server can tell clients to wait."""

MAX_ENCODING = 40
"""Bytes of the name of an encoding that an error shows."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_OK = 200
_INTERIM = frozenset({100, *range(102, 200)})
"""Statuses of responses before the response, such as hints."""


class HttpError(ReportedError):
    """There is no complete response, or an error response with this `status`. The message is for people."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


class HttpResponse:
    """The status and the body of a response that was read whole."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    def json(self) -> Any:
        """The body of a response with status 200 as JSON; None if it is not JSON."""
        with suppress(msgspec.DecodeError):
            return decode_untrusted(self.body) if self.status == _OK else None
        return None


class Exchange:
    """A request, and the methods that receive its response. `status` is 0 until the head has arrived.

    `retry_after` is the server's `Retry-After` in seconds, if there is one; `media_type` its `Content-Type`.
    `whole`: the body is one JSON value, not a stream.

    After `abort`, and after `on_end`, no method is called any more.
    """

    status = 0
    retry_after: float | None = None
    media_type = b""
    whole = False
    connection: "_Connection | None" = None
    connecting: asyncio.Task[None] | None = None
    queue: "deque[Exchange] | None" = None
    """Where it waits for a connection."""

    def __init__(self, request: bytes) -> None:
        self.request = request

    def on_body(self, data: bytes) -> None:
        """A piece of the body was read."""
        raise NotImplementedError

    def on_end(self, error: HttpError | None) -> None:
        """The response is over: whole, if there is no error."""
        raise NotImplementedError

    def pause(self) -> None:
        """Read nothing more for now: the server has to wait."""
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Read on."""
        if self.connection is not None:
            self.connection.resume()

    def abort(self) -> None:
        """Close the connection: this tells a server to stop its work."""
        if self.queue is not None:
            self.queue.remove(self)
            self.queue = None
        if self.connecting is not None:
            self.connecting.cancel()
        if self.connection is not None:
            self.connection.close()


class _FullExchange(Exchange):
    """A response that is returned as a whole."""

    def __init__(self, request: bytes, limits: Limits, max_bytes: int | None = None) -> None:
        super().__init__(request)
        self._limits = limits
        self._max_bytes = max_bytes
        self.response: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._body = bytearray()

    def on_body(self, data: bytes) -> None:
        self._body += data
        if self._max_bytes is not None and len(self._body) > self._max_bytes:
            self.abort()
            self.on_end(HttpError(f"the answer is longer than {self._max_bytes} bytes"))
        elif len(self._body) > self._limits.upstream_bytes:
            self.abort()
            self.on_end(_too_long("the answer", "upstream_bytes", self._limits))

    def on_end(self, error: HttpError | None) -> None:
        if self.response.done():
            return
        if error is None:
            self.response.set_result(HttpResponse(self.status, bytes(self._body)))
        else:
            self.response.set_exception(error)


class StreamedExchange(Exchange):
    """A response that is passed on in pieces, as it arrives."""

    def __init__(self, request: bytes, limits: Limits) -> None:
        super().__init__(request)
        self._pieces: asyncio.Queue[bytes | HttpError | None] = asyncio.Queue()
        self._limits = limits
        self._size = 0

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        self._pieces.put_nowait(data)
        if self._size > self._limits.upstream_bytes:
            self.abort()
            self.on_end(_too_long("the answer", "upstream_bytes", self._limits))
        else:
            self.pause()

    def on_end(self, error: HttpError | None) -> None:
        self._pieces.put_nowait(error)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The pieces of the body; the connection is closed if the rest is not wanted. Raises HttpError."""
        try:
            while (piece := await self._pieces.get()) is not None:
                if isinstance(piece, HttpError):
                    raise piece
                yield piece
                if self._pieces.empty():
                    self.resume()
        finally:
            self.abort()


class HttpClient:
    """A client of the server at `url`, whose path, without a final `/v1`, is the prefix of all paths.

    `version` replaces the `/v1` at the beginning of paths. `headers` are sent with every request, and `key`
    as a bearer token. Connecting may take `connect_seconds`, and a response may pause for `idle_seconds`.
    The `limits` bound responses. The number of connections has no bound, unless `limit_connections` sets one.
    Raises ValueError, with a message for people, if `url` is not a URL.
    """

    def __init__(  # noqa: PLR0913 - options
        self,
        url: str,
        key: str | None = None,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        connect_seconds: float = 10,
        idle_seconds: float = 300,
        limits: Limits = DEFAULTS,
    ) -> None:
        self.limits = limits
        self._address = _address(url)
        self._tls = ssl.create_default_context() if self._address.scheme == "https" else None
        self._path = self._address.path.rstrip("/").removesuffix("/v1")
        self.version = "/v1"
        self._head = (
            f"Host: {self._address.netloc}\r\nUser-Agent: antiphon/{__version__}\r\nAccept: */*\r\n"
            f"Accept-Encoding: {IDENTITY}\r\n"
            + (f"Authorization: Bearer {key}\r\n" if key else "")
            + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        )
        self._connect_seconds = connect_seconds
        self.idle_seconds = idle_seconds
        self._idle: list[_Connection] = []
        self._connections: set[_Connection] = set()
        self._most: int | None = None
        self._connecting = 0
        self._queue: deque[Exchange] = deque()  # those that wait for a connection

    @property
    def mounted(self) -> bool:
        """The server is at a path of its machine."""
        return bool(self._path)

    @property
    def busy(self) -> bool:
        """A response is waited for on some connection."""
        return len(self._connections) > len(self._idle) or bool(self._queue)

    def limit_connections(self, most: int) -> None:
        """Have at most so many connections, for which requests wait in order.

        It is for servers with a thread for each: further ones would wait there until idle ones are closed,
        which takes seconds.
        """
        self._most = most
        while self._idle and len(self._connections) > most:
            self._idle[0].close()

    def heard_within(self, seconds: float) -> bool:
        """Whether the server has sent a part of a successful response in this time, that goes on."""
        earliest = asyncio.get_running_loop().time() - seconds
        return any(connection.heard_at >= earliest for connection in self._connections)

    @property
    def host(self) -> str:
        """The host of the server, as it is written in addresses."""
        host = self._address.hostname or ""
        return f"[{host}]" if ":" in host else host

    def encode(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        media_type: str = "application/json",
    ) -> bytes:
        """The request, as an `Exchange` has it. Names and values of `headers` have no line breaks."""
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if body is not None:
            more += f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\n"
        if self.version != "/v1" and path.startswith("/v1/"):
            path = self.version + path.removeprefix("/v1")
        return f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}{more}\r\n".encode() + (body or b"")

    async def request(
        self, method: str, path: str, body: Any = None, *, max_bytes: int | None = None
    ) -> HttpResponse:
        """The response, read whole. `body` is sent as JSON. Raises HttpError.

        A response of more than `max_bytes`, or of more than the limit `upstream_bytes`, is an error.
        """
        encoded = None if body is None else msgspec.json.encode(body)
        whole = _FullExchange(self.encode(method, path, encoded), self.limits, max_bytes)
        self.send(whole)
        try:
            return await whole.response
        finally:
            if whole.response.cancelled():
                whole.abort()

    def send(self, exchange: Exchange) -> None:
        """Send the request. The exchange is not called before this has returned."""
        if self._idle:
            self._idle.pop().begin(exchange, reused=True)
        elif self._has_room():
            self.connect(exchange)
        else:
            exchange.queue = self._queue
            self._queue.append(exchange)

    def _has_room(self) -> bool:
        return self._most is None or len(self._connections) + self._connecting < self._most

    def connect(self, exchange: Exchange) -> None:
        """Begin, on a new connection."""
        self._connecting += 1
        exchange.connecting = connecting = asyncio.ensure_future(self._connect(exchange))
        connecting.add_done_callback(self._has_connected)

    def _has_connected(self, _: asyncio.Task[None]) -> None:
        self._connecting -= 1
        self._connect_next()

    def _connect_next(self) -> None:
        while self._queue and self._has_room():
            self.connect(self._next())

    def _next(self) -> Exchange:
        exchange = self._queue.popleft()
        exchange.queue = None
        return exchange

    async def _connect(self, exchange: Exchange) -> None:
        loop, address = asyncio.get_running_loop(), self._address
        port = address.port or (443 if self._tls else 80)
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self), address.hostname or "", port, ssl=self._tls
                )
        except (OSError, UnicodeError) as error:  # a name may be too long to be looked up
            exchange.connecting = None
            exchange.on_end(HttpError(_explanation(error, self._connect_seconds)))
            return
        exchange.connecting = None
        connection.begin(exchange)

    def opened(self, connection: "_Connection") -> None:
        """Use a new connection."""
        self._connections.add(connection)

    def release(self, connection: "_Connection") -> None:
        """A connection is free for the next exchange."""
        if self._queue:
            connection.begin(self._next(), reused=True)
        else:
            self._idle.append(connection)

    def closed(self, connection: "_Connection") -> None:
        """Forget a closed connection."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._connect_next()

    def close(self) -> None:
        """Close all connections. Running exchanges, and those that wait, end with an error."""
        while self._queue:
            self._next().on_end(HttpError("the client was closed"))
        for connection in [*self._connections]:
            connection.fail("the client was closed")


class _Connection(asyncio.Protocol):
    """A connection, and the exchange that runs on it."""

    _transport: asyncio.Transport
    _parser: httptools.HttpResponseParser

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._exchange: Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reused = self._delimited = self._begun = self._kept = self._paused = False
        self._messages = 0
        self._encoding = b""
        self._bodiless = 0  # bytes since the last of a body
        self._last_read_at = 0.0  # when something was read last

    def begin(self, exchange: Exchange, *, reused: bool = False) -> None:
        """Send a request. If the connection was `reused` and turns out to be closed, it is sent once more."""
        self._exchange = exchange
        self._reused = reused
        self._delimited = self._begun = False
        self._messages = self._bodiless = 0
        self._encoding = b""
        self._parser = httptools.HttpResponseParser(self)
        self._last_read_at = self._loop.time()
        self._timer = self._loop.call_later(self._client.idle_seconds, self._check_idle)
        exchange.connection = self
        self._transport.write(exchange.request)

    @property
    def heard_at(self) -> float:
        """When a part of the response that runs has come, if any has."""
        exchange = self._exchange
        return self._last_read_at if exchange is not None and exchange.status == 200 else 0.0

    def pause(self) -> None:
        """Read nothing more for now."""
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def close(self) -> None:
        """Close it, without calling `on_end`."""
        self._detach()
        self._client.closed(self)
        self._transport.abort()

    def fail(self, why: str) -> None:
        """Close it; the exchange has an error."""
        exchange = self._exchange
        self.close()
        if exchange is not None:
            exchange.on_end(HttpError(why))

    def _detach(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.connection = None
        self.resume()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_idle(self) -> None:
        """Close the connection to a server that was silent for too long."""
        now, limit = self._loop.time(), self._client.idle_seconds
        # While the connection is paused, the server is not silent.
        end = (now if self._paused else self._last_read_at) + limit
        if now >= end:
            self.fail(f"it was silent for {limit:g} seconds")
        else:
            self._timer = self._loop.call_at(end, self._check_idle)

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._client.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._exchange is None:  # no request is running
            self.close()
            return
        self._last_read_at = self._loop.time()
        self._bodiless += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.fail(f"its answer is not HTTP: {error}")
            return
        if self._messages:
            self._complete()
        elif self._bodiless > MAX_HEAD:
            self.fail(f"it sent more than {MAX_HEAD} bytes without a body")

    def _complete(self) -> None:
        """The response is complete. Data after it were not requested."""
        exchange = self._exchange
        if exchange is None:
            return
        self._detach()
        if self._kept and self._messages == 1:
            self._client.release(self)
        else:
            self.close()
        exchange.on_end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        # A body of unknown length ends where the connection does.
        exchange, whole = self._exchange, self._begun and not self._delimited and exc is None
        self._detach()
        again = self._reused and not self._begun
        if exchange is not None and again:  # the server closed it while the request was on its way
            self._client.connect(exchange)
        self._client.closed(self)
        if exchange is not None and not again:
            exchange.on_end(None if whole else HttpError("it closed the connection"))

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._delimited = True
        elif name == b"retry-after" and self._exchange is not None:
            self._exchange.retry_after = _seconds(value.decode("latin-1"))
        elif name == b"content-type" and self._exchange is not None:
            self._exchange.media_type = value
            self._exchange.whole = value.startswith(b"application/json")
        elif name == b"content-encoding":
            self._encoding = value

    def _forget_head(self) -> None:
        self._delimited, self._encoding = False, b""
        if self._exchange is not None:
            self._exchange.retry_after, self._exchange.media_type, self._exchange.whole = None, b"", False

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() in _INTERIM:  # another response follows
            self._forget_head()
            return
        self._begun = True
        if applied_encodings([self._encoding]):
            name = self._encoding[:MAX_ENCODING].decode("latin-1")
            self.fail(f"its answer is compressed ({name}), although it was asked for one that is not")
        elif self._exchange is not None and not self._messages:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._bodiless = 0
        if self._exchange is not None and not self._messages:
            self._exchange.on_body(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() in _INTERIM:
            return
        self._messages += 1
        self._kept = self._parser.should_keep_alive()


class LineSplitter:
    """The lines of a stream, out of pieces that may end anywhere. `limit` names the most bytes of a line.

    Lines are cut one by one, when they are taken: a piece may have more of them than can be read in one turn.
    """

    def __init__(self, limits: Limits = DEFAULTS, limit: str = "upstream_line_bytes") -> None:
        self._limits = limits
        self._limit = limit
        self._most: int = getattr(limits, limit)
        self._pieces: deque[bytes] = deque()  # those that nothing was taken of
        self._piece = b""  # the current one
        self._at = 0  # what comes next in it
        self._begun: list[bytes] = []  # the beginning of a line, from pieces before
        self._size = 0  # of that

    def feed(self, data: bytes) -> None:
        """The next piece."""
        self._pieces.append(data)

    def take(self) -> bytes | None:
        """The next line with any text, without its end; None if there is none yet.

        Raises HttpError if it is too long.
        """
        while True:
            if not self._begun:
                self._at = _ENDS.match(self._piece, self._at).end()  # type: ignore[union-attr]
            end = self._piece.find(b"\n", self._at)
            self._add(self._piece[self._at : None if end < 0 else end])
            if end >= 0:
                self._at = end + 1
                return self._joined().rstrip(b"\r")
            if not self._pieces:
                self._piece, self._at = b"", 0
                return None
            self._piece, self._at = self._pieces.popleft(), 0

    def put_back(self, line: bytes) -> None:
        """Take this line once more."""
        self._pieces.appendleft(self._piece[self._at :])
        self._piece, self._at = line + b"\n", 0

    def rest(self) -> bytes:
        """The text after the last line, when all lines are taken; returned once."""
        return self._joined()

    def _add(self, piece: bytes) -> None:
        if piece:
            self._begun.append(piece)
            self._size += len(piece)
            if self._size > self._most:
                raise _too_long("a line", self._limit, self._limits)

    def _joined(self) -> bytes:
        joined, self._begun, self._size = b"".join(self._begun), [], 0
        return joined


_ENDS = re.compile(rb"[\r\n]*")
"""The ends of lines without text."""


def _too_long(what: str, limit: str, limits: Limits) -> HttpError:
    return HttpError(f"{what} is longer than {getattr(limits, limit)} bytes, the limit '{limit}'")


def _address(url: str) -> SplitResult:
    address = urlsplit(url)
    try:
        port_is_one = address.port != 0
    except ValueError:
        port_is_one = False
    whole = address.scheme in ("http", "https") and address.hostname and url.split() == [url]
    if not whole or not port_is_one:
        raise ValueError(f"{url} is not the URL of a server. Give one like http://127.0.0.1:8080.")
    if address.username or address.query or address.fragment:
        raise ValueError("The URL of a server has no user, query or fragment. Give a key by itself.")
    return address


def _seconds(after: str) -> float | None:
    """The seconds of a `Retry-After`, which may be a date; at most `MAX_RETRY_AFTER`."""
    with suppress(ValueError, OverflowError):
        seconds = (
            float(after) if after.isdecimal() else parsedate_to_datetime(after).timestamp() - time.time()
        )
        return min(max(0.0, seconds), MAX_RETRY_AFTER)
    return None


def _explanation(error: OSError | UnicodeError, seconds: float) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, TimeoutError):
        return f"there is no connection after {seconds:g} seconds"
    return (isinstance(error, OSError) and error.strerror) or str(error)
