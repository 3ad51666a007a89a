"""uvicorn's protocols with bounds; streams are written straight to the transport, without `send`.

An ASGI `send` costs a coroutine, a dictionary and several checks, for every token of every stream. With this
protocol, the scope of a request has an extension, `STREAM`: the connection itself. A response begins and
ends by `send` as always, so uvicorn knows its state (keep-alive, pipelining, shutting down); in between,
parts go through `write`, in the chunked framing that the head announced. The start of a response may contain
the `first` part of its body, or, if it is complete, all of its `body`: then both are written at once.

A connection is subject to the limits of the server, for the size and the time of requests.

A client of HTTP/1.0 knows no chunks: its responses go through `send`, and a body of unknown length ends with
the connection. An offer to go on in another protocol than WebSocket is ignored (RFC 9110, 7.8).
"""

import re
from asyncio import BaseTransport, Event, TimerHandle
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import Any, ClassVar, NoReturn, Protocol
from urllib.parse import unquote

import structlog
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame

from antiphon.apis.errors import encode_error
from antiphon.config import Settings
from antiphon.core.errors import EngineNotReadyError, RequestError
from antiphon.core.limits import DEFAULTS, LIMIT_EXCEEDED, Limits
from antiphon.core.plain_tokens import ChunkedBody, chunk_of

log = structlog.get_logger()

STREAM = "antiphon.stream"
"""The ASGI extension."""
_REQUEST_SCOPE = ("http_version", "method", "path", "raw_path", "query_string", "headers", "state")
_SENT = frozenset({"header_seconds", "body_seconds"})
"""The limits on the time of receiving a request."""
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
"""A target of a request with an authority."""
SLICE = 4096
"""Bytes of a WebSocket that are read at once: they may be hundreds of messages."""


Crowded = Callable[[], bool]
"""Whether another process of the server would serve a client sooner: then its connection is closed after the
response, and the next one goes there."""


def never_crowded() -> bool:
    """There is no other process."""
    return False


class DateHeader:
    """The date of responses, made anew for the first request in each second."""

    def __init__(self) -> None:
        self._second = 0

    def update(self, state: ServerState, config: Config) -> None:
        """Set the headers of all responses of a server. uvicorn would wake up for it each second."""
        second = int(time())
        if second != self._second:
            self._second = second
            state.default_headers = [
                (b"date", formatdate(second, usegmt=True).encode()),
                *config.encoded_headers,
            ]


class Listener:
    """The writer of the current response."""

    def on_disconnect(self) -> None:
        """The client has left."""

    def on_pause(self) -> None:
        """The client does not read fast enough."""

    def on_resume(self) -> None:
        """It reads on."""


class Bounded(Protocol):
    """A connection, as those of all clients see it."""

    transport: Any
    client: tuple[str, int] | None

    @property
    def answering(self) -> bool:
        """Whether a response is running that it waits for."""
        ...


class Connections:
    """The connections of a server, and the unsent bytes by client address.

    There are at most `maximum` connections. For each further one, one is closed: of the address that has most
    of them, the oldest idle one, or else the newest. So no client can keep others out.
    """

    def __init__(self, maximum: int, unread: int) -> None:
        self._maximum = maximum
        self._unread = unread
        self._of: dict[str, dict[Bounded, int]] = {}  # the bytes that wait, by address
        self._waiting = Counter[str]()
        self._count = 0

    def add(self, connection: Bounded) -> None:
        """A connection was made."""
        self._of.setdefault(_address(connection), {})[connection] = 0
        self._count += 1
        if self._count > self._maximum:
            connections = max(self._of.values(), key=len)
            closed = next((idle for idle in connections if not idle.answering), None) or next(
                reversed(connections)
            )
            self.remove(closed)
            closed.transport.abort()

    def remove(self, connection: Bounded) -> None:
        """A connection is closed, or another protocol has it."""
        address = _address(connection)
        connections = self._of.get(address, {})
        if connection in connections:
            self.waits(connection, 0)
            del connections[connection]
            self._count -= 1
            if not connections:
                del self._of[address]

    def waits(self, connection: Bounded, size: int) -> None:
        """Count bytes that wait to be sent.

        The connection is closed if there are too many for its address.
        """
        address = _address(connection)
        connections = self._of.get(address, {})
        if connection not in connections:
            return
        self._waiting[address] += size - connections[connection]
        connections[connection] = size
        if not self._waiting[address]:
            del self._waiting[address]
        elif size and self._waiting[address] > self._unread:
            log.info("a client that does not read is cut off", limit="unread_bytes")
            connection.transport.abort()


def _address(connection: Bounded) -> str:
    return connection.client[0] if connection.client else ""


class _RefusedError(Exception):
    """A request is over a limit."""


class Cycle(RequestResponseCycle):
    """One request and its response. The start of a response may contain its body: see `STREAM`."""

    async def send(self, message: Any) -> None:
        """See ASGI."""
        if "first" not in message and (message["type"] != "http.response.start" or "body" not in message):
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if not self.disconnected:
            self.response_started = True
            if "first" in message:
                self._begin(message, message["first"])
            else:
                self._answer(message, message["body"])

    def _head(self, message: Any) -> list[bytes]:
        """The head without its end. The names and values of its headers are ours, and were checked."""
        out = [STATUS_LINE[message["status"]]]
        for name, value in (*self.default_headers, *message["headers"]):
            out += name, b": ", value, b"\r\n"
        if not self.keep_alive:
            out.append(b"connection: close\r\n")
        return out

    def _begin(self, message: Any, first: bytes) -> None:
        """Write the head, and the first part of the body, if there is any yet."""
        self.chunked_encoding = True
        head = (*self._head(message), b"transfer-encoding: chunked\r\n\r\n")
        self.transport.write(b"".join((*head, *chunk_of(first)) if first else head))

    def _answer(self, message: Any, body: bytes) -> None:
        """Write a whole response."""
        self.response_complete = True
        self.message_event.set()
        out = (*self._head(message), b"content-length: %d\r\n\r\n" % len(body), body)
        self.transport.write(b"".join(out))
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class OldCycle(Cycle):
    """A request of HTTP/1.0. A body of unknown length ends with the connection."""

    _until_close = False

    async def send(self, message: Any) -> None:
        """See ASGI."""
        if message["type"] == "http.response.start":
            self._until_close = b"content-length" not in (name.lower() for name, _ in message["headers"])
            if self._until_close:
                self.chunked_encoding = False
        elif self._until_close:  # uvicorn counts what is left
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def _keep_nothing() -> None:
    """A stream begins that no other process would resume."""


class StreamProtocol(HttpToolsProtocol):
    """One connection. It has one response at a time, even if requests are pipelined."""

    limits: ClassVar[Limits] = DEFAULTS
    stall_seconds: ClassVar[float] = 60.0
    others: ClassVar[Connections] = Connections(DEFAULTS.connections, DEFAULTS.unread_bytes)
    date: ClassVar[DateHeader] = DateHeader()
    crowded = staticmethod(never_crowded)
    listener: Listener | None = None
    kind: type[Cycle] = Cycle
    keep = staticmethod(_keep_nothing)
    cycle: Cycle
    """The last request."""
    running: Cycle | None = None
    """The one that is being answered, or was: those after it wait."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: str | None = "idle_seconds"  # the limit that currently applies to the client
        self._timed: str | None = None  # the limit that the deadline is of
        self._deadline = 0.0
        self._timer: TimerHandle | None = None  # at the deadline, or before
        self._upgraded = False  # the last request offers another protocol
        self._maximum = self.limits.header_bytes
        self._head = 0  # bytes of the URL and the headers that are read
        self._pieces = 0  # bytes of further pieces of this head, or between parts of the body
        self._chunks = 0
        self._parsed = False  # there was something in the last piece that a request is made of
        self._reader: TimerHandle | None = None
        self._unread = 0
        self._refusal: tuple[HTTPStatus, str] | None = None

    # Limits of requests

    def connection_made(self, transport: BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._scope: Any = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "extensions": {STREAM: self},
            # Those that are its own in each request: a copy with room for them is cheap.
            **dict.fromkeys(_REQUEST_SCOPE),
        }
        self.others.add(self)
        self._time()

    @property
    def answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Read on, within the limits."""
        self._parsed = False
        try:
            self._parse(data)
        except HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._parsed:
            self._pieces = 0
        elif self._awaited in _SENT and self._refusal is None:
            # All are of this head, or between parts of the body: they may be one header.
            self._pieces += len(data)
            if self._pieces > self._maximum:
                with suppress(_RefusedError):
                    self._refuse_head()
                self.send_400_response("")
        self._time()

    def _parse(self, data: bytes) -> None:
        """Read it. The parser stops after the head of a request that offers another protocol."""
        while data:
            try:
                self.parser.feed_data(data)
                data = b""
            except HttpParserUpgrade as offer:
                if self._should_upgrade():
                    self.handle_websocket_upgrade()
                    return
                data = self._without_offer() + data[offer.args[0] :]
                self.parser = HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's

    def _without_offer(self) -> bytes:
        """The head of the last request, to be read again."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join((*lines, b"\r\n"))

    def _refuse_head(self) -> NoReturn:
        """Raise _RefusedError for a head that is too long."""
        what = f"The URL and the headers have more than {self._maximum} bytes"
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "header_bytes", what)

    def _refuse(self, status: HTTPStatus, limit: str, what: str) -> NoReturn:
        self._refusal = status, f"{what}, the limit '{limit}' of this server."
        raise _RefusedError

    def _time(self) -> None:
        """Set the deadline for the client's current limit.

        Data in one piece need no timer. One that is too early is not made anew: there are many requests.
        """
        if self._awaited == self._timed:
            return
        self._timed = self._awaited
        if self._timed is None:
            return
        self._deadline = self.loop.time() + getattr(self.limits, self._timed)
        if self._timer is None or self._timer.when() > self._deadline:
            self._stop_timer()
            self._timer = self.loop.call_at(self._deadline, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """The client is too slow, unless reading is paused, or it waits for an answer."""
        self._timer = None
        if self._timed is None:
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._late)
            return
        limit, self._timed = self._timed, None
        if self.flow.read_paused or (self.answering and limit == "header_seconds"):
            self._time()
        elif limit == "idle_seconds":
            self.transport.close()
        else:
            what = f"The request took more than {getattr(self.limits, limit)} seconds to come"
            self._refusal = HTTPStatus.REQUEST_TIMEOUT, f"{what}, the limit '{limit}' of this server."
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request, or one over a limit; a response that has begun ends here."""
        running = self.running
        if running is not None and running.response_started and not running.response_complete:
            self.transport.abort()
            return
        status, message = self._refusal or (HTTPStatus.BAD_REQUEST, msg)
        code = None if self._refusal is None else LIMIT_EXCEEDED
        body = encode_error(RequestError(message, code=code))
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()

    def on_message_begin(self) -> None:
        """Begin to read a request."""
        self._parsed = True
        self._head = self._chunks = 0
        self._awaited = "header_seconds"
        if len(self.pipeline) >= self.limits.pipelined:
            what = f"More than {self.limits.pipelined} requests wait on this connection"
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS, "pipelined", what)
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_url(self, url: bytes) -> None:
        """Count it."""
        self._head += len(url)
        if self._head > self._maximum:
            self._refuse_head()
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the header, and store it as uvicorn does: there are many."""
        self._head += len(name) + len(value) + 4  # the colon, the space and the end of the line
        if self._head > self._maximum:
            self._refuse_head()
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Serve the request, or let it wait for its turn, and offer the extension to it."""
        self._awaited = "body_seconds"
        if not self.url.startswith(b"/"):
            self._take_authority()
        parser, version = self.parser, self.parser.get_http_version()
        self.scope = scope = self._scope.copy()
        scope["http_version"] = version
        scope["method"] = parser.get_method().decode("ascii")
        scope["headers"], scope["state"] = self.headers, {}
        self._upgraded = parser.should_upgrade() and scope["method"] != "CONNECT"
        if self._upgraded:
            return
        url = parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"] = url.path, url.query or b""
        self.date.update(self.server_state, self.config)
        kind = OldCycle if version == "1.0" else self.kind
        cycle = kind(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive() and not self.crowded(),
            on_response=self.on_response_complete,
        )
        waits, self.cycle = self.answering, cycle
        if waits:  # reading goes on: a client that leaves is noticed by it
            self.pipeline.appendleft((cycle, self.app))
        else:
            self._start_asgi_task(cycle, self.app)

    def _take_authority(self) -> None:
        """A target with an authority, as proxies get it: that is the Host (RFC 9112, 3.2.2)."""
        target = _ABSOLUTE.fullmatch(self.url)
        if target is not None:
            authority, path = target.groups()
            self.url = path if path.startswith(b"/") else b"/" + path
            self.headers = [(name, authority if name == b"host" else value) for name, value in self.headers]

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    def on_chunk_header(self) -> None:
        """Count a chunk of the body."""
        self._chunks += 1
        if self._chunks > self.limits.chunks:
            what = f"The body has more than {self.limits.chunks} chunks"
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "chunks", what)

    def on_body(self, body: bytes) -> None:
        """Process a part of the body."""
        self._parsed = True
        cycle = self.cycle
        if self._upgraded or cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """Wait for the answer, or for the next request."""
        cycle, self._awaited = self.cycle, None
        if self._upgraded:
            return
        if cycle.response_complete:
            self._awaited = "idle_seconds"
            return
        cycle.more_body = False
        cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Serve the next request."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._awaited is None:
            self._awaited = "idle_seconds"
            self._time()
        if self.flow.read_paused:
            self.flow.resume_reading()

    # The current response

    @property
    def disconnected(self) -> bool:
        """The client has left."""
        return self.transport.is_closing()

    def writer(self) -> Callable[[bytes], None]:
        """A function that writes parts of the body of the current response."""
        return ChunkedBody(self.transport).write

    def abort(self) -> None:
        """Close the connection, with data unread."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the listener, too."""
        self._awaited = self._timed = None
        self._stop_timer()
        self.others.remove(self)
        self._stop_reader()
        self.pipeline.clear()
        if (running := self.running) is not None and not running.response_complete:
            running.disconnected = True  # uvicorn's tells the last request only
            running.message_event.set()
        super().connection_lost(exc)
        if self.listener is not None:
            self.listener.on_disconnect()

    def pause_writing(self) -> None:
        """Notify the listener, too, and give the client its time to read on."""
        super().pause_writing()
        if self.listener is not None:
            self.listener.on_pause()
        self._unread = self.transport.get_write_buffer_size()
        self._reader = self.loop.call_later(self.stall_seconds, self._look)
        self.others.waits(self, self._unread)

    def resume_writing(self) -> None:
        """Notify the listener, too."""
        self._stop_reader()
        self.others.waits(self, 0)
        super().resume_writing()
        if self.listener is not None:
            self.listener.on_resume()

    def _look(self) -> None:
        """Cut off a client that has read nothing meanwhile. A stream has ended its answer before."""
        before, self._unread = self._unread, self.transport.get_write_buffer_size()
        if self._unread < before:
            self._reader = self.loop.call_later(self.stall_seconds, self._look)
            self.others.waits(self, self._unread)
        elif not self.transport.is_closing():
            log.info("a client that does not read is cut off", seconds=self.stall_seconds)
            self.transport.abort()

    def _stop_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection on to the other protocol."""
        self._awaited = self._timed = None
        self._stop_timer()
        self.others.remove(self)
        super().handle_websocket_upgrade()


class SocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket."""

    limits: ClassVar[Limits] = DEFAULTS
    others: ClassVar[Connections] = StreamProtocol.others
    answering = True

    def connection_made(self, transport: BaseTransport) -> None:
        """Register the connection."""
        super().connection_made(transport)
        self.others.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection, and drop its received messages."""
        self.others.remove(self)
        self.frames = []
        while not self.queue.empty():
            self.queue.get_nowait()
        super().connection_lost(exc)

    async def run_asgi(self) -> None:
        """Serve it. uvicorn's would log an error for a response in place of the handshake."""
        try:
            await self.app(self.scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except BaseException:
            self.logger.exception("Exception in ASGI application")
        self.send_500_response()  # does nothing after a handshake, or a response
        if self.close_timer is None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Read on, until there is too much of it."""
        for start in range(0, len(data), SLICE):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + SLICE])

    def handle_cont(self, event: Frame) -> None:
        """Process a fragment of a message."""
        if len(self.frames) < self.limits.fragments:
            super().handle_cont(event)
        else:
            self._refuse(f"More than {self.limits.fragments} fragments")

    def handle_ping(self) -> None:
        """Answer a ping of a client that reads."""
        if self.writable.is_set():
            super().handle_ping()
        else:  # each answer would wait in the memory of this server
            self._refuse("Pings without end")

    def shutdown(self) -> None:
        """Close it when the server stops: once, and with an error if it is not open yet."""
        if self.transport.is_closing():
            return
        if self.handshake_complete or self.initial_response is not None:
            super().shutdown()
            return
        error = EngineNotReadyError()
        response = self.conn.reject(error.status, encode_error(error).decode())
        del response.headers["content-type"]  # setting it would add a second one
        response.headers["content-type"] = "application/json"
        self.conn.send_response(response)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.close()

    def _refuse(self, why: str) -> None:
        if not self.close_sent:
            self.frames = []
            self.conn.fail(CloseCode.POLICY_VIOLATION, why)
            self.handle_parser_exception()


def protocols(
    settings: Settings, connections: int | None = None, crowded: Crowded = never_crowded
) -> dict[str, Any]:
    """The protocols of a server with these options, for uvicorn. The system may allow fewer `connections`."""
    limits = settings.limit
    others = Connections(connections or limits.connections, limits.unread_bytes)
    shared = {"limits": limits, "others": others}
    return {
        "http": type(
            "StreamProtocol",
            (StreamProtocol,),
            {
                **shared,
                "stall_seconds": settings.stall_seconds,
                "date": DateHeader(),
                "crowded": staticmethod(crowded),
            },
        ),
        "ws": type("SocketProtocol", (SocketProtocol,), shared),
        "ws_max_size": limits.body_bytes,
    }
