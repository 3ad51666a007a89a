"""`web_search`: searches, pages that are opened, and texts that are looked for in one.

Models write what they like, so reading the arguments never raises: what cannot be read is shown as
empty, and the model gets the error as the result. Searches are not read back from a conversation:
the item does not hold what was found.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from antiphon.apis.responses.output.item import INCOMPLETE
from antiphon.apis.responses.presenters.presenter import FAILED, Presenter
from antiphon.core.items import object_in
from antiphon.core.tool_result import Found, Opened, Searched, ToolResultDetails

TOOL = "web_search"
SOURCES = "web_search_call.action.sources"
"""The value of `include` that adds the sources of searches."""


class Source(Struct, tag_field="type", tag="url"):
    """A page that a search found."""

    url: str


class SearchAction(Struct, tag_field="type", tag="search"):
    """The web was searched. `sources` are there if they were requested."""

    query: str
    queries: tuple[str, ...]
    sources: tuple[Source, ...] | UnsetType = UNSET


class OpenPageAction(Struct, tag_field="type", tag="open_page"):
    """A page was opened; null if that is unknown."""

    url: str | None


class FindAction(Struct, tag_field="type", tag="find_in_page"):
    """A page was searched for a text; empty if that is unknown."""

    url: str
    pattern: str


WebAction = SearchAction | OpenPageAction | FindAction


class WebCallItem(Struct, tag_field="type", tag="web_search_call"):
    """Something that the server did in the web."""

    id: str
    status: str
    action: WebAction


class WebPresenter(Presenter):
    """Something that is done in the web."""

    type = "web_search_call"

    def item(self, status: str) -> WebCallItem:
        """What is done, or was done, once that is known. No status says that it was cut: it failed."""
        status = FAILED if status == INCOMPLETE else self.status_of(status)
        return WebCallItem(self.position.id, status, self._action())

    def run(self) -> list[bytes]:
        """It is being done."""
        return [self.stage("in_progress"), self.stage("searching")]

    def completed(self) -> list[bytes]:
        """It was done. There is no event for what failed."""
        return [] if self.failed else [self.stage("completed")]

    def _action(self) -> WebAction:
        details = self.result.details if self.result else None
        action = done_action(details) or requested_action(self.call.hosted.action, self.text)
        if SOURCES in self.call.include and isinstance(details, Searched):
            assert isinstance(action, SearchAction)
            action.sources = tuple(map(Source, details.sources))
        return action


def requested_action(action: str, arguments: str) -> WebAction:
    """What the model requests, with a function that the tool knows as `action`."""
    given = object_in(arguments) or {}
    match action:
        case "open":
            page = given.get("id")
            return OpenPageAction(page if isinstance(page, str) else None)
        case "find":
            return FindAction("", _text(given, "pattern"))
    query = _text(given, "query")
    return SearchAction(query, (query,))


def done_action(details: ToolResultDetails | None) -> WebAction | None:
    """What was done, None if that is unknown."""
    match details:
        case Searched():
            return SearchAction(details.query, (details.query,))
        case Opened():
            return OpenPageAction(details.url)
        case Found():
            return FindAction(details.url or "", details.pattern)
    return None


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    return value if isinstance(value, str) else ""
