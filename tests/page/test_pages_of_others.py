"""Web pages of others, in a real Chromium, try to use a server without keys; the page of the server works.

A page on another port of this machine, one of another site, and one whose name was rebound to the server's address.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest
from structlog.testing import capture_logs

from tests.page.chromium import NAMES, SCRIPT, answered, ask, browser, expect
from tests.server import NO_TLS, Running, running

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")

ITS_OWN = "LocalNetworkAccessChecks"
"""New versions of Chromium ask the user before a page may use the local network; other browsers do not."""
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "store": True},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
}
ATTACKS = """async ([server, bodies]) => {
  const told = [];
  const note = async (what, tried) => {
    const late = new Promise((_, fail) => setTimeout(() => fail("late"), 5000));
    try { told.push([what, await Promise.race([tried, late])]); } catch (error) { told.push([what, `${error}`]); }
  };
  const read = async (answer) => answer.type === "opaque" ? "opaque" : `${answer.status} ${await answer.text()}`;
  for (const [path, body] of Object.entries(bodies)) {
    const url = server + path, text = JSON.stringify({model: "scripted", ...body});
    for (const mode of ["cors", "no-cors"]) {
      // A simple request needs no permission: a text, or a blob, which has no type at all.
      await note(`text ${mode}`, fetch(url, {method: "POST", mode, body: text}).then(read));
      await note(`blob ${mode}`, fetch(url, {method: "POST", mode, body: new Blob([text])}).then(read));
    }
    await note("json", fetch(url, {method: "POST", body: text, headers: {"content-type": "application/json"}}).then(read));
    navigator.sendBeacon(url, new Blob([text]));
    const form = document.createElement("form"), input = document.createElement("input");
    const frame = document.createElement("iframe");
    Object.assign(frame, {name: `frame${told.length}`});
    Object.assign(form, {action: url, method: "POST", enctype: "text/plain", target: frame.name});
    [input.name, input.value] = [text.slice(0, -1) + ', "x": "', '"}'];
    form.append(input);
    document.body.append(frame, form);
    await note("form", new Promise((loaded) => { frame.onload = () => loaded("sent"); form.submit(); }));
  }
  const file = new FormData();
  file.append("purpose", "user_data");
  file.append("file", new File(["text"], "a.txt"));
  await note("file", fetch(`${server}/v1/files`, {method: "POST", mode: "no-cors", body: file}).then(read));
  await note("delete", fetch(`${server}/v1/responses/resp_1`, {method: "DELETE"}).then(read));
  await note("get", fetch(`${server}/v1/models`).then(read));
  const image = new Image();
  await note("image", new Promise((end) => {
    image.onload = () => end("loaded");
    image.onerror = () => end("error");
    image.src = `${server}/v1/models`;
  }));
  await note("socket", new Promise((end) => {
    const socket = new WebSocket(`${server.replace("http", "ws")}/v1/responses`);
    socket.onerror = () => end("refused");
    socket.onopen = () => socket.send(JSON.stringify({type: "response.create", model: "scripted", input: "Hi"}));
    socket.onmessage = (message) => end(message.data);
  }));
  return told;
}"""


@asynccontextmanager
async def chromium(playwright_browser: Any, *names: str) -> AsyncIterator[Any]:
    """A browser for which these names have the address of this machine."""
    rules = ",".join(f"MAP {name} 127.0.0.1" for name in names)
    launched = await playwright_browser.browser_type.launch(
        executable_path=shutil.which("chromium"),
        args=["--no-sandbox", f"--host-resolver-rules={rules}", f"--disable-features={ITS_OWN}"],
    )
    try:
        yield await launched.new_page()
    finally:
        await launched.close()


async def effects(server: Running) -> list[Any]:
    """What the server has generated, and stored."""
    found: list[Any] = [each.prompt for each in server.engine.seen]
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http:
        for path in ("/v1/responses?background=false", "/v1/chat/completions", "/v1/files"):
            found += (await http.get(path)).json()["data"]
    return found


@pytest.mark.parametrize(
    ("page_host", "server_host"),
    [
        ("evil.test", "127.0.0.1"),  # another site
        ("evil.test", "localhost"),
        ("localhost", "localhost"),  # another port
        ("evil.test", "evil.test"),  # a name that was rebound: for the browser the page is the server's own
    ],
)
async def test_pages_of_others_have_no_effect_and_read_nothing(
    browser: Any, page_host: str, server_host: str
) -> None:
    rebound = page_host == server_host == "evil.test"
    async with running(SCRIPT) as server, chromium(browser, "evil.test") as page:
        port = urlsplit(server.url).port
        address = f"http://{page_host}:{port if rebound else 9}/evil"

        async def evil(route: Any) -> None:
            await route.fulfill(content_type="text/html", body="<body>A page of others</body>")

        await page.route(address, evil)
        with capture_logs() as logs:
            await page.goto(address)
            told = await page.evaluate(ATTACKS, [f"http://{server_host}:{port}", BODIES])
            await asyncio.sleep(0.3)  # for beacons, which nobody waits for
        statuses = [
            line["status"] for line in logs if line["event"] == "request" and line["method"] == "POST"
        ]
        assert set(statuses) == {403}
        assert len(statuses) >= 6 * len(BODIES)  # they have all reached the server
        assert await effects(server) == []
        for what, result in told:
            assert "scripted" not in result, what
            assert "Hello" not in result, what
            assert "late" not in result, what
        if rebound:  # the page may read why
            assert "--allow-host" in dict(told)["get"]


@asynccontextmanager
async def proxy(server: Running, name: str, *, keeps_host: bool) -> AsyncIterator[str]:
    """A reverse proxy, as Caddy, which keeps the Host, or as nginx, which sends its own."""
    parts = urlsplit(server.url)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(parts.hostname, parts.port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, change: bool) -> None:
            while data := await source.read(65536):
                target.write(
                    data.replace(f"Host: {name}:{port}".encode(), b"Host: " + host) if change else data
                )
            target.close()

        await asyncio.gather(
            copy(reader, upstream_writer, change=not keeps_host), copy(upstream_reader, writer, change=False)
        )

    host = parts.netloc.encode()
    listening = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield f"http://{name}:{port}"
    finally:
        listening.close()


@pytest.mark.parametrize("keeps_host", [True, False])
async def test_the_page_works_behind_a_proxy_with_a_name_that_is_allowed(
    browser: Any, keeps_host: bool
) -> None:
    async with (
        running(SCRIPT, allow_host=("public.test",)) as server,
        proxy(server, "public.test", keeps_host=keeps_host) as url,
        chromium(browser, "public.test") as page,
    ):
        await page.goto(url)
        await expect(page.get_by_role("combobox", name="Model")).to_have_value("scripted")
        for count, api in enumerate(NAMES.values(), 1):
            await page.get_by_role("radio", name=api).check()
            await ask(page, "Hi")
            await answered(page, count)
        assert len(server.engine.seen) == len(NAMES)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "a.localhost"])
async def test_the_page_works_by_every_name_of_this_machine(browser: Any, host: str) -> None:
    async with running(SCRIPT) as server, chromium(browser, "public.test") as page:
        await page.goto(server.url.replace("127.0.0.1", host))
        await expect(page.get_by_role("combobox", name="Model")).to_have_value("scripted")
        await ask(page, "Hi")
        await expect(page.get_by_role("article", name="Model")).to_contain_text("tokens/s")


async def test_a_name_that_is_not_allowed_is_told_the_option(browser: Any) -> None:
    async with running(SCRIPT) as server, chromium(browser, "public.test") as page:
        answer = await page.goto(server.url.replace("127.0.0.1", "public.test"))
        assert answer.status == 403
        assert "--allow-host" in json.loads(await page.locator("body").inner_text())["error"]["message"]
