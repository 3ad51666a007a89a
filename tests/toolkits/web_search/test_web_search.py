"""`web_search` as models use it: they search, open, scroll and find, and get errors."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from antiphon.core.errors import RequestError
from antiphon.core.tool_result import ToolResult
from antiphon.render.harmony_tools import BROWSER
from antiphon.toolkits.web_search import tool as web_search
from antiphon.toolkits.web_search.details import FindDetails, OpenDetails, SearchDetails
from antiphon.toolkits.web_search.display import VIEW_CHARS
from antiphon.toolkits.web_search.history import PAGES_KEPT
from antiphon.toolkits.web_search.page import UNREAD, SearchHit, WebPage, text_page
from antiphon.toolkits.web_search.search import SearxngSearch
from antiphon.toolkits.web_search.tool import FUNCTIONS, READERS, Browser, WebSearch
from antiphon.tools.tool import RequestedTool, ServerTool, Session, ToolOffer
from antiphon.tools.web.domains import Domains
from antiphon.tools.web.fetch import BODY_BYTES, Fetcher
from tests.contracts.tool import ToolContract
from tests.search import examples
from tests.tools.processes import PATIENCE
from tests.tools.web.site import THREADS, Site, bomb, elsewhere, loopback, page, web

CONFINED = {"filters": {"allowed_domains": ["nowhere.invalid"]}}
"""Of all that chance may write, no host is looked up."""


class Web(Struct):
    """The tool, and the web that it sees."""

    tool: WebSearch
    site: Site

    def open(self, **tool: Any) -> Session:
        return self.tool.open(RequestedTool({"type": "web_search", **tool}))


@asynccontextmanager
async def browsing(**pages: Any) -> AsyncIterator[Web]:
    async with web(**pages) as site:
        site.results = [
            {"title": "Home", "url": f"{site.url}/", "content": "Two choirs. " * 100},
            {"title": "History", "url": f"{site.url}/history", "content": ""},
            {"title": "Elsewhere", "url": "https://other.example/", "content": ""},
        ]
        tool: ServerTool = WebSearch(SearxngSearch(site.url), Fetcher(loopback))
        assert isinstance(tool, WebSearch)
        yield Web(tool, site)
        await tool.close()


@pytest.fixture
async def world() -> AsyncIterator[Web]:
    async with browsing() as world:
        yield world


def failure(result: ToolResult) -> str:
    assert result.failed
    return result.text


class Confined(WebSearch):
    def open(self, requested: RequestedTool) -> Browser:
        return super().open(RequestedTool({**requested.settings, **CONFINED}))


class TestContract(ToolContract):
    call = ("search", {"query": "antiphons"})
    sets = call
    gets = ("open", {"id": 1})
    left = "Line 3 of the history"
    lengthy = ("open", {})
    endless = ("open", {})
    arguments = ("source", "view_source")
    settings = ("filters", "user_location", "search_context_size", "external_web_access")

    @pytest.fixture
    async def tool(self, world: Web) -> ServerTool:
        self.lengthy = ("open", {"id": f"{world.site.url}/history"})
        self.endless = ("open", {"id": f"{world.site.url}/hang"})
        return world.tool

    @pytest.fixture
    async def harmless(self, world: Web) -> AsyncIterator[ServerTool]:
        confined = Confined(SearxngSearch(world.site.url), Fetcher(loopback))
        yield confined
        await confined.close()


async def test_a_model_searches_opens_a_result_follows_a_link_and_finds_a_text(world: Web) -> None:
    url, browser = world.site.url, world.open()
    port = url.rpartition(":")[2]

    found = await browser.run("search", {"query": "antiphons"})
    assert found.details == SearchDetails(
        "antiphons",
        (f"{url}/", f"{url}/history", "https://other.example/"),
        ("Home", "History", "Elsewhere"),
    )
    assert found.text.startswith("[0] antiphons\n**viewing lines [0 - ")
    assert f"  * 【0†Home†127.0.0.1:{port}】 Two choirs." in found.text

    home = await browser.run("open", {"id": 0})
    assert home.details == OpenDetails(f"{url}/")
    assert home.text == (
        f"[1] Choirs & chants ({url}/)\n**viewing lines [0 - 6] of 6**\n\n"
        f"L0: \nL1: URL: {url}/\nL2: \nL3: # Antiphons\nL4: \n"
        "L5: An antiphon is sung by two choirs. See 【0†its history】 or\n"
        "L6: 【1†music†other.example】."
    )

    history = await browser.run("open", {"cursor": 1, "id": 0})
    assert history.details == OpenDetails(f"{url}/history")
    assert history.text.startswith(f"[2] History ({url}/history)")

    ambrose = await browser.run("find", {"pattern": "AMBROSE of"})
    assert ambrose.details == FindDetails(f"{url}/history", "AMBROSE of")
    assert "# 【0†match at L85】\nL1: Line 40 of the history names Ambrose" in ambrose.text

    place = await browser.run("open", {"id": 1, "num_lines": 6})
    assert place.details == OpenDetails(f"{url}/history")
    assert "\nL185: Line 90 of the history names Ambrose of Milan." in place.text
    assert "viewing lines [181 - 186]" in place.text
    assert world.site.paths() == ["/search", "/", "/history"]


async def test_without_an_id_another_part_of_a_page_is_shown(world: Web) -> None:
    browser = world.open()
    await browser.run("open", {"id": f"{world.site.url}/history"})
    scrolled = await browser.run("open", {"loc": 50, "num_lines": 2})
    assert scrolled.text.startswith("[1] History")
    assert "viewing lines [50 - 51]" in scrolled.text
    assert scrolled.details == OpenDetails(f"{world.site.url}/history")
    assert "There is no line 5000" in failure(await browser.run("open", {"loc": 5000}))
    assert world.site.paths() == ["/history"]


async def test_a_url_is_fetched_anew_and_a_link_is_not(world: Web) -> None:
    browser, url = world.open(), f"{world.site.url}/"
    await browser.run("search", {"query": "x"})
    for asked in (url, "0", f"view-source:{url}"):
        assert not (await browser.run("open", {"id": asked, "cursor": 0})).failed
    assert world.site.paths() == ["/search", "/", "/"]


@pytest.mark.parametrize("number", [1, 1.0, "1", " 1.0 ", "[1]", "【1】", "L1"])
async def test_numbers_may_be_written_in_many_ways(world: Web, number: object) -> None:
    browser = world.open()
    await browser.run("search", {"query": "x"})
    opened = await browser.run("open", {"id": number, "cursor": "0.0", "loc": number, "num_lines": number})
    assert opened.details == OpenDetails(f"{world.site.url}/history")
    assert "viewing lines [1 - 1]" in opened.text


@pytest.mark.parametrize("nothing", [-1, "-1", None, "", -1.0, float("nan"), True, [], {}])
async def test_what_is_no_number_is_as_good_as_absent(world: Web, nothing: object) -> None:
    browser = world.open()
    await browser.run("search", {"query": "x", "topn": nothing, "source": nothing})
    shown = await browser.run(
        "open", {"id": nothing, "cursor": nothing, "loc": nothing, "num_lines": nothing}
    )
    assert "# Search Results" in shown.text
    assert shown.details == OpenDetails(None)


async def test_what_cannot_be_done_is_said(world: Web) -> None:
    browser, url = world.open(), world.site.url
    assert "No page is open yet" in failure(await browser.run("open", {"id": 0}))
    assert "`query` is missing" in failure(await browser.run("search", {"query": " "}))
    assert "There is no such action: 'click'" in failure(await browser.run("click", {}))
    await browser.run("search", {"query": "x"})
    assert "There is no link 7 on that page: it has 3" in failure(await browser.run("open", {"id": 7}))
    assert "There is no page with cursor 4" in failure(await browser.run("open", {"cursor": 4}))
    assert "`pattern` is missing" in failure(await browser.run("find", {}))
    assert "A text cannot be found in search results" in failure(await browser.run("find", {"pattern": "x"}))
    missing = await browser.run("open", {"id": f"{url}/nowhere"})
    assert "answered 404 Not Found" in failure(missing)
    assert missing.details == OpenDetails(f"{url}/nowhere")
    assert "not a URL" in failure(await browser.run("open", {"id": "java\nscript:x y"}))
    # What failed got no cursor.
    assert (await browser.run("open", {"id": 1})).text.startswith("[1] History")


async def test_private_addresses_are_not_opened() -> None:
    async with web() as site:
        tool = WebSearch(SearxngSearch(site.url))  # the operator's own search engine may be anywhere
        browser = tool.open(RequestedTool({"type": "web_search"}))
        site.results = [{"title": "Trap", "url": f"{site.url}/", "content": ""}]
        assert not (await browser.run("search", {"query": "x"})).failed
        assert "not a public web server" in failure(await browser.run("open", {"id": 0}))
        await tool.close()
    assert site.paths() == ["/search"]


async def test_domains_hold_for_results_and_for_pages(world: Web) -> None:
    browser = world.open(
        filters={"blocked_domains": ["other.example"], "allowed_domains": ["127.0.0.1", "other.example"]}
    )
    found = await browser.run("search", {"query": "x"})
    assert found.details == SearchDetails(
        "x", (f"{world.site.url}/", f"{world.site.url}/history"), ("Home", "History")
    )
    assert "not among the domains" in failure(await browser.run("open", {"id": "https://sub.other.example/"}))


async def test_how_much_is_shown_is_the_requests_to_say_and_where_the_user_is(world: Web) -> None:
    world.site.results = [
        {"title": str(n), "url": f"https://r{n}.org/", "content": "x " * 500} for n in range(30)
    ]
    place = {"type": "approximate", "city": "Milan"}
    small = await world.open(search_context_size="low", user_location=place).run(
        "search", {"query": "x", "topn": 9}
    )
    large = await world.open(search_context_size="high").run("search", {"query": "x"})
    few = await world.open().run("search", {"query": "x", "topn": 2})
    assert [len(found.details.sources) for found in (small, large, few)] == [5, 20, 2]  # type: ignore[union-attr]
    assert small.text.endswith("The user is in Milan.")
    assert len(small.text) < len(large.text)


async def test_a_page_that_takes_long_to_read_keeps_nobody_else_waiting(
    world: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slowly(url: str, text: str) -> WebPage:
        begun.release()
        go_on.wait()
        return text_page(url, text)

    monkeypatch.setattr(web_search, "html_page", slowly)
    opening = [
        asyncio.create_task(world.open().run("open", {"id": f"{world.site.url}/"}))
        for _ in range(2 * THREADS)
    ]
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in range(READERS):
                await asyncio.to_thread(begun.acquire)
            assert not (await world.open().run("search", {"query": "x"})).failed
            assert await asyncio.to_thread(int) == 0
        assert not any(task.done() for task in opening)
    finally:
        go_on.set()
    assert not any(result.failed for result in await asyncio.gather(*opening))


async def test_wrong_settings_are_refused_by_name() -> None:
    tool = WebSearch(SearxngSearch("http://search.invalid"))
    with pytest.raises(RequestError) as caught:
        await tool.offer(
            RequestedTool({"type": "web_search", "filters": {"allowed_domains": [1]}}, "tools[2]")
        )
    assert caught.value.param == "tools[2].filters.allowed_domains[0]"


async def test_nothing_is_offered_without_access_to_the_web() -> None:
    tool = WebSearch(SearxngSearch("http://search.invalid"))
    assert (
        await tool.offer(RequestedTool({"type": "web_search", "external_web_access": False}, "tools[0]"))
        == ToolOffer()
    )


async def test_an_unsound_page_is_bounded() -> None:
    pages = {
        "bomb": bomb(20_000_000),
        "deep": page("<div>" * 100_000),
        "loop": elsewhere("/loop"),
        "pdf": page("", "application/pdf"),
        "padded": page("<p>word<style>" + " " * BODY_BYTES),
    }
    async with browsing(**pages) as world:
        browser = world.open()
        padded = await browser.run("open", {"id": f"{world.site.url}/padded"})
        assert padded.text.endswith(f"L3: word\nL4: \nL5: {UNREAD}")
        for name in ("bomb", "deep"):
            shown = await browser.run("open", {"id": f"{world.site.url}/{name}"})
            assert not shown.failed
            assert len(shown.text) < VIEW_CHARS + 1000
        assert "too many redirects" in failure(await browser.run("open", {"id": f"{world.site.url}/loop"}))
        assert "has the type application/pdf" in failure(
            await browser.run("open", {"id": f"{world.site.url}/pdf"})
        )


async def test_old_pages_are_forgotten_and_cursors_stay(world: Web) -> None:
    browser = world.open()
    await browser.run("open", {"id": f"{world.site.url}/history"})
    for number in range(PAGES_KEPT):
        assert (await browser.run("open", {"loc": number})).text.startswith(f"[{number + 1}] ")
    assert f"Those from 1 to {PAGES_KEPT} can be used" in failure(await browser.run("open", {"cursor": 0}))


async def test_sessions_know_nothing_of_each_other(world: Web) -> None:
    one, other = world.open(), world.open()
    await one.run("search", {"query": "x"})
    assert "No page is open yet" in failure(await other.run("open", {"id": 0}))


async def test_a_session_that_is_recalled_goes_on_where_the_other_ended(world: Web) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search", {"query": "x"}),
        ("open", {"id": 1}),
        ("open", {"id": 99}),  # fails
        ("find", {"pattern": "Ambrose"}),
        ("open", {"cursor": 0}),
        ("open", {"cursor": 2, "loc": 3}),
    ]
    first, second = world.open(), world.open()
    for action, arguments in calls:
        await second.recall(action, arguments, await first.run(action, arguments))
    world.site.asked.clear()
    for cursor in range(5):
        assert await second.run("open", {"cursor": cursor}) == await first.run("open", {"cursor": cursor})
    links = [{"cursor": 0, "id": 0}, {"cursor": 2, "id": 1}, {"cursor": 3, "id": 1}, {"cursor": 1, "loc": 9}]
    for arguments in links:
        assert await second.run("open", arguments) == await first.run("open", arguments)
    assert world.site.paths() == ["/history", "/", "/"]


async def test_what_cannot_be_recalled_keeps_its_cursor(world: Web) -> None:
    browser = world.open()
    await browser.recall("open", {"id": "x"}, ToolResult("", OpenDetails(f"{world.site.url}/nowhere")))
    await browser.recall("open", {"cursor": 7}, ToolResult("", OpenDetails(None)))
    await browser.recall("search", {}, ToolResult("?"))
    await browser.recall(
        "search", {"query": "x"}, ToolResult("", SearchDetails("x", (f"{world.site.url}/",)))
    )
    assert "404" in failure(await browser.run("open", {"cursor": 0}))
    assert (await browser.run("open", {"cursor": 3, "id": 0})).text.startswith("[4] Choirs")


async def test_a_call_can_be_cancelled_and_the_session_closed(world: Web) -> None:
    browser = world.open()
    call = asyncio.create_task(browser.run("open", {"id": f"{world.site.url}/hang"}))
    while not world.site.asked:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await browser.close()
    assert not (await world.open().run("search", {"query": "x"})).failed


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["search", "open", "find", "other"]),
            st.dictionaries(
                st.sampled_from(["query", "topn", "id", "cursor", "loc", "num_lines", "pattern", "source"]),
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.integers(), max_size=2)
                | st.sampled_from([0, 1, 2, "0", "\ud800", "http://[", 10**5000]),
                max_size=5,
            ),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_whatever_a_model_writes_is_answered(calls: list[tuple[str, dict[str, Any]]]) -> None:
    async def converse() -> None:
        tool = WebSearch(_Card(), Fetcher(loopback))
        browser = tool.open(RequestedTool(CONFINED))
        for action, arguments in calls:
            result = await browser.run(action, arguments)
            result.text.encode()
            assert result.text
            assert len(result.text) < VIEW_CHARS + 1500
        await tool.close()

    asyncio.run(converse())


class _Card:
    """A search engine that knows one page, and echoes the query, which has to be text that can be sent."""

    async def search(self, query: str, count: int, domains: Domains) -> list[SearchHit]:
        query.encode()
        return [SearchHit(query, "https://nowhere.invalid/", query)]

    async def close(self) -> None: ...


def test_the_functions_take_what_gpt_oss_was_trained_to_give() -> None:
    ours = {function.hosted.action: function for function in FUNCTIONS if function.hosted}
    assert [function.name for function in FUNCTIONS] == ["web_search", "web_open", "web_find"]
    for trained in BROWSER.functions:
        arguments = set(ours[trained.name].parameters["properties"])
        assert arguments == set(trained.parameters["properties"]) - {"source", "view_source"}
        assert ours[trained.name].parameters["required"] == trained.parameters.get("required", [])
