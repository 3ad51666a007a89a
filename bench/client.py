"""The client of the HTTP benches: many keep-alive connections, each with one request after another.

It counts and checks every answer, and records when the first bytes of its body arrived. An incomplete answer
ends the bench: a fast server that loses tokens has no figures.
"""

import asyncio
from pathlib import Path
from time import perf_counter, sleep
from typing import cast

import httptools
from msgspec import Struct, field

Address = int | Path
"""A port of this machine, or a Unix socket."""


class Load(Struct, frozen=True):
    """The requests to send, their number, and the form of a complete answer.

    `marks` times `mark` must be in each body, and it must end in `end`. The connections begin evenly over
    `spread` seconds. It may take `seconds`.

    The client reads what has come, rests for `rest` seconds, and reads again: data never wake it. Over
    loopback, waking a client costs the server that writes to it 2 to 4 µs, which a client on another machine
    does not cost, and a faster server would not have, because it keeps its client busy. None: it waits for
    data, where a latency is measured.
    """

    request: bytes
    connections: int
    requests: int
    mark: bytes
    marks: int
    end: bytes
    spread: float = 0
    rest: float | None = 0
    seconds: float = 60


class Tally(Struct):
    """The results. `first` holds the seconds from each request to the first bytes of its body."""

    answers: int = 0
    events: int = 0
    bytes: int = 0
    seconds: float = 0
    first: list[float] = field(default_factory=list)


class WrongAnswerError(Exception):
    """An answer was not as expected."""


async def drive(load: Load, address: Address) -> Tally:
    """Put the load on a server. Raises WrongAnswerError, OSError, TimeoutError."""
    tally = Tally()
    begun = perf_counter()
    resting = asyncio.create_task(asyncio.sleep(0) if load.rest is None else _rest(load.rest))
    try:
        async with asyncio.timeout(load.seconds), asyncio.TaskGroup() as group:
            for index in range(load.connections):
                delay = load.spread * index / load.connections
                group.create_task(_connection(load, address, tally, delay))
    finally:
        resting.cancel()
    tally.seconds = perf_counter() - begun
    return tally


async def _rest(seconds: float) -> None:
    """Never let the event loop wait for data."""
    while True:
        await asyncio.sleep(0)
        if seconds:
            sleep(seconds)  # noqa: ASYNC251 (the loop is to stand still)


async def _connection(load: Load, address: Address, tally: Tally, delay: float) -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    await asyncio.sleep(delay)
    if isinstance(address, Path):
        transport, _ = await loop.create_unix_connection(lambda: _Client(load, tally, over), str(address))
    else:
        transport, _ = await loop.create_connection(lambda: _Client(load, tally, over), "127.0.0.1", address)
    try:
        await over
    finally:
        transport.close()


def http_request(body: bytes) -> bytes:
    """A POST of this body to the chat endpoint."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


class _Client(asyncio.Protocol):
    """One connection. httptools calls the `on_` methods."""

    def __init__(self, load: Load, tally: Tally, over: asyncio.Future[None]) -> None:
        self._load = load
        self._tally = tally
        self._over = over
        self._left = load.requests
        self._body: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is registered nowhere
        self._ask()

    def _ask(self) -> None:
        self._left -= 1
        self._asked = perf_counter()
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        if not self._body:
            self._tally.first.append(perf_counter() - self._asked)
        self._body.append(piece)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body.clear()
        load, tally = self._load, self._tally
        if body.count(load.mark) != load.marks or not body.endswith(load.end):
            self._fail(f"status {self._parser.get_status_code()}, {len(body)} bytes: …{body[-300:]!r}")
            return
        tally.answers += 1
        tally.bytes += len(body)
        tally.events += body.count(b"data: ")
        if self._left:
            self._ask()
        elif not self._over.done():
            self._over.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the connection was lost: {error}")

    def _fail(self, why: str) -> None:
        if not self._over.done():
            self._over.set_exception(WrongAnswerError(why))
