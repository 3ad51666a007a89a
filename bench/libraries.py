"""The cost of an answer in the libraries alone: the minimum of a server with Antiphon's libraries.

The floor (`floor.py`) parses no HTTP. Here an ASGI application under uvicorn reads a request, decodes its
JSON and sends a constant body. With `work`, it also does the least for each request with its library: it
renders the chat template in jinja2's sandbox, and writes one line to the log.

A stream is written straight to the transport, in the steps of the floor: the text of each token is encoded
as JSON, put between the constant bytes of a chunk and its frame, and written. Nothing is decoded, counted or
kept.

Run as `python -m bench.libraries [work]`; it prints its address, and serves until it is terminated.
"""

import asyncio
import re
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import structlog
import uvicorn
import uvloop
from jinja2.sandbox import ImmutableSandboxedEnvironment
from starlette.types import Receive, Scope, Send

from antiphon.apis.chat.schema import ChatRequest
from antiphon.engines.scripted import TEMPLATE
from bench.floor import READY_SHORT_BODY, Clock
from bench.in_process import payloads
from bench.scenario import FULL, PLAIN, Plan

_JSON = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(READY_SHORT_BODY))]
_LINE = {
    "method": "POST",
    "path": "/v1/chat/completions",
    "route": "/v1/chat/completions",
    "status": 200,
    "model": "bench",
    "dialect": "hermes",
    "prompt_tokens": 13,
    "completion_tokens": 1,
    "finish": "stop",
    "answer": "chatcmpl-4425898abc",
    "request_id": "req_4425898abc",
    "first_ms": 0.4,
    "total_ms": 0.6,
}

_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_TEXT = re.compile(rb'(data: [^\n]+"delta":\{"content":)("(?:[^"\\]|\\.)+")(\}[^\n]*\n\n)')
"""An event with a text as its only variable part, and that text."""
_encode = msgspec.json.Encoder().encode

Step = str | bytes
Work = Callable[[dict[str, Any]], object]


def _nothing(body: dict[str, Any]) -> None:
    """Only HTTP and JSON."""


def _work() -> Work:
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    log = structlog.get_logger()

    def work(body: dict[str, Any]) -> None:
        template.render(messages=body["messages"], add_generation_prompt=True)
        log.info("request", **_LINE)

    return work


class Stream:
    """A running stream."""

    def __init__(self, steps: Sequence[Step], frame: list[bytes], transport: asyncio.WriteTransport) -> None:
        self._steps = iter(steps)
        self._frame = frame
        self._transport = transport
        self.ended = asyncio.get_running_loop().create_future()

    def step(self) -> bool:
        """Write the next event; whether there are more."""
        if (text := next(self._steps, None)) is None:
            self.ended.set_result(None)
            return False
        body = text if isinstance(text, bytes) else _encode(text).join(self._frame)
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True


def _steps(plan: Plan) -> tuple[list[Step], list[bytes]]:
    """The output of each step: a text to encode, or constant bytes; and the bytes around a text."""
    body = msgspec.json.decode(plan.request(stream=True), type=ChatRequest)
    steps: list[Step] = []
    frame: list[bytes] = []
    for step in filter(None, payloads(body, PLAIN.chunks(plan.tokens))):
        found = _TEXT.fullmatch(step)
        if found:
            frame = [found[1], found[3]]
        steps.append(msgspec.json.decode(found[2], type=str) if found else step)
    return steps, frame


_FULL = _steps(FULL)


def application(work: Work) -> Any:
    """The ASGI application."""
    clock = Clock(asyncio.get_running_loop(), 0)

    async def stream(send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
        await send({"type": "http.response.body", "body": b"", "more_body": True})  # the head
        playing = Stream(*_FULL, send.__self__.transport)
        clock.join(playing)
        await playing.ended
        await send({"type": "http.response.body", "body": b""})

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        request = msgspec.json.decode(body)
        work(request)
        if request["stream"]:
            await stream(send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": _JSON})
        await send({"type": "http.response.body", "body": READY_SHORT_BODY})

    return answer


def _main() -> None:
    work = _work() if sys.argv[1:] == ["work"] else _nothing
    bound = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"listening on http://127.0.0.1:{bound.getsockname()[1]}", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(bound, work))


async def _serve(bound: socket.socket, work: Work) -> None:
    options: dict[str, Any] = {"http": "httptools", "loop": "uvloop", "lifespan": "off", "access_log": False}
    await uvicorn.Server(uvicorn.Config(application(work), log_level="warning", **options)).serve([bound])


if __name__ == "__main__":
    _main()
