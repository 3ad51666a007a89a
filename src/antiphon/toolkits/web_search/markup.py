"""HTML → lines of text: no tree is built, so time is linear and memory is that of the text.

A tree of the HTML standard can be made to grow far beyond its source. libxml2's parser only reports tags and
text, and a `_Reader` converts them.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import urldefrag, urljoin

from lxml import etree

from antiphon.toolkits.web_search.page import (
    PAGE_CHARS,
    UNREAD,
    Link,
    WebPage,
    clean,
    domain_of,
    heading,
    link_text,
    squeeze,
    wrap,
)

DEPTH = 1000
"""The deepest nesting of elements: deeper ones take the parser more time per tag."""

LINKS = 2000
"""Links of a page that can be opened; of further ones only the text is shown."""

_CHUNK = 4096
_LINK_CHARS = 200
_URL_CHARS = 2000
_SKIPPED = frozenset(
    ("script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas", "video", "nav")
)
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_PARAGRAPHS = frozenset(
    ("p", "ul", "ol", "dl", "table", "pre", "blockquote", "figure", "section", "article", "hr", *_HEADINGS)
)
_LINES = frozenset(
    ("div", "li", "tr", "dt", "dd", "br", "caption", "summary", "address", "header", "footer", "main", "form")
)
_BEGINNINGS = {**_HEADINGS, "li": "  * ", "dd": "    "}
_RAISED = {"sup": "^", "sub": "_"}
_WORD = re.compile(r"[\w.,+\u2212-]+")


def html_page(url: str, html: str) -> WebPage:
    """The page that some HTML shows; `url` is where it lies. Anything can be read, not always to its end."""
    reader = _Reader(url)
    parser = etree.HTMLParser(target=reader, encoding="utf-8")
    source = html.replace("\x00", "").encode("utf-8", "replace")
    for start in range(0, len(source), _CHUNK):
        if reader.full:
            break
        parser.feed(source[start : start + _CHUNK])
    with suppress(etree.XMLSyntaxError):  # there was no element at all
        parser.close()
    return reader.page()


class _Reader:
    """Converts the parser's tags and text to lines.

    The text of a line is collected in `_inline`, and written at the end of the line. Lines do not end inside
    a link: its text is one mark.
    """

    def __init__(self, url: str) -> None:
        self._url = self._base = url
        self._title = ""
        self._lines = heading(url)
        self._numbers: dict[str, int] = {}
        self._inline: list[str] = []
        self._beginning = ""
        self._open: list[str] = []
        self._skipped_from: int | None = None
        self._link: tuple[str, int] | None = None
        self._raised = 0
        self._verbatim = 0
        self._chars = 0
        self._too_deep = False

    @property
    def full(self) -> bool:
        """Whether the page has reached its limits."""
        return self._too_deep or self._chars > PAGE_CHARS

    def page(self) -> WebPage:
        """The page so far."""
        self._end_link()
        self._end_line()
        while not self._lines[-1]:
            self._lines.pop()
        if self.full:
            self._lines += ["", UNREAD]
        links = [Link(url) for url in self._numbers]
        return WebPage(squeeze(self._title) or domain_of(self._url), self._lines, links, self._url)

    # Called by the parser

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """An element begins."""
        self._open.append(tag)
        self._too_deep |= len(self._open) > DEPTH
        if self._skipped_from is not None:
            return
        if tag in _SKIPPED or "hidden" in attributes:
            self._skipped_from = len(self._open)
            return
        self._break(tag)
        self._begin(tag, attributes)

    def end(self, tag: str) -> None:
        """An element ends: elements end in the reverse order of their beginnings."""
        if self._skipped_from is None:
            self._finish(tag)
            self._break(tag)
            self._beginning = "" if tag in _BEGINNINGS else self._beginning
        elif self._skipped_from == len(self._open):
            self._skipped_from = None
        self._open.pop()

    def data(self, text: str) -> None:
        """A piece of text."""
        if self._skipped_from is not None:
            return
        if self._open[-1:] == ["title"]:
            self._title += text
            self._chars += len(text)
        elif self._verbatim and self._link is None:
            self._write_verbatim(clean(text))
        else:
            self._write(clean(text))

    def close(self) -> None:
        """The end of the document."""

    # Conversion

    def _begin(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._beginning = _BEGINNINGS.get(tag, self._beginning)
        match tag:
            case "a":
                self._end_link()
                self._link = (attributes.get("href") or "", len(self._inline))
            case "base":
                self._base = _join(self._url, attributes.get("href") or "") or self._url
            case "img":
                alt = squeeze(attributes.get("alt") or "")
                self._write(f" [Image: {alt}] " if alt else " ")
            case "td" | "th" if self._inline:
                self._write(" | ")
            case "sup" | "sub":
                self._raised = len(self._inline)
            case "pre":
                self._verbatim += 1

    def _finish(self, tag: str) -> None:
        match tag:
            case "a":
                self._end_link()
            case "sup" | "sub":
                self._raise(_RAISED[tag])
            case "pre":
                self._end_line()
                self._verbatim -= 1

    def _break(self, tag: str) -> None:
        """End the line, and the paragraph, as the beginning and the end of an element do."""
        if tag not in _LINES and tag not in _PARAGRAPHS:
            return
        if self._link is not None:
            self._write(" ")
            return
        self._end_line()
        if tag in _PARAGRAPHS:
            self._leave_blank()

    def _write(self, text: str) -> None:
        if self._inline or self._verbatim or not text.isspace():
            self._chars += len(text)
            self._inline.append(text)

    def _write_verbatim(self, text: str) -> None:
        first, *others = text.split("\n")
        self._write(first)
        for line in others:
            self._end_line()
            self._write(line)

    def _end_line(self) -> None:
        text = "".join(self._inline)
        self._inline.clear()
        text = text.expandtabs(4).rstrip() if self._verbatim else " ".join(text.split())
        if text.strip("| "):
            self._lines += wrap(self._beginning + text)
            self._beginning = ""
        elif self._verbatim:
            self._leave_blank()

    def _leave_blank(self) -> None:
        if self._lines[-1]:
            self._lines.append("")

    def _raise(self, sign: str) -> None:
        """Write superscript or subscript as one word: 10^{6}."""
        text = "".join(self._inline[self._raised :])
        if _WORD.fullmatch(text):
            self._inline[self._raised :] = [f"{sign}{{{text}}}"]

    def _end_link(self) -> None:
        if self._link is None:
            return
        (href, start), self._link = self._link, None
        text = "".join(self._inline[start:])
        url = _join(self._base, href)
        if url and text.strip() and (url in self._numbers or len(self._numbers) < LINKS):
            del self._inline[start:]
            self._write(self._marked(text, url))

    def _marked(self, text: str, url: str) -> str:
        """A link as its mark, after its text if that is long. Space around the link stays around it."""
        number = self._numbers.setdefault(url, len(self._numbers))
        domain = domain_of(url)
        domain = "" if domain == domain_of(self._url) else domain
        label = " ".join(text.split())
        marked = (
            link_text(number, label, domain)
            if len(label) <= _LINK_CHARS
            else f"{text} {link_text(number, 'link', domain)}"
        )
        return f"{' ' * text[0].isspace()}{marked}{' ' * text[-1].isspace()}"


def _join(base: str, href: str) -> str:
    """The web page of a link; empty if it is not a web page, or another place on the same page."""
    try:
        url = urldefrag(urljoin(base, href.strip())).url
    except ValueError:
        return ""
    leads = url.startswith(("http://", "https://")) and not href.lstrip().startswith("#")
    return url if href and leads and len(url) <= _URL_CHARS else ""
