"""A real Antiphon server for tests: in this process, on a real socket, over the scripted engine."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import fields, replace
from functools import cache
from typing import Any

import uvicorn
from msgspec import Struct
from starlette.routing import BaseRoute

from antiphon.app.app import App
from antiphon.app.worker import Worker
from antiphon.compose import PART_NAMES, Runtime, compose
from antiphon.config import Settings
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.engines.engine import Engine
from antiphon.engines.scripted import ScriptedEngine
from antiphon.http.app import ROUTES
from antiphon.http.server import config_of
from antiphon.model_tables import ModelSettings
from antiphon.render.renderer import ChatTemplateRenderer
from antiphon.run.loading import ServedModel
from antiphon.run.models import Models
from antiphon.toolkits.registry import default_options

Script = Sequence[Mapping[str, Any]] | Engine
"""The lines of the scripted engine, or another engine."""

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of plain HTTP: without one, each reads all certificates of the system first."""
compiled_once = cache(ChatTemplateRenderer)
"""Renders with what another server made of the same template: compiling one is most of a start."""
MODEL_OPTIONS = {field.name for field in fields(ModelSettings)}
TESTED: Mapping[str, Any] = {
    "dialect": "hermes",
    "store": "memory",
    "secret": ("secret",),
    "media_domain": ("none",),
    "jobs": 8,
}
"""The options of a server of tests, as far as it has no others."""


class Made(Struct):
    """The options of an engine that is there already."""

    engine: Engine

    def build(self, limits: Limits = DEFAULTS) -> Engine:
        return self.engine


def settings_of(**given: Any) -> Settings:
    """Options by the names that they have on the command line."""

    def taken(options: Any) -> Any:
        """The options with their values among those that are given."""
        return replace(options, **{name: given.pop(name) for name in [*given] if hasattr(options, name)})

    tools = {name: taken(options) for name, options in default_options().items()}
    return Settings(model=taken(ModelSettings()), tools=tools, **given)


def served_model(engine: Engine, **given: Any) -> ServedModel:
    """A model with these options, over this engine."""
    model = {name: given.pop(name) for name in [*given] if name in MODEL_OPTIONS}
    return ServedModel(engine, ModelSettings(**model), **given)


def composed(script: Script, *, parallel: int = 256, **given: Any) -> tuple[Any, Runtime]:
    """An engine, and the server over it. `given` are options, and parts in the place of the server's own."""
    parts = {"render": compiled_once} | {name: given.pop(name) for name in [*given] if name in PART_NAMES}
    limits = given.get("limit", DEFAULTS)
    engine = ScriptedEngine(script, parallel=parallel, limits=limits) if isinstance(script, list) else script
    return engine, compose(settings_of(**{**TESTED, "engine": Made(engine), **given}), **parts)


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
    script: Script,
    *,
    http: Any = None,
    parallel: int = 256,
    routes: Sequence[BaseRoute] = ROUTES,
    before: Callable[[Any], Any] | None = None,
    **given: Any,
) -> AsyncIterator[Running]:
    """Serve while the block runs; `http` is uvicorn's protocol, for whom our own is not.

    `before` puts something before the application, such as what records its requests.

    `given` are options of `antiphon serve`, and parts (`compose.Parts`) in the place of the server's own.
    """
    engine, runtime = composed(script, parallel=parallel, **given)
    app, worker = runtime.app, runtime.worker
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # asyncio forgets it, and clients wait 40 ms
    config = config_of(app, routes=routes, **({"http": http} if http else {}))
    if before is not None:
        config.app = before(config.app)
    server = PromptServer(config)
    await server.start(listener)
    try:
        await runtime.start()
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, app, worker)
    finally:
        await server.stop()
        await worker.release()
        await app.models.stop()
        await runtime.stop()
        listener.close()
