"""Whatever the server reads from outside is bounded by the bytes that it has after decoding, or is not decoded.

The readers are a table, and the modules that can read are found by their imports: a new one fails until it is
in the table.
"""

import ast
import asyncio
import gzip
import importlib
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import brotli
import httpx2
import msgspec
import pytest
from backports import zstd
from msgspec import Struct

from antiphon.app.attachments import AttachmentReader, Contents
from antiphon.core.errors import AntiphonError, EngineError, RequestError, ToolError
from antiphon.core.limits import Limits
from antiphon.engines import hub_client
from antiphon.engines.engine import GenerationRequest, Prompt, TranscriptionRequest
from antiphon.engines.http_client import HttpClient, HttpError
from antiphon.engines.models import resolve
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.toolkits.web_search import search
from antiphon.toolkits.web_search.search import BraveSearch, SearxngSearch, TavilySearch
from antiphon.tools.mcp.connection import Connection, FailureError, Network, Target
from antiphon.tools.web import fetch
from antiphon.tools.web.domains import Domains
from antiphon.tools.web.fetch import Fetcher
from tests.contracts.engine import generated
from tests.engines.canned import answer, canned
from tests.tools.web.site import loopback

with suppress(ImportError):
    importlib.import_module("huggingface_hub.hf_api")  # before its memory would be counted

SOURCE = Path(__file__).parents[1] / "src" / "antiphon"
LARGE = 32 * 1024 * 1024
MOST = 100_000
"""The limit of bytes that each reader has here."""
MEMORY = 8 * 1024 * 1024
"""Bytes that a reader may take, with what its libraries keep: much less than what is decoded."""
LIMITS = Limits(attachment_bytes=MOST, mcp_bytes=MOST, upstream_bytes=MOST, mcp_connect_seconds=10)

ZEROS = b" " * LARGE
BOMBS: Mapping[str, bytes] = {
    "gzip": gzip.compress(ZEROS, 1),
    "deflate": zlib.compress(ZEROS, 1),
    "br": brotli.compress(ZEROS, quality=1),
    "zstd": zstd.compress(ZEROS),
    "gzip, gzip": gzip.compress(gzip.compress(ZEROS, 1)),
    # A large body of nothing, which decodes to nothing.
    "zstd, gzip": gzip.compress(zstd.compress(b"") * 200_000),
    "x-gzip": gzip.compress(b"") * 4_000,  # members without content
}
"""Encoding → a body that is large, or takes long, when it is decoded."""
KINDS = ("application/json", "text/event-stream", "text/html")


class Site(Struct):
    """A server that answers everything with the same bytes."""

    url: str
    encodings: list[str]


@asynccontextmanager
async def answering(body: bytes, encoding: str, kind: str) -> AsyncIterator[Site]:
    """A server of this body. It notes which encodings requests accept."""
    site = Site("", [])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
                await reader.readexactly(int(fields.get("content-length", 0)))
                site.encodings.append(fields.get("accept-encoding", ""))
                said = f"Content-Type: {kind}\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}"
                writer.write(f"HTTP/1.1 200 OK\r\n{said}\r\n\r\n".encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        site.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield site


# Readers


async def upstream(url: str) -> None:
    client = HttpClient(url, limits=LIMITS)
    try:
        await client.request("GET", "/")
    finally:
        client.close()


async def of_model(url: str, use: Callable[[UpstreamEngine], Awaitable[Any]]) -> None:
    """What is asked of a server of a model that was a good one at first."""
    listed = {"data": [{"id": "m", "owned_by": "vllm", "root": "m", "max_model_len": 2048}]}
    probes = {"/v1/models": [answer(200, listed)], "/tokenize": [answer(200, {"tokens": [1]})]}
    async with canned(probes) as good:
        engine = UpstreamEngine(Options(good.url), LIMITS)
        await engine.start()
    engine._client._address = HttpClient(url)._address
    try:
        await use(engine)
    except EngineError as error:
        raise error.__cause__ or error from None
    finally:
        await engine.stop()


async def generation(url: str) -> None:
    await of_model(url, lambda engine: generated(engine, GenerationRequest(Prompt("a", (1,)), 9)))


async def transcription(url: str) -> None:
    async def use(engine: UpstreamEngine) -> None:
        async for _ in engine.transcribe(TranscriptionRequest(b"", "a.wav", "audio/wav")):
            pass

    await of_model(url, use)


async def mcp(url: str) -> None:
    net = Network(httpx2.AsyncHTTPTransport(), httpx2.AsyncHTTPTransport())
    connection = Connection(Target("x", url, trusted=True), net, LIMITS)
    try:
        await connection.open()
        await connection.tools()
    finally:
        await connection.close()
        await net.close()


async def mcp_events(url: str) -> None:
    await mcp(f"{url}/sse")


async def page(url: str) -> None:
    """A page of the web is cut, and read as far as it goes."""
    fetcher = Fetcher(loopback)
    document = await fetcher.fetch(url, Domains())
    await fetcher.close()
    if document.cut:
        raise ToolError(f"more than {len(document.text)}")


async def attachment(url: str) -> None:
    reader = AttachmentReader(LIMITS, downloader=fetch.Downloader(Domains(), Fetcher(loopback)))
    try:
        await Contents(reader, "", lambda: None)._content(url, "image")  # type: ignore[arg-type, return-value]
    finally:
        await reader.close()


async def searxng(url: str) -> None:
    await searched(SearxngSearch(url))


async def brave(url: str) -> None:
    await searched(BraveSearch("key", url))


async def tavily(url: str) -> None:
    await searched(TavilySearch("key", url))


async def searched(engine: Any) -> None:
    try:
        await engine.search("a", 1, Domains())
    except ToolError as error:
        raise (error.__cause__ if isinstance(error.__cause__, msgspec.DecodeError) else error) from None
    finally:
        await engine.close()


async def hub(url: str) -> None:
    library = pytest.importorskip("huggingface_hub")
    api = pytest.importorskip("huggingface_hub.hf_api").api
    before, api.endpoint = api.endpoint, url
    try:
        library.set_client_factory(library.utils._http.default_client_factory)
        await asyncio.to_thread(resolve, "hf:org/repo")
    finally:
        api.endpoint = before


REFUSED = r"is compressed \(.*asked for|identity' was asked for"
COUNTED = r"more than \d+|cannot be decoded|too many bytes|too long"
READERS: dict[str, tuple[Callable[[str], Awaitable[None]], str]] = {
    "engines/http_client.py": (upstream, REFUSED),
    "engines/http_client.py, a stream": (generation, REFUSED),
    "engines/http_client.py, a stream for clients": (transcription, REFUSED),
    "engines/hub_client.py": (hub, REFUSED),
    "tools/mcp/connection.py": (mcp, REFUSED),
    "tools/mcp/connection.py, events": (mcp_events, REFUSED),
    "tools/web/fetch.py": (page, COUNTED),
    "tools/web/fetch.py, a file": (attachment, COUNTED),
    "toolkits/web_search/search.py": (searxng, COUNTED),
    "toolkits/web_search/search.py, with a key": (brave, COUNTED),
    "toolkits/web_search/search.py, another": (tavily, COUNTED),
}
"""Reader → what it does, and how it says why it did not read all."""
WITHOUT_READING = {
    "chat.py": "the terminal client of a server: its library decodes nothing",
    "launch.py": "it asks the server that it has started whether it is well",
    "engines/upstreams/kv_reader.py": "messages of a bounded size: see tests/engines/test_cache_views.py",
    "engines/models.py": "it asks the library of the hub, whose client `engines/hub_client.py` bounds",
    "http/protocol.py": "it reads requests: see tests/http/test_encodings.py",
    "tools/mcp/bounds.py": "the bounds of `tools/mcp/connection.py`",
    "tools/mcp/open.py": "it makes the transports",
    "tools/mcp/settings.py": "it parses URLs",
    "toolkits/web_search/folder.py": "it parses URLs",
    "tools/web/guard.py": "the transport of `tools/web/fetch.py` and of `tools/mcp/connection.py`",
    "tools/web/domains.py": "it parses URLs",
}
"""Modules that know a library for HTTP, and do not read themselves."""
LIBRARIES = (
    "httpx2",
    "httpx",
    "http.client",
    "urllib.request",
    "httptools",
    "aiohttp",
    "requests",
    "huggingface_hub",
    "zmq",
)


CASES = [
    (reader, encoding, kind)
    for reader in READERS
    for encoding in BOMBS
    for kind in (KINDS if reader.startswith("tools/mcp") else KINDS[:1])
]


@pytest.mark.parametrize(("reader", "encoding", "kind"), CASES)
async def test_what_is_decoded_is_bounded(
    reader: str, encoding: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "BODY_BYTES", MOST)
    monkeypatch.setattr(search, "ANSWER_BYTES", MOST)
    monkeypatch.setattr(fetch.read_body, "__defaults__", (MOST,))
    read, says = READERS[reader]
    async with answering(BOMBS[encoding], encoding, kind) as site:
        tracemalloc.start()
        try:
            with pytest.raises(
                (AntiphonError, HttpError, FailureError, RequestError, ValueError, UnicodeDecodeError),
                match=says,
            ):
                await read(site.url)
            assert tracemalloc.get_traced_memory()[1] < MEMORY
        finally:
            tracemalloc.stop()
        asked = {each for each in site.encodings if each}
    if says == REFUSED:
        assert asked == {"identity"}


@pytest.mark.parametrize("reader", ["engines/hub_client.py"])
async def test_json_of_the_hub_is_bounded(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_client, "JSON_BYTES", MOST)
    async with answering(b" " * (MOST + 1), "identity", "application/json") as site:
        with pytest.raises(EngineError, match=f"more than {MOST} bytes"):
            await READERS[reader][0](site.url)


def test_every_module_that_can_read_from_outside_is_known() -> None:
    found = set()
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if not any(each in text for each in LIBRARIES):
            continue
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
                names = [ast.literal_eval(node.args[0])] if isinstance(node.args[0], ast.Constant) else []
            if any(name == each or name.startswith(f"{each}.") for name in names for each in LIBRARIES):
                found.add(file.relative_to(SOURCE).as_posix())
    read = {reader.partition(",")[0] for reader in READERS}
    assert found - read - WITHOUT_READING.keys() == set()
    assert (read | WITHOUT_READING.keys()) - found == set()
