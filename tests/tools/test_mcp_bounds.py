"""What a hostile MCP server sends is bounded before it is read, over every transport."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from antiphon.core.limits import Limits
from antiphon.tools.mcp.bounds import PIECE, Bounds, bounded, has_more_levels, has_more_values
from antiphon.tools.mcp.connection import Connection, FailureError, Network, Target
from antiphon.tools.mcp.content import result_of
from antiphon.tools.mcp.tool import Mcp
from antiphon.tools.tool import RequestedTool
from tests.tools.hostile_mcp import CASES, answers
from tests.tools.mcp_servers import serving

LIMITS = Limits(mcp_bytes=100_000, mcp_values=1_000, mcp_messages=50, mcp_seconds=10, mcp_connect_seconds=10)
COMMAND = (sys.executable, "-m", "tests.tools.hostile_mcp")


def event(message: Any) -> str:
    return f"event: message\ndata: {json.dumps(message)}\n\n"


def site(name: str, *, events: bool) -> Starlette:
    """The server over HTTP: Streamable HTTP, with JSON or with events, and SSE."""
    sent: asyncio.Queue[str] = asyncio.Queue()

    async def streamable(request: Request) -> Response:
        messages = [*answers(name, await request.json())]
        if not messages:
            return Response(status_code=202)
        if events:
            return Response("".join(map(event, messages)), media_type="text/event-stream")
        return JSONResponse(messages[-1])

    async def opened(_request: Request) -> Response:
        async def stream() -> AsyncIterator[str]:
            yield "event: endpoint\ndata: /messages\n\n"
            while True:
                yield await sent.get()

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def posted(request: Request) -> Response:
        sent.put_nowait("".join(map(event, answers(name, await request.json()))))
        return Response(status_code=202)

    return Starlette(
        routes=[
            Route("/mcp", streamable, methods=["POST"]),
            Route("/sse", opened),
            Route("/messages", posted, methods=["POST"]),
        ]
    )


TRANSPORTS = ("process", "sse", "json", "events")


@asynccontextmanager
async def connected(transport: str, name: str) -> AsyncIterator[Connection]:
    network = Network(httpx2.AsyncHTTPTransport(), httpx2.AsyncHTTPTransport())
    if transport == "process":
        async with using(Target("x", command=(*COMMAND, name), trusted=True), network) as connection:
            yield connection
        return
    path = "/sse" if transport == "sse" else "/mcp"
    async with (
        serving(site(name, events=transport == "events"), path=path) as there,
        using(Target("x", there.url, trusted=True), network) as connection,
    ):
        yield connection


@asynccontextmanager
async def using(target: Target, network: Network) -> AsyncIterator[Connection]:
    connection = Connection(target, network, LIMITS)
    try:
        await connection.open()
        yield connection
    finally:
        await connection.close()
        await network.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("parts", "more than 1000 values, the limit 'mcp_values'"),
        ("text", "more than 100000 bytes, the limit 'mcp_bytes'"),
        ("wrong", "not valid"),
        ("deep", "more deeply than 180 levels"),
        ("requests", "more than 50 messages, the limit 'mcp_messages'"),
    ],
)
async def test_results_are_bounded(transport: str, name: str, says: str) -> None:
    if (transport, name) == ("json", "requests"):
        return  # it has one message
    async with connected(transport, name) as connection:
        assert len(await connection.tools()) == 1
        with pytest.raises(FailureError, match=says):
            await connection.call("attack", {})


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_listings_are_bounded(transport: str) -> None:
    async with connected(transport, "properties") as connection:
        with pytest.raises(FailureError, match="the limit 'mcp_values'"):
            await connection.tools()


async def test_a_line_of_a_process_without_end_is_left() -> None:
    async with connected("process", "endless-plain") as connection:
        with pytest.raises(FailureError, match="the limit 'mcp_bytes'"):
            await connection.tools()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_texts_are_not_taken_for_values(transport: str) -> None:
    async with connected(transport, "quoted") as connection:
        await connection.tools()
        result = result_of(await connection.call("attack", {}), 10**6)
    assert result.text == CASES["quoted"][1]["content"][0]["text"]


async def test_patterns_of_a_server_are_not_searched_for() -> None:
    """They would take forever, on the event loop."""
    async with connected("json", "slow") as connection, asyncio.timeout(5):
        await connection.tools()
        assert "aaa" in result_of(await connection.call("attack", {}), 1000).text


async def test_a_tool_whose_name_cannot_be_used_is_left_out_with_a_reason() -> None:
    network = Network(httpx2.AsyncHTTPTransport(), httpx2.AsyncHTTPTransport())
    tool = Mcp(network, (), ("127.0.0.1",), LIMITS)
    async with serving(site("names", events=False), path="/mcp") as there:
        offer = await tool.offer(
            RequestedTool({"type": "mcp", "server_label": "x", "server_url": there.url}, "tools[0]")
        )
        await tool.close()
    assert [function.name for function in offer.functions] == ["good", "also_good_x"]
    assert offer.listing is not None
    assert [each.name for each in offer.listing.tools] == ["good", "also.good/x"]
    notes = [note.message for note in offer.notes]
    assert len(notes) == 7
    assert notes[0] == (
        "The tool 'also_good_x' of 'x' is left out: Another tool is also called 'also_good_x'. Rename one."
    )
    assert all("Its name may have 1 to 128 letters" in note for note in notes[1:])
    assert all(len(note) < 200 and note.isprintable() for note in notes)


# The count


def values_of(value: Any) -> int:
    """What is counted: each value of a list or an object, and each of these that has none."""
    if isinstance(value, dict):
        return max(1, len(value)) + sum(map(values_of, value.values()))
    if isinstance(value, list):
        return max(1, len(value)) + sum(map(values_of, value))
    return 0


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=40,
    )
)
def test_values_are_counted_exactly(value: Any) -> None:
    count = values_of(value)
    for encoded in (json.dumps(value).encode(), msgspec.json.encode(value)):
        assert not has_more_values(encoded, count)
        if count:
            assert has_more_values(encoded, count - 1)


# Events


class Stream(httpx2.AsyncByteStream):
    """A body in these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


async def pieces_of(cut: list[bytes], limits: Limits = LIMITS) -> tuple[list[bytes], Bounds]:
    response = httpx2.Response(200, headers={"content-type": "text/event-stream; x=y"}, stream=Stream(cut))
    bounds = Bounds(limits)
    stream = bounded(response, bounds, endless=True)
    return [piece async for piece in stream if piece], bounds


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r", "\n\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_events_are_passed_on_one_by_one(end: str, size: int) -> None:
    text = "".join(f"data: {number}{end}" for number in range(20)).encode()
    pieces, bounds = await pieces_of([text[start : start + size] for start in range(0, len(text), size)])
    assert b"".join(pieces) == text
    assert bounds._messages == 20
    assert all(piece.count(b"data") <= 1 for piece in pieces)


async def test_a_long_event_is_passed_on_in_pieces() -> None:
    text = b"data: " + b"x" * 90_000 + b"\n\n"
    pieces, _ = await pieces_of([text])
    assert b"".join(pieces) == text
    assert max(map(len, pieces)) == PIECE


async def test_the_loop_is_free_between_messages() -> None:
    turns: list[str] = []

    async def other() -> None:
        while len(turns) < 100:
            turns.append("other")
            await asyncio.sleep(0)

    async def read(_: Callable[[], None] | None = None) -> None:
        response = httpx2.Response(
            200, headers={"content-type": "text/event-stream"}, stream=Stream([b"data: 1\n\n" * 40])
        )
        stream = bounded(response, Bounds(LIMITS), endless=False)
        async for _ in stream:
            turns.append("event")  # noqa: PERF401 - in the turn of it

    await asyncio.gather(read(), other())
    assert "event event event" not in " ".join(turns)


@pytest.mark.parametrize(
    ("message", "more"),
    [
        (b'{"a":' * 3 + b"1" + b"}" * 3, True),
        (b'{"a":[{}, {}, [], []], "b": {"c": {}}}', True),
        (b'{"a":[], "b":[], "c":[]}', False),
        (rb'{"a":"[[[[", "b":"\"[[[", "c":"\\", "d":"]["}', False),
    ],
)
def test_levels_are_counted_exactly(message: bytes, more: bool) -> None:
    assert has_more_levels(message, 2) is more
