"""The part of a page that a model gets at a time: a bounded window of numbered lines, under a cursor."""

import re
from collections.abc import Iterator, Sequence

from antiphon.core.errors import ToolError
from antiphon.toolkits.web_search.page import WebPage, clean

VIEW_CHARS = 10_000
"""How much of a page is shown at a time."""

_TITLE_CHARS = 200
_URL_CHARS = 1000
_LINE = re.compile(r"^L\d+: (.*)$", re.MULTILINE)


def display(page: WebPage, cursor: int, first: int = 0, count: int | None = None) -> str:
    """The lines of a page from `first` on, `count` of them or as many as there is room for.

    Raises ToolError if the page does not go so far.
    """
    last = len(page.lines) - 1
    if first > last:
        raise ToolError(f"There is no line {first}: the last line of the page is {last}.")
    shown = list(_window(page.lines[first : first + count if count else None], first))
    title = page.title[:_TITLE_CHARS]
    place = f" ({clean(page.url[:_URL_CHARS])})" if page.url else ""
    bar = f"**viewing lines [{first} - {first + len(shown) - 1}] of {last}**"
    return f"[{cursor}] {title}{place}\n{bar}\n\n" + "\n".join(shown)


def shown_lines(text: str) -> list[str]:
    """The lines that a display shows."""
    return _LINE.findall(text) or [""]


def _window(lines: Sequence[str], first: int) -> Iterator[str]:
    room = VIEW_CHARS
    for number, line in enumerate(lines, first):
        numbered = f"L{number}: {line}"
        room -= len(numbered) + 1
        if room < 0:
            return
        yield numbered
