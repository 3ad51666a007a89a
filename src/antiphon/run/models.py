"""The models of one server: found by their names, loaded on demand, and unloaded to free memory.

A model that is not loaded is loaded when it is requested. If there is no room, the least recently used one
is unloaded as soon as it is not in use: every user holds its model (`Model.in_use`). Requests that wait for
room are served in their order of arrival, for any model.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from contextvars import ContextVar, Token
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import count
from time import perf_counter
from typing import Any, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.decision import Decision, Verdicts
from antiphon.core.errors import (
    AntiphonError,
    EngineError,
    EngineNotReadyError,
    ModelInUseError,
    NotFoundError,
    RequestError,
)
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.observation import observed
from antiphon.core.shared_loads import Drain
from antiphon.core.turn import Adapter, Turn
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores
from antiphon.engines.engine import Load, ModelCard, Prompt, TranscriptionRequest
from antiphon.engines.figures import CacheFigures
from antiphon.engines.pool import PoolEngine, ReplicaState
from antiphon.model_tables import KEEP_ALL, KeepLoaded
from antiphon.run.adapters import adapters_for
from antiphon.run.failed_loads import RETRY_SECONDS, FailedLoads
from antiphon.run.loading import ModelState, ServedModel
from antiphon.run.model import Model, NextTokens, PlainAnswer, Prepared, PromptSize
from antiphon.tools.tool import Checkable, ServerTool

LOAD_SECONDS = 600.0
"""How long a request waits for its model to be loaded, and for room to load it."""
GRACE_SECONDS = 5.0
"""How long a model stays that was loaded for a request which does not use it yet."""

log = structlog.get_logger()

Asked = TypeVar("Asked", Turn, Decision)

_in_use: ContextVar[tuple[ServedModel, ...]] = ContextVar("in_use", default=())
"""The models that this task holds already."""
_IN_USE = nullcontext()


class Health(StrEnum):
    """The answers of GET /health."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    DRAINING = "draining"


class ModelEntry(Struct, frozen=True):
    """A name that requests may use. `card` is None for a model that was not loaded yet.

    `root` is the canonical name of the model or, of an adapter, its path; an adapter has a `parent`, the
    canonical name of its model.
    """

    name: str
    card: ModelCard | None
    root: str
    parent: str | None = None


class Models:
    """Finds `served`, at least one, by their names, aliases, adapters and patterns.

    `default` is the name of the model for requests that name none, or an unknown one. Raises EngineError if
    two models have one name, a request could not use a name because of `limits`, or `default` is unknown.
    """

    def __init__(  # noqa: PLR0913 - the options of a server's models
        self,
        served: Sequence[ServedModel],
        *,
        default: str | None = None,
        keep: KeepLoaded = KEEP_ALL,
        limits: Limits = DEFAULTS,
        load_seconds: float = LOAD_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._served = served
        self._keep = keep
        self._limits = limits
        self._load_seconds = load_seconds
        self._failed = FailedLoads(retry_seconds)
        self._changing = asyncio.Lock()
        self._load_tasks: dict[ServedModel, asyncio.Task[None]] = {}
        self._freed = asyncio.Event()
        self._clock = count(1)
        self.default = default
        self._needed = {} if default is None else {default: "answer by default"}
        self.health = Health.LOADING
        self._check_names()

    def _check_names(self) -> None:
        seen: set[str] = set()
        for name in (*self.names, *(pattern for served in self._served for pattern in served.patterns)):
            if name in seen:
                raise EngineError(f"Two models are called '{name}'. Rename one.")
            seen.add(name)
        for name in (*self.names, *self._needed):
            if len(name) > (limit := self._limits.name_characters):
                raise EngineError(
                    f"The name '{name}' of a model has more than {limit} characters, too many for requests. "
                    f"Use a shorter name, or --limit name_characters={len(name)}."
                )
        named = all(served.names for served in self._served)  # others are known after loading
        for name, purpose in self._needed.items():
            if named and self._lookup(name) is None:
                raise EngineError(
                    f"There is no model '{name}' to {purpose}. Use one of: {self._known_names()}."
                )

    def require(self, name: str, purpose: str) -> None:
        """Check that there is a model of this name. Raises EngineError, or `start` does, if there is none."""
        self._needed[name] = purpose
        self._check_names()

    async def start(self) -> None:
        """Load as many models as the limits allow. Raises AntiphonError if one, or a tool, cannot be used."""
        for tool in self._tools():
            if isinstance(tool, Checkable):
                await tool.check()
        for served in self._served:
            if self._keep.allows([*self._sizes(), *([served.memory] if served.memory else [])]):
                await served.load()
                served.last_used = -next(self._clock)  # among unused models, the first is unloaded last
            else:
                log.info("not loaded yet", model=served.names[0], why="keep_loaded")
        self._check_names()
        self.health = Health.READY

    async def stop(self) -> None:
        """Free the models. Answers that are under way end."""
        self.health = Health.DRAINING
        loading = [*self._load_tasks.values()]
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        for served in self._served:
            await served.stop()

    async def close(self) -> None:
        """Free the tools. No answer is under way any more."""
        for tool in self._tools():
            try:
                await tool.close()
            except Exception:  # others have to be closed as well
                log.exception("a tool could not be closed", tool=tool.type)

    async def states(self) -> dict[str, ModelState]:
        """The state of each model, by its canonical name. A model without a name yet is left out."""
        named = [served for served in self._served if served.names]
        states = await asyncio.gather(*(served.state() for served in named))
        return {served.names[0]: state for served, state in zip(named, states, strict=True)}

    def _tools(self) -> Iterable[ServerTool]:
        return {id(tool): tool for served in self._served for tool in served.tools.values()}.values()

    @property
    def loads(self) -> dict[str, Load]:
        """How busy the engines are, by the canonical names of the models that are loaded."""
        return {served.names[0]: served.load_now for served in self._served if served.loaded}

    async def cache_figures(self) -> dict[str, CacheFigures]:
        """How full the caches are, by the canonical names of the models that are loaded."""
        loaded = [served for served in self._served if served.loaded]
        all_figures = await asyncio.gather(*(served.cache_figures() for served in loaded))
        return {served.names[0]: figures for served, figures in zip(loaded, all_figures, strict=True)}

    @property
    def served(self) -> Sequence[ServedModel]:
        """All models, loaded or not."""
        return self._served

    # Names

    @property
    def names(self) -> tuple[str, ...]:
        """All names, without patterns, with those of adapters."""
        return tuple(name for served in self._served for name in (*served.names, *served.adapters))

    def default_name(self) -> str | None:
        """The model for requests that name none; None if there is none yet."""
        return self.default or next(self._usable(), None)

    def named(self, name: str) -> str:
        """The name, or that of the model for requests that name none. Raises EngineNotReadyError."""
        self._check_ready()
        return name or self.default_name() or ""

    def entries(self) -> list[ModelEntry]:
        """The names that the key may use, with the properties of their models. Raises EngineNotReadyError."""
        self._check_ready()
        return [self.entry(name) for name in self._usable()]

    def entry(self, name: str) -> ModelEntry:
        """The entry of one name. Raises NotFoundError, EngineNotReadyError."""
        self._check_ready()
        served, adapter = self._find(name)
        if adapter is not None:
            return ModelEntry(name, _card(served), served.adapters[adapter], served.names[0])
        return ModelEntry(name, _card(served), served.names[0])

    async def model(self, name: str) -> Model:
        """The model of that name, which was loaded once at least.

        Raises NotFoundError, EngineNotReadyError, EngineError.
        """
        self._check_ready()
        served, adapter = self._find(name)
        if served.model is None:
            async with self.in_use(served):
                self._keep_for_next(served)
        assert served.model is not None
        observed().served = adapter or served.names[0]
        return NamedModel(self, served, served.model, adapter)

    def canonical(self, name: str) -> str:
        """The own name of the model, or adapter, that requests with this name get. Raises NotFoundError."""
        served, adapter = self._find(name)
        return adapter or served.names[0]

    def knows(self, name: str) -> bool:
        """Whether there is a model of this name, which is not another's by default."""
        return self._lookup(name) is not None

    def _check_ready(self) -> None:
        if self.health is Health.READY:
            return
        if self.health is Health.DRAINING:
            raise EngineNotReadyError("This server is stopping. Try again later, or use another server.")
        raise EngineNotReadyError

    def _find(self, name: str) -> tuple[ServedModel, str | None]:
        """The model of that name, and the adapter if the name is that of one. Raises NotFoundError."""
        known, match = name, self._lookup(name)
        if match is None and self.default is not None:
            known, match = self.default, self._lookup(self.default)
        if match is None or not _may_use(known, match):
            message = f"The model '{name}' does not exist. Use one of: {self._known_names()}."
            raise NotFoundError(message, param="model", code="model_not_found")
        return match

    def _lookup(self, name: str) -> tuple[ServedModel, str | None] | None:
        for served in self._served:
            if name in served.names:
                return served, None
            if name in served.adapters:
                return served, name
        for served in self._served:
            if any(fnmatchcase(name, pattern) for pattern in served.patterns):
                return served, None
        return None

    def _known_names(self) -> str:
        patterns = (pattern for served in self._served for pattern in served.patterns)
        return ", ".join((*self._usable(), *filter(observed().account.may_use, patterns)))

    def _usable(self) -> Iterator[str]:
        """Those of the names that the key may use."""
        return (name for name in self.names if (match := self._lookup(name)) and _may_use(name, match))

    # Replicas

    @property
    def replicas(self) -> list[tuple[str, ReplicaState]]:
        """How the replicas of all models are, each with the canonical name of its model."""
        named = [served for served in self._served if served.names]
        return [(served.names[0], replica) for served in named for replica in served.replicas]

    def drain(self, replica: str, drain: Drain | None) -> None:
        """Stop requests to the replica of this name, in all models, or resume them, with None."""
        for pool in self._pools:
            pool.drain(replica, drain)

    def require_replica(self, replica: str) -> None:
        """Raise NotFoundError if there is none of this name."""
        if replica not in self.replica_loads:
            names = ", ".join(self.replica_loads) or "none"
            message = f"There is no replica '{replica}'. There are: {names}."
            raise NotFoundError(message, param="replica")

    @property
    def replica_loads(self) -> Mapping[str, int]:
        """How many generations of this process run or wait at each replica, by its name."""
        loads = Counter[str]()
        for pool in self._pools:
            loads.update(pool.replica_loads)
        return loads

    @property
    def drained_replicas(self) -> Mapping[str, Drain]:
        """Those that are drained, by their names."""
        return {name: drain for pool in self._pools for name, drain in pool.drained_replicas.items()}

    def count_elsewhere(self, loads: Mapping[str, int]) -> None:
        """Other servers have so many generations at these replicas."""
        for pool in self._pools:
            pool.count_elsewhere(loads)

    @property
    def _pools(self) -> list[PoolEngine]:
        return [served.engine_pool for served in self._served if served.engine_pool is not None]

    # Adapters

    async def load_adapter(self, name: str, path: str, base: str | None, *, again: bool) -> None:
        """Load an adapter of the model `base`, by default the first that takes adapters.

        `again` replaces one of that name. Raises RequestError, NotFoundError, EngineError.
        """
        self._check_ready()
        self._limits.check("name_characters", len(name), "lora_name")
        owner = self._owner(name)
        if name in self.names and not (again and owner):
            message = f"There is a model '{name}' already. Use another name, or load_inplace for an adapter."
            raise RequestError(message, param="lora_name")
        with_adapters = [model for model in self._served if model.takes_adapters]
        served = owner or next(iter((*with_adapters, *self._served)))
        if base is not None:
            match = self._lookup(base)  # which is not answered by default
            if match is None:
                message = f"The model '{base}' does not exist. Use one of: {self._known_names()}."
                raise NotFoundError(message, param="base_model_name", code="model_not_found")
            served = match[0]
        await served.load_adapter(name, path)
        log.info("adapter loaded", name=name, model=served.names[0])

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Raises NotFoundError, EngineError."""
        self._check_ready()
        served = self._owner(name)
        if served is None:
            raise NotFoundError(f"The lora adapter '{name}' cannot be found.", param="lora_name")
        await served.unload_adapter(name)
        log.info("adapter unloaded", name=name, model=served.names[0])

    @property
    def adapters(self) -> Sequence[tuple[str, str, str]]:
        """Those that are loaded: the name of its model, its own, and its path."""
        return [
            (served.names[0], name, path)
            for served in self._served
            for name, path in served.adapters.items()
            if served.names
        ]

    def adapter_names(self, name: str) -> Sequence[str]:
        """The names of the adapters of the model of this name, by their numbers. Raises NotFoundError."""
        return self._find(name)[0].adapter_names

    def _owner(self, adapter: str) -> ServedModel | None:
        return next((served for served in self._served if adapter in served.adapters), None)

    # Memory

    def in_use(self, served: ServedModel) -> AbstractAsyncContextManager[None]:
        """Have the model loaded while the block runs. Raises EngineError if that cannot be done."""
        always = served.loaded and not served.memory  # nothing unloads what takes no memory here
        return _IN_USE if always or served in _in_use.get() else _Hold(self, served)

    async def take(self, served: ServedModel) -> None:
        """Load the model if necessary, and keep it loaded until it is released. Raises EngineError."""
        if served.loaded and not (self._load_tasks or served.hold_timers):
            served.uses += 1  # the common case: no waiting
            return
        begun = perf_counter()
        try:
            async with asyncio.timeout(self._load_seconds):
                await self._take(served)
            observed().loading += perf_counter() - begun
        except TimeoutError as error:
            message = "The model could not be loaded in time, because others are used. Try again."
            raise EngineNotReadyError(message) from error

    async def _take(self, served: ServedModel) -> None:
        while served.loaded and served.memory and self._load_tasks and not served.hold_timers:
            # Other requests wait already.
            await asyncio.wait([*self._load_tasks.values()])
        served.uses += 1
        try:
            while not served.loaded:
                # Others may wait for it after this one has left.
                await asyncio.shield(self._load_task(served))
        except BaseException:
            self.release(served)
            raise
        if served.hold_timers:
            self._end_hold(served)

    def _keep_for_next(self, served: ServedModel) -> None:
        """Hold a model that was loaded for its properties, until the same request uses it."""
        served.uses += 1
        later = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._end_hold, served)
        served.hold_timers.append(later)

    def _end_hold(self, served: ServedModel) -> None:
        served.hold_timers.pop(0).cancel()
        self.release(served)

    def release(self, served: ServedModel) -> None:
        """Release a model that was taken."""
        served.uses -= 1
        served.last_used = next(self._clock)
        self._freed.set()

    async def unload(self, name: str) -> None:
        """Free the memory of the model of this name; the next request for it loads it again.

        Raises NotFoundError, ModelInUseError, and RequestError if it takes no memory here.
        """
        self._check_ready()
        served, _ = self._find(name)
        async with self._changing:
            if not served.loaded:
                return
            if not served.memory:
                message = f"The model '{name}' takes no memory of this server, so it cannot be unloaded here."
                raise RequestError(message, param="model")
            if served.uses:
                raise ModelInUseError
            await served.unload()

    def _load_task(self, served: ServedModel) -> asyncio.Task[None]:
        """The task that loads the model."""
        if served not in self._load_tasks:
            self._check_ready()
            task = asyncio.create_task(self._load(served))
            self._load_tasks[served] = task
            task.add_done_callback(lambda task: self._on_loaded(served, task))
        return self._load_tasks[served]

    def _on_loaded(self, served: ServedModel, task: asyncio.Task[None]) -> None:
        del self._load_tasks[served]
        if not task.cancelled():
            task.exception()  # the waiting requests get it, if there are any

    async def _load(self, served: ServedModel) -> None:
        name, files = served.names[0], served.file_state
        self._failed.check(name, files)
        try:
            await served.check_files()  # before others wait, or are unloaded
            async with self._changing:  # in sequence: two would both find the same room
                await self._make_room(served)
                if served.uses:  # waiting requests may have left
                    await served.load()
                    self._failed.forget(name)
        except AntiphonError as error:
            log.error("a model could not be loaded", model=name, why=error.message)  # noqa: TRY400
            raise self._failed.add(name, files) from error

    async def _make_room(self, served: ServedModel) -> None:
        """Unload other models, as soon as they are not in use, until this one may be loaded."""
        while served.uses and not self._keep.allows([*self._sizes(), served.memory]):
            idle = [model for model in self._served if model.loaded and model.memory and not model.uses]
            if idle:
                await min(idle, key=lambda model: model.last_used).unload()
            else:
                self._freed.clear()
                await self._freed.wait()

    def _sizes(self) -> Iterator[int]:
        """The sizes of the models that are loaded on this machine."""
        return (served.memory for served in self._served if served.loaded and served.memory)


class _Hold:
    """Holds a model while a block runs. See `Models.hold`."""

    def __init__(self, models: Models, served: ServedModel) -> None:
        self._models = models
        self._served = served
        self._token: Token[tuple[ServedModel, ...]]

    async def __aenter__(self) -> None:
        self._token = _in_use.set((*_in_use.get(), self._served))
        try:
            await self._models.take(self._served)
        except BaseException:
            _in_use.reset(self._token)
            raise

    async def __aexit__(self, *_: object) -> None:
        _in_use.reset(self._token)
        self._models.release(self._served)


def _with_lora(turn: Asked, lora: tuple[Adapter, ...]) -> Asked:
    return replace(turn, sampling=replace(turn.sampling, lora=lora))


def _may_use(name: str, match: tuple[ServedModel, str | None]) -> bool:
    """Whether the key of the request is for a model, by this name or by its own."""
    account = observed().account
    if not account.permissions.models:
        return True
    served, adapter = match
    canonical = served.names[0] if served.names and adapter is None else name
    return account.may_use(name, canonical)


def _card(served: ServedModel) -> ModelCard | None:
    return None if served.model is None else served.model.card


class NamedModel:
    """A model under one of its names: with its defaults, and with the adapter if the name is that of one.

    See `Model`. It is loaded when it is used.
    """

    def __init__(self, models: Models, served: ServedModel, model: Model, adapter: str | None) -> None:
        self._models = models
        self._served = served
        self._model = model
        self._adapter = adapter
        self.running = model.running
        self.native_tools = model.native_tools
        self.read_messages = model.read_messages
        self.traits = model.traits
        self.tools = model.tools
        self.limits = model.limits
        self.stopping = model.stopping
        self.pool = model.pool

    @property
    def card(self) -> ModelCard:
        """Its defaults are those that requests really have."""
        card, served = self._model.card, self._served
        own, forced, variables = served.sampling, served.force_sampling, served.force_variables
        if not (own or forced or variables):
            return card
        defaults = {**card.defaults, **own, **forced}
        return replace(card, defaults=defaults, forced=frozenset(forced), forced_variables=variables)

    @property
    def load(self) -> Load:
        return self._model.load

    def in_use(self) -> AbstractAsyncContextManager[None]:
        return self._models.in_use(self._served)

    async def prepare(
        self, turn: Turn, ids: tuple[int, ...] | None = None, choices: int | None = None
    ) -> Prepared:
        return await self._model.prepare(self._adapted(self._completed(turn)), ids, choices)

    async def count(self, turn: Turn) -> PromptSize:
        async with self.in_use():
            return await self._model.count(self._completed(turn))

    async def tokens_in(self, texts: Sequence[str]) -> list[int]:
        async with self.in_use():
            return await self._model.tokens_in(texts)

    async def compose(self, turn: Turn) -> Prompt:
        async with self.in_use():
            return await self._model.compose(self._completed(turn))

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        async with self.in_use():
            return await self._model.token_texts(ids)

    async def detokenize(self, ids: Sequence[int]) -> str:
        async with self.in_use():
            return await self._model.detokenize(ids)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        async with self.in_use():
            return await self._model.embed(request)

    async def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        async with self.in_use():
            return await self._model.score(pairs)

    async def decide(self, decision: Decision) -> Verdicts:
        served = self._served
        variables = {**served.variables, **decision.variables, **served.force_variables}
        adapted = self._adapted(replace(decision, variables=variables))
        async with self.in_use():
            return await self._model.decide(adapted)

    async def next_tokens(self, turn: Turn, after: Sequence[str]) -> NextTokens:
        async with self.in_use():
            return await self._model.next_tokens(self._adapted(self._completed(turn)), after)

    async def plain_answer(self, turn: Turn, max_tokens: int) -> PlainAnswer:
        async with self.in_use():
            return await self._model.plain_answer(self._adapted(self._completed(turn)), max_tokens)

    async def transcribe(self, audio: TranscriptionRequest) -> AsyncGenerator[bytes, None]:
        async with self.in_use(), aclosing(self._model.transcribe(audio)) as pieces:
            async for piece in pieces:
                yield piece

    def _adapted(self, turn: Asked) -> Asked:
        """The turn, or the decision, with the adapters of its answer, by their names. Raises RequestError."""
        served, own, lora = self._served, self._adapter, turn.sampling.lora
        if lora is None:
            return turn if own is None else _with_lora(turn, (Adapter(own),))
        if "lora" not in self._model.card.capabilities.sampling:
            return turn  # it is refused by this name
        account = observed().account
        if own is not None and not any(map(account.may_use, served.names)):
            message = f"This key may use '{own}' only without other adapters. Leave 'lora' out."
            raise RequestError(message, param="lora")
        children = served.adapters

        def may_use(name: str) -> bool:
            return name not in children or account.may_use(name)

        adapters = adapters_for(lora, served.adapter_names, own, may_use)
        if len(adapters) == 1 and adapters[0].scale == 1 and adapters[0].name in children:
            observed().served = str(adapters[0].name)  # as if the model had been called so
        else:
            observed().served = served.names[0]
        return _with_lora(turn, adapters)

    def _completed(self, turn: Turn) -> Turn:
        """The turn with the model's defaults for parameters that are not set, and those that are forced."""
        served = self._served
        if not (served.sampling or served.variables or served.force_sampling or served.force_variables):
            return turn
        sampling: dict[str, Any] = {
            name: value
            for name, value in served.sampling.items()
            if getattr(turn.sampling, name) in (None, (), {})
        }
        sampling |= served.force_sampling
        variables = {**served.variables, **turn.variables, **served.force_variables}
        later = {
            name: value for name, value in turn.later_variables.items() if name not in served.force_variables
        }
        return replace(
            turn,
            sampling=replace(turn.sampling, **sampling),
            variables=variables,
            later_variables=later,
        )
