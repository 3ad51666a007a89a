"""What a connection may send, and how slowly."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from antiphon.config import Settings
from antiphon.core.limits import Limits
from antiphon.http.protocol import DateHeader, protocols
from tests.run.support import until
from tests.server import NO_TLS, Running, running

SCRIPT: list[dict[str, Any]] = [
    {"when": "slow", "output": "word ", "tokens": 10_000, "delay_ms": 50},
    {"output": "Hello"},
]
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(**limits: int) -> AsyncIterator[Running]:
    async with running(SCRIPT, limit=Limits(**limits)) as server:
        yield server


@asynccontextmanager
async def connected(server: Running) -> AsyncIterator[Streams]:
    parts = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def sent(server: Running, *pieces: bytes) -> bytes:
    """What is answered to these pieces until the connection is closed."""
    async with connected(server) as (reader, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            return await reader.read()


def test_responses_have_the_date_of_their_second(monkeypatch: pytest.MonkeyPatch) -> None:
    config = uvicorn.Config("app:asgi", headers=[("a", "b")], server_header=False)
    config.encoded_headers = [(b"a", b"b")]  # which loading the application would make
    state, date, headers = ServerState(), DateHeader(), []
    for second in (5.2, 5.9, 6.1):
        monkeypatch.setattr("antiphon.http.protocol.time", lambda now=second: now)
        date.update(state, config)
        headers.append(state.default_headers)
    assert headers[0] == [(b"date", b"Thu, 01 Jan 1970 00:00:05 GMT"), (b"a", b"b")]
    assert headers[1] is headers[0]
    assert headers[2] == [(b"date", b"Thu, 01 Jan 1970 00:00:06 GMT"), (b"a", b"b")]


def refusal(answer: bytes, status: int, limit: str) -> None:
    """The answer is an error that names the limit, and no more."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    error = json.loads(body)["error"]
    assert error["code"] == "limit_exceeded"
    assert f"the limit '{limit}' of this server" in error["message"]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ", *[b"a" * 300] * 4],  # one that does not end
        [b"GET /", *[b"a" * 300] * 4],
        [b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 300],
        [b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\n\r\n"],
    ],
)
async def test_a_head_that_is_too_long(pieces: list[bytes]) -> None:
    async with serving(header_bytes=1000) as server:
        refusal(await sent(server, *pieces), 431, "header_bytes")
        assert b" 200 " in await sent(server, HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))


async def test_heads_of_several_requests_are_counted_each() -> None:
    async with serving(header_bytes=100) as server, connected(server) as (reader, writer):
        for _ in range(5):
            writer.write(HEALTH * 2 + HEALTH[:10])
            writer.write(HEALTH[10:])
        for _ in range(15):
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(18)


CHUNKED = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("between", [b"2;", b"2\r\n{}\r\n0\r\nx: "], ids=["extension", "trailer"])
async def test_what_is_no_part_of_a_body_is_counted(between: bytes) -> None:
    async with serving(header_bytes=1000) as server, connected(server) as (reader, writer):
        writer.write(CHUNKED + between)
        for _ in range(6):
            writer.write(b"a" * 300)
            await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            refusal(await reader.read(), 431, "header_bytes")


async def test_small_parts_of_a_body_are_none_of_its_head() -> None:
    async with serving(header_bytes=100) as server:
        answer = await sent(server, CHUNKED, *[b"1\r\n \r\n" * 50] * 4, b"0\r\n\r\n")
        assert b" 400 " in answer.partition(b"\r\n")[0]


async def test_a_body_of_too_many_chunks() -> None:
    async with serving(chunks=10) as server:
        assert b" 400 " in await sent(server, CHUNKED, b"1\r\n \r\n" * 9, b"0\r\n\r\n")
        refusal(await sent(server, CHUNKED, *[b"1\r\n \r\n" * 6] * 2), 413, "chunks")


async def test_who_has_most_connections_makes_room_for_others() -> None:
    async with serving(connections=4) as server, connected(server) as (busy, asking):
        asking.write(ask_slowly())
        await busy.readuntil(b"word")
        async with (
            connected(server) as (idle, _),
            connected(server) as (newer, also_idle),
            connected(server),
            connected(server) as (reader, writer),
            asyncio.timeout(10),
        ):
            writer.write(HEALTH)
            assert b" 200 " in await reader.readline()
            assert await idle.read() == b""  # it has been idle for longest
            await busy.readuntil(b"word")
            also_idle.write(HEALTH)
            assert b" 200 " in await newer.readline()


async def test_only_answers_are_left_to_make_room() -> None:
    async with serving(connections=2) as server, connected(server) as (first, asking):
        asking.write(ask_slowly())
        await first.readuntil(b"word")
        async with connected(server) as (second, also_asking):
            also_asking.write(ask_slowly())
            await second.readuntil(b"word")
            assert await sent(server) == b""  # the newest
            await second.readuntil(b"word")
            await first.readuntil(b"word")


def ask_slowly() -> bytes:
    body = json.dumps({"model": "scripted", "input": "slow", "stream": True, "store": False}).encode()
    return b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("limits", [{}, {"unread_bytes": 1_000_000}], ids=["for too long", "too much"])
async def test_who_does_not_read_whole_answers_is_cut_off(limits: dict[str, int]) -> None:
    """Its connection is closed while it still has most of the answer to come."""
    async with running(
        [{"output": "x" * 16_000_000}], limit=Limits(**limits), stall_seconds=60.0 if limits else 0.2
    ) as server:
        body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}).encode()
        async with connected(server) as (reader, writer):
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            head = (
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
                % len(body)
            )
            writer.write(head + body)
            await until(lambda: bool(server.app.metrics.tokens("scripted")[1]))
            await asyncio.sleep(0.5)
            reader._transport.resume_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(10):
                with suppress(ConnectionResetError):
                    assert len(await reader.read()) < 16_000_000


@pytest.mark.parametrize(
    ("piece", "limit"),
    [
        (b"GET /health HTTP/1.1\r\n", "header_seconds"),
        (b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{", "body_seconds"),
    ],
)
async def test_who_sends_too_slowly(piece: bytes, limit: str) -> None:
    async with serving(**{limit: 1}) as server:
        refusal(await sent(server, piece), 408, limit)


async def test_who_sends_nothing() -> None:
    async with serving(idle_seconds=1) as server:
        assert await sent(server) == b""


async def test_who_sends_nothing_after_an_answer() -> None:
    async with serving(idle_seconds=1) as server, connected(server) as (reader, writer):
        for _ in range(3):  # in more time than the limit: each answer sets it anew
            await asyncio.sleep(0.5)
            writer.write(HEALTH)
            assert b"HTTP/1.1 200" in await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(10):
            await reader.read()  # until the connection is closed


async def test_who_sends_a_request_slowly_after_an_answer() -> None:
    async with serving(header_seconds=1) as server:
        answers = await sent(server, HEALTH, HEALTH[:20])
        refusal(answers[answers.rindex(b"HTTP/1.1") :], 408, "header_seconds")


async def test_a_slow_answer_is_no_slow_request() -> None:
    async with (
        serving(header_seconds=1, body_seconds=1, idle_seconds=1) as server,
        connected(server) as streams,
    ):
        reader, writer = streams
        writer.write(ask_slowly() + HEALTH[:20])
        async with asyncio.timeout(10):
            seen = b""
            while seen.count(b"word") < 40:  # two seconds
                seen += await reader.readuntil(b"\n")


async def test_whole_answers_on_one_connection() -> None:
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n" % len(body)
    async with serving() as server:
        answers = await sent(server, (head + b"\r\n" + body) * 2, head + b"connection: close\r\n\r\n" + body)
    rest = answers
    for last in (False, False, True):
        start, _, rest = rest.partition(b"\r\n\r\n")
        headers = dict(line.split(b": ") for line in start.split(b"\r\n")[1:])
        assert headers[b"content-type"] == b"application/json"
        assert (headers.get(b"connection") == b"close") is last
        length = int(headers[b"content-length"])
        assert json.loads(rest[:length])["choices"][0]["message"]["content"] == "Hello"
        rest = rest[length:]
    assert rest == b""


async def test_texts_of_any_size_are_streamed() -> None:
    sizes = (6, 3, 100, 4096, 9000, 300_000, 2)  # the sizes of most chunks are formatted beforehand
    texts = ["x" * size for size in sizes]
    cuts = [sum(sizes[:end]) for end in range(1, len(sizes))]
    async with running([{"output": "".join(texts), "split": cuts}]) as server:
        body = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        async with httpx.AsyncClient(base_url=server.url) as client:
            answer = await client.post("/v1/chat/completions", json=body)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [each["choices"][0]["delta"].get("content") for each in events] == ["", *texts, None]


async def test_requests_that_wait_on_a_connection() -> None:
    async with serving(pipelined=4) as server:
        answers = await sent(
            server, HEALTH * 3, HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        )
        assert answers.count(b" 200 ") == 4
        # The first is answered after it was read: the following ones are too many.
        assert (await sent(server, HEALTH * 50)).count(b" 200 ") < 50


async def test_who_leaves_before_the_body_has_come_is_no_failure() -> None:
    async with serving() as server:
        async with connected(server) as (_, writer):
            writer.write(CHUNKED + b"1\r\n{\r\n")
            await until(lambda: len(asyncio.all_tasks()) > 1)
            await asyncio.sleep(0.05)
        async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http:
            counts = (await http.get("/metrics")).text
        assert 'http_requests_total{handler="/v1/responses",method="POST",status="499"} 1.0' in counts


async def test_no_error_is_written_into_an_answer_that_has_begun() -> None:
    """Another request waits for its end, and a third one is not valid."""
    async with serving() as server, connected(server) as (reader, writer):
        writer.write(ask_slowly())
        await reader.readuntil(b"word")
        writer.write(HEALTH + b"no request\r\n\r\n")
        rest = b""
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                while piece := await reader.read(65536):
                    rest += piece
        assert b"HTTP/1.1" not in rest


async def test_a_request_for_no_path_is_an_error_like_others() -> None:
    async with serving() as server:
        answer = await sent(server, b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b" 404 " in head.partition(b"\r\n")[0]
        assert json.loads(body)["error"]["type"] == "not_found_error"


CLOSE = b"connection: close\r\n"
OFFERS = {
    "h2c of Java": b"connection: Upgrade, HTTP2-Settings, close\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n",
    "the settings first": b"HTTP2-Settings: AAEA\r\nUpgrade: h2c\r\nConnection: close, upgrade\r\n",
    "several": b"upgrade: h2c, TLS/1.2\r\nconnection: close, upgrade\r\n",
    "unknown": b"upgrade: foo/2\r\nconnection: upgrade, close\r\n",
    "none that holds": b"upgrade: h2c\r\n" + CLOSE,
}


def asking(fields: bytes, version: bytes = b"1.1", **more: Any) -> tuple[bytes, bytes]:
    """A request for an answer: its head and its body."""
    wire = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], **more}
    body = json.dumps(wire).encode()
    head = b"POST /v1/chat/completions HTTP/%s\r\nhost: localhost\r\n%scontent-length: %d\r\n\r\n" % (
        version,
        fields,
        len(body),
    )
    return head, body


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_offer_of_another_protocol_is_ignored(offer: bytes, stream: bool) -> None:
    head, body = asking(offer, stream=stream)
    chunked = head[: head.index(b"content-length")] + b"transfer-encoding: chunked\r\n\r\n"
    pieces = [
        [head + body],
        [head, body],
        [head[:30], head[30:-2], head[-2:] + body[:7], body[7:]],
        [chunked, b"%x\r\n%s\r\n" % (len(body), body), b"0\r\n\r\n"],
        [HEALTH + head + body],
        [HEALTH.replace(b"\r\n\r\n", b"\r\n" + offer.replace(b"close", b"te") + b"\r\n") * 3 + head + body],
    ]
    async with serving() as server:
        for each in pieces:
            answer = await sent(server, *each)
            status, _, _ = (last := answer[answer.rindex(b"HTTP/1.1 ") :]).partition(b"\r\n")
            assert status == b"HTTP/1.1 200 OK"
            assert b"Hello" in last
            assert b"[DONE]" in last or not stream


async def test_a_head_with_an_offer_is_not_longer_than_others() -> None:
    async with serving(header_bytes=1000) as server:
        offer = OFFERS["h2c of Java"]
        refusal(await sent(server, asking(offer + b"x: " + b"a" * 1000 + b"\r\n")[0]), 431, "header_bytes")
        assert b" 200 " in await sent(server, *asking(offer + b"x: " + b"a" * 500 + b"\r\n"))


@pytest.mark.parametrize("fields", [b"", b"connection: keep-alive\r\n", OFFERS["h2c of Java"]])
async def test_http_1_0_has_no_chunks(fields: bytes) -> None:
    """A body of unknown length ends with the connection."""
    async with serving() as server:
        for stream in (False, True):
            answer = await sent(server, b"".join(asking(fields, b"1.0", stream=stream)))
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in head.lower()
            assert b"connection: close" in head.lower()
            assert body.endswith(b"data: [DONE]\n\n" if stream else b"}")
            assert (f"content-length: {len(body)}".encode() in head.lower()) is not stream
        for path in (b"/docs", b"/metrics", b"/page/style.css", b"/nothing"):
            head, _, body = (await sent(server, b"GET %s HTTP/1.0\r\n\r\n" % path)).partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in head.lower()
            assert body
        head, _, body = (await sent(server, b"HEAD /docs HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")
        assert body == b""


@asynccontextmanager
async def socket_of(server: Running) -> AsyncIterator[ClientConnection]:
    async with connect(server.url.replace("http", "ws") + "/v1/responses", compression="deflate") as socket:
        yield socket


async def test_a_websocket_message_of_too_many_fragments() -> None:
    async with serving(fragments=10) as server, socket_of(server) as socket:
        with pytest.raises(ConnectionClosedError, match="10 fragments"):
            await asyncio.gather(socket.send(" " for _ in range(20)), socket.recv())


async def test_a_websocket_message_that_is_too_large_when_it_is_unpacked() -> None:
    async with serving(body_bytes=1000) as server, socket_of(server) as socket:
        with pytest.raises(ConnectionClosedError, match="1009"):
            await asyncio.gather(socket.send(" " * 2000), socket.recv())


class Pipe(asyncio.Transport):
    """A transport to a client that reads nothing: what is closed stays there."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 1024), "sockname": ("10.0.0.2", 80)})
        self.written = b""
        self.closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def shaken(app: Any) -> tuple[Any, Pipe]:
    """A WebSocket of a server with this application, after the handshake's request."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", **protocols(Settings()))
    config.load()
    protocol, pipe = config.ws_protocol_class(config, ServerState(), {}), Pipe()
    protocol.connection_made(pipe)
    lines = "GET /v1/responses HTTP/1.1", "host: localhost", "upgrade: websocket", "connection: upgrade"
    key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version: 13"
    protocol.data_received("".join(f"{line}\r\n" for line in (*lines, *key, "")).encode())
    await asyncio.sleep(0)
    return protocol, pipe


async def test_a_websocket_is_closed_once_by_a_server_that_stops() -> None:
    async def accepting(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    protocol, pipe = await shaken(accepting)
    protocol.shutdown()
    written = pipe.written
    protocol.shutdown()  # its client has not read that, so it is there still
    assert pipe.written == written
    assert written.endswith(b"\x88\x02\x03\xf4")  # a close frame: 1012
    protocol.connection_lost(None)
    await asyncio.sleep(0)


async def test_a_websocket_that_is_not_open_yet_is_told_that_the_server_stops() -> None:
    opened = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await opened.wait()
        await send({"type": "websocket.accept"})
        assert (await receive())["type"] == "websocket.connect"
        assert (await receive())["type"] == "websocket.disconnect"

    protocol, pipe = await shaken(slow)
    protocol.shutdown()
    head, _, body = pipe.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nContent-Type: application/json" in head or b"\r\ncontent-type: application/json" in head
    assert json.loads(body)["error"]["code"] == "engine_not_ready"
    opened.set()
    protocol.connection_lost(None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert pipe.written.endswith(body)
