"""`web_search`: models search the web, open results, and find texts in them.

It is a browser for models that were trained with it, and three functions with the same arguments for others.
Each displayed page gets a cursor, counted from 0 in each answer: search results and matches of a text are
pages, too. A failed call gets none.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.errors import ToolError
from antiphon.core.tool_result import OutputCallback, ShownPages, ToolResult, ignore_output
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.web_search.arguments import Find, Open, Search, parse_call
from antiphon.toolkits.web_search.details import ALIASES, TYPE, FindDetails, OpenDetails, SearchDetails
from antiphon.toolkits.web_search.display import display, shown_lines
from antiphon.toolkits.web_search.history import PageHistory, Visit
from antiphon.toolkits.web_search.markup import html_page
from antiphon.toolkits.web_search.page import (
    UNREAD,
    Link,
    SearchHit,
    WebPage,
    matches_page,
    results_page,
    text_page,
)
from antiphon.toolkits.web_search.search import SearchProvider
from antiphon.toolkits.web_search.settings import READ, SearchSettings, parse_web_settings
from antiphon.tools.settings import unread_settings
from antiphon.tools.tool import Checkable, RequestedTool, ToolOffer
from antiphon.tools.web.fetch import FetchedDocument, Fetcher, PageSource, parse

READERS = 2
"""Pages that are parsed at a time, for all answers together, in threads."""

_LINES_BEFORE = 4
"""How far above a match its page is opened."""

_UNAVAILABLE = WebPage("A page that can no longer be shown", [""])
_NUMBER = {"type": "integer"}
_CURSOR = {**_NUMBER, "description": "The cursor of the page; by default the page shown last."}


def _function(
    action: str, description: str, required: list[str], **properties: Mapping[str, Any]
) -> Function:
    parameters = {"type": "object", "properties": properties, "required": required}
    # Opening and finding depend on what was displayed before.
    hosted = Hosted(TYPE, action, parallel=action == "search", idempotent=True)
    return Function(f"web_{action}", description, parameters, hosted=hosted)


FUNCTIONS = (
    _function(
        "search",
        """\
Searches the web and shows the results. Use it for facts that you do not know or that may have changed.
Each shown page begins with its cursor in brackets, such as `[0]`, and its lines are numbered: `L0: …`.
A link looks like this: `【3†text†domain】`; 3 is its id. Open useful results with `web_open`.
Cite each page that you use, with its cursor and lines, after the statement: `【1†L8-L11】` or `【1†L8】`.""",
        ["query"],
        query={"type": "string", "description": "What to search for."},
        topn={**_NUMBER, "description": "The maximum number of results."},
    ),
    _function(
        "open",
        """\
Opens a link of a page that was shown, or a URL, and shows the page from line `loc` on.
Without `id` it shows another part of an open page.""",
        [],
        id={"type": ["integer", "string"], "description": "The id of a link, or a full URL."},
        cursor={
            **_CURSOR,
            "description": "The cursor of the page with the link; by default the page shown last.",
        },
        loc={**_NUMBER, "description": "The first line to show."},
        num_lines={
            **_NUMBER,
            "description": "The number of lines to show; by default as many as fit.",
        },
    ),
    _function(
        "find",
        "Finds a text in an open page and shows the lines that contain it. Case is ignored.",
        ["pattern"],
        pattern={"type": "string", "description": "The exact text to find."},
        cursor=_CURSOR,
    ),
)


class WebSearch:
    """The tool. Searches go to `provider`; pages are fetched by `fetcher`, which all answers share."""

    type = TYPE
    aliases = ALIASES

    def __init__(self, provider: SearchProvider, fetcher: PageSource | None = None) -> None:
        self._provider = provider
        self._fetcher = fetcher or Fetcher()
        self._reading = ThreadPoolExecutor(READERS, "read-page")

    async def check(self) -> None:
        if isinstance(self._provider, Checkable):
            await self._provider.check()

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        """Without access to the web, nothing can be searched here."""
        if requested.settings.get("external_web_access") is False:
            return ToolOffer()
        parse_web_settings(requested.settings, requested.where)
        return ToolOffer(FUNCTIONS, unread_settings(requested, READ))

    def open(self, requested: RequestedTool) -> "Browser":
        settings = parse_web_settings(requested.settings, requested.where)
        return Browser(self._provider, self._fetcher, self._reading, settings)

    async def close(self) -> None:
        self._reading.shutdown(wait=False, cancel_futures=True)
        await self._provider.close()
        await self._fetcher.close()


class RunningCall(Struct):
    """A running call. `turn` waits until the calls that began before it have ended."""

    turn: Callable[[], Awaitable[None]]
    details: SearchDetails | OpenDetails | FindDetails | None = None
    shown: ShownPages | None = None


class Browser:
    """The web as one answer sees it: a `Session`.

    Searches may run in parallel. What they found is shown in the order in which they began, because each page
    gets the next cursor.
    """

    def __init__(
        self, provider: SearchProvider, fetcher: PageSource, reading: Executor, settings: SearchSettings
    ) -> None:
        self._provider = provider
        self._fetcher = fetcher
        self._reading = reading
        self._settings = settings
        self._history = PageHistory()
        self._under_way: list[asyncio.Event] = []  # each set when the call is over

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        with self._ordered() as turn:
            doing = RunningCall(turn)
            try:
                text = await self._do(parse_call(action, arguments), doing)
            except ToolError as error:
                return ToolResult(error.message, doing.details, failed=True)
            return ToolResult(text, doing.details, shown=doing.shown)

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """A page is fetched again when it is asked for."""
        if result.failed:
            return
        try:
            visit = self._recalled_page(parse_call(action, arguments), result)
        except ToolError:
            visit = _UNAVAILABLE
        with self._ordered() as turn:
            await turn()
            self._history.add(visit)

    @contextmanager
    def _ordered(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """A call, and how it waits for those that began before it."""
        before, over = tuple(self._under_way), asyncio.Event()
        self._under_way.append(over)

        async def turn() -> None:
            for call in before:
                await call.wait()

        try:
            yield turn
        finally:
            self._under_way.remove(over)
            over.set()

    async def close(self) -> None:
        self._history.clear()

    async def _do(self, call: Search | Open | Find, doing: RunningCall) -> str:
        match call:
            case Search():
                return await self._search(call, doing)
            case Open():
                return await self._open(call, doing)
            case Find():
                return await self._find(call, doing)

    async def _search(self, call: Search, doing: RunningCall) -> str:
        doing.details = SearchDetails(call.query)
        result_size = self._settings.result_size
        count = min(call.count or result_size.results, result_size.results)
        hits = await self._provider.search(call.query, count, self._settings.domains)
        results = [
            SearchHit(result.title, result.url, result.snippet[: result_size.snippet]) for result in hits
        ]
        urls, titles = (result.url for result in results), (result.title for result in results)
        doing.details = SearchDetails(call.query, tuple(urls), tuple(titles))
        location = self._settings.user_location
        await doing.turn()
        page = results_page(call.query, results, f"The user is in {location}." if location else "")
        return self._show(page, doing)

    async def _open(self, call: Open, doing: RunningCall) -> str:
        doing.details = OpenDetails(None)
        link = await self._link(call)
        if link is None:
            page = await self._history.page(call.cursor)
        else:
            doing.details = OpenDetails(link.url)
            # A URL is always fetched: the model asks for the current page. A link may show a stored page.
            seen = None if isinstance(call.target, str) else self._history.page_of(link.url)
            page = seen or await self._fetch(link.url)
        doing.details = OpenDetails(page.url)
        line = max(link.line - _LINES_BEFORE, 0) if link else 0
        return self._show(page, doing, line if call.line is None else call.line, call.count)

    async def _find(self, call: Find, doing: RunningCall) -> str:
        doing.details = FindDetails(None, call.pattern)
        page = await self._history.page(call.cursor)
        doing.details = FindDetails(page.url, call.pattern)
        if page.url is None:
            raise ToolError("A text cannot be found in search results. Open one of them first.")
        return self._show(matches_page(page, call.pattern), doing)

    async def _link(self, call: Open) -> Link | None:
        """What is to be opened; None for the page at the cursor itself."""
        if call.target is None:
            return None
        if isinstance(call.target, str):
            return Link(str(parse(call.target)))
        page = await self._history.page(call.cursor)
        if call.target >= len(page.links):
            raise ToolError(
                f"There is no link {call.target} on that page: it has {len(page.links)}, numbered from 0."
            )
        return page.links[call.target]

    async def _fetch(self, url: str) -> WebPage:
        document = await self._fetcher.fetch(url, self._settings.domains)
        return await asyncio.get_running_loop().run_in_executor(self._reading, _read_page, document)

    def _show(self, page: WebPage, doing: RunningCall, line: int = 0, count: int | None = None) -> str:
        """Show a page under a cursor of its own. Raises ToolError if it has no such line."""
        cursor = self._history.next_cursor
        text = display(page, cursor, line, count)
        doing.shown = ShownPages(cursor, page.sources)
        self._history.add(page)
        return text

    # What an earlier session did

    def _recalled_page(self, call: Search | Open | Find, result: ToolResult) -> Visit:
        """The page that a call showed, or how to get it. Raises ToolError if it cannot be had any more."""
        match result.details, call:
            case SearchDetails(query=query, sources=sources), _:
                cited = result.shown.sources if result.shown else ()
                return WebPage(
                    query, shown_lines(result.text), [Link(url) for url in sources], cited_pages=cited
                )
            case OpenDetails(str(url)), _:
                return partial(self._page_again, url)
            case FindDetails(str(url), pattern), _:
                return partial(self._matches_again, url, pattern)
            case OpenDetails(None), Open(None, cursor):
                return self._history.visit(cursor)
        return _UNAVAILABLE

    async def _page_again(self, url: str) -> WebPage:
        return self._history.page_of(url) or await self._fetch(url)

    async def _matches_again(self, url: str, pattern: str) -> WebPage:
        return matches_page(await self._page_again(url), pattern)


def _read_page(document: FetchedDocument) -> WebPage:
    page = (html_page if document.html else text_page)(document.url, document.text)
    if document.cut and page.lines[-1] != UNREAD:
        return replace(page, lines=[*page.lines, "", UNREAD])
    return page
