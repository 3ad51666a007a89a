"""What a full answer takes in the libraries alone: the least of a server that is built as Antiphon is.

The floor (`floor.py`) parses no HTTP. Here an ASGI application under uvicorn reads a request, decodes its
JSON and sends a ready body. With `work`, it also does by its library what each request needs at least:
it renders the chat template in jinja2's sandbox, and writes one line to the log.

Run as `python -m bench.libraries [work]`; it says where it listens, and serves until it is terminated.
"""

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
import uvicorn
import uvloop
from jinja2.sandbox import ImmutableSandboxedEnvironment
from starlette.types import Receive, Scope, Send

from antiphon.engines.scripted import TEMPLATE
from bench.floor import READY_SHORT_BODY

_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(READY_SHORT_BODY))]
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

Work = Callable[[dict[str, Any]], object]


def _nothing(body: dict[str, Any]) -> None:
    """Nothing but HTTP and JSON."""


def _work() -> Work:
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    log = structlog.get_logger()

    def work(body: dict[str, Any]) -> None:
        template.render(messages=body["messages"], add_generation_prompt=True)
        log.info("request", **_LINE)

    return work


def application(work: Work) -> Any:
    """The ASGI application."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        work(msgspec.json.decode(body))
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": READY_SHORT_BODY})

    return answer


def _main() -> None:
    work = _work() if sys.argv[1:] == ["work"] else _nothing
    bound = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"listening on http://127.0.0.1:{bound.getsockname()[1]}", flush=True)
    options: dict[str, Any] = {"http": "httptools", "loop": "uvloop", "lifespan": "off", "access_log": False}
    server = uvicorn.Server(uvicorn.Config(application(work), log_level="warning", **options))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve([bound]))


if __name__ == "__main__":
    _main()
