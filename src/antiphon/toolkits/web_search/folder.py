"""A folder of pages in place of the web: for networks without internet access, and for tests.

It has the layout of `wget --mirror`: the folder `docs.example` has the pages of https://docs.example/. A
search compares words; rarer words have a higher weight.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import log
from pathlib import Path
from urllib.parse import quote

import httpx2
from msgspec import Struct

from antiphon.core.errors import ToolError
from antiphon.core.permits import Permits
from antiphon.toolkits.web_search.markup import html_page
from antiphon.toolkits.web_search.page import SearchHit, WebPage, heading, text_page
from antiphon.tools.web.charset import decode
from antiphon.tools.web.domains import Domains
from antiphon.tools.web.fetch import BODY_BYTES, FetchedDocument, parse

PAGES = 10_000
"""Pages of a folder that are searched, at most."""

_HTML = frozenset({".html", ".htm", ".xhtml"})
_READABLE = _HTML | {".md", ".txt", ".rst", ".json", ".xml", ".csv"}
_INDEX = "index.html"
_TITLE_WEIGHT = 5
_SNIPPET = 400
_WORD = re.compile(r"\w+")


class _Indexed(Struct, frozen=True):
    title: str
    text: str
    words: Mapping[str, int]


class FolderPages:
    """The pages of a folder: a `SearchProvider`, and a `PageSource`. It is read at the first search.

    Raises ToolError if it is not a folder, or has no pages.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ToolError(f"'{folder}' is not a folder of pages.")
        self._files = dict(_pages(folder))
        if not self._files:
            raise ToolError(
                f"'{folder}' has no pages. Each site needs a folder of its name: docs.example/index.html."
            )
        self._index: Mapping[str, _Indexed] = {}
        self._reading = Permits(1)

    async def search(self, query: str, count: int, domains: Domains) -> Sequence[SearchHit]:
        if not self._index:
            await self._reading.run(lambda: asyncio.ensure_future(asyncio.to_thread(self._read_once)))
        return await asyncio.to_thread(self._best, query, count, domains)

    async def fetch(self, url: str, domains: Domains) -> FetchedDocument:
        """The page at `url`. Raises ToolError."""
        address = parse(url)
        if not domains.admits(str(address)):
            raise ToolError(f"{address.host} is not among the domains that may be opened here.")
        file = self._files.get(_key(address))
        if file is None:
            raise ToolError("This page does not exist here. Only pages that a search finds can be opened.")
        return await asyncio.to_thread(_document, str(address), file)

    async def close(self) -> None:
        """There are no resources."""

    def _read_once(self) -> None:
        if not self._index:
            self._index = {url: _indexed(_document(url, file)) for url, file in self._files.items()}

    def _best(self, query: str, count: int, domains: Domains) -> list[SearchHit]:
        terms = set(_WORD.findall(query.casefold()))
        pages = {url: page for url, page in self._index.items() if domains.admits(url)}
        weights = {
            word: log(1 + len(pages) / having)
            for word in terms
            if (having := sum(word in page.words for page in pages.values()))
        }
        scores = {
            url: sum(
                weight * page.words.get(word, 0) / (page.words.get(word, 0) + 1.5)
                for word, weight in weights.items()
            )
            for url, page in pages.items()
        }
        ranked = sorted((url for url in scores if scores[url]), key=lambda url: (-scores[url], url))
        return [
            SearchHit(pages[url].title, url, _snippet(pages[url].text, weights)) for url in ranked[:count]
        ]


def _pages(folder: Path) -> Iterator[tuple[str, Path]]:
    """The pages, by their URLs."""
    root, count = folder.resolve(), 0
    for file in sorted(root.rglob("*")):
        path = file.relative_to(root).as_posix()
        if "/" not in path or file.suffix.lower() not in _READABLE or not file.resolve().is_relative_to(root):
            continue
        if not file.is_file() or count == PAGES:
            continue
        count += 1
        yield f"https://{quote(path)}".removesuffix(_INDEX), file


def _key(url: httpx2.URL) -> str:
    """The canonical URL of a page."""
    host, path = url.host, url.path
    return f"https://{quote(host + path)}".removesuffix(_INDEX)


def _document(url: str, file: Path) -> FetchedDocument:
    with file.open("rb") as opened:
        body = opened.read(BODY_BYTES + 1)
    html = file.suffix.lower() in _HTML
    return FetchedDocument(url, decode(body[:BODY_BYTES], None), html, cut=len(body) > BODY_BYTES)


def _indexed(document: FetchedDocument) -> _Indexed:
    page: WebPage = (html_page if document.html else text_page)(document.url, document.text)
    text = " ".join(" ".join(page.lines[len(heading(document.url)) :]).split())
    words = Counter(_WORD.findall(text.casefold()))
    for word in _WORD.findall(page.title.casefold()):
        words[word] += _TITLE_WEIGHT
    return _Indexed(page.title, text, words)


def _snippet(text: str, weights: Mapping[str, float]) -> str:
    """The text from a little before the rarest word on."""
    folded = text.casefold()
    places = (folded.find(word) for word in sorted(weights, key=lambda word: -weights[word]))
    start = max(next((place for place in places if place >= 0), 0) - _SNIPPET // 4, 0)
    return text[start : start + _SNIPPET]
