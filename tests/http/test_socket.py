"""The WebSocket mode of /v1/responses, over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from antiphon.core.limits import Limits
from tests.http.api import check_event, rows, text_of
from tests.openai_schema import OPEN_RESPONSES, OPENAI_RESPONSES, validate, validate_event
from tests.response_invariants import TERMINAL, check, read_sse
from tests.server import NO_TLS, Running, running

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
SCRIPT: list[Mapping[str, Any]] = [
    {"when": "Our conversation is getting long", "output": "They said hello."},
    {"when": "22 degrees", "output": "It is warm."},
    {"when": "code word is zebra", "output": "zebra"},
    {"when": "weather?", "output": CALL},
    {"when": "never starts", "output": "abc", "fail_after": 0},
    {"when": "breaks off", "output": "one two three four", "fail_after": 3},
    {"when": "says nothing yet", "output": "word", "delay_ms": 60_000},
    {"when": "slow", "output": "word ", "tokens": 10_000, "delay_ms": 5},
    {"output": "Hello there, friend!"},
]
TOOLS = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]

Event = dict[str, Any]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest_asyncio.fixture
async def socket(server: Running) -> AsyncIterator[ClientConnection]:
    async with connected(server) as socket:
        yield socket


@asynccontextmanager
async def connected(server: Running, **headers: str) -> AsyncIterator[ClientConnection]:
    url = server.url.replace("http", "ws") + "/v1/responses"
    async with connect(url, additional_headers=headers) as socket:
        yield socket


async def send(socket: ClientConnection, given: Any, **more: Any) -> None:
    turn = {"type": "response.create", "model": "scripted", "input": given, **more}
    await socket.send(json.dumps(turn))


async def heard(socket: ClientConnection) -> list[bytes]:
    """The events up to the end of a turn: each is what the specifications say."""
    payloads: list[bytes] = []
    async with asyncio.timeout(10):
        while not payloads or not _is_last(json.loads(payloads[-1])):
            message = await socket.recv(decode=False)
            assert isinstance(message, bytes)
            payloads.append(message)
            check_event(payloads[-1])
    return payloads


def _is_last(event: Event) -> bool:
    return event["type"] in TERMINAL.values() or "status" in event


async def turn(socket: ClientConnection, given: Any, **more: Any) -> Event:
    """The response to a turn."""
    await send(socket, given, **more)
    return check(await heard(socket))


async def refused(socket: ClientConnection) -> Event:
    """The error, in the terms of all specifications."""
    [payload] = await heard(socket)
    validate("WebSocketErrorEvent", payload, OPEN_RESPONSES)
    validate_event(payload, OPENAI_RESPONSES)
    event: Event = json.loads(payload)
    error: Event = event["error"]
    assert error == {"type": error["type"], **{name: event[name] for name in ("code", "message", "param")}}
    return {"status": event["status"], **error}


async def stopped(server: Running) -> None:
    """Wait until the engine does nothing."""
    async with asyncio.timeout(5):
        while server.engine.load.running:
            await asyncio.sleep(0.005)


# What the suite of Open Responses checks


async def test_a_turn(socket: ClientConnection) -> None:
    response = await turn(socket, [{"type": "message", "role": "user", "content": "Say hello."}])
    validate("ResponseResource", response, OPEN_RESPONSES)
    assert (response["status"], text_of(response)) == ("completed", "Hello there, friend!")


async def test_turns_follow_each_other(socket: ClientConnection) -> None:
    first, second = await turn(socket, "one"), await turn(socket, "two")
    assert first["status"] == second["status"] == "completed"
    assert first["id"] != second["id"]


async def test_a_turn_that_is_not_stored_is_gone_on_with(socket: ClientConnection) -> None:
    first = await turn(socket, "My code word is zebra.", store=False)
    second = await turn(socket, "What is it?", store=False, previous_response_id=first["id"])
    third = await turn(socket, "And again?", store=False, previous_response_id=second["id"])
    assert text_of(second) == text_of(third) == "zebra"
    assert second["previous_response_id"] == first["id"]
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]


async def test_another_connection_does_not_know_it_and_recovers(
    server: Running, socket: ClientConnection
) -> None:
    first = await turn(socket, "Hi", store=False)
    async with connected(server) as other:
        await send(other, "more", store=False, previous_response_id=first["id"])
        error = await refused(other)
        assert (error["status"], error["code"]) == (404, "previous_response_not_found")
        assert error["param"] == "previous_response_id"
        clean = await turn(other, "Hi, more", store=False)
        assert clean["previous_response_id"] is None


async def test_an_unknown_response(socket: ClientConnection) -> None:
    await send(socket, "more", previous_response_id="resp_nothing")
    assert (await refused(socket))["code"] == "previous_response_not_found"


async def test_a_failed_turn_forgets_what_it_went_on_from(socket: ClientConnection) -> None:
    first = await turn(socket, "weather?", tools=TOOLS, store=False)
    result = {"type": "function_call_output", "call_id": "call_nothing", "output": "22 degrees"}
    await send(socket, [result], store=False, previous_response_id=first["id"])
    error = await refused(socket)
    assert (error["status"], error["param"]) == (400, "input[0].call_id")

    [call] = first["output"]
    await send(
        socket, [{**result, "call_id": call["call_id"]}], store=False, previous_response_id=first["id"]
    )
    assert (await refused(socket))["code"] == "previous_response_not_found"


async def test_what_was_compacted_begins_a_new_chain(server: Running, socket: ClientConnection) -> None:
    said = [{"role": "user", "content": "My code word is zebra."}, {"role": "assistant", "content": "Ah."}]
    async with httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1") as client:
        body = {"model": "scripted", "input": said}
        short = (await client.post("/responses/compact", json=body)).json()
    first = await turn(socket, [*short["output"], {"role": "user", "content": "What?"}], store=False)
    assert text_of(first) == "zebra"
    second = await turn(socket, "And?", store=False, previous_response_id=first["id"])
    assert text_of(second) == "zebra"


# What it keeps beyond that


async def test_a_tool_loop(socket: ClientConnection) -> None:
    first = await turn(socket, "weather?", tools=TOOLS, store=False)
    [call] = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "22 degrees"}
    second = await turn(socket, [result], tools=TOOLS, store=False, previous_response_id=first["id"])
    assert text_of(second) == "It is warm."


async def test_a_turn_that_breaks_off_fails_and_is_forgotten(socket: ClientConnection) -> None:
    first = await turn(socket, "Hi", store=False)
    await send(socket, "breaks off", store=False, previous_response_id=first["id"])
    payloads = await heard(socket)
    failed = check(payloads)
    assert failed["status"] == "failed"
    validate_event(payloads[-2], OPENAI_RESPONSES)
    for gone in (first, failed):
        await send(socket, "more", store=False, previous_response_id=gone["id"])
        assert (await refused(socket))["code"] == "previous_response_not_found"


async def test_a_stored_turn_that_breaks_off_is_stored_as_failed(
    server: Running, socket: ClientConnection
) -> None:
    failed = await turn(socket, "breaks off")
    async with httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1") as client:
        assert (await client.get(f"/responses/{failed['id']}")).json() == failed


async def test_an_engine_that_never_starts(socket: ClientConnection) -> None:
    for store in (True, False):
        await send(socket, "never starts", store=store)
        error = await refused(socket)
        assert (error["status"], error["type"]) == (500, "server_error")
    assert (await turn(socket, "Hi"))["status"] == "completed"


async def test_a_stored_turn_can_be_read_over_http(server: Running, socket: ClientConnection) -> None:
    await send(socket, "weather?", tools=TOOLS)
    payloads = await heard(socket)
    response = check(payloads)
    async with httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1") as client:
        path = f"/responses/{response['id']}"
        assert (await client.get(path)).json() == response
        rest = await client.get(path, params={"stream": "true", "starting_after": 2})
        assert read_sse(rest.content) == payloads[3:]
        body = {"model": "scripted", "input": "more", "previous_response_id": response["id"]}
        assert (await client.post("/responses", json=body)).status_code == 200


async def test_a_stored_turn_is_gone_on_with_on_another_connection(
    server: Running, socket: ClientConnection
) -> None:
    first = await turn(socket, "My code word is zebra.")
    async with connected(server) as other:
        assert text_of(await turn(other, "What?", previous_response_id=first["id"])) == "zebra"


async def test_a_stored_turn_behind_one_that_is_not_is_gone_on_with_here(socket: ClientConnection) -> None:
    first = await turn(socket, "My code word is zebra.", store=False)
    second = await turn(socket, "What?", previous_response_id=first["id"])
    third = await turn(socket, "What?", previous_response_id=second["id"])
    assert text_of(third) == "zebra"


async def test_a_connection_remembers_so_many_turns() -> None:
    async with running(SCRIPT, limit=Limits(socket_turns=2)) as server, connected(server) as socket:
        ids = [(await turn(socket, "Hi", store=False))["id"] for _ in range(3)]
        await send(socket, "more", store=False, previous_response_id=ids[0])
        assert (await refused(socket))["code"] == "previous_response_not_found"
        await turn(socket, "more", store=False, previous_response_id=ids[1])


async def test_a_client_is_remembered_so_many_bytes_of_turns() -> None:
    async with running(SCRIPT, limit=Limits(socket_bytes=16_000)) as server, connected(server) as socket:
        first = (await turn(socket, "Hi" + " " * 3000, store=False))["id"]
        async with connected(server) as other:
            second = (await turn(other, "Hi" + " " * 3000, store=False))["id"]  # there is no room for it
            await send(other, "more", store=False, previous_response_id=second)
            assert (await refused(other))["code"] == "previous_response_not_found"
        await turn(socket, "more", store=False, previous_response_id=first)
    assert not server.app.socket_bytes


async def test_turns_that_share_their_history_hold_it_once() -> None:
    async with running(SCRIPT, limit=Limits(socket_bytes=40_000)) as server, connected(server) as socket:
        previous: dict[str, str] = {}
        ids = []
        for _ in range(8):  # counted with each turn, their histories would be 60,000 bytes
            more = {"store": False, **previous}
            previous = {"previous_response_id": (await turn(socket, "Hi" + " " * 1500, **more))["id"]}
            ids.append(previous["previous_response_id"])
        assert 8 * 1500 < server.app.socket_bytes.total() < 20_000
        await turn(socket, "a fork", store=False, previous_response_id=ids[0])
        await send(socket, "breaks off", store=False, previous_response_id=ids[0])
        await heard(socket)  # it drops the turn that it continues, and not what others have of it
        await turn(socket, "more", store=False, previous_response_id=ids[-1])
    assert not server.app.socket_bytes


async def test_so_many_bytes_of_a_client_wait() -> None:
    async with running(SCRIPT, limit=Limits(socket_bytes=8000)) as server, connected(server) as socket:
        await send(socket, "slow", store=False)
        await socket.recv()
        async with connected(server) as other:
            await send(other, "slow" + " " * 5000, store=False)
            await other.recv()
            await send(socket, " " * 3000)
            with pytest.raises(ConnectionClosedError, match=r"1008.*socket_bytes"):
                await heard(socket)
            while b"delta" not in await other.recv(decode=False):
                pass


async def test_turns_that_are_sent_at_once_are_answered_one_after_the_other(
    server: Running, socket: ClientConnection
) -> None:
    given = ["weather?", "Hi", "never starts", "code word is zebra"]
    for each in given:
        await send(socket, each, tools=TOOLS)
    call, hello = check(await heard(socket)), check(await heard(socket))
    await refused(socket)
    zebra = check(await heard(socket))
    assert call["output"][0]["type"] == "function_call"
    assert [text_of(hello), text_of(zebra)] == ["Hello there, friend!", "zebra"]


async def test_a_client_that_leaves_stops_the_engine(server: Running) -> None:
    for store in (True, False):
        async with connected(server) as socket:
            await send(socket, "slow", store=store)
            while b"delta" not in await socket.recv(decode=False):
                pass
            assert server.engine.load.running == 1
        await stopped(server)
        assert server.engine.steps < 1000


async def test_a_client_that_leaves_before_the_first_word_stops_the_engine(server: Running) -> None:
    for store in (True, False):
        async with connected(server) as socket:
            await send(socket, "says nothing yet", store=store)
            async with asyncio.timeout(5):
                while not server.engine.load.running:
                    await asyncio.sleep(0.005)
        await stopped(server)


async def test_what_was_stored_of_a_turn_whose_client_left(server: Running) -> None:
    async with connected(server) as socket:
        await send(socket, "slow")
        created = json.loads(await socket.recv())
        while b"delta" not in await socket.recv(decode=False):
            pass
    await stopped(server)
    async with httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1") as client, asyncio.timeout(5):
        path = f"/responses/{created['response']['id']}"
        while (response := (await client.get(path)).json())["status"] == "in_progress":
            await asyncio.sleep(0.01)
        assert response["status"] == "cancelled"
        events = read_sse((await client.get(path, params={"stream": "true"})).content)
        assert check(events) == response


async def test_a_client_that_vanishes_stops_the_engine(server: Running) -> None:
    async with connected(server) as socket:
        await send(socket, "slow", store=False)
        while b"delta" not in await socket.recv(decode=False):
            pass
        socket.transport.abort()  # no goodbye
        await stopped(server)


async def test_who_sends_too_much_ahead_is_sent_away() -> None:
    async with running(SCRIPT, limit=Limits(socket_messages=2)) as server, connected(server) as socket:
        await send(socket, "slow", store=False)
        await socket.recv()
        for _ in range(3):
            await send(socket, "Hi")
        with pytest.raises(ConnectionClosedError, match=r"1008.*More than 2 messages.*socket_messages"):
            await heard(socket)
        await stopped(server)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ("", None),
        ("[]", None),
        ('"response.create"', None),
        ("[" * 100_000, None),
        ("{}", "model"),
        ('{"model": "scripted", "input": "x"}', "type"),
        ('{"type": "response.cancel", "model": "scripted", "input": "x"}', "type"),
        ('{"type": "response.create", "model": "scripted"}', "input"),
        ('{"type": "response.create", "input": "x"}', "model"),
        ('{"type": "response.create", "model": "nobody", "input": "x"}', "model"),
        ('{"type": "response.create", "model": "scripted", "input": "x", "temperature": -1}', "temperature"),
        ('{"type": "response.create", "model": "scripted", "input": "x", "background": true}', "background"),
        ('{"type": "response.create", "model": "scripted", "input": "x", "stream_id": "a b"}', "stream_id"),
        ('{"type": "response.create", "model": "scripted", "input": "x", "prompt": {"id": "p"}}', "prompt"),
    ],
)
async def test_what_is_wrong_is_named_and_the_next_turn_answered(
    socket: ClientConnection, message: str, param: str | None
) -> None:
    await socket.send(message)
    assert (await refused(socket))["param"] == param
    assert (await turn(socket, "Hi"))["status"] == "completed"


async def test_json_may_come_as_bytes_and_in_pieces(socket: ClientConnection) -> None:
    message = json.dumps({"type": "response.create", "model": "scripted", "input": "Hi", "stream": True})
    await socket.send(message.encode())
    await socket.send([message[:5], message[5:20], message[20:]])
    await socket.send(b"")
    assert [check(await heard(socket))["status"] for _ in range(2)] == ["completed"] * 2
    assert (await refused(socket))["param"] is None


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer wrong", "Basic secret"])
async def test_without_a_key_there_is_no_connection(header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    async with running(SCRIPT, api_key=("secret",)) as server:
        with pytest.raises(InvalidStatus) as caught:
            async with connected(server, **headers):
                pass
        assert caught.value.response.status_code == 401
        async with connected(server, authorization="Bearer secret") as socket:
            assert (await turn(socket, "Hi"))["status"] == "completed"


async def test_a_key_sees_only_its_own() -> None:
    async with running(SCRIPT, api_key=("one", "two")) as server:
        async with connected(server, authorization="Bearer one") as socket:
            first = await turn(socket, "Hi")
        async with connected(server, authorization="Bearer two") as socket:
            await send(socket, "more", previous_response_id=first["id"])
            assert (await refused(socket))["code"] == "previous_response_not_found"


async def test_a_web_page_of_others_may_not_use_an_open_server(server: Running) -> None:
    for origin in ("https://evil.example", "null", "http://["):
        with pytest.raises(InvalidStatus) as caught:
            async with connected(server, origin=origin):
                pass
        assert caught.value.response.status_code == 403
    async with connected(server, origin=server.url) as socket:
        assert (await turn(socket, "Hi"))["status"] == "completed"
    async with running(SCRIPT, api_key=("secret",)) as guarded:
        headers = {"authorization": "Bearer secret", "origin": "https://proxy.example"}
        async with connected(guarded, **headers) as socket:
            assert (await turn(socket, "Hi"))["status"] == "completed"


async def test_what_is_not_stored_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with running(SCRIPT, store=f"sqlite:///{path}") as server, connected(server) as socket:
        first = await turn(socket, "weather?", tools=TOOLS, store=False)
        await send(socket, "more", store=False, previous_response_id=first["id"])
        await heard(socket)
    assert set(rows(path).values()) == {0}, rows(path)


async def test_the_sdk_of_openai_speaks_with_it(server: Running) -> None:
    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
    async with client.responses.connect() as connection:
        await connection.response.create(model="scripted", input="Hi", store=False)
        async for event in connection:
            if event.type == "response.completed":
                assert event.response.output_text == "Hello there, friend!"
                break
        await connection.response.create(model="scripted", input="x", previous_response_id="resp_nothing")
        event = await connection.recv()
        assert event.type == "error"
        assert event.error.code == "previous_response_not_found"
    await client.close()


async def test_a_turn_that_has_not_begun_says_that_it_is_in_progress() -> None:
    """Clients such as Codex give up a turn without events, and ask again."""
    async with running(SCRIPT, keep_alive=0.05) as server, connected(server) as socket:
        await send(socket, "It says nothing yet.")
        told = [json.loads(await socket.recv()) for _ in range(4)]
    assert [event["type"] for event in told] == ["response.created", *["response.in_progress"] * 3]
    assert [event["sequence_number"] for event in told] == [0, 1, 1, 1]
