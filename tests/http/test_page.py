"""The page at /: what it is made of is there, is cached, needs no key, and comes from nowhere else."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urljoin

import httpx2 as httpx
import pytest
import pytest_asyncio

import antiphon.http
from tests.server import NO_TLS, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

STATIC = Path(antiphon.http.__file__).parent / "static"
REFERENCE = re.compile(r"""(?:from|import|href=|src=)\s*"([^"]+\.(?:js|css|svg))\"""")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running([{"output": "Hi"}], api_key=("a-key",)) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        yield http


async def test_all_that_the_page_refers_to_is_there_without_a_key(http: httpx.AsyncClient) -> None:
    wanted, seen = ["/", "/docs"], set()
    while wanted:
        path = wanted.pop()
        seen.add(path)
        response = await http.get(path)
        assert response.status_code == 200, path
        found = (
            {urljoin(path, each) for each in REFERENCE.findall(response.text)}
            if "/vendor/" not in path
            else ()
        )
        wanted += [each for each in found if each not in seen]
    names = {
        "/",
        "/docs",
        *(
            f"/page/{each.relative_to(STATIC)}"
            for each in STATIC.rglob("*.*")
            if each.suffix in (".js", ".css", ".svg")
        ),
    }
    assert seen | {"/page/vendor/preact.js"} == names
    assert (await http.get("/v1/status")).status_code == 401


async def test_browsers_are_told_to_run_nothing_else(http: httpx.AsyncClient) -> None:
    response = await http.get("/")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "<script>" not in response.text
    assert "style=" not in response.text


async def test_what_has_not_changed_is_not_sent_again(http: httpx.AsyncClient) -> None:
    first = await http.get("/page/app.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = await http.get("/page/app.js", headers={"if-none-match": f'"other", {first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]


async def test_what_only_asks_whether_a_server_is_here_is_answered_as_ever(http: httpx.AsyncClient) -> None:
    response = await http.head("/")
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("path", ["nothing.js", "..%2fpage.py", "vendor/LICENSE-preact", "vendor"])
async def test_nothing_else_is_served(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(f"/page/{path}")
    assert (response.status_code, response.headers["content-type"]) == (404, "application/json")
    assert response.json()["error"]["message"] == "There is nothing here. Check the path and the id."


async def test_its_own_modules_make_no_markup_of_text_and_name_no_other_host() -> None:
    for file in STATIC.glob("*.js"):
        text = file.read_text()
        assert "innerHTML" not in text, file
        assert "dangerouslySetInnerHTML" not in text, file
        assert "http://" not in text, file
        assert "https://" not in text, file
