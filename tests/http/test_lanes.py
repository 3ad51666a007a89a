"""Turns in lanes of a WebSocket: one after the other in each, and several lanes at the same time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from antiphon.core.limits import Limits
from tests.http.api import text_of
from tests.server import Running, running
from tests.steering import Halting, Talk, talking

STEER = "Rather in French."


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(Halting(), limit=Limits(socket_lanes=2)) as server:
        yield server


@pytest_asyncio.fixture
async def talk(server: Running) -> AsyncIterator[Talk]:
    async with talking(server) as talk:
        yield talk


async def test_lanes_are_answered_at_the_same_time_and_each_in_order(server: Running, talk: Talk) -> None:
    engine: Halting = server.engine
    engine.says("held", "free", after=2)
    await talk.create("one", stream_id="a")
    await engine.reached()
    await talk.create("two", stream_id="a")
    await talk.create("three", stream_id="b.c-d_E")
    events = [await talk.next()]
    while events[-1]["type"] != "response.completed":
        events.append(await talk.next())
    assert {event["stream_id"] for event in events} == {"a", "b.c-d_E"}
    assert events[-1]["stream_id"] == "b.c-d_E"
    begun = [event for event in events if event["stream_id"] == "a"]
    engine.go.set()
    first = await talk.response(begun)
    second = await talk.response()
    assert (text_of(first), text_of(second)) == ("held", "free")
    assert "two" in engine.seen[-1].prompt.text


async def test_events_of_steering_have_the_lane_of_their_response(server: Running, talk: Talk) -> None:
    engine: Halting = server.engine
    engine.says("held", "free", after=2)
    await talk.create("one", stream_id="a", store=False, request_id="lane")
    await engine.reached()
    await talk.steer("resp_lane", STEER)
    events = await talk.until("response.completed")
    assert {event.get("stream_id") for event in events} == {"a"}
    await talk.steer("resp_lane", STEER)
    assert "stream_id" not in await talk.next()


async def test_there_are_so_many_lanes(server: Running, talk: Talk) -> None:
    engine: Halting = server.engine
    engine.says("held", "free", after=2)
    await talk.create("one", stream_id="a")
    await engine.reached()
    for lane in ("b", "c"):
        await talk.create("two", stream_id=lane)
    events = await talk.until("error")
    assert (events[-1]["code"], events[-1]["param"], events[-1]["stream_id"]) == (
        "limit_exceeded",
        "stream_id",
        "c",
    )
    assert "socket_lanes" in events[-1]["message"]
    engine.go.set()


@pytest.mark.parametrize("stream_id", ["", "a b", "ä", "a\n", "x" * 257, 7])
async def test_a_lane_has_a_name(talk: Talk, stream_id: Any) -> None:
    await talk.create("Hi", stream_id=stream_id)
    error = await talk.next()
    assert (error["type"], error["param"], "stream_id" in error) == ("error", "stream_id", False)


async def test_all_lanes_stop_for_a_client_that_does_not_read() -> None:
    lines = [{"output": "x" * 500_000, "split": "whole", "tokens": 100_000}]
    async with running(lines, stall_seconds=0.2) as server, talking(server) as talk:
        for lane in "ab":
            await talk.create("Hi", stream_id=lane)
        talk.socket.transport.pause_reading()
        async with asyncio.timeout(20):
            while server.engine.load.running < 2:
                await asyncio.sleep(0.01)
            while server.engine.load.running:
                await asyncio.sleep(0.01)
        talk.socket.transport.abort()
