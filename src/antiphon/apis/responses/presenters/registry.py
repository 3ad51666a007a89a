"""The presenters by type of tool, and by type of item. Checked when a server starts."""

from collections.abc import Mapping
from types import MappingProxyType

from antiphon.apis.responses.kinds import CORE_TYPES
from antiphon.apis.responses.presenters import code_interpreter, file_search, shell, web_search
from antiphon.apis.responses.presenters.generic import GenericPresenter
from antiphon.apis.responses.presenters.presenter import Presenter

BUILT_IN: Mapping[str, type[Presenter]] = {
    code_interpreter.TOOL: code_interpreter.CodePresenter,
    web_search.TOOL: web_search.WebPresenter,
    shell.TOOL: shell.ShellPresenter,
    file_search.TOOL: file_search.FileSearchPresenter,
}
"""Type of a tool → the presenter of its calls."""


class Presenters:
    """The presenters of a server. `own` are those of tools from other packages, by type of tool.

    Raises ValueError if two would show, and read back, items of one type.
    """

    def __init__(self, own: Mapping[str, type[Presenter]] = MappingProxyType({})) -> None:
        self._by_tool = {**BUILT_IN, **own}
        self.readers: dict[str, type[Presenter]] = {}
        """Type of an item → the presenter that reads it back."""
        presenters: tuple[type[Presenter], ...] = (GenericPresenter, *self._by_tool.values())
        for presenter in presenters:
            for type_ in presenter.item_types():
                if type_ in CORE_TYPES or self.readers.setdefault(type_, presenter) is not presenter:
                    message = f"{presenter.__name__} shows items of type '{type_}', which others show."
                    raise ValueError(message)

    def of(self, tool: str) -> type[Presenter]:
        """The presenter of the calls of a tool of this type."""
        return self._by_tool.get(tool, GenericPresenter)


DEFAULT_PRESENTERS = Presenters()
"""Of a server whose tools are Antiphon's own."""
