"""The Responses API over a real socket: answers, streams, state and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.http.api import Api, ask, check_stream, client, text_of
from tests.openai_schema import validate
from tests.response_invariants import check, read_sse
from tests.server import Running, running

WEATHER = """<think>
I need the weather.
</think>

Let me look.
<tool_call>
{"name": "get_weather", "arguments": {"city": "Rome"}}
</tool_call>"""

SCRIPT: list[dict[str, Any]] = [
    {"when": "22 degrees", "output": "It is warm."},
    {"when": "weather?", "output": WEATHER},
    {"when": "never starts", "output": "abc", "fail_after": 0},
    {"when": "breaks off", "output": "one two three four", "fail_after": 3},
    {"when": "slow", "output": "word ", "tokens": 10_000, "delay_ms": 5},
    {"when": "summary", "output": "They said hello."},
    {"output": "Hello there, friend!"},
]
TOOLS = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT, api_key=("one", "two")) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server, "one") as api:
        yield api


# Answers


async def test_a_full_answer(api: Api) -> None:
    body = await api.create("Hi")

    assert (body["status"], text_of(body)) == ("completed", "Hello there, friend!")
    assert body["id"].startswith("resp_")


@pytest.mark.parametrize("store", [True, False])
async def test_the_stream_ends_with_the_full_answer(api: Api, store: bool) -> None:
    fields = {"tools": TOOLS, "store": store}
    last = await api.streamed("weather?", **fields)
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call"]
    whole = await api.create("weather?", **fields)
    ours = {"id", "created_at", "completed_at", "output"}
    assert {name: whole[name] for name in whole.keys() - ours} == {
        name: last[name] for name in last.keys() - ours
    }


async def test_a_tool_call_and_its_result(api: Api) -> None:
    first = await api.create("weather?", tools=TOOLS)
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "22 degrees"}

    second = await api.create([result], tools=TOOLS, previous_response_id=first["id"])

    assert text_of(second) == "It is warm."
    assert second["previous_response_id"] == first["id"]


async def test_the_limit_cuts(api: Api) -> None:
    last = await api.streamed("Hi", max_output_tokens=2)
    assert last["status"] == "incomplete"
    assert last["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["output"][-1]["status"] == "incomplete"


async def test_an_engine_that_never_starts_is_an_http_error(api: Api) -> None:
    for more in ({}, {"stream": True}, {"stream": True, "store": False}):
        error = (await api.post("/responses", ask("never starts", **more), 500))["error"]
        assert error["type"] == "server_error"


@pytest.mark.parametrize("store", [True, False])
async def test_an_engine_that_breaks_off_fails_the_response(api: Api, store: bool) -> None:
    payloads = await api.stream("breaks off", store=store)
    last = check_stream(payloads)
    assert last["status"] == "failed"
    assert last["error"]["code"] == "server_error"
    if store:
        assert await api.get(f"/responses/{last['id']}") == last


# State


async def test_a_stored_response_can_be_read_and_deleted(api: Api) -> None:
    body = await api.create("Hi")
    assert await api.get(f"/responses/{body['id']}") == body
    items = await api.get(f"/responses/{body['id']}/input_items")
    assert [item["content"][0]["text"] for item in items["data"]] == ["Hi"]
    assert (await api.delete(f"/responses/{body['id']}"))["deleted"] is True
    await api.get(f"/responses/{body['id']}", 404)
    await api.delete(f"/responses/{body['id']}", 404)


async def test_what_is_not_stored_is_gone(api: Api) -> None:
    body = await api.create("Hi", store=False)
    await api.get(f"/responses/{body['id']}", 404)


async def test_another_key_sees_nothing(server: Running, api: Api) -> None:
    body = await api.create("Hi")
    conversation = await api.post("/conversations", {})
    async with client(server, "two") as other:
        await other.get(f"/responses/{body['id']}", 404)
        await other.get(f"/conversations/{conversation['id']}", 404)
        await other.delete(f"/responses/{body['id']}", 404)
        await other.post("/responses", ask("Hi", previous_response_id=body["id"]), 404)
        await other.post("/responses", ask("Hi", conversation=conversation["id"]), 404)


async def test_a_response_can_fork(api: Api) -> None:
    root = await api.create("Hi")
    for said in ("one", "two"):
        branch = await api.create(said, previous_response_id=root["id"])
        leaf = await api.create("more", previous_response_id=branch["id"])
        counted = await api.post("/responses/input_tokens", ask("x", previous_response_id=leaf["id"]))
        assert counted["input_tokens"] > leaf["usage"]["input_tokens"]


async def test_items_can_be_referred_to(api: Api) -> None:
    first = await api.create("weather?", tools=TOOLS)
    call = next(item for item in first["output"] if item["type"] == "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "22 degrees"}
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]

    second = await api.create([{"role": "user", "content": "q"}, *references, result])

    assert text_of(second) == "It is warm."
    await api.post("/responses", ask([{"type": "item_reference", "id": "msg_nothing"}]), 404)


async def test_a_conversation_gathers_items(api: Api) -> None:
    message = {"type": "message", "role": "user", "content": "I am Ann."}
    conversation = await api.post("/conversations", {"items": [message], "metadata": {"a": "b"}})
    path = f"/conversations/{conversation['id']}"
    assert conversation["metadata"] == {"a": "b"}

    body = await api.create("Hi", conversation=conversation["id"])
    await api.streamed("again", conversation={"id": conversation["id"]})

    assert body["conversation"] == {"id": conversation["id"]}
    items = (await api.get(f"{path}/items", order="asc"))["data"]
    assert [item["content"][0]["text"] for item in items] == [
        "I am Ann.",
        "Hi",
        "Hello there, friend!",
        "again",
        "Hello there, friend!",
    ]
    assert await api.get(f"{path}/items/{items[0]['id']}") == items[0]
    assert (await api.delete(f"{path}/items/{items[0]['id']}"))["id"] == conversation["id"]
    await api.get(f"{path}/items/{items[0]['id']}", 404)
    added = await api.post(f"{path}/items", {"items": [message, message]})
    assert len(added["data"]) == 2
    assert (await api.post(path, {"metadata": {"c": "d"}}))["metadata"] == {"c": "d"}
    assert await api.delete(path) == {
        "id": conversation["id"],
        "object": "conversation.deleted",
        "deleted": True,
    }
    await api.get(path, 404)
    await api.get(f"/responses/{body['id']}")


async def test_thoughts_can_be_carried_by_the_client(api: Api) -> None:
    include = ["reasoning.encrypted_content"]
    body = await api.create("weather?", tools=TOOLS, store=False, include=include)
    thought = body["output"][0]
    assert thought["encrypted_content"]
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    await api.create([{"role": "user", "content": "q"}, sealed])
    broken = {**sealed, "encrypted_content": "a1.AAAA"}
    error = (await api.post("/responses", ask([broken]), 400))["error"]
    assert error["param"] == "input[0].encrypted_content"


async def test_a_conversation_is_made_short(api: Api) -> None:
    given = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    short = await api.post("/responses/compact", ask(given))
    assert [item["type"] for item in short["output"]] == ["message", "compaction"]
    await api.create([*short["output"], {"role": "user", "content": "and now?"}])


# Background


async def test_a_background_response(api: Api) -> None:
    body = await api.create("weather?", tools=TOOLS, background=True)
    assert (body["status"], body["output"], body["background"]) == ("queued", [], True)
    done = await api.finished(body["id"])
    assert done["status"] == "completed"
    payloads = await api.events(body["id"])
    assert check_stream(payloads) == done
    assert [json.loads(payload)["type"] for payload in payloads[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]


async def test_a_background_stream(api: Api) -> None:
    payloads = await api.stream("Hi", background=True)
    last = check_stream(payloads)
    assert await api.get(f"/responses/{last['id']}") == last
    assert await api.events(last["id"]) == payloads


async def test_a_stream_can_be_resumed_anywhere(api: Api) -> None:
    for more in ({}, {"background": True}):
        payloads = await api.stream("weather?", tools=TOOLS, **more)
        response_id = check(payloads)["id"]
        for after in range(len(payloads)):
            rest = await api.http.get(
                f"/responses/{response_id}", params={"stream": "true", "starting_after": after}
            )
            assert rest.content.endswith(b"data: [DONE]\n\n")
            if after + 1 < len(payloads):
                assert read_sse(rest.content) == payloads[after + 1 :]


async def test_a_running_response_shows_what_it_has(api: Api) -> None:
    body = await api.create("slow", background=True)
    live: list[bytes] = []
    async with api.http.stream("GET", f"/responses/{body['id']}", params={"stream": "true"}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                live.append(line.removeprefix("data: ").encode())
            if len(live) == 20:
                break
    running = await api.get(f"/responses/{body['id']}")
    assert (running["status"], running["output"][0]["status"]) == ("in_progress", "in_progress")
    seen = [json.loads(line) for line in live]
    assert text_of(running).startswith("".join(event.get("delta", "") for event in seen))
    cancelled = await api.post(f"/responses/{body['id']}/cancel", {})
    assert cancelled["status"] == "cancelled"
    assert await api.post(f"/responses/{body['id']}/cancel", {}) == cancelled
    payloads = await api.events(body["id"])
    assert payloads[:20] == live
    assert check_stream(payloads) == cancelled


async def test_a_reader_hears_that_a_response_was_cancelled(api: Api) -> None:
    body = await api.create("slow", background=True)
    reading = asyncio.create_task(api.events(body["id"]))
    await asyncio.sleep(0.1)
    await api.post(f"/responses/{body['id']}/cancel", {})
    async with asyncio.timeout(5):
        assert check(await reading)["status"] == "cancelled"


async def test_a_reader_of_what_nobody_works_on_is_answered_at_once(server: Running, api: Api) -> None:
    server.worker.drain()
    queued = await api.create("Hi", background=True)
    seen = {"stream": "true", "starting_after": 1}
    async with (
        asyncio.timeout(5),
        api.http.stream("GET", f"/responses/{queued['id']}", params=seen) as response,
    ):
        assert await anext(response.aiter_lines()) == ": keep-alive"


async def test_cancelling_stops_the_engine(server: Running, api: Api) -> None:
    body = await api.create("slow", background=True)
    async with asyncio.timeout(5):
        while not server.engine.load.running:
            await asyncio.sleep(0.01)
        await api.post(f"/responses/{body['id']}/cancel", {})
        while server.engine.load.running:
            await asyncio.sleep(0.01)


async def test_a_queued_response_can_be_cancelled(api: Api) -> None:
    bodies = [await api.create("slow", background=True) for _ in range(10)]  # 8 are worked on
    last = await api.post(f"/responses/{bodies[-1]['id']}/cancel", {})
    assert last["status"] == "cancelled"
    assert check_stream(await api.events(last["id"]))["status"] == "cancelled"
    for body in bodies:
        await api.post(f"/responses/{body['id']}/cancel", {})


async def test_a_background_response_that_fails_says_why(api: Api) -> None:
    body = await api.create("never starts", background=True)
    done = await api.finished(body["id"])
    assert done["status"] == "failed"
    assert done["error"]["message"]
    assert check_stream(await api.events(body["id"])) == done


async def test_many_background_responses_all_finish(api: Api) -> None:
    bodies = await asyncio.gather(*(api.create("Hi", background=True) for _ in range(50)))
    for body in bodies:
        assert (await api.finished(body["id"]))["status"] == "completed"


async def test_a_client_that_leaves_ends_its_stream(server: Running, api: Api) -> None:
    async with api.http.stream("POST", "/responses", json=ask("slow", stream=True)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                response_id = json.loads(line.removeprefix("data: "))["response"]["id"]
                break
    done = await api.finished(response_id)
    assert done["status"] == "cancelled"
    assert check_stream(await api.events(response_id)) == done
    assert server.engine.load.running == 0


async def test_a_deleted_response_stops(server: Running, api: Api) -> None:
    body = await api.create("slow", background=True)
    async with asyncio.timeout(10):
        while not server.engine.load.running:
            await asyncio.sleep(0.01)
        await api.http.delete(f"/responses/{body['id']}")
        while server.engine.load.running:
            await asyncio.sleep(0.01)


# What is refused


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (ask("x", previous_response_id="resp_1", conversation="conv_1"), "conversation"),
        (ask("x", background=True, store=False), "background"),
        (ask("x", stream_options={}), "stream_options"),
        (ask("x", chat_template="{{ 1 }}"), "chat_template"),
        (ask([{"type": "function_call_output", "call_id": "c", "output": "x"}]), "input[0].call_id"),
        (ask("x", temperature=-1), "temperature"),
        (ask("x", tool_choice="required"), "tool_choice"),
        ({"model": "scripted"}, "input"),
        ({"input": "x", "model": 3}, "model"),
        (ask("x", store=False, conversation="conv_1"), "conversation"),
    ],
)
async def test_what_is_wrong_is_named(api: Api, body: Any, param: str) -> None:
    for more in ({}, {"stream": True}):
        if "stream_options" in body and more:
            continue
        error = (await api.post("/responses", {**body, **more}, 400))["error"]
        assert error["param"] == param
        validate("ErrorResponse", {"error": error})


@pytest.mark.parametrize(
    ("body", "param", "status"),
    [
        (ask("x", previous_response_id="resp_1"), "previous_response_id", 404),
        (ask("x", conversation="conv_1"), "conversation", 404),
        ({"model": "nobody", "input": "x"}, "model", 404),
    ],
)
async def test_what_is_missing_is_named(api: Api, body: Any, param: str, status: int) -> None:
    assert (await api.post("/responses", body, status))["error"]["param"] == param


async def test_queries_are_checked(api: Api) -> None:
    body = await api.create("Hi")
    path = f"/responses/{body['id']}"
    assert (await api.get(path, 400, stream="maybe"))["error"]["param"] == "stream"
    assert (await api.get(path, 400, starting_after=1))["error"]["param"] == "starting_after"
    assert (await api.get(path, 400, stream="true"))["error"]["param"] == "stream"
    assert (await api.post(f"{path}/cancel", {}, 400))["error"]["param"] == "response_id"
