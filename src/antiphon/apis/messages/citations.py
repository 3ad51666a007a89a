"""What an answer cites: documents and search results of its request, and pages that the server found.

A document whose `citations` are enabled is shown in numbered pieces, under a name by which models cite them:
`【doc0†L2-L4】`. Pages of the web have marks of the same form (`core/citations.py`). Marks stay in the text,
and the block with the text has a citation for each, in their order. A mark of nothing that was shown is text.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

from antiphon.apis.messages.resource import (
    BlockLocation,
    CharLocation,
    Citation,
    SearchResultLocation,
    WebLocation,
)
from antiphon.apis.messages.server_tools import Seal
from antiphon.core.citations import Citations
from antiphon.core.tool_result import ToolResult

MAX_QUOTE = 150
"""Characters that are quoted of a page, as Anthropic has it."""

_END = re.compile(r"[.!?]+\s+|[\u3002\uff01\uff1f]+\s*|\n\s*")  # the three are those of Chinese and Japanese
_MARK = re.compile(r"【doc(\d{1,6})†[Ll](\d{1,7})(?:-[Ll]?(\d{1,7}))?】")


class Document(Struct, frozen=True):
    """A document that may be cited: `index` counts all documents. Pieces are blocks, or parts of one text."""

    index: int
    title: str | None
    pieces: Sequence[str]
    blocks: bool

    def cite(self, first: int, last: int) -> Citation:
        """The citation of these pieces."""
        quote, end = "".join(self.pieces[first : last + 1]), last + 1
        if self.blocks:
            return BlockLocation(quote, self.index, self.title, first, end)
        starts = [*accumulate(map(len, self.pieces), initial=0)]
        return CharLocation(quote, self.index, self.title, starts[first], starts[end])


class SearchResult(Struct, frozen=True):
    """A search result that may be cited: `index` counts all of them."""

    index: int
    title: str
    source: str
    pieces: Sequence[str]

    def cite(self, first: int, last: int) -> Citation:
        """The citation of these pieces."""
        quote = "".join(self.pieces[first : last + 1])
        return SearchResultLocation(quote, self.source, self.title, self.index, first, last + 1)


Citable = Document | SearchResult


def sentences(text: str) -> list[str]:
    """Pieces that make up a text: sentences, or lines. Each has the space behind it."""
    ends = [*(found.end() for found in _END.finditer(text)), len(text)]
    pieces = (text[start:end] for start, end in zip([0, *ends], ends, strict=False))
    return [piece for piece in pieces if piece]


def shown(pieces: Sequence[str], number: int) -> str:
    """What a model is shown of what may be cited, which is the one of this number."""
    how = f"Cite what you take from it by its lines, as in 【doc{number}†L0】 or 【doc{number}†L0-L1】."
    return "\n".join((how, *(f"L{line}: {piece.rstrip()}" for line, piece in enumerate(pieces))))


class Cites:
    """Finds the citations of one answer: of what its request has, and of what is found meanwhile."""

    def __init__(self, given: Sequence[Citable], seal: Seal) -> None:
        self._given = given
        self._found = Citations()
        self._seal = seal

    def add(self, result: ToolResult) -> None:
        """A call was run: what it has shown can be cited from now on."""
        self._found.add(result)

    def find(self, text: str) -> tuple[Citation, ...]:
        """The citations in a text, in their order."""
        found = [*self._pages(text)]
        found += self._documents(text) if self._given else ()
        return tuple(citation for _, citation in sorted(found, key=lambda each: each[0]))

    def _pages(self, text: str) -> Iterator[tuple[int, Citation]]:
        for cited in self._found.find(text):
            if cited.url:  # Anthropic has none for files
                mark = self._seal(text[cited.start : cited.end])
                yield cited.start, WebLocation(cited.quote[:MAX_QUOTE], cited.url, cited.title, mark)

    def _documents(self, text: str) -> Iterator[tuple[int, Citation]]:
        for mark in _MARK.finditer(text):
            number, first = int(mark[1]), int(mark[2])
            last = int(mark[3] or first)
            if number < len(self._given) and first <= last < len(self._given[number].pieces):
                yield mark.start(), self._given[number].cite(first, last)
