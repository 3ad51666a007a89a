"""The floor: the least that a server can do, for comparison.

A bare uvloop protocol that writes constant bytes. They are those that Antiphon would send for the same
request, made beforehand and split in the same way: one write per token and stream. It has the timing of the
scripted engine: one step, by one timer or one turn of the loop, writes to every connection that is due. So
Antiphon is compared, and not timers. A request is parsed only to select one of the answers; it has to arrive
in one piece, as ours do over loopback.

Run as `python -m bench.floor`; it prints its address, and serves until it is terminated.
"""

import asyncio
from typing import cast

import msgspec
import uvloop
from msgspec import Struct

from antiphon.apis.chat.schema import ChatRequest
from antiphon.core.chunks import Chunk
from bench.in_process import answer, payloads
from bench.scenario import FULL, PACED, PLAIN, SHORT, Plan

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\nx-accel-buffering: no\r\ntransfer-encoding: chunked\r\n\r\n"
)
_ANSWER_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class Ready(Struct, frozen=True):
    """A response: the bytes to write in each step, and the seconds before each."""

    steps: tuple[bytes, ...]
    pause: float = 0


def stream_of(body: bytes, chunks: list[Chunk]) -> tuple[bytes, ...]:
    """The bytes of each step of the stream that answers this body with these chunks."""
    request = msgspec.json.decode(body, type=ChatRequest)
    *steps, last, end = payloads(request, chunks)
    first, *rest = (_http_chunk(step) for step in [*steps, last + end] if step)
    rest[-1] += b"0\r\n\r\n"
    return (_STREAM_HEAD + first, *rest)


def _stream(plan: Plan) -> Ready:
    return Ready(stream_of(plan.request(stream=True), PLAIN.chunks(plan.tokens)), plan.delay_ms / 1000)


def _answer(plan: Plan) -> bytes:
    request = msgspec.json.decode(plan.request(stream=False), type=ChatRequest)
    return answer(request, PLAIN.chunks(plan.tokens))


def _http_chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


_READY = {FULL.prompt.encode(): _stream(FULL), PACED.prompt.encode(): _stream(PACED)}
READY_SHORT_BODY = _answer(SHORT)
"""The full answer."""
_READY_SHORT = Ready((_ANSWER_HEAD % len(READY_SHORT_BODY) + READY_SHORT_BODY,))


class Clock:
    """Steps that all connections with the same pause have in common."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pause: float) -> None:
        self._loop = loop
        self._pause = pause
        self._playing: list[Floor] = []
        self._running = False

    def join(self, connection: "Floor") -> None:
        """Let a connection play from the next step on."""
        self._playing.append(connection)
        if not self._running:
            self._running = True
            self._wait()

    def _wait(self) -> None:
        if self._pause:
            self._loop.call_later(self._pause, self._step)
        else:
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._playing = [connection for connection in self._playing if connection.step()]
        if self._playing:
            self._wait()
        else:
            self._running = False


class Floor(asyncio.Protocol):
    """One connection."""

    def __init__(self, clocks: dict[float, Clock]) -> None:
        self._clocks = clocks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is registered nowhere

    def data_received(self, data: bytes) -> None:
        """Begin the requested answer."""
        ready = next((ready for prompt, ready in _READY.items() if prompt in data), _READY_SHORT)
        self._steps, self._next = ready.steps, 0
        self._clocks[ready.pause].join(self)

    def step(self) -> bool:
        """Write the next bytes; returns whether there are more."""
        if self._transport.is_closing():
            return False
        self._transport.write(self._steps[self._next])
        self._next += 1
        return self._next < len(self._steps)


async def _main() -> None:
    loop = asyncio.get_running_loop()
    pauses = {ready.pause for ready in (*_READY.values(), _READY_SHORT)}
    clocks = {pause: Clock(loop, pause) for pause in pauses}
    server = await loop.create_server(lambda: Floor(clocks), "127.0.0.1", 0, backlog=2048)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main())
