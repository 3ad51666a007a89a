"""Connections without sockets: the server's own protocols on one side, a client on the other.

Bytes arrive later, in order; the seed chooses the delay. A client may stop reading: then the server's buffer
fills, as that of a socket does.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import httptools
import msgspec
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from simulation.laws import law
from simulation.loop import Process, SimulatedLoop

LATENCY = 0.02
"""Seconds that bytes are under way at most."""

Delay = Callable[[float], float]
"""A time up to the given one, chosen from the seed."""


class Peer(Protocol):
    """The client's end."""

    reads: bool

    def receive(self, data: bytes) -> None:
        """Bytes have arrived."""
        ...

    def lose(self) -> None:
        """The connection is lost."""
        ...


class Transport(asyncio.Transport):
    """The server's end. `room` are the bytes that may wait for a client that does not read."""

    def __init__(self, loop: SimulatedLoop, process: Process, delay: Delay, room: int, port: int) -> None:
        super().__init__({"peername": ("10.0.0.1", port), "sockname": ("10.0.0.2", 80)})
        self._loop = loop
        self._delay = delay
        self._room = room
        self.process = process
        self._context = process.context()
        self._protocol: Any = None
        self._closing = False
        self._lost = False
        self._dead = False
        self._paused = False
        self._unread = bytearray()  # that the client has not taken
        self._arrived: deque[bytes] = deque()  # that the server has not read
        self._reads = True
        self._down = self._up = 0.0  # when the last bytes arrive, each way
        self.exchange: Peer | None = None

    def connect(self, make_protocol: Callable[[], Any]) -> None:
        """Have the server accept the connection."""

        def made() -> None:
            self._protocol = make_protocol()
            self._protocol.connection_made(self)

        self._to_server(made)

    def made(self, protocol: Any) -> None:
        """The server has connected to another machine, which is the client then."""
        self._protocol = protocol
        protocol.connection_made(self)

    # The server's side

    def is_closing(self) -> bool:
        return self._closing

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def write(self, data: Any) -> None:
        if self._dead or (self._closing and not self._lost):
            return
        law(not self._lost, "something is written to a connection that is lost")
        self._unread += data
        self._pump()
        if len(self._unread) > self._room and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self._unread)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._pump()

    def abort(self) -> None:
        self._unread.clear()
        self._closing = True
        self._end()

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self._loop.call_soon(self._read, context=self._context)

    @property
    def reading(self) -> bool:
        """The server takes what it is sent."""
        return self._reads and not self._closing and not self.process.is_held(self._loop.time())

    def _pump(self) -> None:
        """Send waiting bytes to a client that reads."""
        exchange = self.exchange
        if exchange is None or not exchange.reads:
            return
        if self._unread:
            self._to_client(exchange.receive, bytes(self._unread))
            self._unread.clear()
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._resume, context=self._context)
        if self._closing:
            self._end()

    def _resume(self) -> None:
        if not self._paused and not self._lost:
            self._protocol.resume_writing()

    def _end(self) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._protocol.connection_lost, None, context=self._context)
        if self.exchange is not None:
            self._to_client(self.exchange.lose)

    # The client's side

    def send(self, data: bytes) -> None:
        """Bytes for the server."""
        self._to_server(self._receive, data)

    def leave(self) -> None:
        """The client is gone."""
        self.exchange = None
        self._to_server(self._left)

    def read_on(self) -> None:
        """The client reads again."""
        self._pump()

    def die(self) -> None:
        """The server's process is gone, and with it the connection."""
        self._dead = self._lost = self._closing = True
        if self.exchange is not None:
            self._to_client(self.exchange.lose)

    def _receive(self, data: bytes) -> None:
        self._arrived.append(data)
        self._read()

    def _read(self) -> None:
        while self._arrived and self._reads and not self._closing:
            self._protocol.data_received(self._arrived.popleft())

    def _left(self) -> None:
        self._unread.clear()
        self._closing = True
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(None)

    def _to_server(self, call: Callable[..., object], *args: Any) -> None:
        self._up = max(self._up, self._loop.time() + self._delay(LATENCY))
        self._loop.call_at(self._up, call, *args, context=self._context)

    def _to_client(self, call: Callable[..., object], *args: Any) -> None:
        self._down = max(self._down, self._loop.time() + self._delay(LATENCY))
        self._loop.call_at(self._down, call, *args, context=Process("client").context())


class Exchange:
    """One request and its response, as far as it has arrived. `on_data` gets the body so far."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.on_data: Callable[[Exchange, bytes], object] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        """0: no response yet."""
        self.body = bytearray()
        self.whole = False
        """The response is complete."""
        self.reads = True
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """The answer is whole, or the connection is lost."""
        transport.exchange = self

    def request(
        self, method: str, path: str, key: str, body: bytes = b"", media_type: str = "application/json"
    ) -> None:
        """Send it."""
        head = f"{method} {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n"
        head += f"content-type: {media_type}\r\ncontent-length: {len(body)}\r\n\r\n"
        self._transport.send(head.encode() + body)

    def leave(self) -> None:
        """Be gone."""
        self._transport.leave()
        self._over()

    def hold(self) -> None:
        """Read no more for now."""
        self.reads = False

    def read_on(self) -> None:
        """Read the bytes that have arrived meanwhile."""
        self.reads = True
        self._transport.read_on()

    def receive(self, data: bytes) -> None:
        """Bytes have arrived."""
        if not self.over.done():
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserCallbackError as error:
                raise error.__context__ or error from None

    def lose(self) -> None:
        """The connection is lost."""
        self._over()

    def _over(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    # Of the parser

    def on_status(self, status: bytes) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body
        if self.on_data is not None:
            self.on_data(self, bytes(self.body))

    def on_message_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.whole = True
        self._over()
        self._transport.leave()


class Socket:
    """A WebSocket, until either side closes it. `on_text` gets each message."""

    def __init__(self, transport: Transport, path: str, key: str, on_text: Callable[[bytes], object]) -> None:
        self._transport = transport
        self._on_text = on_text
        self._protocol = ClientProtocol(parse_uri(f"ws://a{path}"))
        self.status = 0
        """The status of the handshake; 0: none yet."""
        self.body = b""
        """The body of a refused handshake."""
        self.reads = True
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """The handshake is answered, or the connection is lost."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transport.exchange = self
        request = self._protocol.connect()
        request.headers["authorization"] = f"Bearer {key}"
        self._protocol.send_request(request)
        self._send()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, unless a side has begun to close it."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_text(msgspec.json.encode(message))
            self._send()

    def _send(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._transport.send(data)

    def leave(self) -> None:
        """Be gone, without a word."""
        self._transport.leave()
        self.lose()

    def hold(self) -> None:
        """Read no more for now."""
        self.reads = False

    def read_on(self) -> None:
        """Read the bytes that have arrived meanwhile."""
        self.reads = True
        self._transport.read_on()

    def receive(self, data: bytes) -> None:
        """See `Peer`."""
        if self.lost.done():
            return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self.status, self.body = event.status_code, event.body or b""
                self.opened.set_result(None)
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self._on_text(bytes(event.data))
        self._send()  # answers to pings, and to the close of the server

    def lose(self) -> None:
        """See `Peer`."""
        for future in (self.opened, self.lost):
            if not future.done():
                future.set_result(None)
