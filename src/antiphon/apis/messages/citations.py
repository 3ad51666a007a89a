"""Citations: of documents and search results of the request, and of pages that the server found.

A document whose `citations` are enabled is shown in numbered pieces, under a name by which models cite them:
`【doc0†L2-L4】`. Pages of the web are cited in the same form (`apis/citations.py`). They stay in the
text, and the block with the text lists a citation for each, in their order. What refers to nothing that was
shown is plain text.

To add a part that can be cited: a class next to those in `Citable`, made in `history.py`; its wire type in
`Citation` of `resource.py`; `tests/apis/messages/test_citations.py`.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from msgspec import Struct

from antiphon.apis.citations import Citations
from antiphon.apis.messages.resource import (
    BlockLocation,
    CharLocation,
    Citation,
    PageLocation,
    SearchResultLocation,
    WebLocation,
)
from antiphon.apis.messages.server_tools import Seal
from antiphon.core.tool_result import ToolResult

MAX_QUOTE = 150
"""Characters that are quoted of a page, as Anthropic has it."""

MAX_PIECES = 10_000
MAX_CUT = 1_000_000
"""The most pieces of one text, and characters that are split. The rest of a longer text is the last piece."""
MAX_QUOTED = 256 * 1024
"""The most characters of the request that the citations of one answer quote; further ones are left out."""

_END = re.compile(r"[.!?]\s+|[\u3002\uff01\uff1f]\s*|\n\s*")  # the three are those of Chinese and Japanese
_MARK = re.compile(r"【doc(\d{1,6})†[Ll](\d{1,7})(?:-[Ll]?(\d{1,7}))?】")


class FileText(Struct, frozen=True):
    """The text of a file: its pages if `paged`, otherwise one text."""

    pages: Sequence[str]
    paged: bool


class Heading(Struct, frozen=True):
    """Identifies a document: `index` counts all documents. `file_id` is that of a stored file."""

    index: int
    title: str | None
    file_id: str | None = None


class BlockDocument(Struct, frozen=True):
    """A document of blocks that may be cited."""

    heading: Heading
    pieces: Sequence[str]

    def cite(self, first: int, end: int, quote: str) -> Citation:
        """The citation of pieces, which are quoted."""
        return BlockLocation(quote, self.heading.index, self.heading.title, first, end)


class PagedDocument(Struct, frozen=True):
    """A document of pages that may be cited."""

    heading: Heading
    pieces: Sequence[str]

    def cite(self, first: int, end: int, quote: str) -> Citation:
        """The citation of pieces, which are quoted."""
        of = self.heading
        return PageLocation(quote, of.index, of.title, first + 1, end + 1, of.file_id)


class TextDocument(Struct, frozen=True):
    """A document with one text. Its pieces begin at `starts`, whose last entry is the end of the text."""

    heading: Heading
    pieces: Sequence[str]
    starts: Sequence[int]

    def cite(self, first: int, end: int, quote: str) -> Citation:
        """The citation of pieces, which are quoted."""
        of = self.heading
        return CharLocation(quote, of.index, of.title, self.starts[first], self.starts[end], of.file_id)


class CitableSearchResult(Struct, frozen=True):
    """A search result that may be cited: `index` counts all of them."""

    index: int
    title: str
    source: str
    pieces: Sequence[str]

    def cite(self, first: int, end: int, quote: str) -> Citation:
        """The citation of pieces, which are quoted."""
        return SearchResultLocation(quote, self.source, self.title, self.index, first, end)


Citable = TextDocument | PagedDocument | BlockDocument | CitableSearchResult


def text_document(heading: Heading, text: str) -> TextDocument:
    """A document with one text: its pieces are sentences, or lines, each with the space after it."""
    ends = [match.end() for match in islice(_END.finditer(text, 0, MAX_CUT), MAX_PIECES - 1)]
    starts = [0, *ends, *([len(text)] if [0, *ends][-1] < len(text) else [])]
    return TextDocument(heading, [text[start:end] for start, end in pairwise(starts)], starts)


def numbered_text(pieces: Sequence[str], number: int) -> str:
    """The numbered pieces of the citable text with this number, for the model."""
    how = f"Cite what you take from it by its lines, as in 【doc{number}†L0】 or 【doc{number}†L0-L1】."
    return "\n".join((how, *(f"L{line}: {piece.rstrip()}" for line, piece in enumerate(pieces))))


class CitationFinder:
    """Finds the citations of one answer: of parts of its request, and of results of server tools."""

    def __init__(self, given: Sequence[Citable], seal: Seal) -> None:
        self._given = given
        self._citations = Citations()
        self._room = MAX_QUOTED
        self._seal = seal

    def add(self, result: ToolResult) -> None:
        """Add the results of a call: they can be cited from now on."""
        self._citations.add(result)

    def find(self, text: str) -> tuple[Citation, ...]:
        """The citations in a text, in their order."""
        citations = [*self._pages(text)]
        citations += self._documents(text) if self._given else ()
        return tuple(citation for _, citation in sorted(citations, key=lambda placed: placed[0]))

    def _pages(self, text: str) -> Iterator[tuple[int, Citation]]:
        for cited in self._citations.find(text):
            if cited.url:  # Anthropic has no citations of such files
                mark = self._seal(text[cited.start : cited.end])
                yield cited.start, WebLocation(cited.quote[:MAX_QUOTE], cited.url, cited.title, mark)

    def _documents(self, text: str) -> Iterator[tuple[int, Citation]]:
        for mark in _MARK.finditer(text):
            number, first = int(mark[1]), int(mark[2])
            end = int(mark[3] or first) + 1
            if number < len(self._given) and first < end <= len(self._given[number].pieces):
                quoted = self._given[number].pieces[first:end]
                size = sum(map(len, quoted))
                if size <= self._room:
                    self._room -= size
                    yield mark.start(), self._given[number].cite(first, end, "".join(quoted))
