"""MCP servers made with the SDK, for tests: over HTTP in this process."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from msgspec import Struct

from tests.server import PromptServer
from tests.tools.mcp_tools import Told, server

SECRET = "s3cr3t-of-the-client"  # noqa: S105 - a test's


class Serving(Struct):
    """A server at `url`, and the requests that it got."""

    url: str
    told: Told


@asynccontextmanager
async def serving(app: Any = None, *, path: str = "/mcp", **options: Any) -> AsyncIterator[Serving]:
    """Serve tools over HTTP while the block runs, or any other ASGI application."""
    told = Told([], [], asyncio.Event())
    if app is None:
        made = server(told)
        app = made.sse_app() if path == "/sse" else made.streamable_http_app(**options)

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            told.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await app(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(noting, log_level="critical", timeout_graceful_shutdown=1)
        running = PromptServer(config)
        await running.start(listener)
        try:
            yield Serving(f"http://127.0.0.1:{listener.getsockname()[1]}{path}", told)
        finally:
            running.force_exit = True
            for state in list(running.server_state.tasks):
                state.cancel()
            await running.stop()
            await running.lifespan.shutdown()
