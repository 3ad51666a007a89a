"""The presenters by type of tool, and by type of item. Checked when a server starts."""

from collections.abc import Mapping
from types import MappingProxyType

from antiphon.apis.responses.kinds import CORE_TYPES
from antiphon.apis.responses.presenters.generic import GenericPresenter
from antiphon.apis.responses.presenters.presenter import Presenter
from antiphon.apis.responses.presenters.tool_search import SearchPresenter
from antiphon.core.turn import TOOL_SEARCH


class Presenters:
    """The presenters of a server, `by_tool`: by type of tool. Other tools have the default one.

    Raises ValueError if two would show, and read back, items of one type.
    """

    def __init__(self, by_tool: Mapping[str, type[Presenter]] = MappingProxyType({})) -> None:
        # The items of searches are read back with the tools.
        self._by_tool: dict[str, type[Presenter]] = {TOOL_SEARCH: SearchPresenter, **by_tool}
        self.readers: dict[str, type[Presenter]] = {}
        """Type of an item → the presenter that reads it back."""
        presenters: tuple[type[Presenter], ...] = (GenericPresenter, *by_tool.values())
        self.includes = frozenset(value for presenter in presenters for value in presenter.includes)
        """The values of `include` for their items."""
        for presenter in presenters:
            for type_ in presenter.item_types():
                if type_ in CORE_TYPES or self.readers.setdefault(type_, presenter) is not presenter:
                    message = f"{presenter.__name__} shows items of type '{type_}', which others show."
                    raise ValueError(message)

    def of(self, tool: str) -> type[Presenter]:
        """The presenter of the calls of a tool of this type."""
        return self._by_tool.get(tool, GenericPresenter)


NO_PRESENTERS = Presenters()
"""Without any but the default one."""
