"""The search for functions that are described to a model when it needs them.

It works as a tool of the server, in every tool loop, on the functions of the turn: those that the prompt does
not list. A query ranks them by BM25, with the terms of the file search, over their names, descriptions, and
the names and descriptions of their arguments; words joined in a name count each. A regular expression comes
from the model, so it runs in a process with limits. The result is what the same search says when the client
sends the conversation back (`found_text`), so the next prompt begins with this one.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import log
from typing import Any

from antiphon.core.errors import RequestError
from antiphon.core.positions import FunctionsByPlace, found_text
from antiphon.core.tool_result import FoundFunctions, OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import TOOL_SEARCH, Function, Placement, SearchAction
from antiphon.run.bounded import BoundedPool
from antiphon.run.documents import terms_of
from antiphon.tools.tool import RequestedTool, ToolOffer

BEST = 5
"""The most functions that a search finds."""
WORTH = 0.2
"""What fits less than this part of the best is not found: it shares words such as "of" with the query."""
MAX_PATTERN = 200
"""The most characters of a regular expression."""
MAX_QUERY = 2000
"""The characters of a query that count."""
SATURATION, LENGTH = 1.2, 0.75
"""How soon further occurrences of a term count for little, and how much a long text loses."""

_JOINED = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[_\W]+")


class ToolSearch:
    """The tool of one answer, and its session: it needs no other state than the functions of the turn.

    See `ServerTool` and `Session` of `tools/tool.py`.
    """

    type = TOOL_SEARCH
    aliases: tuple[str, ...] = ()

    def __init__(self, tools: Sequence[Function], pool: BoundedPool) -> None:
        self._tools = tools
        self._searched = [tool for tool in tools if tool.placement in _SEARCHED]
        self._pool = pool

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        """Nothing: the API of a request decides what its search is called."""
        return ToolOffer()

    def open(self, requested: RequestedTool) -> "ToolSearch":
        """It is its own session."""
        return self

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        """Find functions. `arguments` are those of the search; of a call that counts as one, its `name`."""
        match action, arguments:
            case SearchAction.QUERY, {"query": str(query)}:
                return self._found(await asyncio.to_thread(ranked, self._searched, query))
            case SearchAction.PATTERN, {"pattern": str(pattern)}:
                return await self._matching(pattern)
            case SearchAction.CALL, {"name": str(name)}:
                return self._found([name])
        what = "pattern" if action == SearchAction.PATTERN else "query"
        return ToolResult(f"Search with a text in '{what}'.", failed=True)

    async def _matching(self, pattern: str) -> ToolResult:
        if len(pattern) > MAX_PATTERN:
            return ToolResult(f"Use a pattern of at most {MAX_PATTERN} characters.", failed=True)
        texts = [" ".join(_texts(tool)) for tool in self._searched]
        try:
            places = await self._pool.run("pattern", matching_places, pattern, texts)
        except (RequestError, re.error) as error:
            return ToolResult(f"This pattern cannot be used: {error}", failed=True)
        return self._found([self._searched[place].name for place in places])

    def _found(self, names: Iterable[str]) -> ToolResult:
        functions = FunctionsByPlace(self._tools).find(names)
        return ToolResult(found_text(functions), FoundFunctions(tuple(tool.name for tool in functions)))

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """Nothing: what was found is in the results."""

    async def close(self) -> None:
        """Nothing is held."""


_SEARCHED = (Placement.SEARCH, Placement.CONVERSATION)


def ranked(functions: Sequence[Function], query: str) -> list[str]:
    """The names of the functions that fit a query best, the best first; of equal ones, the first.

    The name of a function as the query finds that function alone.
    """
    if any(function.name == query.strip() for function in functions):
        return [query.strip()]
    terms = set(_terms([query[:MAX_QUERY]]))
    documents = [Counter(_terms(_texts(function))) for function in functions]
    sizes = [document.total() for document in documents]
    average = sum(sizes) / len(sizes) if sizes else 0.0
    weights = {
        term: _weight(sum(term in document for document in documents), len(documents)) for term in terms
    }
    scores = [
        sum(weights[term] * _share(document[term], size / average) for term in terms if term in document)
        for document, size in zip(documents, sizes, strict=True)
    ]
    best = sorted(range(len(functions)), key=lambda place: -scores[place])[:BEST]
    least = max(scores, default=0.0) * WORTH
    return [functions[place].name for place in best if scores[place] > least]


def matching_places(pattern: str, texts: Sequence[str]) -> list[int]:
    """The places of the first texts in which the pattern is found. Raises `re.error`."""
    compiled = re.compile(pattern)
    places = (place for place, text in enumerate(texts) if compiled.search(text))
    return [*islice(places, BEST)]


def _weight(having: int, count: int) -> float:
    return log(1 + (count - having + 0.5) / (having + 0.5))


def _share(occurrences: int, size: float) -> float:
    return occurrences * (SATURATION + 1) / (occurrences + SATURATION * (1 - LENGTH + LENGTH * size))


def _terms(texts: Iterable[str]) -> list[str]:
    return [term for text in texts for term in terms_of(_JOINED.sub(" ", text))]


def _texts(function: Function) -> Iterator[str]:
    """What is searched of a function."""
    yield function.name
    yield function.description or ""
    arguments = function.parameters.get("properties")
    for name, schema in arguments.items() if isinstance(arguments, dict) else ():
        yield name
        about = schema.get("description") if isinstance(schema, dict) else None
        yield about if isinstance(about, str) else ""
