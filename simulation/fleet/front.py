"""A server in front of the replicas, without HTTP: its pool, its accounts, and the answers that it gives."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from antiphon.app.limit_ledger import StoreLedger
from antiphon.app.shared_replicas import SharedPools
from antiphon.core.accounts import Account, Permissions
from antiphon.core.accumulator import Accumulator
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.events import Event, TextDelta
from antiphon.core.limits import CLIENT, Limits
from antiphon.core.permits import LAST, PRIORITY
from antiphon.decode.decoder import Decoder
from antiphon.decode.ids import ids_by, openai_call_id
from antiphon.decode.table import Table
from antiphon.dialects.registry import find
from antiphon.engines.block_index import PromptBlocks
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.pool import PoolEngine, Replica
from antiphon.run.generation import GenerationRun, Interceptors
from simulation.database import DatabaseFaults
from simulation.fleet.bus import Follower
from simulation.fleet.engine import RemoteEngine, name_of
from simulation.fleet.laws import Answer
from simulation.fleet.machine import written_tokens
from simulation.loop import Process

if TYPE_CHECKING:
    from simulation.fleet.workloads import Question
    from simulation.fleet.world import World

LIMITS = Limits(waiting=100_000, client_waiting=100_000)
TABLE = Table(find("plain").grammar)


class _Questions:
    """Counts questions to the database: nobody reads them."""

    def asked_for_limits(self, *, answers: bool) -> None:
        """See `Metrics`."""

    asked_for_replicas = asked_for_limits


class Front:
    """One server from its start to its end."""

    def __init__(self, world: "World", name: str) -> None:
        self.process = Process(name)
        self.name = name
        self.process.context().run(self._build, world)

    def _build(self, world: "World") -> None:
        self._world = world
        self._loop = world.loop
        self._laws = world.laws
        self.database_faults = DatabaseFaults()
        self.store = world.database.store(self.process, self.database_faults)
        questions: Any = _Questions()
        storage: Any = self
        self.ledger = StoreLedger(storage, questions)
        self.accounts: dict[str, Account] = {}
        engines = [(machine.name, RemoteEngine(machine, LIMITS)) for machine in world.machines]
        follow = None if world.plan.delay is None else partial(Follower, world.bus, self.process)
        self.pool = PoolEngine(engines, self._choose, follow, draw=Random(self.name).random)
        self.shared = SharedPools(storage, questions, self.pool, lambda: self.name, str)

    def _choose(self, replicas: Sequence[Replica], prompt: PromptBlocks) -> Replica:
        replica = self._world.plan.choose(replicas, prompt)
        assert isinstance(replica.engine, RemoteEngine)
        replica.engine.expected = int(replica.cache.cached_tokens(prompt))
        return replica

    def run(self, work: Any) -> "asyncio.Task[Any]":
        """Run a coroutine in the process of this server."""
        context = self.process.context()
        return context.run(lambda: self._loop.create_task(work, context=context))

    async def start(self) -> None:
        """Open everything."""
        await self.run(self._start())

    async def _start(self) -> None:
        await self.store.open()
        for owner, limit in self._world.plan.limits.items():
            account = self.accounts[owner] = Account(owner, owner, Permissions(tokens_per_minute=limit))
            account.share(self.ledger)
        if self._world.plan.shares:
            await self.shared.start()
        await self.pool.start()

    async def stop(self) -> None:
        """Close everything."""
        await self.run(self._stop())

    async def _stop(self) -> None:
        for account in self.accounts.values():
            await account.close()
        await self.shared.stop()
        await self.pool.stop()
        await self.store.close()

    async def drain(self, name: str, *, drained: bool) -> None:
        """Drain a replica at all servers, or resume it. Raises StoreError. See `http/models.py`."""
        await (self.shared.drain(name, "operator") if drained else self.shared.resume(name))
        await self.shared.refresh()

    @property
    def counted(self) -> int:
        """How many generations of other servers this one counts."""
        return sum(replica.elsewhere for replica in self.pool.replicas)

    def claims(self, ids: tuple[int, ...]) -> Iterator[tuple[str, int]]:
        """How many tokens of a prompt this server expects in the cache of each replica, by its name."""
        prompt = PromptBlocks(ids)
        for replica in self.pool._replicas:
            yield replica.name, int(replica.cache.cached_tokens(prompt))

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self.process.alive = False
        for machine in self._world.machines:
            machine.lose(self.process)

    def ask(self, question: "Question", *, last: bool) -> None:
        """A client asks this server; if it is `last`, nobody waits for the answer."""
        answer = Answer(question, self._loop.time(), self.name)
        self._laws.answers[question.number] = answer
        self.run(self._answer(answer, last))

    async def _answer(self, answer: Answer, last: bool) -> None:
        question = answer.question
        CLIENT.set(question.owner)
        if last:
            PRIORITY.set(LAST)
        account = self.accounts.get(question.owner)
        try:
            if account is None:
                await self._generate(answer)
            else:
                await self._generate_charged(answer, account)
        except RequestError:  # its key has not as many tokens left, or never
            self._laws.ended(answer, "refused")
        except EngineError as error:
            self._laws.ended(answer, f"failed: {error}")
        else:
            self._laws.ended(answer, "complete")

    async def _generate_charged(self, answer: Answer, account: Account) -> None:
        """See `AnswerSource`, which does the same, and `app/observing.py` for the end."""
        question, rng = answer.question, Random(answer.question.number)
        room = rng.choice((0, question.length, question.length + 100))  # 0: the client sets no limit
        tokens = len(question.ids) + room
        await account.secure(place=True)
        with account:
            await account.secure(tokens=tokens)
            reserved = account.reserve(tokens)
            self._laws.admitted(question.owner, reserved, exact=self._world.plan.is_exact)
            try:
                await self._generate(answer)
            finally:
                used = len(question.ids) + written_tokens(answer.text)
                account.settle(reserved, used)
                self._laws.settled(question.owner, reserved, used)

    async def _generate(self, answer: Answer) -> None:
        question = answer.question
        prompt = Prompt(name_of(question.number, question.length), question.ids)
        run = GenerationRun(
            self.pool,
            GenerationRequest(prompt, question.length),
            Decoder(TABLE, ids=ids_by(openai_call_id, 0, Random(0))),
            Interceptors(),
            Accumulator(),
        )
        await run.run(_Client(self, answer), 0)


class _Client:
    """A client that reads all at once. See `Output`."""

    paused = False

    def __init__(self, front: Front, answer: Answer) -> None:
        self._front = front
        self._answer = answer

    @property
    def has_begun(self) -> bool:
        return bool(self._answer.text)

    def push(self, choice: int, events: list[Event]) -> None:
        """See `Output`."""
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        if text:
            if self._answer.first is None:
                self._answer.first = self._front._loop.time()
            self._front._laws.told(self._answer, text)

    def delta_writer(self, choice: int, delta: Any) -> None:
        """See `Output`."""

    def announce(self) -> None:
        """See `Output`."""

    def stop(self, reason: Exception) -> None:
        """See `Output`."""

    set_prompts = calls_begin = on_pause = on_resume = announce
