"""A real Antiphon server for tests: in this process, on a real socket, over the scripted engine."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from msgspec import Struct

from antiphon.engines.engine import Engine
from antiphon.engines.scripted import ScriptedEngine
from antiphon.http.app import build
from antiphon.run.service import Service


class Running(Struct):
    """A server that answers at `url`, and the engine behind it."""

    url: str
    engine: Any
    service: Service


@asynccontextmanager
async def running(
    script: list[Mapping[str, Any]] | Engine, *, dialect: str = "hermes", parallel: int = 256, **options: Any
) -> AsyncIterator[Running]:
    """Serve while the block runs."""
    engine = ScriptedEngine(script, parallel=parallel) if isinstance(script, list) else script
    service = Service(engine, dialect=dialect)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(build(service, **options), log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await service.start()
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, service)
    finally:
        server.should_exit = True
        await serving
        await service.stop()
        listener.close()
