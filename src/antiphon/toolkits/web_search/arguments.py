"""The arguments of a call, parsed leniently: `"3"`, `3.0` and `[3]` are the number 3, -1 means none."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.core.errors import ToolError
from antiphon.toolkits.web_search.page import clean

QUERY_CHARS = 500
"""The most characters of a query; a longer one is cut."""

_VIEW_SOURCE = "view-source:"
_NUMBER = re.compile(r"\s*+[\[【]?[Ll]?\s*+(\d{1,9})(?:\.0*)?\s*+[\]】]?\s*")
_LARGEST = 10**9


class Search(Struct, frozen=True):
    """Search the web. `count`: the most results."""

    query: str
    count: int | None


class Open(Struct, frozen=True):
    """Open a URL, a link by its number, or the page at `cursor` itself; `count` lines from `line` on."""

    target: str | int | None
    cursor: int | None
    line: int | None
    count: int | None


class Find(Struct, frozen=True):
    """Find a text in a page."""

    pattern: str
    cursor: int | None


def parse_call(action: str, arguments: Mapping[str, Any]) -> Search | Open | Find:
    """The call with these arguments. Raises ToolError if they are ambiguous."""
    match action:
        case "search":
            return Search(_text(arguments, "query"), _number(arguments.get("topn")))
        case "open":
            return _open(arguments)
        case "find":
            return Find(_text(arguments, "pattern"), _number(arguments.get("cursor")))
    raise ToolError(f"There is no such action: '{clean(action)[:100]}'. Use search, open or find.")


def _open(arguments: Mapping[str, Any]) -> Open:
    cursor, line, count = (_number(arguments.get(name)) for name in ("cursor", "loc", "num_lines"))
    return Open(_target(arguments.get("id")), cursor, line, count)


def _target(value: object) -> str | int | None:
    number = _number(value)
    if number is not None or not isinstance(value, str):
        return number
    text = clean(value).strip().removeprefix(_VIEW_SOURCE)
    return None if text in ("", "-1") else text


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if isinstance(value, int | float) and abs(value) <= _LARGEST:
        value = str(value)
    text = clean(value).strip() if isinstance(value, str) else ""
    if not text:
        raise ToolError(f"`{name}` is missing. Give a string.")
    return text[:QUERY_CHARS]


def _number(value: object) -> int | None:
    """An integer from 0 on, None for anything else."""
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value)):
        return int(match[1])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value <= _LARGEST else None
