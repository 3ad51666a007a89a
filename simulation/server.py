"""A server of the simulation: everything that `antiphon serve` connects, in one simulated process."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from uvicorn.server import ServerState

from antiphon.compose import compose
from antiphon.config import Settings
from antiphon.core.limits import Limits
from antiphon.engines.engine import Engine
from antiphon.http.server import HttpServer
from antiphon.model_tables import ModelSettings
from antiphon.render.renderer import ChatTemplateRenderer
from antiphon.store.store import Store
from simulation.database import DatabaseFaults
from simulation.engine import engine_of
from simulation.laws import law
from simulation.loop import Process
from simulation.model_server import UrlEngine
from simulation.network import Delay, Transport

if TYPE_CHECKING:
    from simulation.world import World

LEASE = 3.0
DRAIN = 10.0
"""The most seconds that answers may take when a server stops."""
STOPPED = DRAIN + 10.0
"""Seconds after which it has stopped."""
LIMITS = Limits(work_processes=2, work_waiting=4)
render = cache(ChatTemplateRenderer)
"""Compiling a template takes longer than a simulation."""

STORE = "Database.__init__"
"""Whose permits are those of reads and writes of the store."""


class Simulated(Struct):
    """The options of an engine that is there already."""

    engine: Engine

    def build(self, limits: Limits = LIMITS) -> Engine:
        return self.engine


class Server:
    """One server from its start to its end. `ready`: it accepts requests."""

    def __init__(self, world: "World", name: str, skew: float) -> None:
        self.process = Process(name, skew)
        self.process.context().run(self._build, world)

    def _build(self, world: "World") -> None:
        rng = world.rng
        self.database_faults = DatabaseFaults()
        self.ready = False
        self._own = 0
        self._loop = world.loop
        self._rng = rng
        self._connections: list[Transport] = []
        self._store = world.database.store(self.process, self.database_faults)
        self._world = world
        self.engine, self.replicas = engine_of(world.engine_laws, rng.choice((1, 2, 8)), world.plan.replicas)
        if world.model_server is not None:
            self.engine = UrlEngine(world.engine_laws)
        settings = Settings(
            engine=Simulated(self.engine),
            model=ModelSettings(dialect="hermes"),
            limit=LIMITS,
            stall_seconds=rng.choice((2.0, 60.0)),
            lease_seconds=LEASE,
            jobs=rng.choice((1, 2, 4)),
            drain_seconds=rng.choice((0.5, DRAIN)),
            api_key=tuple(f"key-{name}" for name in world.names),
            secret=("secret",),
        )
        runtime = compose(settings, open_store=self._open, tools=[world.tool()], render=render)
        self.app, self.worker = runtime.app, runtime.worker
        if world.key_rules is not None:
            for account in map(self.app.keys.find, settings.api_key):
                assert account is not None
                account.change(world.key_rules.permissions)
        self._http = HttpServer(runtime)
        self._http.servers = []  # there is no socket

    async def _open(self) -> Store:
        await self._store.open()
        return self._store

    def run(self, work: Callable[[], Awaitable[Any]]) -> "asyncio.Task[Any]":
        """Run something in the process of this server."""
        context = self.process.context()
        return context.run(lambda: self._loop.create_task(work(), context=context))

    async def start(self) -> None:
        """Load and open everything."""
        self._http.config.load()
        self._http.lifespan = self._http.config.lifespan_class(self._http.config)
        await self.run(self._http.runtime.start)
        self._own = len(self.process.tasks)  # its worker, its writers
        self.ready = True

    def connect(self, delay: Delay) -> Transport:
        """A new connection to it."""
        room = self._rng.choice((512, 4096, 65536))
        port = 1024 + len(self._connections)
        transport = Transport(self._loop, self.process, delay, room, port)
        transport.connect(lambda: self._http.config.http_protocol_class(self._http.config, self._state, {}))
        self._connections.append(transport)
        return transport

    @property
    def _state(self) -> ServerState:
        return self._http.server_state

    @property
    def busy(self) -> bool:
        """It writes a response, or indexes a file."""
        return bool(self.app.storage.writer.open or self.worker.indexer._held)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.ready = False
        self.process.alive = False
        for transport in self._connections:
            transport.die()
        if self._world.model_server is not None:
            self._world.model_server.lose(self.process)

    def hold(self, seconds: float) -> None:
        """Pause it for some time, like a machine that swaps, or is migrated."""
        self.process.held_until = self._loop.time() + seconds

    async def stop(self) -> None:
        """Stop as after Ctrl-C: running answers may end, others are released, or fail."""
        self.ready = False
        stopping = self.run(self._stop)
        await asyncio.wait([stopping], timeout=STOPPED)
        late = not stopping.done() and self.process.alive and self.process.held_until < self._loop.time()
        law(not late, f"{self.process.name} does not stop")
        await stopping
        await asyncio.sleep(0.1)  # until the last cancelled tasks have ended
        if self.process.tasks:
            await asyncio.sleep(self._loop.hop)  # until threads have ended their work
        law(not self.process.tasks, f"{self.process.name} has stopped, but tasks of it run: {self._tasks}")
        if (mcp_server := self._world.mcp_server) is not None:
            left = mcp_server.open(self.process)
            law(not left, f"{self.process.name} has stopped, and reads {left} answers of a tool")
        if (model_server := self._world.model_server) is not None:
            left = len(model_server.open(self.process))
            law(not left, f"{self.process.name} has stopped, and keeps {left} connections to the model")
        for whose, permits in self.process.permits:
            unfree = whose == STORE and (permits.running or permits.waiting)
            law(not unfree, f"{self.process.name} has stopped, but permits of {whose} are not free")

    async def _stop(self) -> None:
        """See `antiphon.http.server`, which does the same."""
        http = self._http
        http.handle_exit(signal.SIGTERM, None)
        await http.shutdown()
        await self.worker.release()
        await self.app.models.stop()
        await http.finish_requests()
        await http.runtime.stop()

    @property
    def idle(self) -> bool:
        """No request is running. Tasks of the server itself may have ended, and one be in their place."""
        few = len(self.process.tasks) <= self._own and not self.busy and not self._state.connections
        return few and not any(running or waiting for _, running, waiting in self._used_permits)

    @property
    def _used_permits(self) -> Iterator[tuple[str, int, int]]:
        """Whose permits are used, how many are, and how many wait; without those that are always used."""
        for whose, permits in self.process.permits:
            if whose == STORE:  # which the server's own work uses at any time: see `stop`
                continue
            kept = 1 if permits is self.worker.permits else 0  # with which it waits for a job
            if permits.running > kept or permits.waiting:
                yield whose, permits.running - kept, permits.waiting

    def check_idle(self) -> None:
        """No request is running: check that all resources were released."""
        load = self.engine.load
        law(load.running == 0, f"{self.process.name}: {load.running} slots of the engine are not free")
        law(load.waiting == 0, f"{self.process.name}: {load.waiting} requests wait for the engine")
        for whose, running, waiting in self._used_permits:
            law(not running, f"{self.process.name}: {running} permits of {whose} are not free")
            law(not waiting, f"{self.process.name}: {waiting} wait for a permit of {whose}")
        kept = [*self.app.storage.writer.open]
        law(not kept, f"{self.process.name}: the journals of {kept} are open")
        law(not self._state.connections, f"{self.process.name}: {len(self._state.connections)} connections")
        law(len(self._tasks) <= self._own, f"{self.process.name}: tasks are left: {self._tasks}")

    @property
    def _tasks(self) -> list[str]:
        return [task.get_coro().__qualname__ for task in self.process.tasks]  # type: ignore[union-attr]

    async def end_leftovers(self) -> None:
        """Let the leftovers of a killed server end, without any effect."""
        self._loop.end_leftovers(self.process)
        self.database_faults.away = float("inf")
        while tasks := [*self.process.tasks]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1)
