"""Web pages of others cannot use a server without keys: by its Host, and by the Origin of their requests."""

import asyncio
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec import Struct
from starlette.routing import Route, WebSocketRoute
from structlog.testing import capture_logs

from antiphon.config import Settings
from antiphon.core.errors import RequestError
from antiphon.http.app import ROUTES
from antiphon.http.origins import OriginRules
from tests.server import Running, running

NAME, PAGE = "llm.example.com", "https://chat.example.com"
SERVERS: dict[str, dict[str, Any]] = {
    "local": {},
    "everywhere": {"host": "0.0.0.0"},  # noqa: S104
    "its own address": {"host": "192.168.1.5"},
    "named": {"allow_host": (NAME,)},
    "any name": {"allow_host": ("*",)},
    "a page": {"allow_origin": (PAGE,)},
    "any page": {"allow_origin": ("*",)},
}
"""The settings of servers without keys."""

OWN = ["localhost", "localhost:8000", "LocalHost:1", "localhost.", "a.localhost:8000"]
OWN += ["127.0.0.1:8000", "127.8.9.1", "[::1]:8000", "[::ffff:127.0.0.1]", "10.0.0.7:8000"]
"""Hosts of every server; the last is the address of the connection."""
FOREIGN = {
    "evil.test": (),
    "evil.test:8000": (),
    "evillocalhost": (),
    "localhost.evil.test": (),
    "127.0.0.1.evil.test": (),
    f"{NAME}.evil.test": (),
    NAME: ("named",),
    f"{NAME.upper()}.:444": ("named",),
    "192.168.1.5:8000": ("its own address", "everywhere"),
    "192.168.1.6": ("everywhere",),
    "0.0.0.0": ("everywhere",),  # noqa: S104
    "[2001:db8::1]:8000": ("everywhere",),
}
"""Others, each with the servers whose they are. All are of a server of any name."""
INVALID = [
    "",
    ":8000",
    "a b",
    "localhost,localhost",
    "user@localhost",
    "localhost/",
    "localhost:x",
    "\xe9",
    "[::1",
    "a" * 300,
]
SITES = (None, "same-origin", "none", "same-site", "cross-site")
ORIGINS = (None, "own", "named", "null", "", PAGE, "http://evil.test", "http://localhost:3000", "file://")
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH", "WEBSOCKET")


class Sent(Struct, frozen=True):
    """A request: what of it matters."""

    method: str = "POST"
    host: str = "localhost:8000"
    origin: str | None = None
    site: str | None = None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        origin = {"own": f"http://{self.host}", "named": f"https://{NAME}"}.get(
            self.origin or "", self.origin
        )
        fields = {"host": self.host, "origin": origin, "sec-fetch-site": self.site}
        return [(key.encode(), value.encode("latin-1")) for key, value in fields.items() if value is not None]


def expected(server: str, sent: Sent) -> str | None:
    """The code of the refusal."""
    if server != "any name" and sent.host not in OWN and server not in FOREIGN[sent.host]:
        return "host_not_allowed"
    if sent.method in ("GET", "HEAD", "OPTIONS") or (server == "any page" and sent.origin is not None):
        return None
    if sent.origin == PAGE and server == "a page":
        return None
    if sent.site in ("same-site", "cross-site"):
        return "origin_not_allowed"
    own = sent.origin in (None, "own", f"http://{sent.host}") or (
        sent.origin == "named" and (server == "named" or sent.host == NAME)
    )
    return None if own else "origin_not_allowed"


def told(rules: OriginRules, headers: Sequence[tuple[bytes, bytes]], **scope: Any) -> str | None:
    """How a request is refused, if it is."""
    try:
        rules.check({"http_version": "1.1", "server": ("10.0.0.7", 8000), **scope, "headers": headers})
    except RequestError as error:
        return error.code or str(error.status)
    return None


@pytest.mark.parametrize("server", SERVERS)
def test_every_combination_is_allowed_or_refused_by_the_rules(server: str) -> None:
    rules = OriginRules(Settings(**SERVERS[server]), guarded=False)
    guarded = OriginRules(Settings(**SERVERS[server]), guarded=True)
    refused = 0
    for method, host, origin, site in product(METHODS, [*OWN, *FOREIGN], ORIGINS, SITES):
        sent = Sent(method, host, origin, site)
        scope = {} if method == "WEBSOCKET" else {"method": method}
        assert told(rules, sent.headers, **scope) == expected(server, sent), sent
        assert told(guarded, sent.headers, **scope) is None
        refused += expected(server, sent) is not None
    assert refused > 1000


@pytest.mark.parametrize("guarded", [False, True])
def test_a_request_has_one_host(guarded: bool) -> None:
    rules = OriginRules(Settings(allow_host=("*",)), guarded=guarded)
    own = (b"host", b"localhost")
    for version in ("1.0", "1.1"):
        for host in INVALID:
            assert told(rules, [(b"host", host.encode("latin-1"))], http_version=version) == "400", host
        assert told(rules, [own, own], http_version=version) == "400"
        assert told(rules, [own], http_version=version) is None
    assert told(rules, [], method="GET", http_version="1.1") == "400"
    assert told(rules, [], method="GET", http_version="1.0") is None


def test_a_unix_socket_has_no_address() -> None:
    rules = OriginRules(Settings(), guarded=False)
    for server in (None, ("/run/antiphon.sock", None)):
        assert told(rules, [(b"host", b"localhost")], server=server) is None
        assert told(rules, [(b"host", b"10.0.0.7")], server=server) == "host_not_allowed"


# Over HTTP: every path


class Connection:
    """A connection, on which requests are written as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(
        self, line: str, headers: Sequence[tuple[bytes, bytes]], body: bytes = b""
    ) -> tuple[int, bytes]:
        """The status of the answer to a request, and its body."""
        fields = b"".join(b"%s: %s\r\n" % each for each in headers)
        length = b"content-length: %d\r\n" % len(body) if body else b""
        self._writer.write(line.encode() + b"\r\n" + fields + length + b"\r\n" + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length_of_body = re.search(rb"content-length: (\d+)", head.lower())
        size = 0 if line.startswith("HEAD") or length_of_body is None else int(length_of_body[1])
        return int(head.split()[1]), await self._reader.readexactly(size)


@asynccontextmanager
async def connected(server: Running) -> AsyncIterator[Connection]:
    parts = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        async with asyncio.timeout(20):
            yield Connection(reader, writer)
    finally:
        writer.close()


def targets() -> Iterator[tuple[str, str]]:
    """Every path with each of its methods."""
    for route in ROUTES:
        path = re.sub(r"\{.*?\}", "none", route.path)
        if isinstance(route, Route):
            yield from ((method, path) for method in sorted(route.methods or ()))


def refusal(path: str, body: bytes) -> tuple[str | None, str]:
    """The code, and the message, of an error in the form of the path's API."""
    wire = json.loads(body)
    assert "error" in wire, f"{path} has errors of another form: say here how they are read."
    error = wire["error"]
    if path == "/v1/systemone":
        assert wire["detail"] == {"error_type": error["type"], "message": error["message"]}
        host = "--allow-host" in error["message"]  # its codes are statuses
        return "host_not_allowed" if host else "origin_not_allowed", error["message"]
    if path.startswith("/api/"):  # which has no codes
        return "host_not_allowed" if "--allow-host" in error else "origin_not_allowed", error
    if path.startswith("/v1/messages"):
        assert wire["type"] == "error"
        return error.get("details", {}).get("error_code"), error["message"]
    assert wire.keys() == {"error"}
    return error["code"], error["message"]


TRIED = [
    Sent(host="evil.test:8000", origin="own", site="same-origin"),  # a name that was rebound
    Sent(host="evil.test:8000"),
    Sent(origin="http://evil.test", site="cross-site"),
    Sent(origin="http://localhost:3000", site="same-site"),
    Sent(origin="null", site="cross-site"),
    Sent(site="cross-site"),
    Sent(origin="http://evil.test"),
    Sent(origin="own", site="same-origin"),
    Sent(),
]
EFFECTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "store": True},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}], "stream": False},
}
"""Requests that generate and store something, if they are taken."""


async def test_every_path_keeps_pages_of_others_out() -> None:
    async with running([{"output": "Hi"}]) as server, connected(server) as connection:
        for (method, path), sent in product(targets(), TRIED):
            code = expected("local", Sent(method, sent.host, sent.origin, sent.site))
            if code is None:
                continue
            body = (
                json.dumps({"model": "scripted"} | EFFECTS.get(path, {})).encode()
                if method == "POST"
                else b""
            )
            status, answer = await connection.ask(f"{method} {path} HTTP/1.1", sent.headers, body)
            assert status == 403, (method, path, sent)
            if method != "HEAD":
                found, message = refusal(path, answer)
                assert found == code
                assert ("--allow-host" if code == "host_not_allowed" else "--allow-origin") in message
        assert [*server.engine.seen] == []
        for path in ("/v1/responses", "/v1/chat/completions"):
            _, listed = await connection.ask(f"GET {path} HTTP/1.1", Sent().headers)
            assert json.loads(listed)["data"] == []
        for path, fields in EFFECTS.items():  # of which each has an effect where it is taken
            for sent in TRIED[-2:]:
                body = json.dumps({"model": "scripted"} | fields).encode()
                assert (await connection.ask(f"POST {path} HTTP/1.1", sent.headers, body))[0] == 200
        assert len(server.engine.seen) == 2 * len(EFFECTS)


async def test_with_keys_the_key_decides() -> None:
    key = (b"authorization", b"Bearer secret")
    async with running([{"output": "Hi"}], api_key=("secret",)) as server, connected(server) as connection:
        for path, sent in product(EFFECTS, TRIED):
            body = json.dumps({"model": "scripted"} | EFFECTS[path]).encode()
            line = f"POST {path} HTTP/1.1"
            assert (await connection.ask(line, sent.headers, body))[0] == 401
            assert (await connection.ask(line, [*sent.headers, key], body))[0] == 200


HANDSHAKE = [
    *((b"connection", b"upgrade"), (b"upgrade", b"websocket"), (b"sec-websocket-version", b"13")),
    (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
]
SOCKETS = [route.path for route in ROUTES if isinstance(route, WebSocketRoute)]


@pytest.mark.parametrize("server", ["local", "named", "any page"])
async def test_handshakes_of_websockets_are_held_to_the_same_rules(server: str) -> None:
    hosts, refused = ("localhost:8000", "evil.test", NAME), 0
    async with running([{"output": "Hi"}], **SERVERS[server]) as served:
        with capture_logs() as logs:
            for path, host, origin, site in product(
                SOCKETS, hosts, ORIGINS, (None, "same-origin", "cross-site")
            ):
                sent = Sent("WEBSOCKET", host, origin, site)
                code = expected(server, sent)
                async with connected(served) as connection:
                    status, answer = await connection.ask(f"GET {path} HTTP/1.1", [*HANDSHAKE, *sent.headers])
                assert status == (101 if code is None else 403), sent
                assert code is None or refusal(path, answer)[0] == code
                refused += code is not None
    assert [line for line in logs if line["log_level"] == "error"] == []
    assert [line["status"] for line in logs if line["event"] == "request"] == [403] * refused


@pytest.mark.parametrize("handshake", [[], HANDSHAKE], ids=["request", "websocket"])
async def test_the_authority_of_a_target_is_its_host(handshake: list[tuple[bytes, bytes]]) -> None:
    """RFC 9112, 3.2.2."""
    taken = 101 if handshake else 200
    async with running([{"output": "Hi"}]) as server:
        for authority, host, status in (
            *(("localhost:8000", "evil.test", taken), ("evil.test", "localhost", 403)),
            *(("user@localhost", "localhost", 400), ("", "localhost", 400)),
        ):
            for target in (f"http://{authority}/v1/responses", f"HTTP://{authority}/v1/responses?limit=1"):
                async with connected(server) as connection:
                    headers = [*handshake, (b"host", host.encode())]
                    assert (await connection.ask(f"GET {target} HTTP/1.1", headers))[0] == status, target
        async with connected(server) as connection:
            assert (await connection.ask("GET http://localhost?a=b HTTP/1.1", Sent().headers))[0] == 200
        for headers, status in (([(b"host", b"localhost")] * 2, 400), ([], 400)):
            async with connected(server) as connection:
                found, _ = await connection.ask(
                    "GET http://localhost/v1/responses HTTP/1.1", [*handshake, *headers]
                )
                assert found == status


async def test_health_checks_of_http_1_0_need_no_host() -> None:
    async with running([{"output": "Hi"}]) as server:
        for headers, status in (
            ([], 200),
            ([(b"host", b"evil.test")], 403),
            ([(b"host", b"localhost")], 200),
        ):
            async with connected(server) as connection:
                assert (await connection.ask("GET /health HTTP/1.0", headers))[0] == status


async def test_refusals_are_logged_as_every_request() -> None:
    async with running([{"output": "Hi"}]) as server, connected(server) as connection:
        with capture_logs() as logs:
            await connection.ask("GET /v1/models HTTP/1.1", [(b"host", b"evil.test")])
    assert [line["status"] for line in logs if line["event"] == "request"] == [403]


def test_hosts_that_clients_make_up_are_not_kept() -> None:
    rules = OriginRules(Settings(), guarded=False)
    tracemalloc.start()
    for number in range(1500):
        long = b"h%d" % number + b"x" * 5000
        assert told(rules, [(b"host", long)]) == "400"
        assert told(rules, [(b"host", b"h%d" % number)]) == "host_not_allowed"
        assert told(rules, [(b"host", b"localhost"), (b"origin", long)]) == "origin_not_allowed"
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2_000_000
