"""Stored chat completions over a real socket: what is kept, for whom, and how it is found again."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from tests.apis.chat.support import collected
from tests.http.chat_api import CHAT, ChatApi, assistant, chat, function, user
from tests.openai_schema import validate
from tests.server import NO_TLS, Running, running

SCRIPT: list[dict[str, Any]] = [
    {"when": "weather?", "output": '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'},
    {"when": "breaks off", "output": "one two three four", "fail_after": 3},
    {"when": "slow", "output": "word ", "tokens": 10_000, "delay_ms": 5},
    {"output": "Hello there, friend!"},
]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT, api_key=("one", "two")) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[ChatApi]:
    async with httpx.AsyncClient(
        verify=NO_TLS, base_url=server.url, headers={"authorization": "Bearer one"}, timeout=20
    ) as http:
        yield ChatApi(http, server)


@pytest_asyncio.fixture
async def stranger(server: Running) -> AsyncIterator[ChatApi]:
    async with httpx.AsyncClient(
        verify=NO_TLS, base_url=server.url, headers={"authorization": "Bearer two"}
    ) as http:
        yield ChatApi(http, server)


async def stored(api: ChatApi, said: Any = "Hi", **fields: Any) -> Any:
    return await api.ask(said, store=True, **fields)


async def listed(api: ChatApi, **query: Any) -> list[str]:
    page = await api.get(CHAT, **query)
    validate("ChatCompletionList", page)
    found = [completion["id"] for completion in page["data"]]
    assert (page["first_id"], page["last_id"]) == ((found[0], found[-1]) if found else ("", ""))
    return found


async def test_what_is_stored_is_the_answer(api: ChatApi) -> None:
    for fields in ({}, {"n": 2}, {"metadata": {"k": "v"}}, {"logprobs": True}):
        body = await stored(api, **fields)
        assert await api.get(f"{CHAT}/{body['id']}") == body


async def test_a_stream_is_stored_when_it_ends(api: ChatApi) -> None:
    chunks = await api.stream("weather?", store=True, tools=[function("f")])
    body = await api.get(f"{CHAT}/{chunks[0]['id']}")

    assert body["choices"][0]["message"] == collected(chunks)[0]["message"]
    assert body["choices"][0]["finish_reason"] == "tool_calls"


async def test_what_is_not_to_be_stored_is_not(api: ChatApi) -> None:
    for fields in ({}, {"store": False}, {"store": None}):
        body = await api.ask("Hi", **fields)
        await api.get(f"{CHAT}/{body['id']}", 404)
    assert await listed(api) == []


async def test_an_answer_that_fails_is_not_stored(api: ChatApi) -> None:
    await api.post(CHAT, chat("breaks off", store=True), 500)
    assert await listed(api) == []


async def test_an_answer_whose_client_left_is_not_stored(server: Running, api: ChatApi) -> None:
    asking = asyncio.create_task(stored(api, "slow"))
    while not server.engine.load.running:
        await asyncio.sleep(0.001)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    while server.engine.load.running:
        await asyncio.sleep(0.001)
    assert await listed(api) == []


async def test_nobody_chooses_the_id_of_what_is_stored(api: ChatApi) -> None:
    response = await api.http.post(CHAT, json=chat("Hi", store=True), headers={"x-request-id": "mine"})

    assert response.headers["x-request-id"] == "mine"
    assert response.json()["id"] != "chatcmpl-mine"


async def test_lists_are_paged(api: ChatApi) -> None:
    made = [(await stored(api, f"Hi {number}"))["id"] for number in range(5)]

    assert await listed(api) == await listed(api, order="asc") == made
    assert await listed(api, order="desc") == made[::-1]
    assert await listed(api, limit=2) == made[:2]
    assert await listed(api, limit=2, after=made[1]) == made[2:4]
    assert await listed(api, after=made[4]) == []
    assert (await api.get(CHAT, limit=2))["has_more"]
    assert not (await api.get(CHAT, limit=2, after=made[2]))["has_more"]
    seen: list[str] = []
    while page := await listed(api, limit=2, **({"after": seen[-1]} if seen else {})):
        seen += page
    assert seen == made


async def test_lists_are_filtered(api: ChatApi) -> None:
    red = (await stored(api, metadata={"colour": "red", "size": "1"}))["id"]
    blue = (await stored(api, metadata={"colour": "blue", "size": "1"}))["id"]
    plain = (await stored(api))["id"]

    assert await listed(api, **{"metadata[colour]": "red"}) == [red]
    assert await listed(api, **{"metadata[size]": "1"}) == [red, blue]
    assert await listed(api, **{"metadata[size]": "1", "metadata[colour]": "green"}) == []
    assert await listed(api, model="scripted") == [red, blue, plain]
    assert await listed(api, model="other") == []


async def test_metadata_can_be_replaced(api: ChatApi) -> None:
    body = await stored(api, metadata={"a": "1", "b": "2"})
    path = f"{CHAT}/{body['id']}"

    assert await api.post(path, {"metadata": {"c": "3"}}) == {**body, "metadata": {"c": "3"}}
    assert (await api.get(path))["metadata"] == {"c": "3"}
    assert await listed(api, **{"metadata[c]": "3"}) == [body["id"]]
    assert await listed(api, **{"metadata[a]": "1"}) == []
    assert (await api.post(path, {"metadata": None}))["metadata"] == {}
    assert (await api.post(path, {}, 400))["error"]["param"] == "metadata"


async def test_the_messages_of_the_request(api: ChatApi) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    said = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": parts, "name": "ann"},
        assistant(None, tool_calls=[call]),
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        user("And?"),
    ]
    body = await stored(api, said, tools=[function("f")])
    path = f"{CHAT}/{body['id']}/messages"
    page = await api.get(path)

    validate("ChatCompletionMessageList", page)
    assert [message["content"] for message in page["data"]] == ["Be kind.", "ab", None, "sunny", "And?"]
    assert page["data"][1]["content_parts"] == parts
    assert page["data"][1]["name"] == "ann"
    assert page["data"][2]["tool_calls"] == [call]
    assert page["data"][3]["tool_call_id"] == "c1"
    ids = [message["id"] for message in page["data"]]
    assert len(set(ids)) == 5
    assert [message["id"] for message in (await api.get(path, limit=2, after=ids[1]))["data"]] == ids[2:4]
    assert [message["id"] for message in (await api.get(path, order="desc"))["data"]] == ids[::-1]


async def test_what_is_deleted_is_gone(api: ChatApi) -> None:
    body = await stored(api)
    path = f"{CHAT}/{body['id']}"

    assert await api.delete(path) == {"id": body["id"], "object": "chat.completion.deleted", "deleted": True}
    await api.get(path, 404)
    await api.get(f"{path}/messages", 404)
    await api.delete(path, 404)
    assert await listed(api) == []


async def test_strangers_find_nothing(api: ChatApi, stranger: ChatApi) -> None:
    body = await stored(api, metadata={"a": "1"})
    path = f"{CHAT}/{body['id']}"

    assert await listed(stranger) == []
    await stranger.get(path, 404)
    await stranger.get(f"{path}/messages", 404)
    await stranger.post(path, {"metadata": {}}, 404)
    error = (await stranger.delete(path, 404))["error"]
    assert body["id"] in error["message"]
    assert await api.get(path) == body


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"order": "up"}, "order"),
    ],
)
async def test_bad_queries(api: ChatApi, query: dict[str, Any], param: str) -> None:
    assert (await api.get(CHAT, 400, **query))["error"]["param"] == param
    body = await stored(api)
    assert (await api.get(f"{CHAT}/{body['id']}/messages", 400, **query))["error"]["param"] == param


async def test_an_unknown_place_in_a_list(api: ChatApi) -> None:
    await stored(api)
    assert (await api.get(CHAT, 404, after="chatcmpl-nothing"))["error"]["param"] == "after"
