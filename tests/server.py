"""A real Antiphon server for tests: in this process, on a real socket, over the scripted engine."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from msgspec import Struct
from starlette.routing import BaseRoute

from antiphon.apis.sealing import Sealer
from antiphon.app.app import App, Options
from antiphon.app.attachments import AttachmentReader
from antiphon.app.keys import KeyTable
from antiphon.app.log_writer import LEASE
from antiphon.app.metrics import Metrics
from antiphon.app.search import ChunkEmbedder
from antiphon.app.storage import Storage
from antiphon.app.worker import Worker
from antiphon.compose import Runtime
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.observation import NoTracing, Tracing
from antiphon.engines.engine import Engine
from antiphon.engines.scripted import ScriptedEngine
from antiphon.http.app import ROUTES, build
from antiphon.http.protocol import protocols
from antiphon.render.renderer import ChatTemplateRenderer
from antiphon.run import loading
from antiphon.run.loading import ServedModel
from antiphon.run.models import Models
from antiphon.store.open import open_store
from antiphon.store.store import Store
from antiphon.toolkits.code_interpreter.whole_python import Interpreters, PythonInterpreter
from antiphon.toolkits.registry import Toolkits, built_in
from antiphon.tools.discovery import by_type
from antiphon.tools.tool import ServerTool

JOBS = 8
NO_TRACING = NoTracing()
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of plain HTTP: without one, each reads all certificates of the system first."""
compiled_once = cache(ChatTemplateRenderer)
"""Renders with what another server made of the same template: compiling one is most of a start."""


class PromptServer(uvicorn.Server):
    """Ends as soon as nothing is under way, where uvicorn looks once every 100 ms."""

    async def start(self, listener: socket.socket) -> None:
        """Listen, and keep the time."""
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup(sockets=[listener])
        self._loop = asyncio.create_task(self.main_loop())

    async def stop(self) -> None:
        """Close every connection, as uvicorn does."""
        self._loop.cancel()
        with suppress(asyncio.CancelledError):
            await self._loop
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:
            await asyncio.sleep(0.002)
        for server in self.servers:
            await server.wait_closed()


class Running(Struct):
    """A server that answers at `url`, its engine, the dependencies of its handlers, and its worker."""

    url: str
    engine: Any
    app: App
    worker: Worker

    @property
    def models(self) -> Models:
        """The models."""
        return self.app.models

    async def stop(self) -> None:
        """Stop all answers, as a server does when it stops; other requests are still answered."""
        await self.worker.release()
        await self.models.stop()


@asynccontextmanager
async def running(
    script: list[Mapping[str, Any]] | Engine,
    *,
    names: tuple[str, ...] = (),
    models: Models | None = None,
    default_model: str | None = None,
    admin_keys: tuple[str, ...] = (),
    dialect: str | None = "hermes",
    date: str | None = None,
    exclude_tools: bool = False,
    tools: Iterable[ServerTool] = (),
    parallel: int = 256,
    store: str | Callable[[], Awaitable[Store]] = "memory",
    lease: float = LEASE,
    keys: tuple[str, ...] = (),
    root_path: str = "",
    proxies: tuple[str, ...] = (),
    key_file: Path | None = None,
    secrets: tuple[str, ...] = ("secret",),
    toolkits: Toolkits | None = None,
    http: Any = None,
    limits: Limits = DEFAULTS,
    tracing: Tracing = NO_TRACING,
    attachments: AttachmentReader | None = None,
    default_tools: tuple[Mapping[str, Any], ...] = (),
    programs: Callable[[Storage], Interpreters] | None = None,
    embedder: str | None = None,
    routes: Sequence[BaseRoute] = ROUTES,
    **given: Any,
) -> AsyncIterator[Running]:
    """Serve while the block runs; `http` is uvicorn's protocol, for whom our own is not.

    `models` are served instead of one with this script. `programs` make the interpreters of containers.
    """
    opened = partial(open_store, store) if isinstance(store, str) else store
    metrics = Metrics()
    storage = Storage(opened, lease, metrics)
    interpreters = programs(storage) if programs else None
    own = [*tools, *([PythonInterpreter(interpreters)] if interpreters else [])]
    engine = ScriptedEngine(script, parallel=parallel, limits=limits) if isinstance(script, list) else script
    model = ServedModel(
        engine,
        names=names,
        dialect=dialect,
        date=date,
        exclude_tools=exclude_tools,
        tools=by_type(own),
        limits=limits,
    )
    models, options = models or Models([model], default=default_model), Options(limits=limits, **given)
    app = App(
        models,
        storage,
        Sealer(secrets),
        options,
        toolkits or built_in(),
        default_tools,
        metrics,
        tracing=tracing,
        attachments=attachments or AttachmentReader(limits),
        keys=KeyTable(keys, admin_keys, key_file),
        interpreters=interpreters,
        embedder=None if embedder is None else ChunkEmbedder(embedder, lambda: models),
    )
    worker = Worker(app, jobs=JOBS, lease=lease)
    runtime = Runtime(app, worker)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # asyncio forgets it, and clients wait 40 ms
    config = uvicorn.Config(
        build(app, root_path=root_path, proxies=proxies, routes=routes),
        log_config=None,
        lifespan="off",
        proxy_headers=False,
        **protocols(limits, options.stall) | ({"http": http} if http else {}),
    )
    server = PromptServer(config)
    patch = pytest.MonkeyPatch()
    patch.setattr(loading, "ChatTemplateRenderer", compiled_once)
    await server.start(listener)
    await runtime.start()
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, app, worker)
    finally:
        await server.stop()
        await runtime.worker.release()
        await models.stop()
        await runtime.stop()
        listener.close()
        patch.undo()
