"""`web_search`: searches, opened pages, and searches in pages.

Models may write anything, so parsing the arguments never raises: unreadable ones are shown as empty, and the
model gets the error as the result. When a conversation is read back, items have the results only if the
request included them.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from antiphon.apis.request_object import RequestObject, json_text
from antiphon.apis.responses.output.item import INCOMPLETE
from antiphon.apis.responses.presenters.presenter import FAILED, Presenter, output_item
from antiphon.apis.responses.tools import Toolbox
from antiphon.core import tool_result as cited
from antiphon.core.items import FunctionCall, Item, object_in
from antiphon.toolkits.web_search.details import TYPE, FindDetails, OpenDetails, SearchDetails

SOURCES = "web_search_call.action.sources"
"""The value of `include` that adds the sources of searches."""
RESULTS = "web_search_call.results"
"""The value of `include` that adds the text that the model was shown."""

_LINE = re.compile(r"^L(\d{1,9}): (.*)$", re.MULTILINE)


class WebSearchSource(Struct, tag_field="type", tag="url"):
    """A page that a search found."""

    url: str


class SearchAction(Struct, tag_field="type", tag="search"):
    """The web was searched. `sources` are there if they were requested."""

    query: str
    queries: tuple[str, ...]
    sources: tuple[WebSearchSource, ...] | UnsetType = UNSET


class OpenPageAction(Struct, tag_field="type", tag="open_page"):
    """Open a page; null if its URL is unknown."""

    url: str | None


class FindAction(Struct, tag_field="type", tag="find_in_page"):
    """Search a text in a page; empty if it is unknown."""

    url: str
    pattern: str


WebAction = SearchAction | OpenPageAction | FindAction


class WebSearchResult(Struct):
    """The text of a page that the model was shown."""

    url: str
    title: str
    text: str


class WebCallItem(Struct, tag_field="type", tag="web_search_call"):
    """Something that the server did in the web. `results` are there if they were requested."""

    id: str
    status: str
    action: WebAction
    results: tuple[WebSearchResult, ...] | UnsetType = UNSET


class WebPresenter(Presenter):
    """An action of the tool `web_search`."""

    type = "web_search_call"
    includes = (SOURCES, RESULTS)

    @classmethod
    def read(cls, item: RequestObject, tools: Toolbox) -> Iterator[Item]:
        """The call and its results, if the item has them; otherwise nothing is shown of it."""
        action = item.object_or_none("action")
        pages = [] if action is None else [*_found_pages(item, action)]
        if action is None or not pages:
            return
        done, arguments = _request(action.value)
        known = {function.hosted.action: function for function in tools.hosted(TYPE) if function.hosted}
        function = known.get(done, tools.offered(TYPE))
        call_id = item.text_or_none("id") or item.place("id")  # some clients leave it out
        yield FunctionCall(call_id, function.name, json_text(arguments))
        yield output_item(call_id, "\n\n".join(pages))

    def item(self, status: str) -> WebCallItem:
        """The requested action, then the one that was done. There is no status for a cut: it is `failed`."""
        status = FAILED if status == INCOMPLETE else self.status_of(status)
        results: tuple[WebSearchResult, ...] | UnsetType = UNSET
        if RESULTS in self.call.include and self.result is not None and self.result.shown is not None:
            results = tuple(_results(self.result.text, self.result.shown.sources))
        return WebCallItem(self.position.id, status, self._action(), results)

    def run(self) -> list[bytes]:
        """The event that it runs."""
        return [self.stage("in_progress"), self.stage("searching")]

    def completed(self) -> list[bytes]:
        """The event that it has ended. There is none for a failure."""
        return [] if self.failed else [self.stage("completed")]

    def _action(self) -> WebAction:
        details = self.result.details if self.result else None
        action = done_action(details) or requested_action(self.call.hosted.action, self.text)
        if SOURCES in self.call.include and isinstance(details, SearchDetails):
            assert isinstance(action, SearchAction)
            action.sources = tuple(map(WebSearchSource, details.sources))
        return action


def _results(text: str, sources: Sequence[cited.CitablePage]) -> Iterator[WebSearchResult]:
    """The numbered lines that were shown, with their pages."""
    lines = [(int(line[1]), line[2]) for line in _LINE.finditer(text)]
    ends = (*(source.line for source in sources[1:]), sys.maxsize)
    for source, end in zip(sources, ends, strict=True):
        about = "\n".join(line for number, line in lines if source.line <= number < end)
        yield WebSearchResult(source.url, source.title, about)


def _found_pages(item: RequestObject, action: RequestObject) -> Iterator[str]:
    """The pages in an item."""
    for holder, name in ((item, "results"), (action, "sources")):
        if isinstance(holder.value.get(name), list):
            for page in holder.objects(name):
                members = (page.text_or_none(member) for member in ("title", "url", "text"))
                yield "\n".join(filter(None, members))
            return


def _request(action: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The function and arguments for an action, as far as they can be derived from it."""
    match action.get("type"):
        case "open_page":
            return "open", {"id": _text(action, "url")}
        case "find_in_page" | "find":
            return "find", {"pattern": _text(action, "pattern")}
    return "search", {"query": _text(action, "query")}


def requested_action(action: str, arguments: str) -> WebAction:
    """The action in a call of a function that the tool knows as `action`."""
    given = object_in(arguments) or {}
    match action:
        case "open":
            page = given.get("id")
            return OpenPageAction(page if isinstance(page, str) else None)
        case "find":
            return FindAction("", _text(given, "pattern"))
    query = _text(given, "query")
    return SearchAction(query, (query,))


def done_action(details: Any) -> WebAction | None:
    """The action that was done, None if that is unknown."""
    match details:
        case SearchDetails():
            return SearchAction(details.query, (details.query,))
        case OpenDetails():
            return OpenPageAction(details.url)
        case FindDetails():
            return FindAction(details.url or "", details.pattern)
    return None


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    return value if isinstance(value, str) else ""
