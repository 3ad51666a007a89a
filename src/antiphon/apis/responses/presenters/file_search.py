"""`file_search`: searches of vector stores. What was found is shown where the request includes it."""

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from msgspec import Struct

from antiphon.apis.given import Given, json_text
from antiphon.apis.responses.output.item import IN_PROGRESS
from antiphon.apis.responses.presenters.presenter import Presenter, output_item
from antiphon.apis.responses.tools import Toolbox
from antiphon.core.containers import paths_in
from antiphon.core.file_search import FileResult, file_marks
from antiphon.core.items import FunctionCall, Item, object_in
from antiphon.core.tool_result import FilesSearched, Printed, ToolResult, WrittenFile

TOOL = "file_search"
RESULTS = "file_search_call.results"
"""The value of `include` that adds what was found."""


class Result(Struct, frozen=True):
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
    results: tuple[Result, ...] | None = None


class FileCitation(Struct, tag_field="type", tag="file_citation"):
    """The model cites a part of a file that was found. `index` is where its mark begins in the text."""

    file_id: str
    index: int
    filename: str


class ContainerFileCitation(Struct, tag_field="type", tag="container_file_citation"):
    """The model names a file that a program of the answer has written. Indexes are those of its path."""

    container_id: str
    file_id: str
    filename: str
    start_index: int
    end_index: int


class Citations:
    """What the answer has found and written so far, and may cite."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[FileResult, ...]] = {}
        self._written: dict[str, tuple[str, WrittenFile]] = {}  # by path: its container, and the file

    def add(self, result: ToolResult) -> None:
        """A call was run: what it found can be cited from now on."""
        if isinstance(details := result.details, FilesSearched):
            self._found[details.number] = details.results
        if isinstance(details, Printed):
            for file in details.files:
                self._written[file.path] = details.container_id, file

    def find(self, text: str) -> list[Struct]:
        """The citations in a text, in their order. A mark of nothing that was found is text."""
        found: list[tuple[int, Struct]] = []
        if self._found:
            found += [
                (start, FileCitation(its[result].file_id, start, its[result].filename))
                for start, search, result in file_marks(text)
                if result < len(its := self._found.get(search, ()))
            ]
        if self._written:
            for start, end, path in paths_in(text):
                container, file = self._written.get(path, ("", None))
                if file is not None:
                    name = path.rpartition("/")[2]
                    found.append((start, ContainerFileCitation(container, file.id, name, start, end)))
        return [citation for _, citation in sorted(found, key=itemgetter(0))]


class FileSearchPresenter(Presenter):
    """A search of vector stores."""

    type = "file_search_call"

    @classmethod
    def read(cls, item: Given, tools: Toolbox) -> Iterator[Item]:
        """The search, and what was found, where the item holds it: else nothing can be shown of it."""
        results = item.value.get("results")
        if not isinstance(results, list) or not results:
            return
        call_id = item.text("id")
        queries = [query for query in item.value.get("queries") or () if isinstance(query, str)]
        yield FunctionCall(call_id, tools.offered(TOOL).name, json_text({"queries": queries}))
        shown = [
            f"{result.text_or_none('filename') or ''}\n{result.text_or_none('text') or ''}"
            for result in item.objects("results")
        ]
        yield output_item(call_id, "\n\n".join(shown))

    def item(self, status: str) -> FileSearchItem:
        """The search, with what was found once that is known."""
        details = self.result.details if self.result else None
        found = details if isinstance(details, FilesSearched) else None
        results = None
        if found is not None and RESULTS in self.call.include:
            results = tuple(map(_shown, found.results))
        queries = found.queries if found else _queries(self.text)
        return FileSearchItem(self.position.id, self.status_of(status), queries, results)

    def run(self) -> list[bytes]:
        """It is being done."""
        return [self.stage(IN_PROGRESS), self.stage("searching")]

    def completed(self) -> list[bytes]:
        """It was done. There is no event for what failed."""
        return [] if self.failed else [self.stage("completed")]


def _shown(found: FileResult) -> Result:
    return Result(found.file_id, found.filename, found.score, found.attributes, found.text)


def _queries(arguments: str) -> tuple[str, ...]:
    """What the model wants to search for, as far as it can be read."""
    given = (object_in(arguments) or {}).get("queries")
    several = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return tuple(query for query in several if isinstance(query, str))
