"""Prompts that are computed for later: no output, true usage, and a response that is continued."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.http.api import Api, client, prompt_of, text_of, user
from tests.http.chat_api import CHAT, chat, chatting
from tests.http.messages_api import asking
from tests.http.test_socket import connected, heard, send
from tests.server import Running, running

SCRIPT: list[dict[str, Any]] = [{"output": "one two three"}]
FORM = {"text": {"format": {"type": "json_object"}}}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
WAYS: list[dict[str, Any]] = [
    {"generate": False},
    {"prompt_cache_options": {"prewarm": True}},
    {"prompt_cache_options": {"prewarm": True, "mode": "implicit"}, "generate": True},
]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_warm_up_has_no_output_and_is_continued(
    server: Running, api: Api, way: dict[str, Any], streamed: bool
) -> None:
    ask = api.streamed if streamed else api.create
    warmed = await ask("Zebra", instructions="Be brief.", **way)
    request = server.engine.seen[-1]
    after = await api.create([], previous_response_id=warmed["id"], instructions="Be brief.")

    assert (warmed["status"], warmed["output"]) == ("completed", [])
    assert warmed["usage"]["output_tokens"] == 0
    assert warmed["usage"]["input_tokens"] == after["usage"]["input_tokens"] > 0
    assert (request.max_tokens, request.sampling.priority) == (1, 1_000_000)
    assert text_of(after) == "one two three"
    assert prompt_of(server) == request.prompt.text


@pytest.mark.parametrize(
    "more",
    [FORM, {"tools": [TOOL], "tool_choice": "required"}, {"thinking_token_budget": 5}, {"min_tokens": 3}],
)
async def test_nothing_is_demanded_of_a_warm_up(server: Running, api: Api, more: dict[str, Any]) -> None:
    warmed = await api.streamed("Zebra", generate=False, **more)
    request = server.engine.seen[-1]
    await api.create("Zebra", **more)

    assert (warmed["status"], warmed["output"]) == ("completed", [])
    assert "unmet" not in warmed
    assert request.constraint is None
    assert prompt_of(server) == request.prompt.text


async def test_instructions_alone_are_warmed_up(server: Running, api: Api) -> None:
    warmed = await api.create([], instructions="You are a zebra.", tools=[TOOL], generate=False)
    begun = prompt_of(server)
    await api.create("Hi", previous_response_id=warmed["id"], instructions="You are a zebra.", tools=[TOOL])

    assert "You are a zebra." in begun
    assert prompt_of(server).startswith(begun.partition("<|im_start|>user")[0])


async def test_a_warm_up_in_the_background(api: Api) -> None:
    queued = await api.create("Zebra", generate=False, background=True)
    finished = await api.finished(queued["id"])

    assert (finished["status"], finished["output"]) == ("completed", [])
    assert finished["usage"]["input_tokens"] > 0


async def test_what_needs_an_answer_is_refused(api: Api) -> None:
    error = await api.refused([user("Hi"), {"type": "compaction_trigger"}], generate=False)

    assert error["param"] == "generate"


async def test_a_warm_up_on_a_websocket(server: Running) -> None:
    async with connected(server) as socket:
        await send(socket, [], instructions="Be a zebra.", generate=False, store=False)
        events = [json.loads(line) for line in await heard(socket)]
        warmed = events[-1]["response"]
        await send(socket, "Hi", previous_response_id=warmed["id"], instructions="Be a zebra.", store=False)
        after = json.loads((await heard(socket))[-1])["response"]

    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert (warmed["output"], warmed["usage"]["output_tokens"]) == ([], 0)
    assert text_of(after) == "one two three"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_message_without_tokens(streamed: bool) -> None:
    async with asking(SCRIPT) as api:
        if streamed:
            events = await api.stream("Zebra", max_tokens=0)
            end = next(event for event in events if event["type"] == "message_delta")
            reason, usage = end["delta"]["stop_reason"], end["usage"]
            assert not any(event["type"].startswith("content_block") for event in events)
        else:
            body = await api.full("Zebra", max_tokens=0)
            reason, usage = body["stop_reason"], body["usage"]
            assert body["content"] == []
        warmed = api.prompt
        after = await api.full("Zebra")

    assert (reason, usage["output_tokens"]) == ("max_tokens", 0)
    assert usage["input_tokens"] == after["usage"]["input_tokens"]
    assert warmed == api.prompt


async def test_answers_come_before_warm_ups() -> None:
    script = [{"when": "slow", "output": "word word word", "delay_ms": 50}, *SCRIPT]
    ended: list[str] = []
    async with running(script, parallel=1) as server, client(server) as api:

        async def ask(text: str, **fields: Any) -> None:
            await api.create(text, **fields)
            ended.append(text)

        asking = [asyncio.create_task(ask("slow"))]
        await _waiting(server, 1)
        asking.append(asyncio.create_task(ask("warm", generate=False)))
        await _waiting(server, 2)
        asking.append(asyncio.create_task(ask("answer")))
        await asyncio.gather(*asking)

    assert ended == ["slow", "answer", "warm"]


async def _waiting(server: Running, count: int) -> None:
    async with asyncio.timeout(5):
        while len(server.engine.seen) < count:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("choices", [1, 2])
async def test_a_chat_without_an_answer(choices: int) -> None:
    async with chatting(SCRIPT) as api:
        body = await api.post(CHAT, chat("Zebra", prompt_cache_options={"prewarm": True}, n=choices))

    assert [choice["message"]["content"] for choice in body["choices"]] == [""] * choices
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop"] * choices
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["prompt_tokens"] > 0
