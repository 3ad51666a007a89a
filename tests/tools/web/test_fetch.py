"""Pages are fetched within bounds, and what cannot be is said in words for a model."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from antiphon.core.errors import ToolError
from antiphon.tools.web import fetch
from antiphon.tools.web.domains import Domains
from antiphon.tools.web.fetch import BODY_BYTES, REDIRECTS, Fetcher, parse
from tests.tools.web.site import bomb, elsewhere, loopback, page, web

ANY = Domains()


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    fetcher = Fetcher(loopback)
    yield fetcher
    await fetcher.close()


async def test_a_page_is_what_the_server_says(fetcher: Fetcher) -> None:
    async with web() as site:
        document = await fetcher.fetch(f"{site.url}/", ANY)
    assert document.html
    assert not document.cut
    assert "<h1>Antiphons</h1>" in document.text


async def test_redirects_are_followed_to_the_page_they_lead_to(fetcher: Fetcher) -> None:
    async with web(old=elsewhere("/newer"), newer=elsewhere("history")) as site:
        document = await fetcher.fetch(f"{site.url}/old", ANY)
    assert document.url == f"{site.url}/history"


async def test_redirects_end_somewhere(fetcher: Fetcher) -> None:
    async with web(round=elsewhere("/round")) as site:
        with pytest.raises(ToolError, match="too many redirects"):
            await fetcher.fetch(f"{site.url}/round", ANY)
        assert len(site.asked) == REDIRECTS + 1


@pytest.mark.parametrize(
    "target",
    ["http://10.0.0.1/", "http://169.254.169.254/latest/meta-data/", "http://[fd00::1]/", "//192.168.0.1/"],
)
async def test_a_redirect_into_a_private_network_is_refused(fetcher: Fetcher, target: str) -> None:
    async with web(out=elsewhere(target)) as site:
        with pytest.raises(ToolError, match="not a public web server"):
            await fetcher.fetch(f"{site.url}/out", ANY)


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "gopher://127.0.0.1/", "http://u:p@127.0.0.1/", "http://[bad"]
)
async def test_a_redirect_to_what_is_no_web_page_is_refused(fetcher: Fetcher, target: str) -> None:
    async with web(out=elsewhere(target)) as site:
        with pytest.raises(ToolError, match=r"not .*URL|user name|no host"):
            await fetcher.fetch(f"{site.url}/out", ANY)


async def test_a_redirect_out_of_the_allowed_domains_is_refused(fetcher: Fetcher) -> None:
    async with web(out=elsewhere("http://localhost:1/")) as site:
        with pytest.raises(ToolError, match="localhost is not among the domains"):
            await fetcher.fetch(f"{site.url}/out", Domains(("127.0.0.1",)))


async def test_of_a_huge_page_the_beginning_is_read(fetcher: Fetcher) -> None:
    async with web(huge=page("<p>word " * (BODY_BYTES // 7))) as site:
        document = await fetcher.fetch(f"{site.url}/huge", ANY)
    assert document.cut
    assert len(document.text) == BODY_BYTES


async def test_a_bomb_is_not_unpacked_whole(fetcher: Fetcher) -> None:
    async with web(bomb=bomb(50 * BODY_BYTES)) as site:
        document = await fetcher.fetch(f"{site.url}/bomb", ANY)
    assert document.cut
    assert len(document.text) == BODY_BYTES


async def test_what_only_says_that_it_is_packed_is_an_error(fetcher: Fetcher) -> None:
    async with web(bad=page("plain", **{"Content-Encoding": "gzip"})) as site:
        with pytest.raises(ToolError, match="cannot be decoded"):
            await fetcher.fetch(f"{site.url}/bad", ANY)


async def test_a_server_that_never_ends_is_left(fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "FETCH_SECONDS", 0.1)
    async with web() as site:
        with pytest.raises(ToolError, match="did not answer in time"):
            await fetcher.fetch(f"{site.url}/hang", ANY)


async def test_who_waits_for_a_page_can_be_cancelled(fetcher: Fetcher) -> None:
    async with web() as site:
        waiting = asyncio.create_task(fetcher.fetch(f"{site.url}/hang", ANY))
        while not site.asked:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.parametrize(
    ("kind", "html"),
    [
        ("text/plain", False),
        ("application/json", False),
        ("text/markdown; charset=utf-8", False),
        ("application/rss+xml", False),
        ("application/xhtml+xml", True),
        ("TEXT/HTML", True),
    ],
)
async def test_html_and_text_are_read(fetcher: Fetcher, kind: str, html: bool) -> None:
    async with web(doc=page("# é", kind)) as site:
        document = await fetcher.fetch(f"{site.url}/doc", ANY)
    assert (document.text, document.html) == ("# é", html)


@pytest.mark.parametrize("kind", ["application/pdf", "image/png", "application/octet-stream"])
async def test_what_is_no_text_is_not_read(fetcher: Fetcher, kind: str) -> None:
    async with web(doc=page(b"%PDF-1.7", kind)) as site:
        with pytest.raises(ToolError, match=f"has the type {kind}"):
            await fetcher.fetch(f"{site.url}/doc", ANY)


async def test_a_page_that_is_not_there_is_said_to_be_none(fetcher: Fetcher) -> None:
    async with web() as site:
        with pytest.raises(ToolError, match="/nowhere answered 404 Not Found"):
            await fetcher.fetch(f"{site.url}/nowhere", ANY)


async def test_a_server_that_is_not_there_could_not_be_reached(fetcher: Fetcher) -> None:
    async with web() as site:
        gone = site.url
    with pytest.raises(ToolError, match="could not be reached"):
        await fetcher.fetch(gone, ANY)


async def test_no_cookie_goes_from_one_answer_to_another(fetcher: Fetcher) -> None:
    async with web(set=page("x", **{"Set-Cookie": "user=1; Path=/"})) as site:
        await fetcher.fetch(f"{site.url}/set", ANY)
        await fetcher.fetch(f"{site.url}/", ANY)
    assert "cookie" not in site.asked[1].headers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "ftp://example.com/",
        "https://[::1",
        "https://a b/ c\x00",
        "http://h:port/",
        "https://example.com/" + "x" * 2000,
        "http://user:secret@example.com/",
    ],
)
def test_what_is_no_url_of_a_page_is_refused(text: str) -> None:
    with pytest.raises(ToolError):
        parse(text)


def test_a_url_without_a_scheme_is_of_the_web() -> None:
    assert str(parse("example.com/a?b=c")) == "https://example.com/a?b=c"
