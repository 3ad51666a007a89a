"""Queries for files and their results: shared by the tool `file_search` and by vector stores."""

import operator
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.core.errors import RequestError

MOST_RESULTS = 50

RANKERS = ("auto", "default-2024-11-15", "default_2024_08_21", "none")
"""Names of rankers that clients send. All select the same ranker."""

_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_JOINED: Mapping[str, Callable[[Iterable[bool]], bool]] = {"and": all, "or": any}
_LISTED = ("in", "nin")
_POSITIVE = ("eq", "in")
_COMPARISONS = ("eq", "ne", *_ORDER, *_LISTED)
_DEPTH = 20
_MOST_FILTERS = 500
_MOST_VALUES = 5000
_SHOWN = 64


class Filter(Struct, frozen=True):
    """The files to search, by their attributes: a comparison, or filters combined with `and` or `or`.

    In a comparison with a list, `value` holds its values with their types.
    """

    type: str
    key: str = ""
    value: Any = None
    filters: tuple["Filter", ...] = ()

    def admits(self, attributes: Mapping[str, Any]) -> bool:
        """Whether a file with these attributes is searched. A missing attribute differs from every value."""
        if self.type in _JOINED:
            return _JOINED[self.type](inner.admits(attributes) for inner in self.filters)
        attribute = attributes.get(self.key)
        if self.type in _ORDER:
            comparable = _kind(attribute) is _kind(self.value) and _kind(attribute) in (str, float)
            return comparable and _ORDER[self.type](attribute, self.value)
        values = self.value if self.type in _LISTED else (_with_kind(self.value),)
        return (_with_kind(attribute) in values) is (self.type in _POSITIVE)


_BRACKETS = str.maketrans("【】\n", "〖〗 ")
_MARK = re.compile(r"【(\d{1,4}):(\d{1,4})(?:†[^【】\n]*)?】")


def file_citation(search: int, result: int, filename: str) -> str:
    """The text with which models cite a result: `【0:2†manual.pdf】`."""
    return f"【{search}:{result}†{filename.translate(_BRACKETS)}】"


def file_citations(text: str) -> Iterator[tuple[int, int, int, int]]:
    """The citations in a text: where each begins and ends, its search and its result."""
    for match in _MARK.finditer(text):
        yield *match.span(), int(match[1]), int(match[2])


class FileQuery(Struct, frozen=True):
    """A query, and the vector stores to search. Results below the `threshold` (0 to 1) are left out."""

    vector_store_ids: tuple[str, ...]
    queries: tuple[str, ...]
    limit: int = 10
    filter: Filter | None = None
    threshold: float = 0.0


class FileResult(Struct, frozen=True):
    """A part of a file that was found. `score` is from 0 to 1."""

    file_id: str
    filename: str
    score: float
    attributes: Mapping[str, Any]
    text: str


def parse_filter(value: Any, where: str) -> Filter:
    """The filter at `where` in a request. Raises RequestError."""
    return _parsed(value, where, _DEPTH, _Room(where))


def check_filter(given: Any, alias: Any, within: str = "") -> Filter | None:
    """The filter `filters` of a request or tool, which is also called `filter`. Raises RequestError."""
    if None not in (given, alias) and given != alias:
        message = f"'{within}filters' and '{within}filter' are one parameter. Send one of them."
        raise RequestError(message, param=f"{within}filter")
    name, value = ("filter", alias) if given is None else ("filters", given)
    return None if value is None else parse_filter(value, within + name)


class _Room:
    """The number of conditions and values that a filter may still have."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._filters, self._values = _MOST_FILTERS, _MOST_VALUES

    def take(self, values: int) -> None:
        """Count one more condition with this number of values. Raises RequestError if there are too many."""
        self._filters -= 1
        self._values -= values
        if self._filters < 0 or self._values < 0:
            maximum = f"{_MOST_FILTERS} filters, or {_MOST_VALUES} values"
            raise RequestError(f"'{self._where}' has more than {maximum}.", param=self._where)


def _parsed(value: Any, where: str, depth: int, room: _Room) -> Filter:
    if not isinstance(value, Mapping) or depth == 0:
        raise _wrong(where, f"Expected a filter: an object, nested {_DEPTH} levels deep at most.")
    type_ = str(value.get("type"))
    _check_members(value, where, ("type", "filters") if type_ in _JOINED else ("type", "key", "value"))
    if type_ in _JOINED:
        inner = value.get("filters")
        if not isinstance(inner, list) or not inner:
            raise _wrong(f"{where}.filters", "Expected a list of filters.")
        room.take(0)
        parsed = (
            _parsed(part, f"{where}.filters[{index}]", depth - 1, room) for index, part in enumerate(inner)
        )
        return Filter(type_, filters=tuple(parsed))
    if type_ not in _COMPARISONS:
        raise _wrong(f"{where}.type", f"Use one of and, or, {', '.join(_COMPARISONS)}.")
    key, operand = value.get("key"), value.get("value")
    if not isinstance(key, str):
        raise _wrong(f"{where}.key", "Expected the name of an attribute.")
    several = type_ in _LISTED
    if several and not isinstance(operand, list):
        raise _wrong(f"{where}.value", f"'{type_}' needs a list of values.")
    values: Sequence[Any] = operand if several else (operand,)  # type: ignore[assignment]
    room.take(len(values))
    for item in values:
        if _kind(item) is None:
            raise _wrong(f"{where}.value", "Use texts, numbers, true or false.")
    return Filter(type_, key, frozenset(map(_with_kind, values)) if several else operand)


def _check_members(given: Mapping[str, Any], where: str, known: Container[str]) -> None:
    """Raise RequestError for unknown members: they might say to find less."""
    for name, value in given.items():
        if name not in known and value is not None:
            raise _wrong(f"{where}.{name[:_SHOWN]}", "There is no such member. Leave it out.")


def _kind(value: Any) -> type | None:
    """The kind of a value: only texts, only numbers or only booleans can be compared."""
    if isinstance(value, bool):
        return bool
    return float if isinstance(value, int | float) else str if isinstance(value, str) else None


def _with_kind(value: Any) -> tuple[type | None, Any]:
    """A value with its kind: those of different kinds are never equal."""
    return _kind(value), value


def _wrong(param: str, remedy: str) -> RequestError:
    return RequestError(f"Invalid value for '{param}': {remedy}", param=param)


def check_ranking(options: Mapping[str, Any] | None, where: str) -> float:
    """The score that results need, of the ranking options at `where` in a request. Raises RequestError."""
    given = options or {}
    _check_members(given, where, ("ranker", "score_threshold", "hybrid_search"))
    if given.get("ranker") not in (None, *RANKERS):
        raise _wrong(f"{where}.ranker", f"Use one of {', '.join(RANKERS)}.")
    if given.get("hybrid_search") is not None:
        remedy = "Files are searched by their terms here, without embeddings. Leave it out."
        raise _wrong(f"{where}.hybrid_search", remedy)
    threshold = given.get("score_threshold") or 0.0
    if _kind(threshold) is not float or not 0 <= threshold <= 1:
        raise _wrong(f"{where}.score_threshold", "Use a number from 0 to 1.")
    return float(threshold)


def check_count(count: Any, where: str, default: int) -> int:
    """The number of results that is requested, or the default. Raises RequestError."""
    if count is None:
        return default
    if _kind(count) is not float or int(count) != count or not 1 <= count <= MOST_RESULTS:
        raise _wrong(where, f"Use a number from 1 to {MOST_RESULTS}.")
    return int(count)


def check_queries(given: Any, where: str, limit: int = 20) -> tuple[str, ...]:
    """The queries of a search: a text, or several. Raises RequestError."""
    queries: Sequence[Any] = [given] if isinstance(given, str) else given
    if not isinstance(queries, list) or not queries or len(queries) > limit:
        raise _wrong(where, f"Use a text, or a list of 1 to {limit} texts.")
    if not all(isinstance(query, str) for query in queries):
        raise _wrong(where, "Use a text, or a list of texts.")
    return tuple(queries)
