"""A page as models are shown it: numbered lines, and links that they open by their numbers.

Links are written as some models were trained to read them: `【3†text†domain】` is link 3, and the domain is
left out if it is the page's own. The brackets in a page's own text are replaced by similar ones, so that
pages cannot fake links.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from msgspec import Struct

from antiphon.core.tool_result import CitablePage

WIDTH = 80
"""Characters in a line, at most."""

PAGE_CHARS = 400_000
"""The most characters of a page's text that are kept."""

UNREAD = "[The rest of the page was not read.]"
"""The last line of a page that was cut."""

MATCHES = 50
"""How many matches are shown of a text that a page has more often."""

_MATCH_LINES = 4
_DOMAIN_CHARS = 100
_TITLE_CHARS = 200
_PIECE = re.compile(rf".{{1,{WIDTH}}}(?:\s+|$)|.{{{WIDTH}}}")
_UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff\ud800-\udfff]"
)
_BRACKETS = str.maketrans("【】", "〖〗")
_MARKS = re.compile(r"【\d+†|(?:†[^†】\n]*)?】")


class Link(Struct, frozen=True):
    """The target of a link: a page, and one of its lines."""

    url: str
    line: int = 0


class WebPage(Struct, frozen=True):
    """A page to show. `url` is None for a generated page: results of a search, matches of a text.

    `cited_pages` are the pages that a generated one refers to, with the lines where they begin.
    """

    title: str
    lines: Sequence[str]
    links: Sequence[Link] = ()
    url: str | None = None
    cited_pages: tuple[CitablePage, ...] = ()

    @property
    def sources(self) -> tuple[CitablePage, ...]:
        """The pages to cite for this one."""
        return self.cited_pages if self.url is None else (CitablePage(clean(self.url), clean(self.title)),)


class SearchHit(Struct, frozen=True):
    """A page that a search found, and the matching part of its text."""

    title: str
    url: str
    snippet: str = ""


def clean(text: str) -> str:
    """Text without invisible characters, and without the brackets of links and citations."""
    return _UNSHOWN.sub("", text).translate(_BRACKETS)


def squeeze(text: str) -> str:
    """Clean text on one line, with single spaces."""
    return " ".join(clean(text).split())


def link_text(number: int, text: str, domain: str) -> str:
    """A link as models are shown it; `text` is clean."""
    return f"【{number}†{text.replace('†', '‡')}{domain and f'†{domain}'}】"


def wrap(line: str) -> Iterable[str]:
    """A line as lines of at most `WIDTH` characters, cut between words where that can be."""
    return [piece.rstrip() for piece in _PIECE.findall(line)] or [""]


def text_page(url: str, text: str) -> WebPage:
    """A plain text, line by line."""
    lines = clean(text[:PAGE_CHARS]).expandtabs(4).splitlines()
    unread = ["", UNREAD] if len(text) > PAGE_CHARS else []
    return WebPage(domain_of(url), [*heading(url), *_wrapped(lines), *unread], url=url)


def heading(url: str) -> list[str]:
    """The lines that every page begins with."""
    return ["", *wrap(f"URL: {clean(url)}")]


def results_page(query: str, results: Sequence[SearchHit], remark: str) -> WebPage:
    """The results of a search: result 0 is link 0, and so on. The `remark` follows them."""
    links = [Link(result.url) for result in results]
    lines = [*heading(""), "# Search Results", ""]
    sources = []
    for number, result in enumerate(results):
        sources.append(CitablePage(result.url, squeeze(result.title) or squeeze(result.url), len(lines)))
        lines += wrap(_listed(number, result))
    lines += [] if results else ["Nothing was found."]
    lines += _wrapped(["", remark] if remark else [])
    return WebPage(squeeze(query), lines, links, cited_pages=tuple(sources))


def _listed(number: int, result: SearchHit) -> str:
    title = (squeeze(result.title) or squeeze(result.url))[:_TITLE_CHARS]
    return f"  * {link_text(number, title, domain_of(result.url))} {squeeze(result.snippet)}".rstrip()


def domain_of(url: str) -> str:
    """The host and port of a URL, as they are written there, cut to a bounded length."""
    return squeeze(re.split(r"[/?#\\]", url.partition("://")[2], maxsplit=1)[0])[:_DOMAIN_CHARS]


def matches_page(page: WebPage, pattern: str) -> WebPage:
    """The lines of a page that contain `pattern`, ignoring case, as links. The page has a URL."""
    lines = _MARKS.sub("", "\n".join(page.lines)).split("\n")
    places = list(_places(lines, " ".join(pattern.split()).casefold()))
    shown = [
        line
        for number, place in enumerate(places)
        for line in (f"# 【{number}†match at L{place}】", *lines[place : place + _MATCH_LINES], "")
    ]
    title = f"Find results for text: `{squeeze(pattern)}` in `{page.title}`"
    lines = shown[:-1] or list(wrap(f"No `find` results for pattern: `{squeeze(pattern)}`"))
    assert page.url is not None
    return WebPage(title, lines, [Link(page.url, place) for place in places], cited_pages=page.sources)


def _places(lines: Sequence[str], pattern: str) -> Iterator[int]:
    """The numbers of the lines where the pattern begins, not counting those that a match before it shows."""
    folded = [line.casefold() for line in lines]
    starts = list(accumulate((len(line) + 1 for line in folded), initial=0))
    text, position = " ".join(folded), 0
    for _ in range(MATCHES):
        position = text.find(pattern, position)
        if position < 0:
            return
        place = bisect_right(starts, position) - 1
        yield place
        position = starts[min(place + _MATCH_LINES, len(lines))]


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    return (piece for line in lines for piece in wrap(line))
