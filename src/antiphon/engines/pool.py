"""Several replicas of one model as one engine: a request goes to one of them, and to another if that fails.

A request goes to the replica with the lowest cost: the blocks of its prompt that the replica has not
computed before, and its current work. What its cache has is remembered here, no more than it has room for, or
told by its events (`cache_views.py`). The work of other processes and servers counts as far as it is known.
Equal replicas are in another order in each process: servers that share them would else all begin with the
same ones.

A replica that is drained gets no new requests, and continues its running ones. A replica that fails gets no
requests until it answers a probe again. All are probed every few seconds, so most failures are noticed
before a request fails. The generations of a failed replica end with `ReplicaLostError`: each requests the
rest of its answer from another one (see `run/generation.py`). A request that makes several replicas fail in
succession is given up.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from enum import StrEnum
from functools import partial
from random import SystemRandom
from typing import Protocol, TypeVar, runtime_checkable

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import Chunk, PromptToken
from antiphon.core.decision import Verdicts
from antiphon.core.errors import (
    AntiphonError,
    EngineBusyError,
    EngineError,
    EngineNotReadyError,
    ReplicaLostError,
)
from antiphon.core.limits import Limits
from antiphon.core.permits import Elsewhere, Nowhere
from antiphon.core.shared_loads import Drain
from antiphon.core.shared_queue import SharedQueue
from antiphon.core.turn import Sampling
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores
from antiphon.engines.block_index import BlockIndex, PromptBlocks
from antiphon.engines.cache_views import ApproximateView, CacheView, EventsView
from antiphon.engines.engine import (
    BeamSearcher,
    DecisionRequest,
    DecisionServer,
    Embedder,
    Engine,
    EngineOptions,
    GenerationRequest,
    Load,
    ModelCard,
    NextToken,
    NextTokenRequest,
    Placement,
    Probed,
    PromptScorer,
    Range,
    Receiver,
    Reranker,
    SharesSlots,
    Transcriber,
    TranscriptionRequest,
    Work,
)
from antiphon.engines.figures import UNKNOWN, CacheFigures, Measured, PoolFigures, combined
from antiphon.engines.kv_events import CacheEvents
from antiphon.engines.kv_sources import Source
from antiphon.engines.next_token import score_next

PROBE_SECONDS = 5.0
"""Seconds between probes of a replica, and the time limit of a probe."""
FIRST_PROBE_SECONDS = 0.25
"""Seconds from a failure to the first probe; then twice as long each time, up to the usual."""
REST_SECONDS = 1.0
"""Seconds for which a replica that has too many requests gets no more, if there are others."""
BUSY_TOKENS = 256
"""A running or waiting generation costs as much as this number of new tokens of a prompt."""
OTHER_SERVERS_WEIGHT = 0.25
"""What a generation of another server counts, where one of this server counts 1.

It was told a moment ago, to all servers: if it counted as much, all would turn to the same replicas at once,
and away from those that have the beginning of a prompt (`python -m simulation.fleet --measure`).
"""

T = TypeVar("T")

log = structlog.get_logger()

_draw = SystemRandom().random


class EventFollower(Protocol):
    """Applies the events of caches to what is known of them."""

    def follow(self, sources: Sequence[Source], view: EventsView) -> None:
        """Apply the events of these publishers, one for each rank, and no more those of earlier ones."""
        ...

    async def stop(self) -> None:
        """Follow none any more."""
        ...


Follow = Callable[[], EventFollower]


@runtime_checkable
class MemberOptions(Protocol):
    """Options of an engine that can do more in a pool than alone."""

    def build_member(self, limits: Limits) -> Engine:
        """The engine, as one of a pool. Raises AntiphonError."""
        ...

    @property
    def follow(self) -> Follow | None:
        """What follows the events of its cache, if that is wanted. Raises AntiphonError without the extra."""
        ...


def member_of(options: EngineOptions, limits: Limits) -> Engine:
    """The engine with these options, as one of a pool. Raises AntiphonError."""
    return options.build_member(limits) if isinstance(options, MemberOptions) else options.build(limits)


def follow_of(members: Sequence[EngineOptions]) -> Follow | None:
    """What follows the events of the caches of these members, if any of them wants that."""
    follows = (options.follow for options in members if isinstance(options, MemberOptions))
    return next((follow for follow in follows if follow is not None), None)


@runtime_checkable
class TellsEvents(Protocol):
    """An engine whose server may publish events of its cache."""

    async def event_sources(self) -> Sequence[Source]:
        """Where it publishes them; nowhere, if it does not. Raises EngineError."""
        ...


class ReplicaStatus(StrEnum):
    """Whether a replica gets requests."""

    UP = "up"
    AWAY = "away"
    """It does not answer."""
    DRAINED = "drained"
    """By the operator."""


class ReplicaState(Struct, frozen=True):
    """How a replica is: its name, and how many generations of this process it works on, or has waiting.

    `elsewhere` are those of other servers, as far as they are known.
    """

    name: str
    status: ReplicaStatus
    running: int = 0
    waiting: int = 0
    elsewhere: int = 0
    drained: Drain | None = None


class Replica:
    """One of the engines, and its state."""

    def __init__(self, engine: Engine, name: str, place: float, cache: CacheView) -> None:
        self.engine = engine
        self.cache = cache
        self.follows = False
        """It was asked for the events of its cache."""
        self.measured = False
        """Its cache has the size that the engine says."""
        self.name = name
        self.place = place
        """Its place among equals, in this process."""
        self.ways = 1
        """The data-parallel ranks that share its load."""
        self.at_ranks: dict[int, int] = {}
        """The generations of this pool at its data-parallel ranks."""
        self.started = False
        self.up = False
        self.drained: Drain | None = None
        self.failures = 0
        """In a row."""
        self.elsewhere: Elsewhere = Nowhere()
        """The generations of other processes of this server."""
        self.other_servers = 0
        """The generations of other servers."""
        self._overloaded_until = 0.0

    @property
    def is_overloaded(self) -> bool:
        """Whether it has recently refused a request because it had too many."""
        return asyncio.get_running_loop().time() < self._overloaded_until

    @property
    def usable(self) -> bool:
        """It may get requests now."""
        return self.up and not self.drained

    @property
    def state(self) -> ReplicaState:
        """The state, as it is reported."""
        load = self.engine.load if self.started else Load()
        status = ReplicaStatus.UP if self.up else ReplicaStatus.AWAY
        return ReplicaState(
            self.name,
            ReplicaStatus.DRAINED if self.drained else status,
            load.running,
            load.waiting,
            self.other_servers,
            self.drained,
        )

    async def cache_figures(self) -> CacheFigures:
        """The figures of its engine; if it gets no requests, only its counters."""
        if not isinstance(self.engine, Measured):
            return UNKNOWN
        figures = await self.engine.cache_figures()
        if self.usable:
            return figures
        return CacheFigures(queries=figures.queries, hits=figures.hits, told=figures.told)

    def mark_overloaded(self) -> None:
        """It has too many requests."""
        self._overloaded_until = asyncio.get_running_loop().time() + REST_SECONDS

    @property
    def busy(self) -> float:
        """The generations that it, or each of its ranks, works on, or that wait for it."""
        load, elsewhere = self.engine.load, self.elsewhere
        own = load.running + load.waiting + elsewhere.running + elsewhere.waiting
        return (own + OTHER_SERVERS_WEIGHT * self.other_servers) / self.ways

    def placement(self, prompt: PromptBlocks) -> Placement:
        """What its server is asked for: the rank where a prompt costs least, if it takes ranks."""
        cache, rank = self.cache, None
        if not isinstance(cache, EventsView):
            return Placement()
        if cache.take_ranks:
            tokens = cache.rank_tokens(prompt)
            costs = [BUSY_TOKENS * self.at_ranks.get(rank, 0) - tokens[rank] for rank in range(len(tokens))]
            rank = costs.index(min(costs))
        return Placement(rank, cache.tell_again)

    @property
    def ranks(self) -> Sequence[CacheEvents]:
        """The publishers whose events tell of its cache."""
        return self.cache.ranks if isinstance(self.cache, EventsView) else ()

    async def measure(self) -> None:
        """Ask the engine how much its cache holds, until it is known."""
        if not self.measured and (tokens := (await self.cache_figures()).tokens):
            self.cache.resize(tokens)
            self.measured = True

    def forget(self) -> None:
        """It has failed: its cache may be another one now, and its events elsewhere."""
        self.cache.forget()
        self.measured = self.follows = False


Choose = Callable[[Sequence[Replica], PromptBlocks], Replica]
"""Which of the replicas gets a prompt."""


def cheapest(replicas: Sequence[Replica], prompt: PromptBlocks) -> Replica:
    """The replica where it costs least; of those where it costs the same, the one whose cache has least.

    The load is looked at only where what is cached could make a replica the cheapest.
    """
    cached = [replica.cache.cached_tokens(prompt) for replica in replicas]
    most = max(cached)
    first = replicas[cached.index(most)]
    least, best = BUSY_TOKENS * first.busy - most, [first]
    for replica, tokens in zip(replicas, cached, strict=True):
        if -tokens > least or replica is first:
            continue
        cost = BUSY_TOKENS * replica.busy - tokens
        if cost < least:
            least, best = cost, [replica]
        elif cost == least:
            best.append(replica)
    return best[0] if len(best) == 1 else min(best, key=lambda one: (one.cache.size, one.place))


class PoolEngine:
    """Replicas of one model, by their names for people; `choose` selects the one for a request.

    With `follow`, caches are known by the events of replicas that publish them. `draw` gives each replica its
    place among equals.
    """

    def __init__(
        self,
        engines: Sequence[tuple[str, Engine]],
        choose: Choose = cheapest,
        follow: Follow | None = None,
        draw: Callable[[], float] = _draw,
    ) -> None:
        self._choose = choose
        self._follow = follow
        self._follower: EventFollower | None = None
        self._index = BlockIndex(_now)
        self._replicas = [
            Replica(engine, name, draw(), ApproximateView(self._index)) for name, engine in engines
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._wakes = {replica: asyncio.Event() for replica in self._replicas}
        self._stopping = False
        self._predicted = self._cached = 0
        self._card: ModelCard | None = None

    @property
    def card(self) -> ModelCard:
        """The model, with the capabilities that all replicas have.

        Raises EngineNotReadyError before `start`.
        """
        if self._card is None:
            raise EngineNotReadyError
        return self._card

    @property
    def load(self) -> Load:
        """The sum of the loads of all replicas."""
        loads = [replica.engine.load for replica in self._replicas if replica.started]
        return Load(*(sum(getattr(load, field) for load in loads) for field in Load.__struct_fields__))

    async def cache_figures(self) -> CacheFigures:
        """Those of all replicas as one; room that gets no requests, and its usage, are left out.

        What replicas have counted stays, because counters do not decrease.
        """
        measured = [replica for replica in self._replicas if replica.started]
        figures = combined(await asyncio.gather(*(replica.cache_figures() for replica in measured)))
        return replace(figures, pool=self._figures)

    @property
    def _figures(self) -> PoolFigures:
        ranks = [rank for replica in self._replicas for rank in replica.ranks]
        return PoolFigures(
            self._predicted,
            self._cached,
            sum(rank.messages for rank in ranks),
            sum(rank.gaps for rank in ranks),
            sum(rank.losses for rank in ranks),
            sum(len(rank) for rank in ranks),
        )

    @property
    def memory(self) -> int:
        """The sum of the memory of all replicas."""
        return sum(replica.engine.memory for replica in self._replicas)

    @property
    def replicas(self) -> list[ReplicaState]:
        """The replicas and their states."""
        return [replica.state for replica in self._replicas]

    def drain(self, replica: str, drain: Drain | None) -> bool:
        """Stop requests to the replica of this name or, with None, resume them; False if there is none.

        Its running answers continue.
        """
        named = [one for one in self._replicas if one.name == replica]
        for one in named:
            one.drained = drain
            if drain is None:
                log.info("a replica is used again", replica=replica)
            else:
                log.info("a replica is drained", replica=replica, by=drain.by)
        return bool(named)

    @property
    def drained_replicas(self) -> dict[str, Drain]:
        """Those that are drained, by their names."""
        return {replica.name: replica.drained for replica in self._replicas if replica.drained}

    @property
    def replica_loads(self) -> Mapping[str, int]:
        """How many generations of this process run or wait at each replica, by its name."""
        loads = Counter[str]()
        for replica in self._replicas:
            load = replica.engine.load if replica.started else Load()
            loads[replica.name] += load.running + load.waiting
        return loads

    def count_elsewhere(self, loads: Mapping[str, int]) -> None:
        """Other servers have so many generations at these replicas."""
        for replica in self._replicas:
            replica.other_servers = loads.get(replica.name, 0)

    def share(self, permits: Callable[[], SharedQueue]) -> None:
        """Share the slots of each replica, whose load in other processes then counts here."""
        for replica in self._replicas:
            engine = replica.engine
            if isinstance(engine, PoolEngine):
                engine.share(permits)
            elif isinstance(engine, SharesSlots):
                replica.elsewhere = queue = permits()
                engine.share(partial(_same, queue))

    @property
    def up(self) -> bool:
        return any(replica.usable for replica in self._replicas)

    async def start(self) -> None:
        """Start all replicas: at least one must be available, and all that are must run the same model.

        Raises EngineError.
        """
        self._stopping = False
        failures = await asyncio.gather(*map(self._start, self._replicas))
        if not any(replica.up for replica in self._replicas):
            raise next(failure for failure in failures if failure is not None)
        for replica, failure in zip(self._replicas, failures, strict=True):
            if failure is not None:
                log.warning("a replica is unavailable", replica=replica.name, error=str(failure))
        if self._follow is not None:
            self._follower = self._follow()
            await asyncio.gather(*(self._follow_events(replica) for replica in self._replicas if replica.up))
        self._tasks = [asyncio.create_task(self._watch(replica)) for replica in self._replicas]

    async def _start(self, replica: Replica) -> EngineError | None:
        """Start a replica; returns why that failed. Raises EngineError if it runs another model."""
        try:
            await replica.engine.start()
        except EngineError as error:
            return error
        self._card = _common(self._card, replica.engine.card, replica.name)
        replica.started = replica.up = True
        return None

    async def stop(self) -> None:
        """Stop all replicas."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._follower is not None:
            await self._follower.stop()
            for replica in self._replicas:
                replica.follows = False
        await asyncio.gather(*(replica.engine.stop() for replica in self._replicas))

    # Health

    async def _watch(self, replica: Replica) -> None:
        """Probe a replica for as long as the engine runs: soon after a failure, and else now and then."""
        wake = self._wakes[replica]
        while True:
            wait = PROBE_SECONDS if replica.up else FIRST_PROBE_SECONDS * 2.0 ** (replica.failures - 1)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait, PROBE_SECONDS)):
                    await wake.wait()
            if wake.is_set():  # it has failed meanwhile
                wake.clear()
                continue
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await self._probe(replica)
            except (EngineError, TimeoutError) as error:
                self._failed(replica, error)
            else:
                self._answered(replica)

    async def _probe(self, replica: Replica) -> None:
        if not replica.started:
            if (failure := await self._start(replica)) is not None:
                raise failure
        elif isinstance(replica.engine, Probed):
            await replica.engine.probe()
        await self._follow_events(replica)
        await replica.measure()

    async def _follow_events(self, replica: Replica) -> None:
        """Know its cache by its events from now on, if it publishes any."""
        if self._follower is None or replica.follows or not isinstance(replica.engine, TellsEvents):
            return
        with suppress(EngineError):
            sources = await replica.engine.event_sources()
            replica.follows = True
            replica.ways = max(1, len(sources))
            if sources and not isinstance(replica.cache, EventsView):
                replica.cache = EventsView(self._index)
                replica.measured = False
            if isinstance(replica.cache, EventsView):
                self._follower.follow(sources, replica.cache)
            log.info("events of a cache", replica=replica.name, ranks=len(sources))

    def _failed(self, replica: Replica, error: BaseException) -> None:
        """It gets no more requests, until it answers a probe."""
        if replica.up:
            why = str(error.__cause__ or error) or type(error).__name__
            log.warning("a replica failed", replica=replica.name, error=why)
            self._wakes[replica].set()
        replica.forget()  # also what was sent to it while it was away, because no other was there
        replica.up = False
        replica.failures += 1

    def _answered(self, replica: Replica) -> None:
        if not replica.up:
            log.info("a replica is back", replica=replica.name)
        replica.up, replica.failures = True, 0

    def _available(self) -> list[Replica]:
        """The replicas that answer and are not too busy; if there are none, all that may soon be."""
        started = [replica for replica in self._replicas if replica.started and not replica.drained]
        up = [replica for replica in started if replica.up] or started
        return [replica for replica in up if not replica.is_overloaded] or up

    # Methods that any replica can serve

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        return await self._first(lambda engine: engine.tokenize(pieces))

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        return await self._first(lambda engine: engine.token_texts(ids))

    async def detokenize(self, ids: Sequence[int]) -> str:
        return await self._first(lambda engine: engine.detokenize(ids))

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        async def embed(engine: Engine) -> Embeddings:
            assert isinstance(engine, Embedder)
            return await engine.embed(request)

        return await self._first(embed)

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        async def score(engine: Engine) -> Scores:
            assert isinstance(engine, Reranker)
            return await engine.score(pairs)

        return await self._first(score)

    async def decide(self, request: DecisionRequest) -> Verdicts:
        async def decide(engine: Engine) -> Verdicts:
            assert isinstance(engine, DecisionServer)
            return await engine.decide(request)

        return await self._first(decide)

    async def transcribe(self, audio: TranscriptionRequest) -> AsyncGenerator[bytes, None]:
        """By the first replica that returns a first piece."""

        async def first_piece(engine: Engine) -> tuple[bytes, AsyncGenerator[bytes, None]]:
            assert isinstance(engine, Transcriber)
            pieces = engine.transcribe(audio)
            return await anext(pieces), pieces

        first, rest = await self._first(first_piece)
        async with aclosing(rest):
            yield first
            async for piece in rest:
                yield piece

    async def score_prompt(self, request: GenerationRequest) -> tuple[PromptToken, ...]:
        async def score(engine: Engine) -> tuple[PromptToken, ...]:
            assert isinstance(engine, PromptScorer)
            return await engine.score_prompt(request)

        return await self._first(score)

    async def search(self, request: GenerationRequest) -> Sequence[Sequence[Chunk]]:
        async def search(engine: Engine) -> Sequence[Sequence[Chunk]]:
            assert isinstance(engine, BeamSearcher)
            return await engine.search(request)

        return await self._first(search)

    async def score_next(self, request: NextTokenRequest) -> tuple[NextToken, ...]:
        """By the replica where the beginning costs least; if it fails, all of it by another one."""
        prompt = _blocks(request.beginning.ids, request.sampling)
        failure: EngineError = EngineNotReadyError()
        available = self._available()
        while available:
            replica = self._choose(available, prompt)
            replica.cache.read(prompt)
            try:
                return await score_next(replica.engine, request)
            except EngineError as error:
                failure = error
                self._note_failure(replica, error)
                available = [other for other in available if other is not replica]
        raise failure

    async def _first(self, do: Callable[[Engine], Awaitable[T]]) -> T:
        """The result of the first replica that returns one. Raises AntiphonError."""
        failure: EngineError = EngineNotReadyError()
        for replica in sorted(self._available(), key=lambda replica: replica.engine.load.running):
            try:
                return await do(replica.engine)
            except EngineError as error:
                failure = error
                self._failed(replica, error)
        raise failure

    # Generations

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        """Begin one generation on one of the replicas."""
        prompt = _blocks(request.prompt.ids, request.sampling)
        available = self._available()
        if not available:
            return asyncio.get_running_loop().call_soon(receiver.fail, EngineNotReadyError())
        replica = self._choose(available, prompt)
        predicted = int(replica.cache.cached_tokens(prompt))
        placement = replica.placement(prompt)
        replica.cache.read(prompt, placement.rank)
        count = partial(self._count_cached, predicted)
        guarded = _Guarded(receiver, partial(self._replica_error, replica), count)
        if placement == Placement():
            return replica.engine.generate(request, guarded)
        placed = replace(request, placement=placement)
        if placement.rank is None:
            return replica.engine.generate(placed, guarded)
        return _AtRank(replica, placed, placement.rank, guarded)

    def _count_cached(self, predicted: int, first: Chunk) -> None:
        self._predicted += predicted
        self._cached += first.cached_tokens

    def _note_failure(self, replica: Replica, error: EngineError) -> None:
        if isinstance(error, EngineBusyError):
            replica.mark_overloaded()
        else:
            self._failed(replica, error)

    def _replica_error(self, replica: Replica, error: AntiphonError) -> AntiphonError:
        """The error of a generation whose replica failed."""
        if self._stopping or not isinstance(error, EngineError):
            return error
        self._note_failure(replica, error)
        if not any(other.usable and not other.is_overloaded for other in self._replicas):
            return error
        lost = ReplicaLostError()
        lost.__cause__ = error
        return lost


def _now() -> float:
    return asyncio.get_running_loop().time()


def _same(queue: SharedQueue) -> SharedQueue:
    return queue


class _Guarded:
    """A receiver whose failures are those of the pool. The first chunk is counted."""

    def __init__(
        self,
        receiver: Receiver,
        translate: Callable[[AntiphonError], AntiphonError],
        count: Callable[[Chunk], None],
    ) -> None:
        self._receiver = receiver
        self._translate = translate
        self._count: Callable[[Chunk], None] | None = count

    def push(self, chunks: list[Chunk]) -> None:
        if self._count is not None:
            self._count(chunks[0])
            self._count = None
        self._receiver.push(chunks)

    def fail(self, error: AntiphonError) -> None:
        self._receiver.fail(self._translate(error))


class _AtRank:
    """A generation at a rank of a replica, which it counts for until it ends."""

    def __init__(self, replica: Replica, request: GenerationRequest, rank: int, receiver: Receiver) -> None:
        self._receiver = receiver
        self._counts = replica.at_ranks
        self._rank: int | None = rank
        self._counts[rank] = self._counts.get(rank, 0) + 1
        self._work = replica.engine.generate(request, self)

    def push(self, chunks: list[Chunk]) -> None:
        if chunks[-1].finish is not None:
            self._end()
        self._receiver.push(chunks)

    def fail(self, error: AntiphonError) -> None:
        self._end()
        self._receiver.fail(error)

    def cancel(self) -> None:
        self._end()
        self._work.cancel()

    def _end(self) -> None:
        if self._rank is not None:
            self._counts[self._rank] -= 1
            self._rank = None


def _blocks(ids: Sequence[int], sampling: Sampling) -> PromptBlocks:
    """The blocks of a prompt, with salt and adapters: an adapter at its own scale is known by its name."""
    adapters = (adapter.name if adapter.scale == 1 else adapter for adapter in sampling.lora or ())
    return PromptBlocks(ids, sampling.cache_salt, tuple(adapters))


def _common(pool_card: ModelCard | None, card: ModelCard, name: str) -> ModelCard:
    """The card of a pool with one more replica. Raises EngineError if that runs another model."""
    if pool_card is None:
        return replace(card, capabilities=replace(card.capabilities, replicas=True))
    for field in ("chat_template", "bos", "eos", "opening"):
        if getattr(pool_card, field) != getattr(card, field):
            raise EngineError(
                f"{name} does not run the same model as the other replicas: its {field} is another."
            )
    pool, replica = pool_card.capabilities, card.capabilities
    if pool.chat != replica.chat:
        raise EngineError(f"{name} takes conversations, and the other replicas prompts, or the reverse.")
    common = replace(
        pool,
        token_ids=pool.token_ids and replica.token_ids,
        text_prompts=pool.text_prompts or replica.text_prompts,
        sampling=pool.sampling & replica.sampling,
        ranges={
            name: pool.ranges.get(name, Range()).both(replica.ranges.get(name, Range()))
            for name in (*pool.ranges, *replica.ranges)
        },
        alternatives=min(pool.alternatives, replica.alternatives),
        constraints=tuple(kind for kind in pool.constraints if kind in replica.constraints),
        triggers=pool.triggers and replica.triggers,
        media=pool.media & replica.media,
        media_remedy=pool.media_remedy or replica.media_remedy,
        tasks=pool.tasks & replica.tasks,
        embedding=pool.embedding & replica.embedding,
        answers_questions=pool.answers_questions and replica.answers_questions,
        scales_adapters=pool.scales_adapters and replica.scales_adapters,
    )
    return replace(
        pool_card,
        context=min(pool_card.context, card.context),
        capabilities=common,
        adapters=tuple(name for name in pool_card.adapters if name in card.adapters),
    )
