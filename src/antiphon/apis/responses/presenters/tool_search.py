"""A search for tools that the server runs: `tool_search_call`, and at once `tool_search_output`.

A call of a tool that was not found yet counts as a search for it. The item of such a search also has the
call, as the model wrote it: the prompt of the next request then begins with that of this one.
"""

from typing import Any

from msgspec import Struct

from antiphon.apis.request_object import Object
from antiphon.apis.responses.added_tools import EARLY_CALL
from antiphon.apis.responses.output.item import COMPLETED, ItemPosition, OpenItem
from antiphon.apis.responses.presenters.presenter import Presenter
from antiphon.core.items import object_in
from antiphon.core.tool_result import FoundFunctions
from antiphon.core.turn import SearchAction


class ServerSearchItem(Struct, tag_field="type", tag="tool_search_call"):
    """A search. It has no `call_id`: nobody has to answer it."""

    id: str
    status: str
    arguments: Object
    execution: str = "server"
    call_id: None = None


class ServerFoundItem(Struct, tag_field="type", tag="tool_search_output"):
    """The tools that a search has found."""

    id: str
    status: str
    tools: list[Object]
    execution: str = "server"
    call_id: None = None


class SearchPresenter(Presenter):
    """A search, or a call that counts as one."""

    type = "tool_search_call"
    result_type = "tool_search_output"

    def item(self, status: str) -> ServerSearchItem:
        """The search."""
        arguments: dict[str, Any] = object_in(self.text) or {}
        if self.call.hosted.action == SearchAction.CALL:
            call = {"name": self.call.name, "arguments": self.text}
            arguments = {"query": self.call.name, EARLY_CALL: call}
        return ServerSearchItem(self.position.id, status, arguments)

    def result_item(self, position: ItemPosition) -> OpenItem:
        """The item with what it has found."""
        return _OpenFound(self, position)


class _OpenFound(OpenItem):
    """What a search has found, which is known when it is closed."""

    def __init__(self, search: SearchPresenter, position: ItemPosition) -> None:
        super().__init__(search.numbers, position)
        self._search = search

    def item(self, status: str) -> ServerFoundItem:
        """The tools, once they are known."""
        result, tools = self._search.result, self._search.call.tools
        found = result.details if result is not None and status == COMPLETED else None
        names = found.names if isinstance(found, FoundFunctions) else ()
        return ServerFoundItem(self.position.id, status, tools.definitions(names))
