"""A small web for tests, on loopback: pages, redirects, and a search engine with SearXNG's JSON."""

import asyncio
import gzip
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from antiphon.tools.web.guard import Address

HTML = "text/html; charset=utf-8"

THREADS = min(32, (os.cpu_count() or 1) + 4)
"""How many threads `asyncio.to_thread` has."""

HOME = """<!doctype html><title>Choirs &amp; chants</title><nav><a href="/menu">Menu</a></nav>
<h1>Antiphons</h1><p>An antiphon is sung by <b>two</b> choirs. See <a href="/history">its history</a>
or <a href="https://other.example/music">music</a>.</p><script>alert("no")</script>"""

HISTORY = "<title>History</title><h1>History</h1>" + "".join(
    f"<p>Line {number} of the history" + (" names Ambrose of Milan" if number in (40, 90) else "") + ".</p>"
    for number in range(100)
)


class Site(Struct):
    """A web server at `url`. `asked` are the requests that came, `results` what a search finds."""

    url: str
    asked: list[Request]
    results: list[dict[str, Any]]
    hanging: asyncio.Event

    def queries(self) -> list[str]:
        return [request.query_params["q"] for request in self.asked if request.url.path == "/search"]

    def paths(self) -> list[str]:
        return [request.url.path for request in self.asked]


def loopback(address: Address, port: int) -> bool:
    """A guard for tests: this machine is the web."""
    return address.is_loopback


def page(
    text: str | bytes, kind: str = HTML, *, status_code: int = 200, **headers: str
) -> Callable[[Request], Response]:
    return lambda request: Response(text, status_code, {"Content-Type": kind, **headers})


def elsewhere(url: str) -> Callable[[Request], Response]:
    return page("", status_code=302, Location=url)


@asynccontextmanager
async def web(**pages: Callable[[Request], Response]) -> AsyncIterator[Site]:
    """Serve `/`, `/history`, `/search`, `/hang`, `/slow/search` and these pages while the block runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    site = Site(f"http://127.0.0.1:{port}", [], [], asyncio.Event())
    handlers = {
        "": page(HOME),
        "history": page(HISTORY),
        "search": _search(site),
        "hang": _hang(site),
        **pages,
    }
    handlers["slow/search"] = _hang(site)
    routes = [Route(f"/{name}", _noted(site, handler)) for name, handler in handlers.items()]
    config = uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield site
    finally:
        site.hanging.set()
        server.should_exit = True
        await serving
        listener.close()


def _noted(site: Site, handler: Callable[[Request], Response]) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        site.asked.append(request)
        return handler(request)

    return answer


def _search(site: Site) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        assert request.query_params["format"] == "json"
        query = request.query_params["q"]
        return JSONResponse(
            {
                "query": query,
                "number_of_results": 0,
                "results": [
                    {"engine": "test", "score": 1.0, "category": "general", **r} for r in site.results
                ],
                "answers": [],
                "corrections": [],
                "infoboxes": [],
                "suggestions": [],
                "unresponsive_engines": [],
            }
        )

    return answer


def _hang(site: Site) -> Callable[[Request], Response]:
    async def body() -> AsyncIterator[bytes]:
        yield b"<p>The beginning"
        await site.hanging.wait()

    return lambda request: StreamingResponse(body(), media_type="text/html")


def bomb(size: int) -> Callable[[Request], Response]:
    """A page that is small on the wire, and has this number of bytes."""
    return page(gzip.compress(b"<p>word " * (size // 8)), **{"Content-Encoding": "gzip"})
