"""A server of the simulation: everything that `antiphon serve` connects, in one simulated process."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from antiphon.apis.responses.sealing import Sealer
from antiphon.app.app import App, Options
from antiphon.app.keys import KeyTable
from antiphon.app.storage import Storage
from antiphon.app.worker import Worker
from antiphon.compose import Runtime
from antiphon.dialects.dialect import Dialect
from antiphon.engines.engine import ModelCard
from antiphon.http.app import build
from antiphon.http.protocol import StreamProtocol
from antiphon.render.renderer import Renderer
from antiphon.run.loading import ServedModel
from antiphon.run.models import Models
from antiphon.store.store import Store
from antiphon.tools.discovery import by_type
from simulation.database import SharedDatabase, Weather
from simulation.laws import law
from simulation.loop import Process, SimulatedLoop
from simulation.network import Delay, Transport
from simulation.tools import ActingEngine, Effects, EffectTool

LEASE = 3.0
_RENDERERS: dict[str | None, Renderer] = {}


class _Model(ServedModel):
    """Compiling a template takes longer than a simulation."""

    def _renderer(self, dialect: Dialect, card: ModelCard) -> Renderer:
        if card.chat_template not in _RENDERERS:
            _RENDERERS[card.chat_template] = super()._renderer(dialect, card)
        return _RENDERERS[card.chat_template]


class Server:
    """One server from its start to its end. `ready`: it can be sent requests."""

    def __init__(
        self,
        name: str,
        database: SharedDatabase,
        rng: Random,
        script: list[Mapping[str, Any]],
        keys: tuple[str, ...],
        skew: float,
        effects: Effects,
    ) -> None:
        self.process = Process(name, skew)
        self.weather = Weather()
        self.ready = False
        self._own = 0
        self._loop: SimulatedLoop = database.loop
        self._rng = rng
        self._connections: list[Transport] = []
        self._store = database.store(self.process, self.weather)
        self.engine = ActingEngine(script, parallel=rng.choice((1, 2, 8)))
        self.app = App(
            Models([_Model(self.engine, dialect="hermes", tools=by_type([EffectTool(effects)]))]),
            Storage(self._open, LEASE),
            Sealer(("secret",)),
            Options(stall=rng.choice((2.0, 60.0))),
            keys=KeyTable(keys),
        )
        self.worker = Worker(self.app, jobs=rng.choice((1, 2, 4)), lease=LEASE)
        self._runtime = Runtime(self.app, self.worker)
        self._config = uvicorn.Config(
            build(self.app), log_config=None, lifespan="off", http=StreamProtocol, access_log=False
        )
        self._state = ServerState()

    async def _open(self) -> Store:
        await self._store.open()
        return self._store

    def run(self, work: Callable[[], Awaitable[Any]]) -> "asyncio.Task[Any]":
        """Run something in the process of this server."""
        context = self.process.context()
        return context.run(lambda: self._loop.create_task(work(), context=context))

    async def start(self) -> None:
        """Load and open everything."""
        await self.run(self._runtime.start)
        self._own = len(self.process.tasks)  # its worker, its writers
        self.ready = True

    def connect(self, delay: Delay) -> Transport:
        """A new connection to it."""
        room = self._rng.choice((512, 4096, 65536))
        port = 1024 + len(self._connections)
        transport = Transport(self._loop, self.process, delay, room, port)
        transport.connect(lambda: StreamProtocol(self._config, self._state, {}))
        self._connections.append(transport)
        return transport

    @property
    def busy(self) -> bool:
        """It writes a response."""
        return bool(self.app.storage.writer.open)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.ready = False
        self.process.alive = False
        for transport in self._connections:
            transport.die()

    def hold(self, seconds: float) -> None:
        """Have it do nothing for a while, as a machine that swaps, or that is moved."""
        self.process.held_until = self._loop.time() + seconds

    async def stop(self) -> None:
        """Stop as after Ctrl-C, with nothing under way."""
        self.ready = False
        await self.run(self._stop)

    async def _stop(self) -> None:
        await self.worker.release()
        await self.app.models.stop()
        await self._runtime.stop()

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return len(self.process.tasks) <= self._own and not self.busy and not self._state.connections

    def check_idle(self) -> None:
        """Nothing is under way any more: all that requests took is given back."""
        load = self.engine.load
        law(load.running == 0, f"{self.process.name}: {load.running} slots of the engine are not free")
        law(load.waiting == 0, f"{self.process.name}: {load.waiting} requests wait for the engine")
        kept = [*self.app.storage.writer.open]
        law(not kept, f"{self.process.name}: the journals of {kept} are open")
        law(not self._state.connections, f"{self.process.name}: {len(self._state.connections)} connections")
        tasks = [task.get_coro().__qualname__ for task in self.process.tasks]  # type: ignore[union-attr]
        law(len(tasks) <= self._own, f"{self.process.name}: tasks are left: {tasks}")

    async def bury(self) -> None:
        """Let what a killed server has left in this process end, without any effect."""
        self._loop.bury(self.process)
        self.weather.away = float("inf")
        while tasks := [*self.process.tasks]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1)
