"""The models of one server, and whether they are ready."""

import asyncio
from enum import StrEnum

import structlog

from antiphon.core.errors import EngineNotReadyError, NotFoundError
from antiphon.dialects.detect import OVERRIDE, Detection, Evidence, choose
from antiphon.engines.engine import Engine, ModelCard
from antiphon.render.renderer import ChatTemplateRenderer
from antiphon.run.model import Model

log = structlog.get_logger()


class Health(StrEnum):
    """What GET /health says."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class Service:
    """Loads a model and finds it by its names.

    `names` are the public names, the first is canonical; without any, the
    engine's own. `dialect` is a name from the registry, None to choose by the
    chat template. `chat_template` replaces the model's own.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        names: tuple[str, ...] = (),
        dialect: str | None = None,
        chat_template: str | None = None,
    ) -> None:
        self._engine = engine
        self._dialect = dialect
        self._chat_template = chat_template
        self._model: Model | None = None
        self.names = names
        self.health = Health.LOADING

    async def start(self) -> None:
        """Load the model. Raises AntiphonError if that cannot be done."""
        await self._engine.start()
        card = self._engine.card
        template = self._chat_template or card.chat_template
        evidence = evidence_of(card, template)
        detection = await asyncio.to_thread(choose, self._dialect, evidence)
        _report(detection)
        dialect = detection.dialect
        renderer = ChatTemplateRenderer(template, bos=card.bos, eos=card.eos, tool_prompt=dialect.tool_prompt)
        self._model = Model(self._engine, renderer, dialect)
        self.names = self.names or (card.name,)
        self.health = Health.READY

    async def stop(self) -> None:
        """Free the model."""
        self.health = Health.DRAINING
        await self._engine.stop()

    def model(self, name: str) -> Model:
        """The model of that name. Raises NotFoundError, EngineNotReadyError."""
        if self._model is None or self.health is not Health.READY:
            raise EngineNotReadyError
        if name not in self.names:
            message = f"The model '{name}' does not exist. Use one of: {', '.join(self.names)}."
            raise NotFoundError(message, param="model", code="model_not_found")
        return self._model


def evidence_of(card: ModelCard, template: str | None) -> Evidence:
    """What a loaded model tells of its dialect; `template` is the one that is used."""
    return Evidence(template, (card.name, *card.known_as), card.bos, card.eos, card.response_template)


def _report(detection: Detection) -> None:
    """Log the choice, loudly if it is doubtful."""
    say = log.warning if detection.doubtful else log.info
    hint = {"hint": OVERRIDE} if detection.doubtful else {}
    say("dialect", name=detection.name, why=detection.reason, **hint)
