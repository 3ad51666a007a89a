"""Delivers an answer over HTTP, as a stream or as a whole: two ASGI responses that are clients of a driver.

Both send nothing before the answer has begun, so that an engine that fails before its first token is an HTTP
error. Both stop the engine when the client disconnects. A stream without events for some time gets a
comment, for proxies and clients with timeouts; if its client does not read, the answer is held back, and
finally the client is cut off. If our own server handles the request, a stream is written straight to its
transport (see `protocol.py`); under any other ASGI server, by `send`.
"""

import asyncio
from asyncio import WriteTransport
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog
from starlette.types import Receive, Scope, Send

from antiphon.apis.api import OPENAI, Api
from antiphon.config import Settings
from antiphon.core.plain_tokens import DeltaEncoder, DeltaWriter, Outlet
from antiphon.core.stream_record import STREAM_RECORD
from antiphon.http.protocol import STREAM, Listener, StreamProtocol
from antiphon.run.drive import CLIENT, LARGE, Client, Driver, wait_for_turn
from antiphon.run.endings import ClientLeftError, ClientStalledError

STREAM_HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the stream otherwise
]
JSON = [(b"content-type", b"application/json")]
MAX_UNSENT = 64 * 1024
"""Bytes that wait for a client that does not read before its answer is held back; asyncio's transports
have the same limit."""

log = structlog.get_logger()


class Framing(NamedTuple):
    """Wire events → server-sent events. `deltas` makes an encoder of these from that of an item's deltas."""

    frame_all: Callable[[list[bytes]], bytes]
    deltas: Callable[[DeltaEncoder], DeltaEncoder]


READY = Framing(b"".join, lambda encode: encode)
"""A wire event is a server-sent one already."""


class DirectConnection:
    """The transport of our own server."""

    def __init__(self, protocol: StreamProtocol, send: Send, listener: Listener) -> None:
        self._protocol = protocol
        self._send = send
        protocol.listener = listener

    @property
    def disconnected(self) -> bool:
        """The client has left."""
        return self._protocol.disconnected

    @property
    def transport(self) -> WriteTransport:
        """It takes chunks of the body, framed, when the response has begun."""
        return self._protocol.transport

    async def open(self, start: dict[str, Any], first: bytes) -> Callable[[bytes], None]:
        """Begin the response, with the first part of its body; returns a function that writes others."""
        self._protocol.keep()
        await self._send({**start, "first": first})
        return self._protocol.writer()

    async def answer(self, body: bytes) -> None:
        """Send a whole response."""
        await self._send({"type": "http.response.start", "status": 200, "headers": [*JSON], "body": body})

    async def end(self, body: bytes) -> None:
        """Write the last part of the body."""
        await self._send({"type": "http.response.body", "body": body})

    def cut_off(self) -> None:
        """Disconnect a client that does not read."""
        self._protocol.abort()

    def close(self) -> None:
        """Nothing to do."""
        self._protocol.listener = None


class SentConnection:
    """Any ASGI server: one task sends queued data, another waits for the client to disconnect."""

    transport = None
    """There is none that is known."""

    def __init__(self, receive: Receive, send: Send, listener: Listener) -> None:
        self._send = send
        self._listener = listener
        self._unsent: list[bytes] = []
        self._size = 0
        self._paused = False
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sending: asyncio.Task[None] | None = None
        self._watching = asyncio.create_task(self._watch(receive))
        self.disconnected = False

    async def _watch(self, receive: Receive) -> None:
        """Wait until the client disconnects. The request's body was read before."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.disconnected = True
        self._listener.on_disconnect()

    async def open(self, start: dict[str, Any], first: bytes) -> Callable[[bytes], None]:
        await self._send(start)
        self._sending = asyncio.create_task(self._send_all())
        if first:
            self._write(first)
        return self._write

    def _write(self, body: bytes) -> None:
        self._unsent.append(body)
        self._size += len(body)
        self._idle.clear()
        self._wake.set()
        if self._size > MAX_UNSENT and not self._paused:
            self._paused = True
            self._listener.on_pause()

    async def _send_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            body, self._unsent, self._size = b"".join(self._unsent), [], 0
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            if not self._unsent:
                self._idle.set()
                if self._paused:
                    self._paused = False
                    self._listener.on_resume()

    async def answer(self, body: bytes) -> None:
        headers = [*JSON, (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def end(self, body: bytes) -> None:
        await self._idle.wait()
        if not self.disconnected:
            await self._send({"type": "http.response.body", "body": body})

    def cut_off(self) -> None:
        """The server closes the connection of a response that was not ended."""
        self.disconnected = True
        self.close()
        self._idle.set()

    def close(self) -> None:
        self._watching.cancel()
        if self._sending is not None:
            self._sending.cancel()


Connection = DirectConnection | SentConnection
"""How bytes get to the client."""


def connection_of(scope: Scope, receive: Receive, send: Send, listener: Listener) -> Connection:
    """The way to the client of a request."""
    protocol = scope.get("extensions", {}).get(STREAM)
    # `send` knows that HEAD has no body, and HTTP/1.0 no chunks.
    if protocol is None or scope["method"] == "HEAD" or scope["http_version"] == "1.0":
        return SentConnection(receive, send, listener)
    return DirectConnection(protocol, send, listener)


class _Delivery(Client, Listener):
    """The common part of both: the driver, and a client that may disconnect."""

    def __init__(self, driver: Driver, settings: Settings) -> None:
        self._driver = driver
        self._settings = settings
        self.started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Drive the answer to its client."""
        self._connection = connection_of(scope, receive, send, self)
        try:
            await self._deliver()
        finally:
            self._connection.close()

    async def _deliver(self) -> None:
        raise NotImplementedError

    def attach(self, driver: Driver) -> None:
        if self._connection.disconnected:
            self.on_disconnect()

    def on_disconnect(self) -> None:
        self._driver.stop(ClientLeftError())


class FullAnswer(_Delivery):
    """A JSON body that takes its time."""

    _body: bytes | None = None

    async def _deliver(self) -> None:
        await self._driver.run(self)
        if self._body is not None:  # else the client has left
            if len(self._body) > LARGE:  # many answers may be stored in one transaction
                await wait_for_turn()
            await self._connection.answer(self._body)

    def delta_writer(self, choice: int, encode: DeltaEncoder) -> DeltaWriter:
        """The body has what the projection makes of deltas, and nothing is sent before."""
        return lambda text, tokens: _discard(encode(text, tokens))

    def end(self, lines: list[bytes], body: Callable[[], bytes]) -> None:
        self._body = body()


class EventStream(_Delivery):
    """The events of an API. `framing` makes them from wire events, `after` is sent after the last."""

    def __init__(
        self,
        driver: Driver,
        settings: Settings,
        framing: Framing = READY,
        after: bytes = b"",
        api: Api = OPENAI,
    ) -> None:
        super().__init__(driver, settings)
        self._api = api
        self._framing = framing
        self._after = after
        self._early: list[bytes] = []  # before the response has begun
        self._outlet = Outlet(self._begin)
        self._opened = False  # the response has begun, or the task does it
        self._opening: asyncio.Task[None] | None = None
        self._last: bytes | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._record = STREAM_RECORD.get()

    async def _deliver(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._settings.keep_alive, self._tick)
        try:
            await self._driver.run(self)
            self._timer.cancel()
            if self._last is not None:
                if not self._opened:
                    await self._open()
                elif self._opening is not None:
                    await asyncio.wait((self._opening,))
                if self._record is not None:
                    self._record.end()
                await self._connection.end(self._last + self._after)
            elif not self._connection.disconnected:  # it left too much unread
                self._connection.cut_off()
        finally:
            self._timer.cancel()
            self._outlet.lead(_discard)  # no cycle is left for the garbage collector if it has not begun
            self.on_resume()  # the connection is for the next request: no timer may cut it off
            if self._opening is not None:
                self._opening.cancel()

    def write(self, lines: list[bytes]) -> None:
        self.started = True
        self._outlet.silent = False
        if self._record is not None:
            self._record.events = True
        self._outlet.write(self._framing.frame_all(lines))

    def delta_writer(self, choice: int, encode: DeltaEncoder) -> DeltaWriter:
        """Until the response has begun, what is written is kept."""
        return self._outlet.delta_writer(self._framing.deltas(encode))

    def end(self, lines: list[bytes], body: Callable[[], bytes]) -> None:
        self.started = True
        self._last = self._framing.frame_all(lines) if lines else b""

    def _begin(self, events: bytes) -> None:
        """Keep events until the response has begun, and begin it."""
        self._early.append(events)
        if not self._opened:
            self._opened = True
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        """Begin the response."""
        headers = [(b"content-type", self._api.media_type), *STREAM_HEADERS]
        start = {"type": "http.response.start", "status": 200, "headers": headers}
        first, self._early = b"".join(self._early), []
        out = await self._connection.open(start, first)
        if self._connection.disconnected:
            return
        self._outlet.lead(out, self._connection.transport)
        if self._early:  # events came meanwhile
            out(b"".join(self._early))

    def _tick(self) -> None:
        """Send a comment, if nothing was sent since the last call."""
        # A client that does not read needs no comments, and some APIs have none.
        if self._outlet.silent and self._stall is None and self._api.keep_alive:
            self.started = True
            self._keep_alive()
        self._outlet.silent = True
        self._timer = self._loop.call_later(self._settings.keep_alive, self._tick)

    def _keep_alive(self) -> None:
        """Send something that says nothing."""
        self._outlet.write(self._api.keep_alive)

    def on_disconnect(self) -> None:
        """The rest of the answer is for the journal only."""
        self._outlet.lead(_discard)  # a closed transport raises when it is written to
        super().on_disconnect()

    def on_pause(self) -> None:
        self._driver.pause(CLIENT)
        if self._stall is None:
            self._stall = self._loop.call_later(self._settings.stall_seconds, self._give_up)

    def on_resume(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        self._driver.resume(CLIENT)

    def _give_up(self) -> None:
        """The client did not read for too long."""
        log.info("a client that does not read is cut off", seconds=self._settings.stall_seconds)
        self._driver.stop(ClientStalledError())
        self._connection.cut_off()


def _discard(body: bytes) -> None:
    """Ignore the data."""
