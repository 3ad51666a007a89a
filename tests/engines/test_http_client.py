import asyncio
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.limits import Limits
from antiphon.engines.http_client import MAX_HEAD, Exchange, HttpClient, HttpError, LineSplitter
from tests.contracts.engine import until
from tests.engines.canned import END, HEAD, answer, canned, part


class Taken(Exchange):
    """Keeps what comes."""

    def __init__(self, client, path):
        super().__init__(client.encode("POST", path, b"{}"))
        self.pieces = []
        self.error = None
        self.over = asyncio.Event()

    def on_body(self, data):
        self.pieces.append(data)

    def on_end(self, error):
        assert not self.over.is_set()
        self.error = error
        self.over.set()


async def taken(client, path):
    exchange = Taken(client, path)
    client.send(exchange)
    assert not exchange.over.is_set()
    async with asyncio.timeout(10):
        await exchange.over.wait()
    return exchange


async def test_a_whole_answer_and_what_was_asked():
    async with canned({"/base/a": [answer(200, {"x": 1})]}) as server:
        client = HttpClient(f"{server.url}/base/v1/", "secret")
        response = await client.request("POST", "/a", {"y": "é"})
        client.close()
    assert (response.status, response.json()) == (200, {"x": 1})
    [asked] = server.asked
    assert (asked.method, asked.path, asked.body) == ("POST", "/base/a", {"y": "é"})
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.headers["host"] == server.url.removeprefix("http://")


async def test_a_connection_is_used_again():
    async with canned({"/a": [answer(200, 1)], "/b": [HEAD, part(b"x"), END]}) as server:
        client = HttpClient(server.url)
        for _ in range(3):
            await client.request("GET", "/a")
            assert b"".join((await taken(client, "/b")).pieces) == b"x"
        assert server.connections == 1
        await asyncio.gather(*(client.request("GET", "/a") for _ in range(4)))
        assert server.connections == 4
        client.close()


@pytest.mark.parametrize("most", [1, 3])
async def test_requests_wait_for_a_limited_number_of_connections(most):
    async with canned({"/a": [answer(200, 1)], "/b": [HEAD, part(b"x"), END]}) as server:
        client = HttpClient(server.url)
        client.limit_connections(most)
        for _ in range(2):
            done = await asyncio.gather(
                *(client.request("GET", "/a") for _ in range(20)), taken(client, "/b")
            )
            assert [each.status for each in done] == [200] * 21
        assert server.connections == most
        assert not client.busy
        client.close()


async def test_a_limit_closes_what_is_idle():
    async with canned({"/a": [answer(200, 1)]}) as server:
        client = HttpClient(server.url)
        await asyncio.gather(*(client.request("GET", "/a") for _ in range(5)))
        client.limit_connections(2)
        assert (server.connections, len(client._connections)) == (5, 2)
        await asyncio.gather(*(client.request("GET", "/a") for _ in range(9)))
        assert server.connections == 5
        client.close()


@given(data=st.data())
def test_no_place_is_lost_whoever_leaves(data):
    """Whether one waits, connects, is answered or fails when its client leaves it."""
    moments = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=12))
    paths = [data.draw(st.sampled_from(["/a", "/closed", "/slow"])) for _ in moments]

    async def play():
        answers = {"/a": [answer(200, 1)], "/closed": [b""], "/slow": [HEAD, *[part(b"x")] * 9, END]}
        async with canned(answers, close={"/closed"}) as server:
            client = HttpClient(server.url)
            client.limit_connections(2)
            exchanges = [Taken(client, path) for path in paths]
            for exchange in exchanges:
                client.send(exchange)
            for turn in range(7):
                for exchange, moment in zip(exchanges, moments, strict=True):
                    if moment == turn:
                        exchange.abort()
                assert len(client._connections) <= 2
                await asyncio.sleep(0.001)
            assert (await client.request("GET", "/a")).status == 200
            await until(lambda: not client.busy and not client._connecting)
            assert not client._queue
            client.close()

    asyncio.run(play())


async def test_those_that_wait_end_with_the_client():
    async with canned({"/hang": [HEAD, part(b"x")]}) as server:
        client = HttpClient(server.url)
        client.limit_connections(1)
        exchanges = [Taken(client, "/hang") for _ in range(3)]
        for exchange in exchanges:
            client.send(exchange)
        await until(lambda: exchanges[0].pieces)
        assert client.busy
        client.close()
        assert all(exchange.over.is_set() and exchange.error for exchange in exchanges)


async def test_a_stream_comes_piece_by_piece():
    pieces = [b"one", b"two", b"three"]
    async with canned({"/a": [HEAD, *map(part, pieces), END]}) as server:
        client = HttpClient(server.url)
        exchange = await taken(client, "/a")
        client.close()
    assert b"".join(exchange.pieces) == b"onetwothree"
    assert (exchange.status, exchange.error) == (200, None)


async def test_a_body_that_ends_with_the_connection_is_whole():
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    async with canned({"/a": [head, b"all"]}, close={"/a"}) as server:
        client = HttpClient(server.url)
        exchange = await taken(client, "/a")
        client.close()
    assert (b"".join(exchange.pieces), exchange.error) == (b"all", None)


async def test_a_connection_that_was_closed_meanwhile_is_replaced():
    """Without anything having come of the answer, so that it is safe to ask once more."""
    async with canned({"/a": [answer(200, 1)], "/b": []}, close={"/b"}) as server:
        client = HttpClient(server.url)
        await client.request("GET", "/a")
        with pytest.raises(HttpError, match="closed"):
            await client.request("GET", "/b")
        assert [asked.path for asked in server.asked] == ["/a", "/b", "/b"]
        assert server.connections == 2
        client.close()


@pytest.mark.parametrize("cut", [[HEAD], [HEAD, part(b"x")], [HEAD, b"ff\r\nx"], [answer(200, "long")[:-2]]])
async def test_a_stream_that_breaks_off_is_an_error(cut):
    async with canned({"/a": cut}, close={"/a"}) as server:
        client = HttpClient(server.url)
        assert "closed" in str((await taken(client, "/a")).error)
        assert len(server.asked) == 1
        client.close()


async def test_what_is_no_http_is_an_error():
    async with canned({"/a": [b"SSH-2.0-x\r\n\r\n"]}) as server:
        client = HttpClient(server.url)
        assert "HTTP" in str((await taken(client, "/a")).error)
        client.close()


@pytest.mark.parametrize("begun", [[], [HEAD], [HEAD, part(b"x")]])
async def test_a_server_that_says_nothing_is_given_up(begun):
    async with canned({"/a": begun}, silent={"/a"}) as server:
        client = HttpClient(server.url, idle_seconds=0.1)
        assert "silent for 0.1 seconds" in str((await taken(client, "/a")).error)
        await until(lambda: server.open == 0)


async def test_nobody_there():
    client = HttpClient("http://127.0.0.1:1")
    with pytest.raises(HttpError, match="refused"):
        await client.request("GET", "/")


async def test_a_connection_that_takes_too_long():
    client = HttpClient("http://127.0.0.1:1", connect_seconds=0.05)
    loop = asyncio.get_running_loop()

    async def never(*_args, **_options):
        await asyncio.sleep(60)

    loop.create_connection = never
    try:
        with pytest.raises(HttpError, match=r"no connection after 0\.05 seconds"):
            await client.request("GET", "/")
    finally:
        del loop.create_connection


async def test_abort_closes_the_connection_and_nothing_more_is_told():
    async with canned({"/a": [HEAD, part(b"x")]}, silent={"/a"}) as server:
        client = HttpClient(server.url)
        exchange = Taken(client, "/a")
        client.send(exchange)
        await until(lambda: bool(exchange.pieces))
        exchange.abort()
        await until(lambda: server.open == 0)
        assert not exchange.over.is_set()


async def test_abort_before_there_is_a_connection():
    async with canned({"/a": []}) as server:
        client = HttpClient(server.url)
        exchange = Taken(client, "/a")
        client.send(exchange)
        exchange.abort()
        await client.request("GET", "/b")
        assert [asked.path for asked in server.asked] == ["/b"]
        assert not exchange.over.is_set()
        client.close()


async def test_a_request_that_is_cancelled_closes_its_connection():
    async with canned({"/a": []}, silent={"/a"}) as server:
        client = HttpClient(server.url)
        asking = asyncio.create_task(client.request("GET", "/a"))
        await until(lambda: bool(server.asked))
        asking.cancel()
        await until(lambda: server.open == 0)


async def test_close_ends_what_is_under_way():
    async with canned({"/a": [HEAD]}, silent={"/a"}) as server:
        client = HttpClient(server.url)
        exchange = Taken(client, "/a")
        client.send(exchange)
        await until(lambda: exchange.status == 200)
        client.close()
        assert exchange.error is not None
        await until(lambda: server.open == 0)


@pytest.mark.parametrize(
    "url",
    ["ftp://h", "http://", "http://h:0", "http://h:x", "http://u:p@h", "http://h/?a", "x", "http://h/a b"],
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(ValueError, match="URL"):
        HttpClient(url)


def test_lines_are_whole_however_they_are_cut():
    text = "data: é\r\n\r\ndata: 2\n\n: x\n".encode()
    for size in range(1, len(text)):
        lines = LineSplitter()
        cut = [text[start : start + size] for start in range(0, len(text), size)]
        found = [line for piece in cut for line in taken_of(lines, piece)]
        assert found == ["data: é".encode(), b"data: 2", b": x"]


@pytest.mark.parametrize("end", [b"", b"\n", b"\nshort\n"])
@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_line_that_is_too_long_is_an_error(size, end):
    lines, text = LineSplitter(Limits(upstream_line_bytes=20)), b"x" * 30 + end
    cut = [text[start : start + size] for start in range(0, len(text), size)]
    with pytest.raises(HttpError, match="line is longer than 20 bytes, the limit 'upstream_line_bytes'"):
        [taken_of(lines, piece) for piece in cut]


def test_a_line_of_many_pieces_is_put_together_once():
    """However many pieces there are, each byte is copied as often as if there were one."""
    lines = LineSplitter(Limits(upstream_line_bytes=10**9))
    pieces = [bytes(1000)] * 1000
    for piece in pieces:
        assert taken_of(lines, piece) == []
    tracemalloc.start()
    try:
        taken_of(lines, bytes(1000))
        assert tracemalloc.get_traced_memory()[1] < 10_000  # what was there is not copied
    finally:
        tracemalloc.stop()
    assert taken_of(lines, b"\n") == [bytes(1_001_000)]


def test_a_line_is_taken_again():
    lines = LineSplitter()
    lines.feed(b"a\nb\nc")
    assert lines.take() == b"a"
    lines.put_back(b"a")
    assert [*taken_of(lines, b"d\n")] == [b"a", b"b", b"cd"]


def taken_of(lines, piece):
    lines.feed(piece)
    return [*iter(lines.take, None)]


@pytest.mark.parametrize(
    "begun",
    [
        [b"HTTP/1.1 200 OK\r\nX: "],
        [b"HTTP/1.1 200 OK\r\n"],
        [HEAD, part(b"x"), b"1;"],
        [HEAD, part(b"x"), b"0\r\nX: "],
    ],
)
async def test_what_is_no_body_has_an_end(begun):
    """A head, an extension of a chunk, and trailers."""
    endless = b"x" * 1000 if begun[-1][-1:] != b"\n" else b"X: y\r\n" * 200
    pieces = [*begun, *[endless] * (2 * MAX_HEAD // len(endless))]
    async with canned({"/a": pieces}, silent={"/a"}) as server:
        client = HttpClient(server.url)
        assert "without a body" in str((await taken(client, "/a")).error)
        client.close()


async def test_a_paused_exchange_gets_nothing_more_until_it_is_resumed():
    """And the server has to wait, though not because it was silent."""
    sent = part(b"x" * 10_000)
    async with canned({"/a": [HEAD, *[sent] * 1000, END]}) as server:
        client = HttpClient(server.url, idle_seconds=0.05)
        exchange = Taken(client, "/a")
        client.send(exchange)
        await until(lambda: bool(exchange.pieces))
        exchange.pause()
        came = len(exchange.pieces)
        await asyncio.sleep(0.2)
        assert len(exchange.pieces) == came
        exchange.resume()
        await exchange.over.wait()
        assert (sum(map(len, exchange.pieces)), exchange.error) == (10_000_000, None)
        client.close()


class Hesitant(Taken):
    """Takes one piece in each turn."""

    def on_body(self, data):
        super().on_body(data)
        self.pause()
        asyncio.get_running_loop().call_soon(self.resume)


async def test_a_connection_that_was_paused_is_used_again():
    async with canned({"/a": [HEAD, part(b"x"), part(b"y") + END]}) as server:
        client = HttpClient(server.url)
        for _ in range(3):
            exchange = Hesitant(client, "/a")
            client.send(exchange)
            await exchange.over.wait()
            assert b"".join(exchange.pieces) == b"xy"
        assert server.connections == 1
        client.close()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "anything"])
async def test_a_compressed_answer_is_refused(encoding):
    """Nobody asked for it, and nobody counts what it would decode to."""
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: 1\r\n\r\nx".encode()
    async with canned({"/a": [head], "/b": [head.replace(encoding.encode(), b"identity")]}) as server:
        client = HttpClient(server.url)
        with pytest.raises(HttpError, match=f"compressed .{encoding}."):
            await client.request("GET", "/a")
        assert (await client.request("GET", "/b")).body == b"x"
        assert server.asked[0].headers["accept-encoding"] == "identity"
        client.close()


async def test_a_name_that_nobody_can_look_up():
    client = HttpClient(f"http://{'a' * 70}.test")
    with pytest.raises(HttpError, match="label"):
        await client.request("GET", "/")


async def test_an_answer_that_is_too_long():
    async with canned({"/a": [answer(200, "x" * 20)]}) as server:
        client = HttpClient(server.url, limits=Limits(upstream_bytes=10))
        with pytest.raises(HttpError, match="longer than 10 bytes, the limit 'upstream_bytes'"):
            await client.request("GET", "/a")
        await until(lambda: server.open == 0)


async def test_what_nobody_asked_for_closes_the_connection():
    async with canned({"/a": [answer(200, 1), answer(408, 1)]}) as server:
        client = HttpClient(server.url)
        await client.request("GET", "/a")
        await until(lambda: server.open == 0)
        assert (await client.request("GET", "/a")).status == 200
        client.close()
