"""Streams that are stored before they are sent: what their clients, who leave and come back, can see of it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from msgspec import Struct
from msgspec.structs import replace
from websockets.asyncio.client import connect

from antiphon.core.accounts import ANYONE
from antiphon.core.errors import EngineDiedError
from antiphon.core.turn import Hosted
from antiphon.store.open import open_store
from antiphon.store.store import Store
from tests.acting import PYTHON, ActingTool
from tests.app.support import Outage
from tests.response_invariants import check, read_sse
from tests.run.support import until
from tests.server import NO_TLS, Running, running
from tests.steering import talking

STALL = 0.6
LEASE = 0.3
CALLING = '<tool_call>\n{"name": "f", "arguments": {"a": "' + "word " * 60 + '"}}\n</tool_call>'
SCRIPT: list[Mapping[str, Any]] = [
    {"when": "never starts", "output": "abc", "fail_after": 0},
    {"when": "breaks off", "output": "one two three four", "fail_after": 3},
    {"when": "says nothing yet", "output": "word", "delay_ms": 60_000},
    {"when": "French", "output": "Oui."},
    {"when": "endless", "output": "word ", "tokens": 20_000, "delay_ms": 5},
    {"when": "steady", "output": "word ", "tokens": 60, "delay_ms": 10},
    {"when": "calls", "output": CALLING, "delay_ms": 10},
    {"output": "<think>Hm.</think>Hello there, friend!", "delay_ms": 2},
]
STORE: Any = {
    "store": "sqlite:///unused",
    "durable_streams": True,
    "stall_seconds": STALL,
    "lease_seconds": LEASE,
}


class Place(Struct):
    """A server, its store as it sees it, and a client without an SDK."""

    server: Running
    store: Outage
    http: httpx.AsyncClient

    async def status(self, response_id: str) -> str:
        return str((await self.http.get(f"/responses/{response_id}")).json()["status"])

    async def ended(self, response_id: str) -> str:
        """Its status at the end."""
        while (status := await self.status(response_id)) == "in_progress":
            await asyncio.sleep(0.02)
        return status


@pytest_asyncio.fixture
async def shared() -> AsyncIterator[Store]:
    store = await open_store("memory")
    yield store
    await store.close()


@pytest_asyncio.fixture
async def place(shared: Store) -> AsyncIterator[Place]:
    outage = Outage(shared)

    async def opened() -> Any:
        return outage

    async with (
        running(SCRIPT, open_store=opened, keep_alive=0.1, **STORE) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1", timeout=20) as http,
    ):
        yield Place(server, outage, http)


def ask(given: str, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": given, "stream": True, **more}


class Stream:
    """A stream, read by the event, which its client may leave."""

    def __init__(self, place: Place, method: str, path: str, **request: Any) -> None:
        self._opened = place.http.stream(method, path, **request)
        self.payloads: list[bytes] = []

    async def __aenter__(self) -> "Stream":
        self.response = await self._opened.__aenter__()
        self._lines = self.response.aiter_lines()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._opened.__aexit__(*exc)

    async def read(self, count: int) -> str:
        """Read so many events; returns the id of the response."""
        while len(self.payloads) < count:
            line = await anext(self._lines)
            if line.startswith("data: {"):
                self.payloads.append(line.removeprefix("data: ").encode())
        return str(json.loads(self.payloads[0])["response"]["id"])


def asking(place: Place, given: str, **more: Any) -> Stream:
    return Stream(place, "POST", "/responses", json=ask(given, **more))


async def rest(place: Place, response_id: str, after: int) -> list[bytes]:
    query = {"stream": "true"} | ({"starting_after": after} if after >= 0 else {})
    return read_sse((await place.http.get(f"/responses/{response_id}", params=query)).content)


async def test_no_event_is_sent_before_it_is_stored(place: Place) -> None:
    held = asyncio.Event()
    async with asking(place, "steady") as stream:
        response_id = await stream.read(6)
        place.store.held["log.append"] = held
        reading = asyncio.create_task(stream.read(1000))
        await asyncio.sleep(0.1)  # what was sent has come
        seen = len(stream.payloads)
        await asyncio.sleep(0.3)
        stored = await place.store.responses.get(ANYONE.owner, response_id)
        later = len(stream.payloads)
        del place.store.held["log.append"]
        held.set()
        with pytest.raises(StopAsyncIteration):
            await reading
    assert later == seen <= stored.last_seq + 1
    assert len(stream.payloads) > seen
    check(stream.payloads)
    assert stream.payloads == await rest(place, response_id, -1)


async def test_a_durable_stream_is_one_of_the_foreground(place: Place) -> None:
    response = await place.http.post("/responses", json=ask("Hi"))
    payloads = read_sse(response.content)
    body = check(payloads)
    assert (await place.http.get(f"/responses/{body['id']}")).json() == body
    assert body["background"] is False


async def test_a_failure_before_the_first_event_is_a_status(place: Place) -> None:
    response = await place.http.post("/responses", json=ask("never starts"))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_error")
    assert place.store.made == []


async def test_a_failure_in_the_middle_is_stored_and_sent(place: Place) -> None:
    payloads = read_sse((await place.http.post("/responses", json=ask("breaks off"))).content)
    assert check(payloads)["status"] == "failed"
    assert await rest(place, json.loads(payloads[0])["response"]["id"], 2) == payloads[3:]


async def test_a_client_that_leaves_before_the_first_event(place: Place) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await place.http.post("/responses", json=ask("says nothing yet"), timeout=0.05)
    await until(lambda: not place.server.engine.playing)
    assert place.store.made == []


async def test_a_client_that_comes_back_reads_on(place: Place) -> None:
    """Nothing is missing, and nothing comes twice, however often it leaves: the answer takes longer than it may be away."""
    async with asking(place, "steady") as stream:
        response_id = await stream.read(8)
    payloads, query = stream.payloads, {"stream": "true"}
    for _ in range(3):
        await asyncio.sleep(0.05)
        path, after = f"/responses/{response_id}", {**query, "starting_after": len(payloads) - 1}
        async with Stream(place, "GET", path, params=after) as stream:
            for _ in range(5):
                line = await anext(stream._lines)
                while not line.startswith("data: {"):
                    line = await anext(stream._lines)
                payloads.append(line.removeprefix("data: ").encode())
    payloads += await rest(place, response_id, len(payloads) - 1)
    assert check(payloads)["status"] == "completed"


async def test_a_client_that_stays_away(place: Place) -> None:
    """It is cancelled, not before it may come back, and not much later."""
    async with asking(place, "endless") as stream:
        response_id = await stream.read(8)
    left = time.monotonic()
    assert await place.ended(response_id) == "cancelled"
    assert time.monotonic() - left > STALL
    payloads = stream.payloads + await rest(place, response_id, len(stream.payloads) - 1)
    assert check(payloads)["incomplete_details"] == {"reason": "cancelled"}
    assert not place.server.engine.playing


async def test_a_reader_keeps_it(place: Place) -> None:
    async with asking(place, "endless") as stream:
        response_id = await stream.read(8)
    async with Stream(place, "GET", f"/responses/{response_id}", params={"stream": "true"}):
        await asyncio.sleep(3 * STALL)
        assert await place.status(response_id) == "in_progress"
    await place.http.delete(f"/responses/{response_id}")


async def test_another_server_has_the_reader(place: Place, shared: Store) -> None:
    """The one that answers gets to know by the row."""

    async def opened() -> Any:
        return Outage(shared)

    async with (
        running(SCRIPT, open_store=opened, **STORE) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1", timeout=20) as http,
    ):
        async with asking(place, "endless") as stream:
            response_id = await stream.read(8)
            other = Place(server, place.store, http)
            reader = Stream(other, "GET", f"/responses/{response_id}", params={"stream": "true"})
            await reader.__aenter__()
        await asyncio.sleep(3 * STALL)
        assert await place.status(response_id) == "in_progress"
        await reader.__aexit__(None, None, None)
        assert await place.ended(response_id) == "cancelled"
        assert not place.server.engine.playing


async def test_a_response_that_waits_says_so(place: Place) -> None:
    """With the number of the last event that was sent: it is not stored."""
    async with asking(place, "says nothing yet") as stream:
        await stream.read(4)
    told = [json.loads(payload) for payload in stream.payloads]
    assert [event["type"] for event in told] == ["response.created", *["response.in_progress"] * 3]
    assert [event["sequence_number"] for event in told] == [0, 1, 1, 1]


def dies_once(engine: Any) -> None:
    """The engine dies in the middle of its next generation."""
    generate = engine.generate

    def dying(request: Any, receiver: Any) -> Any:
        work = generate(request, receiver)
        engine.generate = generate

        def die() -> None:
            work.cancel()
            receiver.fail(EngineDiedError("It died."))

        asyncio.get_running_loop().call_later(0.2, die)
        return work

    engine.generate = dying


async def test_an_engine_that_dies_is_followed_by_another(place: Place) -> None:
    """The stream stays open meanwhile, and the deaths are counted."""
    dies_once(place.server.engine)
    payloads = read_sse((await place.http.post("/responses", json=ask("steady"))).content)
    body = check(payloads)
    assert body["status"] == "completed"
    record = await place.store.responses.get(ANYONE.owner, body["id"])
    assert record is not None
    assert record.engine_deaths == 1


async def test_what_is_not_stored_is_not_durable(place: Place) -> None:
    check(read_sse((await place.http.post("/responses", json=ask("Hi", store=False))).content))
    check(read_sse((await place.http.post("/responses", json=ask("Hi", background=True))).content))
    [made] = place.store.made
    record = await place.store.responses.get(ANYONE.owner, made)
    assert record is not None
    assert record.read_until is None


async def test_a_turn_of_a_websocket_is_durable_unless_it_continues_what_only_the_connection_has(
    place: Place,
) -> None:
    async with connect(place.server.url.replace("http", "ws") + "/v1/responses") as socket:

        async def turn(**more: Any) -> str:
            message = {"type": "response.create", "model": "scripted", "input": "Hi", **more}
            await socket.send(json.dumps(message))
            payloads: list[bytes] = []
            while not payloads or b'"response.completed"' not in payloads[-1]:
                payloads.append((await socket.recv()).encode())  # type: ignore[union-attr]
            return str(check(payloads)["id"])

        first = await turn()
        unstored = await turn(store=False, previous_response_id=first)
        third = await turn(previous_response_id=unstored)
    records = [await place.store.responses.get(ANYONE.owner, name) for name in (first, third)]
    assert [record.read_until is not None for record in records if record] == [True, False]


WHERE = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@pytest.mark.parametrize("given", ["endless", "calls"])
async def test_a_turn_of_a_websocket_that_was_taken_over_is_steered(place: Place, given: str) -> None:
    """It ends as if it had been answered here, and its input goes on: to the next turn, or after outputs of calls."""
    dies_once(place.server.engine)
    async with talking(place.server) as talk:
        await talk.create(given, tools=[WHERE])
        begun = await talk.until(
            f"response.{'output_text' if given == 'endless' else 'function_call_arguments'}.delta"
        )
        await until(lambda: len(place.server.engine.seen) == 2)
        await talk.steer(begun[0]["response"]["id"], "Rather in French.")
        begun += await talk.until("response.steer.accepted")
        assert begun.pop()["sequence_number"] == begun[-1]["sequence_number"]
        first = await talk.response(begun)
        event = await talk.next()
        if given == "endless":
            assert first["incomplete_details"] == {"reason": "steered"}
            second = await talk.response([event])
            assert (second["status"], second["previous_response_id"]) == ("completed", first["id"])
            assert "French" in place.server.engine.seen[-1].prompt.text
        else:
            assert first["status"] == "completed"
            assert (event["type"], event["required_input"][0]["name"]) == ("response.steer.pending", "f")
        await talk.steer(first["id"], "Too late.")
        code = "response_already_completed" if given == "calls" else "response_not_active"
        assert (await talk.next())["error"]["code"] == code


async def test_a_call_that_may_have_run_is_known_to_who_continues(place: Place, shared: Store) -> None:
    """Its number is stored before it begins, as in the background."""

    async def opened() -> Any:
        return place.store

    once = replace(PYTHON, hosted=Hosted("code_interpreter", "python"))
    tool = ActingTool(functions=(once,), results=(None,))
    script = [{"output": '<tool_call>\n{"name": "python", "arguments": {"code": "1"}}\n</tool_call>'}]
    async with (
        running(script, open_store=opened, tools=[tool], **STORE) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1", timeout=20) as http,
    ):
        tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
        async with asking(Place(server, place.store, http), "Run it.", tools=tools) as stream:
            response_id = await stream.read(3)
            async with asyncio.timeout(10):
                await tool.running.wait()
            record = await shared.responses.get(ANYONE.owner, response_id)
            assert record is not None
            assert record.calls_begun == 1
