"""The models of one server: found by their names, loaded and freed."""

from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

import structlog

from antiphon.core.errors import EngineNotReadyError, NotFoundError
from antiphon.core.observation import observed
from antiphon.engines.engine import Load
from antiphon.run.loading import ServedModel
from antiphon.run.model import Model

log = structlog.get_logger()


class Health(StrEnum):
    """What GET /health answers."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class Models:
    """Finds `served`, one at least, by their names, aliases and patterns."""

    def __init__(self, served: Sequence[ServedModel]) -> None:
        self._served = served
        self.health = Health.LOADING

    async def start(self) -> None:
        """Load the models. Raises AntiphonError if that cannot be done."""
        for served in self._served:
            await served.load()
        self.health = Health.READY

    async def stop(self) -> None:
        """Free the models. Answers that are under way end."""
        self.health = Health.DRAINING
        for served in self._served:
            await served.unload()

    async def close(self) -> None:
        """Free the tools. No answer is under way any more."""
        for tool in {id(tool): tool for served in self._served for tool in served.tools.values()}.values():
            try:
                await tool.close()
            except Exception:  # others have to be closed, too
                log.exception("a tool could not be closed", tool=tool.type)

    @property
    def loads(self) -> dict[str, Load]:
        """How busy the engines are, by the canonical names of the models that are loaded."""
        models = {served.names[0]: served.model for served in self._served if served.model is not None}
        return {name: model.load for name, model in models.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """All names, without patterns."""
        return tuple(name for served in self._served for name in served.names)

    @property
    def default_name(self) -> str | None:
        """What a request is for that names no model; None while there is none."""
        return next(iter(self.names), None)

    async def model(self, name: str) -> Model:
        """The model of that name. Raises NotFoundError, EngineNotReadyError."""
        if self.health is Health.DRAINING:
            raise EngineNotReadyError("This server is stopping. Try again later, or another server.")
        if self.health is not Health.READY:
            raise EngineNotReadyError
        served = self._find(name)
        if served.model is None:
            raise EngineNotReadyError
        observed().served = served.names[0]
        return served.model

    def _find(self, name: str) -> ServedModel:
        """The model of that name, or of a pattern that fits it. Raises NotFoundError."""
        for served in self._served:
            if name in served.names:
                return served
        for served in self._served:
            if any(fnmatchcase(name, pattern) for pattern in served.patterns):
                return served
        known = ", ".join((*self.names, *(pattern for served in self._served for pattern in served.patterns)))
        message = f"The model '{name}' does not exist. Use one of: {known}."
        raise NotFoundError(message, param="model", code="model_not_found")
