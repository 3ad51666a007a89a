"""`file_search`: models search the vector stores that the request names.

Each part that is found is shown after its citation, such as `【0:2†manual.pdf】`: search 0, result 2. Models
write the same text to cite it. The search itself is done by a `Searcher`.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from msgspec import Struct

from antiphon.core.errors import AntiphonError, NotFoundError, RequestError, missing_extra
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.file_search.details import TYPE, FileSearchDetails
from antiphon.toolkits.file_search.query import (
    FileQuery,
    FileResult,
    check_count,
    check_filter,
    check_queries,
    check_ranking,
    file_citation,
)
from antiphon.tools.settings import invalid_setting, parse_settings, unread_settings
from antiphon.tools.tool import RequestedTool, ToolOffer

ACTION = "search"

RESULTS = 10
"""The default number of results of a search."""
MOST_STORES = 20
MOST_QUERIES = 5
SHOWN_CHARACTERS = 30_000
"""The most characters of the results of one search that a model is shown."""

_READ = ("type", "vector_store_ids", "max_num_results", "filters", "filter", "ranking_options")

FUNCTION = Function(
    "file_search",
    """\
Searches the files that the user has provided and shows the passages that match best.
Each passage begins with its citation, such as `【0:2†manual.pdf】`. Put this citation after each statement \
that you take from the passage.
The search compares words: use words that the files probably contain, and try others if it finds nothing.""",
    {
        "type": "object",
        "properties": {
            "queries": {
                "type": "array",
                "items": {"type": "string"},
                "description": f"What to search for: 1 to {MOST_QUERIES} queries of a few words.",
            }
        },
        "required": ["queries"],
    },
    hosted=Hosted(TYPE, ACTION, parallel=True, idempotent=True),
)


class Searcher(Protocol):
    """Searches vector stores of an owner."""

    async def check(self, owner: str, vector_store_ids: Sequence[str]) -> None:
        """Raise NotFoundError unless the owner has these vector stores."""
        ...

    async def search(self, owner: str, query: FileQuery) -> list[FileResult]:
        """The results, the best first. Raises NotFoundError, StoreError."""
        ...


class _FileSearchSettings(Struct, frozen=True):
    vector_store_ids: list[str]
    max_num_results: int | None = None
    filters: dict[str, Any] | None = None
    filter: dict[str, Any] | None = None
    ranking_options: dict[str, Any] | None = None


class FileSearch:
    """The tool: a `ServerTool`."""

    type = TYPE
    aliases = ()

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        query = _query(requested.settings, requested.where)
        if find_spec("snowballstemmer") is None:
            raise RequestError(missing_extra(f"'{TYPE}'", "files"), param=f"{requested.where}.type")
        try:
            await self._searcher.check(requested.owner, query.vector_store_ids)
        except NotFoundError as error:
            error.param = f"{requested.where}.vector_store_ids"
            raise
        return ToolOffer((FUNCTION,), unread_settings(requested, _READ))

    def open(self, requested: RequestedTool) -> "FileSearchSession":
        return FileSearchSession(self._searcher, requested.owner, _query(requested.settings, requested.where))

    async def close(self) -> None:
        """There are no shared resources."""


class FileSearchSession:
    """The searches of one answer: a `Session`. `query` is made from the settings, without queries."""

    def __init__(self, searcher: Searcher, owner: str, query: FileQuery) -> None:
        self._searcher = searcher
        self._owner = owner
        self._query = query
        self._number = 0

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        if action != ACTION:
            return ToolResult(f"There is no action '{action[:100]}' here. Use '{ACTION}'.", failed=True)
        number, self._number = self._number, self._number + 1  # before other calls begin
        try:
            queries = check_queries(arguments.get("queries"), "queries", MOST_QUERIES)
            results = await self._searcher.search(self._owner, _with_queries(self._query, queries))
        except AntiphonError as error:
            return ToolResult(error.message, failed=True)
        shown = _shown(number, results)
        return ToolResult(shown.text, FileSearchDetails(queries, number, tuple(results[: shown.count])))

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """Searches are numbered from the last one on."""
        if isinstance(result.details, FileSearchDetails):
            self._number = max(self._number, result.details.number + 1)

    async def close(self) -> None:
        """There are no resources."""


class _ResultText(Struct, frozen=True):
    text: str
    count: int


def _query(settings: Mapping[str, Any], where: str) -> FileQuery:
    """The query of the settings at `where` in a request. Raises RequestError."""
    given = parse_settings(settings, _FileSearchSettings, where)
    if not 1 <= len(given.vector_store_ids) <= MOST_STORES:
        raise invalid_setting(f"{where}.vector_store_ids", f"Name 1 to {MOST_STORES} vector stores.")
    return FileQuery(
        tuple(given.vector_store_ids),
        (),
        check_count(given.max_num_results, f"{where}.max_num_results", RESULTS),
        check_filter(given.filters, given.filter, f"{where}."),
        check_ranking(given.ranking_options, f"{where}.ranking_options"),
    )


def _with_queries(query: FileQuery, queries: tuple[str, ...]) -> FileQuery:
    return FileQuery(query.vector_store_ids, queries, query.limit, query.filter, query.threshold)


def _shown(number: int, results: Sequence[FileResult]) -> _ResultText:
    """The results, each after its citation, up to the limit of characters; the last one may be cut."""
    if not results:
        return _ResultText("Nothing was found. Try other words, or say that the files do not contain it.", 0)
    parts: list[str] = []
    room = SHOWN_CHARACTERS
    for index, result in enumerate(results):
        if room <= 0:
            break
        text = result.text.translate(_BRACKETS)
        parts.append(f"{file_citation(number, index, result.filename)}\n{text[:room]}")
        room -= len(parts[-1])
    return _ResultText("\n\n".join(parts), len(parts))


_BRACKETS = str.maketrans("【】", "〖〗")
"""The text of a file cannot contain citations: models would repeat them."""
