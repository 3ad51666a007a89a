"""What an answer may cite, and the citations in a model's text: shared by all tools that find something.

A citation is part of the model's text, and stays there: `【1†L8-L11】` cites lines of a page by its cursor,
in the notation that some models were trained with. A tool may have citations of its own, such as
`【0:2†manual.pdf】` for a part of a file: the details of its results find them (`CitableDetails`). A citation
of something that was not shown is plain text.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from msgspec import Struct

from antiphon.core.tool_result import ShownPages, ToolResult

_CITATION = re.compile(r"【(\d{1,6})†(?:[Ll](\d{1,7})(?:-[Ll]?(\d{1,7}))?[^†】\n]{0,100}|source)】")
_END = 10**7  # no page has such a line
_LINE = re.compile(r"^L(\d{1,7}): (.*)$", re.MULTILINE)


class TextCitation(Struct, frozen=True):
    """A citation from `start` to `end` of a text in characters, and the page or file that it cites.

    A file that a program has written is in a container. `quote` is the text of the cited lines of a page, as
    it was shown.
    """

    start: int
    end: int
    url: str = ""
    title: str = ""
    quote: str = ""
    file_id: str = ""
    filename: str = ""
    container_id: str = ""


class CitableDetails(Struct, frozen=True):
    """Details of results that models cite in a notation of their tool's own."""

    @classmethod
    def citations(cls, text: str, details: Sequence[Any]) -> Iterator[TextCitation]:
        """The citations in a text of the results that have these `details`, which are all of this type."""
        raise NotImplementedError


class Citations:
    """The pages and files that the answer has found or written so far, and may cite."""

    def __init__(self) -> None:
        self._pages: dict[int, tuple[ShownPages, list[tuple[int, str]]]] = {}  # and lines, with their numbers
        self._details: dict[type[CitableDetails], list[CitableDetails]] = {}

    def add(self, result: ToolResult) -> None:
        """Add the results of a call: they can be cited from now on."""
        if result.shown is not None:
            lines = [(int(number), line) for number, line in _LINE.findall(result.text)]
            self._pages[result.shown.cursor] = result.shown, lines
        if isinstance(result.details, CitableDetails):
            self._details.setdefault(type(result.details), []).append(result.details)

    def find(self, text: str) -> list[TextCitation]:
        """The citations in a text, in their order."""
        citations = [*self._pages_in(text)] if self._pages else []
        for type_, details in self._details.items():
            citations += type_.citations(text, details)
        return sorted(citations, key=attrgetter("start"))

    def _pages_in(self, text: str) -> Iterator[TextCitation]:
        for match in _CITATION.finditer(text):
            if (page := self._pages.get(int(match[1]))) is None:
                continue
            shown, lines = page
            first = int(match[2] or 0)
            # Of results, each begins at a line of its own.
            begins = [source.line for source in shown.sources]
            at = bisect_right(begins, first) - 1
            if at >= 0:
                source, end = shown.sources[at], [*begins[at + 1 :], _END][0]
                # Without lines, or with empty ones, it cites the whole source.
                named = _quote(lines, first, int(match[3] or first)) if match[2] else ""
                quote = named or _quote(lines, source.line, end - 1)
                yield TextCitation(*match.span(), source.url, source.title, quote=quote)


def _quote(lines: list[tuple[int, str]], first: int, last: int) -> str:
    """The text of these lines."""
    return " ".join(line for number, line in lines if first <= number <= last).strip()
