"""The Responses API over a real socket: answers, streams, state and what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from tests.openai_schema import validate, validate_event
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
    async with running(SCRIPT, keys=("one", "two")) as server:
        yield server


@pytest_asyncio.fixture
async def client(server: Running) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": "Bearer one"}
    async with httpx.AsyncClient(base_url=f"{server.url}/v1", headers=headers, timeout=20) as client:
        yield client


def ask(given: Any, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": given, **more}


async def post(client: httpx.AsyncClient, body: Any, path: str = "/responses", status: int = 200) -> Any:
    response = await client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


async def get(client: httpx.AsyncClient, path: str, status: int = 200, **query: Any) -> Any:
    response = await client.get(path, params=query)
    assert response.status_code == status, response.text
    return response.json()


async def stream(client: httpx.AsyncClient, body: Any) -> list[bytes]:
    response = await client.post("/responses", json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return read_sse(response.content)


async def events_of(client: httpx.AsyncClient, response_id: str, **query: Any) -> list[bytes]:
    response = await client.get(f"/responses/{response_id}", params={"stream": "true", **query})
    assert response.status_code == 200, response.text
    return read_sse(response.content)


def text_of(response: Any) -> str:
    return "".join(
        part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
    )


async def finished(client: httpx.AsyncClient, response_id: str) -> Any:
    """The response, once it has ended."""
    async with asyncio.timeout(10):
        while (response := await get(client, f"/responses/{response_id}"))["status"] in (
            "queued",
            "in_progress",
        ):
            await asyncio.sleep(0.01)
    return response


# Answers


async def test_a_full_answer(client: httpx.AsyncClient) -> None:
    body = await post(client, ask("Hi"))

    validate("ResponseResource", body, "openresponses")
    assert (body["status"], text_of(body)) == ("completed", "Hello there, friend!")
    assert body["id"].startswith("resp_")


@pytest.mark.parametrize("store", [True, False])
async def test_the_stream_ends_with_the_full_answer(client: httpx.AsyncClient, store: bool) -> None:
    body = ask("weather?", tools=TOOLS, store=store)
    payloads = await stream(client, body)
    last = check(payloads)

    for payload in payloads:
        if b"reasoning_text" not in payload:  # OpenAI's name, which Open Responses does not know
            validate_event(payload)
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call"]
    whole = await post(client, body)
    ours = {"id", "created_at", "completed_at", "output"}
    assert {name: whole[name] for name in whole.keys() - ours} == {
        name: last[name] for name in last.keys() - ours
    }


async def test_a_tool_call_and_its_result(client: httpx.AsyncClient) -> None:
    first = await post(client, ask("weather?", tools=TOOLS))
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "22 degrees"}

    second = await post(client, ask([result], tools=TOOLS, previous_response_id=first["id"]))

    assert text_of(second) == "It is warm."
    assert second["previous_response_id"] == first["id"]


async def test_the_limit_cuts(client: httpx.AsyncClient) -> None:
    last = check(await stream(client, ask("Hi", max_output_tokens=2)))
    assert last["status"] == "incomplete"
    assert last["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["output"][-1]["status"] == "incomplete"


async def test_an_engine_that_never_starts_is_an_http_error(client: httpx.AsyncClient) -> None:
    for more in ({}, {"stream": True}, {"stream": True, "store": False}):
        error = (await post(client, ask("never starts", **more), status=500))["error"]
        assert error["type"] == "server_error"


@pytest.mark.parametrize("store", [True, False])
async def test_an_engine_that_breaks_off_fails_the_response(client: httpx.AsyncClient, store: bool) -> None:
    payloads = await stream(client, ask("breaks off", store=store))
    last = check(payloads)
    assert last["status"] == "failed"
    assert last["error"]["code"] == "server_error"
    if store:
        assert await get(client, f"/responses/{last['id']}") == last


# State


async def test_a_stored_response_can_be_read_and_deleted(client: httpx.AsyncClient) -> None:
    body = await post(client, ask("Hi"))
    assert await get(client, f"/responses/{body['id']}") == body
    items = await get(client, f"/responses/{body['id']}/input_items")
    assert [item["content"][0]["text"] for item in items["data"]] == ["Hi"]
    assert (await client.delete(f"/responses/{body['id']}")).json()["deleted"] is True
    await get(client, f"/responses/{body['id']}", status=404)
    assert (await client.delete(f"/responses/{body['id']}")).status_code == 404


async def test_what_is_not_stored_is_gone(client: httpx.AsyncClient) -> None:
    body = await post(client, ask("Hi", store=False))
    await get(client, f"/responses/{body['id']}", status=404)


async def test_another_key_sees_nothing(server: Running, client: httpx.AsyncClient) -> None:
    body = await post(client, ask("Hi"))
    conversation = await post(client, {}, "/conversations")
    headers = {"authorization": "Bearer two"}
    async with httpx.AsyncClient(base_url=f"{server.url}/v1", headers=headers) as other:
        await get(other, f"/responses/{body['id']}", status=404)
        await get(other, f"/conversations/{conversation['id']}", status=404)
        assert (await other.delete(f"/responses/{body['id']}")).status_code == 404
        await post(other, ask("Hi", previous_response_id=body["id"]), status=404)
        await post(other, ask("Hi", conversation=conversation["id"]), status=404)


async def test_a_response_can_fork(client: httpx.AsyncClient) -> None:
    root = await post(client, ask("Hi"))
    for said in ("one", "two"):
        branch = await post(client, ask(said, previous_response_id=root["id"]))
        leaf = await post(client, ask("more", previous_response_id=branch["id"]))
        counted = await post(client, ask("x", previous_response_id=leaf["id"]), "/responses/input_tokens")
        assert counted["input_tokens"] > leaf["usage"]["input_tokens"]


async def test_items_can_be_referred_to(client: httpx.AsyncClient) -> None:
    first = await post(client, ask("weather?", tools=TOOLS))
    call = next(item for item in first["output"] if item["type"] == "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "22 degrees"}
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]

    second = await post(client, ask([{"role": "user", "content": "q"}, *references, result]))

    assert text_of(second) == "It is warm."
    await post(client, ask([{"type": "item_reference", "id": "msg_nothing"}]), status=404)


async def test_a_conversation_gathers_items(client: httpx.AsyncClient) -> None:
    message = {"type": "message", "role": "user", "content": "I am Ann."}
    conversation = await post(client, {"items": [message], "metadata": {"a": "b"}}, "/conversations")
    path = f"/conversations/{conversation['id']}"
    assert conversation["metadata"] == {"a": "b"}

    body = await post(client, ask("Hi", conversation=conversation["id"]))
    check(await stream(client, ask("again", conversation={"id": conversation["id"]})))

    assert body["conversation"] == {"id": conversation["id"]}
    items = (await get(client, f"{path}/items", order="asc"))["data"]
    assert [item["content"][0]["text"] for item in items] == [
        "I am Ann.",
        "Hi",
        "Hello there, friend!",
        "again",
        "Hello there, friend!",
    ]
    assert await get(client, f"{path}/items/{items[0]['id']}") == items[0]
    assert (await client.delete(f"{path}/items/{items[0]['id']}")).json()["id"] == conversation["id"]
    await get(client, f"{path}/items/{items[0]['id']}", status=404)
    added = await post(client, {"items": [message, message]}, f"{path}/items")
    assert len(added["data"]) == 2
    assert (await post(client, {"metadata": {"c": "d"}}, path))["metadata"] == {"c": "d"}
    assert (await client.delete(path)).json() == {
        "id": conversation["id"],
        "object": "conversation.deleted",
        "deleted": True,
    }
    await get(client, path, status=404)
    await get(client, f"/responses/{body['id']}")


async def test_pages_of_items(client: httpx.AsyncClient) -> None:
    given = [{"role": "user", "content": str(number)} for number in range(5)]
    body = await post(client, ask(given))
    path = f"/responses/{body['id']}/input_items"
    first = await get(client, path, order="asc", limit=2)
    assert first["has_more"] is True
    rest = await get(client, path, order="asc", limit=10, after=first["last_id"])
    assert [item["content"][0]["text"] for item in rest["data"]] == ["2", "3", "4"]
    assert rest["has_more"] is False
    for query in ({"limit": 0}, {"limit": 101}, {"limit": "x"}, {"order": "up"}):
        error = (await get(client, path, status=400, **query))["error"]
        assert error["param"] in query
    await get(client, path, status=404, after="msg_nothing")


async def test_thoughts_can_be_carried_by_the_client(client: httpx.AsyncClient) -> None:
    include = ["reasoning.encrypted_content"]
    body = await post(client, ask("weather?", tools=TOOLS, store=False, include=include))
    thought = body["output"][0]
    assert thought["encrypted_content"]
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    await post(client, ask([{"role": "user", "content": "q"}, sealed]))
    broken = {**sealed, "encrypted_content": "a1.AAAA"}
    error = (await post(client, ask([broken]), status=400))["error"]
    assert error["param"] == "input[0].encrypted_content"


async def test_a_conversation_is_made_short(client: httpx.AsyncClient) -> None:
    given = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    short = await post(client, ask(given), "/responses/compact")
    validate("CompactResource", short, "openresponses")
    assert [item["type"] for item in short["output"]] == ["message", "compaction"]
    await post(client, ask([*short["output"], {"role": "user", "content": "and now?"}]))


# Background


async def test_a_background_response(client: httpx.AsyncClient) -> None:
    body = await post(client, ask("weather?", tools=TOOLS, background=True))
    assert (body["status"], body["output"], body["background"]) == ("queued", [], True)
    done = await finished(client, body["id"])
    assert done["status"] == "completed"
    validate("ResponseResource", done, "openresponses")
    payloads = await events_of(client, body["id"])
    assert check(payloads) == done
    assert [json.loads(payload)["type"] for payload in payloads[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]


async def test_a_background_stream(client: httpx.AsyncClient) -> None:
    payloads = await stream(client, ask("Hi", background=True))
    last = check(payloads)
    assert await get(client, f"/responses/{last['id']}") == last
    assert await events_of(client, last["id"]) == payloads


async def test_a_stream_can_be_resumed_anywhere(client: httpx.AsyncClient) -> None:
    for more in ({}, {"background": True}):
        payloads = await stream(client, ask("weather?", tools=TOOLS, **more))
        response_id = check(payloads)["id"]
        for after in range(len(payloads)):
            rest = await client.get(
                f"/responses/{response_id}", params={"stream": "true", "starting_after": after}
            )
            assert rest.content.endswith(b"data: [DONE]\n\n")
            if after + 1 < len(payloads):
                assert read_sse(rest.content) == payloads[after + 1 :]


async def test_a_running_response_shows_what_it_has(client: httpx.AsyncClient) -> None:
    body = await post(client, ask("slow", background=True))
    live: list[bytes] = []
    async with client.stream("GET", f"/responses/{body['id']}", params={"stream": "true"}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                live.append(line.removeprefix("data: ").encode())
            if len(live) == 20:
                break
    assert (await get(client, f"/responses/{body['id']}"))["status"] == "in_progress"
    cancelled = await post(client, {}, f"/responses/{body['id']}/cancel")
    assert cancelled["status"] == "cancelled"
    assert await post(client, {}, f"/responses/{body['id']}/cancel") == cancelled
    payloads = await events_of(client, body["id"])
    assert payloads[:20] == live
    assert check(payloads) == cancelled


async def test_a_reader_hears_that_a_response_was_cancelled(client: httpx.AsyncClient) -> None:
    body = await post(client, ask("slow", background=True))
    reading = asyncio.create_task(events_of(client, body["id"]))
    await asyncio.sleep(0.1)
    await post(client, {}, f"/responses/{body['id']}/cancel")
    async with asyncio.timeout(5):
        assert check(await reading)["status"] == "cancelled"


async def test_cancelling_stops_the_engine(server: Running, client: httpx.AsyncClient) -> None:
    body = await post(client, ask("slow", background=True))
    async with asyncio.timeout(5):
        while not server.engine.active:
            await asyncio.sleep(0.01)
        await post(client, {}, f"/responses/{body['id']}/cancel")
        while server.engine.active:
            await asyncio.sleep(0.01)


async def test_a_queued_response_can_be_cancelled(client: httpx.AsyncClient) -> None:
    bodies = [await post(client, ask("slow", background=True)) for _ in range(10)]  # 8 are worked on
    last = await post(client, {}, f"/responses/{bodies[-1]['id']}/cancel")
    assert last["status"] == "cancelled"
    assert check(await events_of(client, last["id"]))["status"] == "cancelled"
    for body in bodies:
        await post(client, {}, f"/responses/{body['id']}/cancel")


async def test_a_background_response_that_fails_says_why(client: httpx.AsyncClient) -> None:
    body = await post(client, ask("never starts", background=True))
    done = await finished(client, body["id"])
    assert done["status"] == "failed"
    assert done["error"]["message"]
    assert check(await events_of(client, body["id"])) == done


async def test_many_background_responses_all_finish(client: httpx.AsyncClient) -> None:
    bodies = await asyncio.gather(*(post(client, ask("Hi", background=True)) for _ in range(50)))
    for body in bodies:
        assert (await finished(client, body["id"]))["status"] == "completed"


async def test_a_client_that_leaves_ends_its_stream(server: Running, client: httpx.AsyncClient) -> None:
    async with client.stream("POST", "/responses", json=ask("slow", stream=True)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                response_id = json.loads(line.removeprefix("data: "))["response"]["id"]
                break
    done = await finished(client, response_id)
    assert done["status"] == "cancelled"
    assert check(await events_of(client, response_id)) == done
    assert server.engine.active == 0


async def test_a_deleted_response_stops(server: Running, client: httpx.AsyncClient) -> None:
    body = await post(client, ask("slow", background=True))
    async with asyncio.timeout(10):
        while not server.engine.active:
            await asyncio.sleep(0.01)
        await client.delete(f"/responses/{body['id']}")
        while server.engine.active:
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
        (ask("x", temperature=3), "temperature"),
        (ask("x", tool_choice="required"), "tool_choice"),
        ({"model": "scripted"}, "input"),
        ({"input": "x"}, "model"),
        (ask("x", store=False, conversation="conv_1"), "conversation"),
    ],
)
async def test_what_is_wrong_is_named(client: httpx.AsyncClient, body: Any, param: str) -> None:
    for more in ({}, {"stream": True}):
        if "stream_options" in body and more:
            continue
        error = (await post(client, {**body, **more}, status=400))["error"]
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
async def test_what_is_missing_is_named(
    client: httpx.AsyncClient, body: Any, param: str, status: int
) -> None:
    assert (await post(client, body, status=status))["error"]["param"] == param


async def test_queries_are_checked(client: httpx.AsyncClient) -> None:
    body = await post(client, ask("Hi"))
    path = f"/responses/{body['id']}"
    assert (await get(client, path, status=400, stream="maybe"))["error"]["param"] == "stream"
    assert (await get(client, path, status=400, starting_after=1))["error"]["param"] == "starting_after"
    assert (await get(client, path, status=400, stream="true"))["error"]["param"] == "stream"
    assert (await post(client, {}, f"{path}/cancel", status=400))["error"]["param"] == "response_id"
