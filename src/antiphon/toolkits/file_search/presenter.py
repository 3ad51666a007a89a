"""`file_search`: searches of vector stores. Results are shown if the request includes them."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from antiphon.apis.request_object import RequestObject, json_text
from antiphon.apis.responses.output.item import IN_PROGRESS
from antiphon.apis.responses.presenters.presenter import Presenter, output_item
from antiphon.apis.responses.tools import Toolbox
from antiphon.core.items import FunctionCall, Item, object_in
from antiphon.toolkits.file_search.details import TYPE, FileSearchDetails
from antiphon.toolkits.file_search.query import FileResult

RESULTS = "file_search_call.results"
"""The value of `include` that adds the results."""


class FileSearchResult(Struct, frozen=True):
    """A part of a file that was found."""

    file_id: str
    filename: str
    score: float
    attributes: Mapping[str, Any]
    text: str


class FileSearchItem(Struct, tag_field="type", tag="file_search_call"):
    """A search of vector stores. `results` are null unless they were requested."""

    id: str
    status: str
    queries: tuple[str, ...]
    results: tuple[FileSearchResult, ...] | None = None


class FileSearchPresenter(Presenter):
    """A search of vector stores."""

    type = "file_search_call"
    includes = (RESULTS,)

    @classmethod
    def read(cls, item: RequestObject, tools: Toolbox) -> Iterator[Item]:
        """The search and its results, if the item has them; otherwise nothing can be shown of it."""
        results = item.value.get("results")
        if not isinstance(results, list) or not results:
            return
        call_id = item.text("id")
        queries = [query for query in item.value.get("queries") or () if isinstance(query, str)]
        yield FunctionCall(call_id, tools.offered(TYPE).name, json_text({"queries": queries}))
        shown = [
            f"{result.text_or_none('filename') or ''}\n{result.text_or_none('text') or ''}"
            for result in item.objects("results")
        ]
        yield output_item(call_id, "\n\n".join(shown))

    def item(self, status: str) -> FileSearchItem:
        """The search, with its results when they are known."""
        details = self.result.details if self.result else None
        search = details if isinstance(details, FileSearchDetails) else None
        results = None
        if search is not None and RESULTS in self.call.include:
            results = tuple(map(_shown, search.results))
        queries = search.queries if search else _queries(self.text)
        return FileSearchItem(self.position.id, self.status_of(status), queries, results)

    def run(self) -> list[bytes]:
        """The event that it runs."""
        return [self.stage(IN_PROGRESS), self.stage("searching")]

    def completed(self) -> list[bytes]:
        """The event that it has ended. There is none for a failure."""
        return [] if self.failed else [self.stage("completed")]


def _shown(result: FileResult) -> FileSearchResult:
    return FileSearchResult(result.file_id, result.filename, result.score, result.attributes, result.text)


def _queries(arguments: str) -> tuple[str, ...]:
    """The queries in the arguments, as far as they can be parsed."""
    given = (object_in(arguments) or {}).get("queries")
    several = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return tuple(query for query in several if isinstance(query, str))
