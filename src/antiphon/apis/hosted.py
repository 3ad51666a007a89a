"""The tools that the server runs, as requests of any API ask for them: by type.

Where a server does not run such a tool, or a request says that it shall not be
used here, the model is offered nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.turn import Function

CODE_INTERPRETER = "code_interpreter"
SHELL = "shell"
WEB_SEARCH = "web_search"

_ALIASES = {
    "web_search_2025_08_26": WEB_SEARCH,
    "web_search_preview": WEB_SEARCH,
    "web_search_preview_2025_03_11": WEB_SEARCH,
}

Check = Callable[[str, Mapping[str, Any], str], None]
"""Type, settings, and their place in the request: raises RequestError for what the tool cannot honour."""


def canonical(type_: str) -> str:
    """The type of a tool that goes by several."""
    return _ALIASES.get(type_, type_)


def _anything(type_: str, settings: Mapping[str, Any], where: str) -> None:
    """There is no tool that could refuse it."""


class Hosts(Struct, frozen=True):
    """The tools that a server runs for a model: type → what the model is offered of it."""

    functions: Mapping[str, tuple[Function, ...]] = {}
    check: Check = _anything

    def offered(self, settings: Mapping[str, Any], where: str) -> tuple[Function, ...]:
        """What the model is offered of a tool that came with these settings. Raises RequestError."""
        type_ = canonical(settings["type"])
        functions = self.functions.get(type_, ())
        if not functions or _is_elsewhere(type_, settings):
            return ()
        self.check(type_, settings, where)
        return tuple(
            replace(
                function, source=where, hosted=function.hosted and replace(function.hosted, settings=settings)
            )
            for function in functions
        )


def _is_elsewhere(type_: str, settings: Mapping[str, Any]) -> bool:
    """The request keeps the tool to its client, or from the web."""
    if type_ == SHELL:
        environment = settings.get("environment")
        return isinstance(environment, Mapping) and environment.get("type") == "local"
    return type_ == WEB_SEARCH and settings.get("external_web_access") is False
