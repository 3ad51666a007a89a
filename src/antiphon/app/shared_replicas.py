"""Shares the work of replicas, and which are drained, with the servers of the same database.

A few times a second, if anything has changed, this process tells its work and reads that of others, in one
transaction. While it has no work, and nobody else has, nothing is written or read. A database that does not
answer within a second is not asked for one: meanwhile what others told counts as long as it may, and then
only the work of this server does. What is drained stays drained.

Answers of the database are applied in the order of its questions, so an older one never undoes a newer.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import structlog

from antiphon.app.metrics import Metrics
from antiphon.app.storage import Storage
from antiphon.core.errors import StoreError
from antiphon.core.shared_loads import Drain, OtherLoads, SharedReplicas, shared_name
from antiphon.store.store import REPLICAS, Replicas, Watch

TICK_SECONDS = 0.25
"""How often this process tells and reads, at most."""
BEAT_SECONDS = 1.0
"""How often it tells of work that does not change, or for which there seem to be no others."""
QUESTION_SECONDS = 1.0
"""How long the database may take; after no answer, it is not asked for as long."""

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Pools(Protocol):
    """The replicas of this process, by their names in it."""

    @property
    def replica_loads(self) -> Mapping[str, int]:
        """The generations that this process has at each, running or waiting."""
        ...

    @property
    def drained_replicas(self) -> Mapping[str, Drain]:
        """Those that are drained."""
        ...

    def count_elsewhere(self, loads: Mapping[str, int]) -> None:
        """Other servers have so many generations there."""
        ...

    def drain(self, replica: str, drain: Drain | None) -> object:
        """Drain a replica or, with None, resume it."""
        ...


class SharedPools:
    """The pools of a process, of which the processes of other servers learn.

    `server` returns the id of this server: what its own processes tell is not read, because they count each
    other's work in shared memory. `named` returns the name of a replica among all servers, or None.
    """

    def __init__(
        self,
        storage: Storage,
        metrics: Metrics,
        pools: Pools,
        server: Callable[[], str],
        named: Callable[[str], str | None] | None = None,
    ) -> None:
        self._storage = storage
        self._metrics = metrics
        self._pools = pools
        self._server = server
        self._name = named or lru_cache(None)(partial(shared_name, host=socket.gethostname()))
        self._others = OtherLoads()
        self._told: Mapping[str, int] = {}
        self._told_at: float | None = None
        self._away_until = 0.0
        self._answers = True
        self._asking = asyncio.Lock()
        self._forgetting: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @cached_property
    def process(self) -> str:
        """The id of this process."""
        return uuid4().hex

    @property
    def counted(self) -> frozenset[str]:
        """The processes of other servers whose work counts here now."""
        return self._others.processes

    # Drained replicas

    def shares(self, replica: str) -> bool:
        """Whether a replica of this name is drained at all servers."""
        return self._task is not None and self._name(replica) is not None

    async def drain(self, replica: str, by: str) -> None:
        """Have all servers drain a replica. Raises StoreError; `refresh` applies it here."""
        await self._answer(self._store.drain(self._name(replica) or replica, by, QUESTION_SECONDS))

    async def resume(self, replica: str) -> None:
        """Have all servers resume it. Raises StoreError; `refresh` applies it here."""
        await self._answer(self._store.resume(self._name(replica) or replica, QUESTION_SECONDS))

    async def resume_unlisted(self, replica: str) -> bool:
        """Resume a replica that this server does not have; whether it was drained. Raises StoreError."""
        shared = await self._answer(self._store.read(self._server()))
        drained = self._name(replica) in shared.drained
        if drained:
            await self.resume(replica)
        return drained

    async def refresh(self) -> None:
        """Apply what the database knows by now. Raises StoreError."""
        await self._ask(lambda: self._store.read(self._server()))

    # Work

    async def start(self) -> None:
        """Apply what is drained, and share from now on, if any replica can be shared."""
        if not any(map(self._name, self._pools.replica_loads)):
            return
        with suppress(StoreError):
            await self.refresh()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Tell others that this process has no work any more."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        if self._forgetting is not None:
            self._forgetting.cancel()
        if self._told_at is not None:
            with suppress(StoreError):
                await self._answer(self._store.leave(self.process))

    async def _run(self) -> None:
        with self._storage.store.watch(REPLICAS) as watch:
            while True:
                await asyncio.sleep(TICK_SECONDS)
                if self._now >= self._away_until:
                    with suppress(StoreError):
                        await self._exchange(watch)

    async def _exchange(self, watch: Watch) -> None:
        """Tell and read what is due."""
        loads = self._loads
        alone, changed = self._others.until is None, loads != self._told
        seconds = TICK_SECONDS if changed and not alone else BEAT_SECONDS
        if (changed or loads) and (self._told_at is None or self._now - self._told_at >= seconds):
            await self._tell(loads)
        elif await watch.changed(0) or not alone:
            await self.refresh()

    async def _tell(self, loads: Mapping[str, int]) -> None:
        begins, self._told, self._told_at = not self._told, {}, self._now
        await self._ask(lambda: self._store.tell(self._server(), self.process, loads, begins=begins))
        self._told = loads  # before, nothing may have been told

    @property
    def _loads(self) -> Mapping[str, int]:
        """The work of this process that others have to know, by the names that all know."""
        loads = Counter[str]()
        for name, load in self._pools.replica_loads.items():
            if load and (shared := self._name(name)):
                loads[shared] += load  # one that is listed twice, in two spellings
        return loads

    # The database

    async def _ask(self, question: Callable[[], Coroutine[Any, Any, SharedReplicas]]) -> None:
        """Ask, and apply the answer. Raises StoreError."""
        async with self._asking:
            asked = self._now
            shared = await self._answer(question())
            self._others.hear(shared.others, asked)
            self._count()
            self._apply(shared.drained)

    async def _answer(self, asking: Coroutine[Any, Any, T]) -> T:
        """The answer of the database. Raises StoreError if it takes too long."""
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                answer = await asking
        except (TimeoutError, StoreError) as error:
            self._away_until = self._now + QUESTION_SECONDS
            self._note(answers=False)
            raise StoreError("The database did not answer for the replicas.") from error
        self._note(answers=True)
        return answer

    def _note(self, *, answers: bool) -> None:
        self._metrics.asked_for_replicas(answers=answers)
        if answers != self._answers:
            self._answers = answers
            if answers:
                log.info("the loads of replicas are shared again")
            else:
                log.warning("the database does not answer: replicas are chosen by the load of this server")

    def _count(self) -> None:
        """Have the pools count what others have told, and count again when some of it is too old."""
        sums = self._others.sums(self._now)
        names = {name: self._name(name) for name in self._pools.replica_loads}
        self._pools.count_elsewhere({name: sums.get(shared, 0) for name, shared in names.items() if shared})
        if self._forgetting is not None:
            self._forgetting.cancel()
        until = self._others.until
        self._forgetting = None if until is None else self._loop.call_at(until, self._count)

    def _apply(self, drained: Mapping[str, Drain]) -> None:
        before = self._pools.drained_replicas
        for name in self._pools.replica_loads:
            if (shared := self._name(name)) and before.get(name) != drained.get(shared):
                self._pools.drain(name, drained.get(shared))

    @property
    def _store(self) -> Replicas:
        return self._storage.store.replicas

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def _now(self) -> float:
        return self._loop.time()
