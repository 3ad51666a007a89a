"""Searches are answered by a server with SearXNG's JSON, as in its documentation."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from antiphon.core.errors import ToolError
from antiphon.toolkits.web_search import Options, search
from antiphon.toolkits.web_search.page import SearchHit
from antiphon.toolkits.web_search.search import BraveSearch, SearxngSearch, TavilySearch
from antiphon.tools.web.domains import Domains
from tests.toolkits.parts import PARTS
from tests.tools.web.site import Site, page, web


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with web() as site:
        site.results = [
            {"title": "A", "url": "https://a.org/1", "content": "of a"},
            {"title": "B", "url": "https://b.org/", "content": ""},
            {"title": "A again", "url": "https://a.org/1", "content": "of a"},
            {"title": None, "url": "https://sub.a.org/2", "content": None},
            {"title": "not a page", "url": "magnet:?xt=1"},
            {"title": "nowhere"},
        ]
        yield site


async def ask(site: Site, count: int = 10, domains: Domains | None = None) -> list[SearchHit]:
    provider = SearxngSearch(f"{site.url}/")
    try:
        return list(await provider.search("choirs & chants", count, domains or Domains()))
    finally:
        await provider.close()


async def test_results_are_pages_of_the_web_each_once(site: Site) -> None:
    found = await ask(site)
    assert [result.url for result in found] == ["https://a.org/1", "https://b.org/", "https://sub.a.org/2"]
    assert found[1] == SearchHit("B", "https://b.org/")
    assert site.queries() == ["choirs & chants"]


async def test_no_more_results_come_than_are_wanted(site: Site) -> None:
    assert [result.url for result in await ask(site, 1)] == ["https://a.org/1"]


@pytest.mark.parametrize(
    ("domains", "urls", "query"),
    [
        (Domains(("a.org",)), ["https://a.org/1", "https://sub.a.org/2"], "choirs & chants (site:a.org)"),
        (Domains(("b.org", "c.org")), ["https://b.org/"], "choirs & chants (site:b.org OR site:c.org)"),
        (Domains((), ("a.org",)), ["https://b.org/"], "choirs & chants -site:a.org"),
        (
            Domains(("a.org", *(f"d{n}.org" for n in range(20)))),
            ["https://a.org/1", "https://sub.a.org/2"],
            "choirs & chants",
        ),
    ],
)
async def test_domains_are_named_to_the_search_engine_and_held_to(
    site: Site, domains: Domains, urls: list[str], query: str
) -> None:
    assert [result.url for result in await ask(site, 10, domains)] == urls
    assert site.queries() == [query]


@pytest.mark.parametrize("url", ["", "localhost:8080", "http://", "http://[::1", "ftp://a.org"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ToolError, match="is not the URL of a search engine"):
        SearxngSearch(url)


# No recorded exchange: made by hand, as api-dashboard.search.brave.com/docs has them:
# `WebSearchApiResponse`, asked for with the headers named there.
BRAVE = b"""{"type": "search", "query": {"original": "choirs", "more_results_available": true},
"mixed": {"type": "mixed", "main": [{"type": "web", "index": 0, "all": false}], "top": [], "side": []},
"web": {"type": "search", "family_friendly": true, "results": [
{"type": "search_result", "subtype": "generic", "title": "A &amp; B", "url": "https://a.org/1",
"description": "of <strong>a</strong> &lt; b", "is_source_local": false, "language": "en", "age": "May 2, 2025",
"profile": {"name": "A", "url": "https://a.org/1"}, "meta_url": {"scheme": "https", "hostname": "a.org"}},
{"type": "search_result", "title": "B", "url": "https://b.org/"}]}}"""
# Made by hand, too, as docs.tavily.com/api-reference/endpoint/search has them, its time as text.
TAVILY = b"""{"query": "choirs", "answer": null, "images": [], "results": [{"title": "A & B",
"url": "https://a.org/1", "content": "of a < b", "score": 0.81025416, "raw_content": null, "favicon": null}],
"response_time": "1.67", "request_id": "123e4567-e89b-12d3-a456-426614174111"}"""


async def test_brave_is_asked_and_read_as_its_documentation_has_it() -> None:
    async with web(brave=page(BRAVE, "application/json")) as site:
        provider = BraveSearch("k", f"{site.url}/brave")
        found = await provider.search("choirs", 5, Domains(("a.org",)))
        await provider.close()
        assert found == [SearchHit("A & B", "https://a.org/1", "of a < b")]
        [asked] = site.asked
    assert dict(asked.query_params) == {"q": "choirs (site:a.org)", "count": "5"}
    assert asked.headers["X-Subscription-Token"] == "k"
    assert asked.headers["Accept"] == "application/json"


async def test_tavily_is_asked_and_read_as_its_documentation_has_it() -> None:
    bodies: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(request.read())
        assert (request.method, str(request.url)) == ("POST", "https://api.tavily.com/search")
        assert request.headers["Authorization"] == "Bearer k"
        return httpx2.Response(200, stream=httpx2.ByteStream(TAVILY))

    provider = TavilySearch("k")
    provider.transport = httpx2.MockTransport(answer)
    found = await provider.search("choirs", 50, Domains(("a.org",), ("b.a.org",)))
    await provider.close()
    assert found == [SearchHit("A & B", "https://a.org/1", "of a < b")]
    assert json.loads(bodies[0]) == {
        "query": "choirs",
        "max_results": 20,
        "include_domains": ["a.org"],
        "exclude_domains": ["b.a.org"],
    }


async def test_what_the_operator_names_is_what_is_searched(tmp_path: Path) -> None:
    (tmp_path / "a.example").mkdir()
    (tmp_path / "a.example" / "index.html").write_text("<title>A</title>Antiphons.")
    for where, key in (("http://127.0.0.1:1", None), ("brave", "k"), ("tavily", "k"), (str(tmp_path), None)):
        await Options(web_search=where, web_search_key=key).open(PARTS).close()
    for where, key, why in (
        ("brave", None, "needs a key"),
        ("http://127.0.0.1:1", "k", "for brave and tavily only"),
        ("nowhere", None, "is not the URL"),
        (str(tmp_path / "a.example"), None, "has no pages"),
    ):
        with pytest.raises(ToolError, match=why):
            Options(web_search=where, web_search_key=key).open(PARTS)


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b'{"results": 3}', b'{"results": [3]}', b'"\xff"'])
async def test_an_answer_that_is_none_is_an_error(answer: bytes) -> None:
    async with web(search=page(answer)) as broken:
        with pytest.raises(ToolError, match="does not answer"):
            await ask(broken)


async def test_a_search_engine_that_refuses_or_hangs_or_is_gone_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search, "SEARCH_SECONDS", 0.2)
    async with web(search=page("{}", status_code=403)) as site:
        with pytest.raises(ToolError, match="does not answer"):
            await ask(site)
        hanging = SearxngSearch(f"{site.url}/slow")
        with pytest.raises(ToolError, match="does not answer"):
            await hanging.search("x", 1, Domains())
        await hanging.close()
    with pytest.raises(ToolError, match="does not answer"):
        await ask(site)
