"""Loads one model: starts its engine, and chooses how prompts are written and answers are read.

An engine that takes and returns tokens needs a dialect and a renderer: `ServedModel.load` chooses them. One
that takes conversations needs neither, and one that embeds or ranks has no answers.
"""

import asyncio
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.conversation_template import ConversationTemplate
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.turn import Turn
from antiphon.decide.calibration import read_calibration
from antiphon.dialects.detection.detect import OVERRIDE, Detection, Evidence, choose
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import check
from antiphon.dialects.tool_description import tool_prompt_of
from antiphon.engines.engine import Adapters, Engine, FromFiles, Load, ModelCard, Monitored, Probed, Task
from antiphon.engines.figures import UNKNOWN, CacheFigures, Measured
from antiphon.engines.pool import PoolEngine, ReplicaState, ReplicaStatus
from antiphon.model_tables import ContentFormat, ModelSettings
from antiphon.render.renderer import BUILT_IN, ChatTemplateRenderer, Renderer
from antiphon.run.chat_model import ChatModel
from antiphon.run.decisions import DecisionOptions
from antiphon.run.engine_model import EngineModel
from antiphon.run.model import Model
from antiphon.run.probe import SharedProbe
from antiphon.run.token_model import TokenModel
from antiphon.tools.tool import ServerTool

log = structlog.get_logger()


STATE_SECONDS = 0.5
"""How long /health waits for an engine to answer a probe: callers wait a second at most."""

HUNG_SECONDS = 5.0
"""How long an engine may take to answer a probe, before it is taken to have failed."""

FRESH_SECONDS = 1.0
"""How long the result of a probe counts, however often it is asked for."""


DEFAULT_SETTINGS = ModelSettings()


class ModelStatus(StrEnum):
    """The effect on requests for a model: they are answered, they fail, or it has to be loaded first."""

    READY = "ready"
    FAILED = "failed"
    UNLOADED = "unloaded"


class ModelState(Struct, frozen=True, omit_defaults=True):
    """The state of a model; if it has replicas, the number of those that are up."""

    status: ModelStatus
    up: int | None = None
    replicas: int | None = None


def _status(up: bool) -> ModelStatus:
    return ModelStatus.READY if up else ModelStatus.FAILED


class ServedModel:
    """A model of the server: its engine, its names, and how its prompts are written and its answers read.

    `settings` are its options; `template` is the text of the chat template that they name. `render` makes a
    renderer of a chat template. `tools` are the server's tools by type, `limits` bound the size of a turn.
    """

    def __init__(  # noqa: PLR0913 - the parts of a model
        self,
        engine: Engine,
        settings: ModelSettings = DEFAULT_SETTINGS,
        *,
        template: str | None = None,
        tools: Mapping[str, ServerTool] = MappingProxyType({}),
        limits: Limits = DEFAULTS,
        render: Callable[..., Renderer] = ChatTemplateRenderer,
    ) -> None:
        self.names = tuple(name for name in settings.model_name if not _is_pattern(name))
        self.patterns = tuple(filter(_is_pattern, settings.model_name))
        self.tools = tools
        self.model: Model | None = None
        """The model, once it was loaded for the first time; it stays when its engine is stopped."""
        self.loaded = False
        self.uses = 0
        """The number of holders of the model, and of those that wait for it."""
        self.hold_timers: list[asyncio.TimerHandle] = []
        """Timers that end the holds of requests that have looked at the model, and have not used it yet."""
        self.last_used = 0
        """Grows with time."""
        self.sampling = settings.default_sampling
        self.variables = settings.variable
        self.force_sampling = settings.force_sampling
        self.force_variables = settings.force_variable
        self._engine = engine
        # Cached: each request needs them, and `isinstance` with a protocol is slow.
        self._adapters = engine if isinstance(engine, Adapters) else None
        self._measured = engine if isinstance(engine, Measured) else None
        self._files = engine if isinstance(engine, FromFiles) else None
        self._probe = None
        if isinstance(engine, Probed):
            self._probe = SharedProbe(engine.probe, fresh=FRESH_SECONDS, timeout=HUNG_SECONDS)
        self._settings = settings
        self._template = template
        self._render = render
        self._limits = limits
        if settings.adapters:
            self._require_adapters("adapters")
        if settings.dialect is not None:
            check(settings.dialect)

    async def load(self) -> Model:
        """The model, loaded. Raises AntiphonError if that cannot be done."""
        for name, path in self._settings.adapters.items():
            if name not in self.adapters:
                await self._require_adapters("adapters").load_adapter(name, path)
        await self._engine.start()
        if self.model is None:
            try:
                self.model = await self._first_model(self._engine.card)
            except BaseException:
                await self._engine.stop()  # nobody else would: it is not loaded
                raise
        self.loaded = True
        return self.model

    async def _first_model(self, card: ModelCard) -> Model:
        """The model of an engine that was started for the first time. Raises AntiphonError."""
        self.names = self.names or (card.name,)
        self.sampling = self._sampling(card)
        if Task.GENERATE not in card.capabilities.tasks:
            return EngineModel(self._engine, limits=self._limits)
        return self._chat_model() if card.capabilities.chat else await self._token_model(self._engine)

    async def unload(self) -> None:
        """Free its memory. It can be loaded again."""
        self.loaded = False
        await self._engine.stop()
        log.info("unloaded", model=self.names[0])

    async def stop(self) -> None:
        """Free the model permanently. Running answers end."""
        self.loaded = False
        if self._probe is not None:
            await self._probe.close()
        if self.model is not None:
            self.model.stopping.set()
        await self._engine.stop()

    @property
    def load_now(self) -> Load:
        """Its current load."""
        return self._engine.load

    async def cache_figures(self) -> CacheFigures:
        """How full the cache of its engine is."""
        return await self._measured.cache_figures() if self._measured is not None else UNKNOWN

    @property
    def tokens_now(self) -> int:
        """The tokens so far of its generations that are under way."""
        return 0 if self.model is None else sum(generation.tokens for generation in self.model.running)

    async def state(self) -> ModelState:
        """Whether it can answer, as its engine reports; an engine that may be unavailable is probed."""
        engine = self._engine
        if not self.loaded:
            return ModelState(ModelStatus.UNLOADED)
        if isinstance(engine, PoolEngine):
            there = [replica for replica in engine.replicas if replica.status is ReplicaStatus.UP]
            return ModelState(_status(engine.up), len(there), len(engine.replicas))
        up = engine.up if isinstance(engine, Monitored) else True
        if up and self._probe is not None:
            up = await self._probe.result(STATE_SECONDS) is None
        return ModelState(_status(up))

    @property
    def memory(self) -> int:
        """The bytes of memory that it takes while it is loaded.

        Raises EngineError if its file cannot be read.
        """
        return self._engine.memory

    @property
    def file_state(self) -> Hashable:
        """A value that changes when a file of the model is replaced; None if its engine knows of none."""
        return self._files.file_state() if self._files is not None else None

    async def check_files(self) -> None:
        """Raise EngineError if it shows already that the model cannot be loaded."""
        if self._files is not None:
            await self._files.check_files()

    # Replicas

    @property
    def replicas(self) -> Sequence[ReplicaState]:
        """The states of its replicas; none if its engine is not a pool."""
        return self._engine.replicas if isinstance(self._engine, PoolEngine) else ()

    @property
    def engine_pool(self) -> PoolEngine | None:
        """Its engine, if that has replicas."""
        return self._engine if isinstance(self._engine, PoolEngine) else None

    # Adapters

    @property
    def takes_adapters(self) -> bool:
        """Whether it can have any."""
        return self._adapters is not None

    @property
    def adapters(self) -> Mapping[str, str]:
        """The path of each adapter by its name."""
        return {} if self._adapters is None else self._adapters.adapters

    @property
    def adapter_names(self) -> Sequence[str]:
        """The names of all adapters that a request may name, by their numbers.

        Those that its server has loaded are no models of their own.
        """
        if self._adapters is not None:
            return (*self._adapters.adapters,)
        return () if self.model is None else self.model.card.adapters

    async def load_adapter(self, name: str, path: str) -> None:
        """Load an adapter. Raises RequestError if the engine takes none, or refuses this one; EngineError."""
        await self._require_adapters("lora_name").load_adapter(name, path)

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter. Raises EngineError."""
        await self._require_adapters("lora_name").unload_adapter(name)

    def _require_adapters(self, param: str) -> Adapters:
        if self._adapters is not None:
            return self._adapters
        raise RequestError("The engine of this model does not support adapters. Leave them out.", param=param)

    def _sampling(self, card: ModelCard) -> Mapping[str, Any]:
        """The defaults of requests. Raises EngineError for fields that the engine does not support."""
        able = card.capabilities.sampling
        if wrong := [name for name in (*self.sampling, *self.force_sampling) if name not in able]:
            message = (
                f"The engine of the model {self.names[0]} does not support '{wrong[0]}'. Leave it out of"
            )
            raise EngineError(f"{message} the sampling of this model.")
        recommended = {name: value for name, value in card.sampling.items() if name in able}
        return {**recommended, **self.sampling}

    def _chat_model(self) -> ChatModel:
        """The model of an engine that takes conversations. Raises EngineError for options without effect."""
        for option, value in (
            ("--dialect", self._settings.dialect),
            ("--reasoning-tags", self._settings.reasoning_tags),
            ("--chat-template", self._template),
            ("--decision-prefill", self._settings.decision_prefill),
            ("--chat-template-content-format", _CONTENT_PARTS[self._settings.chat_template_content_format]),
        ):
            if value is not None:
                message = (
                    f"The server of this model accepts only conversations: {option} has no effect on it."
                )
                raise EngineError(message + " Leave it out.")
        return ChatModel(
            self._engine,
            exclude_tools_when_tool_choice_none=self._settings.exclude_tools_when_tool_choice_none,
            tools=self.tools,
            limits=self._limits,
            deciding=self._deciding(self._engine.card),
        )

    def _deciding(self, card: ModelCard) -> DecisionOptions:
        """How the model decides. Raises EngineError for options that are not for it."""
        settings = self._settings
        if card.capabilities.answers_questions:
            for option, value in (
                ("--calibration", settings.calibration),
                ("--decision-orders", settings.decision_orders),
                ("--decision-prefill", settings.decision_prefill),
            ):
                if value is not None:
                    message = (
                        f"The server of this model answers questions itself: {option} has no effect on it."
                    )
                    raise EngineError(message + " Leave it out.")
        calibration = None if settings.calibration is None else read_calibration(settings.calibration)
        if calibration is not None:
            calibration.check(card.name, card.known_as)
        return DecisionOptions(settings.decision_prefill, settings.decision_orders, calibration)

    async def _token_model(self, engine: Engine) -> TokenModel:
        """The model of an engine that takes tokens. Raises EngineError if it has no chat template."""
        card, settings = engine.card, self._settings
        template = self._template or card.chat_template
        evidence = evidence_of(card, template or card.conversation_template)
        detection = await asyncio.to_thread(choose, settings.dialect, evidence, settings.reasoning_tags)
        _report(detection)
        dialect = detection.dialect
        reasons = _reasons(dialect, template or _spelled(card))
        try:
            return TokenModel(
                engine,
                self._renderer(dialect, card),
                dialect,
                reasons=settings.dialect is not None or settings.reasoning_tags is not None or reasons,
                exclude_tools_when_tool_choice_none=self._settings.exclude_tools_when_tool_choice_none,
                tools=self.tools,
                limits=self._limits,
                deciding=replace(self._deciding(card), reasons=reasons),
            )
        except RequestError as error:  # as of a request that cannot be rendered
            message = f"The chat template cannot render a message of a user: {error.message.rstrip('.')}. "
            raise EngineError(message + "Name another with --chat-template.") from error

    def _renderer(self, dialect: Dialect, card: ModelCard) -> Renderer:
        """The family's own renderer, unless the template is a user's, or that of another maker."""
        template = self._template or card.chat_template or card.conversation_template
        native = dialect.renderer and dialect.renderer(self._settings.date)
        if template is None:
            if native is None:
                message = f"The model {card.name} has no chat template. Name one with --chat-template: "
                message += f"a file, or {' or '.join(BUILT_IN)}. If it embeds or ranks, say so with --task. "
                raise EngineError(message + "Or ask a server for conversations: --upstream-kind chat.")
            return native
        jinja = self._render(
            template,
            bos=card.bos,
            eos=card.eos,
            tool_prompt=tool_prompt_of(dialect),
            content_parts=_CONTENT_PARTS[self._settings.chat_template_content_format],
            special_tokens=card.special_tokens | dialect.grammar.special_tokens,
            tags=dialect.grammar.tags,
        )
        if native is None or self._template:
            return jinja
        return jinja if _differs(jinja, native) else native


_CONTENT_PARTS: Mapping[ContentFormat, bool | None] = {"auto": None, "string": False, "openai": True}
"""Content format → whether contents are lists of parts; None: as the template needs them."""


def _is_pattern(name: str) -> bool:
    return "*" in name


def evidence_of(card: ModelCard, template: str | ConversationTemplate | None) -> Evidence:
    """The evidence for the dialect of a loaded model; `template` is the one in use."""
    return Evidence(template, (card.name, *card.known_as), card.bos, card.eos, card.response_template)


def _reasons(dialect: Dialect, template: str | None) -> bool:
    """The template contains the tags of reasoning; if the grammar of calls has them, it always does."""
    tags = dialect.reasoning and (*dialect.reasoning.opens, *dialect.reasoning.closes)
    return not tags or any(tag.strip() in (template or "") for tag in tags)


def _spelled(card: ModelCard) -> str | None:
    """The special tokens of a model without a template that could be searched for them."""
    return " ".join(card.special_tokens) if card.conversation_template is not None else None


def _differs(template: Renderer, native: Renderer) -> bool:
    """The template writes the family's format with other texts: the model is another maker's.

    A template of another format belongs to another dialect than the configured one.
    """
    return _opening(template) == _opening(native) and _greeting(template) != _greeting(native)


def _greeting(renderer: Renderer) -> str:
    """A short prompt, which does not depend on the date."""
    return re.sub(r"\d", "0", renderer.render(_HELLO))


def _opening(renderer: Renderer) -> str:
    """How an answer begins."""
    return renderer.render(_HELLO).removeprefix(renderer.transcript(_HELLO)).strip()


_HELLO = Turn("", (Message(Role.USER, (TextPart("Hello"),)),))


def _report(detection: Detection) -> None:
    """Log the choice, as a warning if it is doubtful."""
    report = log.warning if detection.doubtful else log.info
    hint = {"hint": OVERRIDE} if detection.doubtful else {}
    report("dialect", name=detection.name, why=detection.reason, **hint)
