"""A real Antiphon server for tests: in this process, on a real socket, over the scripted engine."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvicorn
from msgspec import Struct

from antiphon.apis.responses.sealing import Sealer
from antiphon.engines.engine import Engine
from antiphon.engines.scripted import ScriptedEngine
from antiphon.http.app import build, connect
from antiphon.http.context import Context, Options
from antiphon.run.service import Service
from antiphon.store.open import open_store
from antiphon.tools.tool import ServerTool

JOBS = 8


class Running(Struct):
    """A server that answers at `url`, the engine behind it, and all that its handlers use."""

    url: str
    engine: Any
    context: Context

    @property
    def service(self) -> Service:
        """The model."""
        return self.context.service


@asynccontextmanager
async def running(
    script: list[Mapping[str, Any]] | Engine,
    *,
    dialect: str = "hermes",
    date: str | None = None,
    tools: Iterable[ServerTool] = (),
    parallel: int = 256,
    store: str = "memory",
    keys: tuple[str, ...] = (),
    secrets: tuple[str, ...] = ("secret",),
    **options: Any,
) -> AsyncIterator[Running]:
    """Serve while the block runs."""
    engine = ScriptedEngine(script, parallel=parallel) if isinstance(script, list) else script
    service = Service(engine, dialect=dialect, date=date, tools=tools)
    context = connect(service, partial(open_store, store), Sealer(secrets), Options(**options), JOBS)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # asyncio forgets it, and clients wait 40 ms
    config = uvicorn.Config(build(context, keys), log_config=None, lifespan="off", ws="websockets-sansio")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await service.start()
    await context.worker.start()
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, context)
    finally:
        server.should_exit = True
        await serving
        await context.worker.stop()
        await service.stop()
        await service.close()
        listener.close()
