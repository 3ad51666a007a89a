"""A stream that has nothing to say for long says so, with comments that clients pass over."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

from tests.http.chat_api import CHAT, COMPLETIONS, ChatApi, chat, chatting, completion, events
from tests.response_invariants import read_events

PATIENCE = 0.05
SLOWLY = 4 * PATIENCE * 1000
COMMENT = ": keep-alive"
SCRIPT: list[dict[str, Any]] = [
    {"when": "breaks late", "output": "one two three", "delay_ms": SLOWLY, "fail_after": 2},
    {"when": "never starts", "output": "one", "delay_ms": SLOWLY, "fail_after": 0},
    {"when": "quick", "output": "one two three"},
    {"output": "one two three", "delay_ms": SLOWLY},
]


@pytest_asyncio.fixture
async def api() -> AsyncIterator[ChatApi]:
    async with chatting(SCRIPT, keep_alive=PATIENCE) as api:
        yield api


async def said(api: ChatApi, path: str, body: dict[str, Any]) -> list[str]:
    """The events and comments of a stream, as they are."""
    response = await api.http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return response.text.removesuffix("\n\n").split("\n\n")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat("slow")),
        (COMPLETIONS, completion("slow")),
    ],
)
async def test_comments_come_before_and_between_the_words(
    api: ChatApi, path: str, body: dict[str, Any]
) -> None:
    pieces = await said(api, path, body)

    assert pieces[0] == COMMENT
    words = [index for index, piece in enumerate(pieces) if "one" in piece or " two" in piece]
    assert COMMENT in pieces[words[0] : words[1]]
    assert pieces[-1] != COMMENT


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("store", [False, True])
async def test_a_response_says_again_that_it_is_in_progress(
    api: ChatApi, store: bool, background: bool
) -> None:
    """Codex gives up a stream without events, whatever comments it has. Resumed after it, nothing comes twice."""
    if background and not store:
        return
    fields = {"model": "scripted", "input": "slow", "store": store, "background": background}
    response = await api.http.post("/v1/responses", json={**fields, "stream": True})
    told = [json.loads(each) for each in read_events(response.content.removesuffix(b"data: [DONE]\n\n"))]

    first = [
        event["type"]
        for event in told[: [event["type"] for event in told].index("response.output_item.added")]
    ]
    assert first.count("response.created") == 1
    state = "response.queued" if background else "response.in_progress"
    assert first.count(state) > 1
    kinds = [event["type"] for event in told]
    deltas = [index for index, kind in enumerate(kinds) if kind == "response.output_text.delta"]
    assert "response.in_progress" in kinds[deltas[0] : deltas[1]]
    numbers = [event["sequence_number"] for event in told]
    assert numbers == sorted(numbers)
    again = [
        number for event, number in zip(told[1:], numbers, strict=False) if event["sequence_number"] == number
    ]
    assert len(again) == kinds.count("response.in_progress") + kinds.count("response.queued") - (
        2 if background else 1
    )


async def test_clients_pass_over_comments(api: ChatApi) -> None:
    async with AsyncOpenAI(base_url=f"{api.server.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "slow"}]
        chunks = [
            c
            async for c in await client.chat.completions.create(
                model="scripted", messages=messages, stream=True
            )
        ]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"

        texts = [
            c async for c in await client.completions.create(model="scripted", prompt="slow", stream=True)
        ]
        assert "".join(chunk.choices[0].text for chunk in texts) == "one two three"

        told = [e async for e in await client.responses.create(model="scripted", input="slow", stream=True)]
        assert "".join(e.delta for e in told if e.type == "response.output_text.delta") == "one two three"


async def test_an_error_after_a_comment_is_an_event(api: ChatApi) -> None:
    """The status is sent with the first comment: it was 200."""
    response = await api.http.post(CHAT, json=chat("breaks late", stream=True))
    assert response.status_code == 200
    assert response.text.startswith(COMMENT)
    *_, error, end = events(response.text)
    assert end == "[DONE]"
    assert error["error"]["code"] == "engine_error"

    async with AsyncOpenAI(base_url=f"{api.server.url}/v1", api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "breaks late"}]
        with pytest.raises(openai.APIError, match="fail after 2"):
            async for _ in await client.chat.completions.create(
                model="scripted", messages=messages, stream=True
            ):
                pass


async def test_a_full_answer_has_no_comments_and_keeps_its_status(api: ChatApi) -> None:
    assert (await api.ask("slow"))["choices"][0]["message"]["content"] == "one two three"
    assert (await api.post(CHAT, chat("never starts"), 500))["error"]["code"] == "engine_error"


async def test_a_client_that_leaves_between_comments_stops_the_engine(api: ChatApi) -> None:
    async with api.http.stream("POST", CHAT, json=chat("slow", stream=True, ignore_eos=True)) as response:
        async for line in response.aiter_lines():
            if line == COMMENT:
                break
        assert api.server.engine.load.running == 1
    while api.server.engine.load.running:
        await asyncio.sleep(0.001)


async def test_a_queued_stream_is_kept_alive() -> None:
    """A client that waits for the engine gets comments, too."""
    async with chatting(SCRIPT, keep_alive=PATIENCE, parallel=1) as api:
        first = asyncio.create_task(said(api, CHAT, chat("slow")))
        while not api.server.engine.load.running:
            await asyncio.sleep(0.001)
        queued = await said(api, CHAT, chat("quick"))
        await first

        assert queued[0] == COMMENT


@pytest.mark.parametrize("background", [False, True])
async def test_a_response_may_have_comments_instead(background: bool) -> None:
    async with chatting(SCRIPT, keep_alive=PATIENCE, keep_alive_events=False) as api:
        fields = {"model": "scripted", "input": "slow", "background": background}
        pieces = await said(api, "/v1/responses", fields)
        states = [piece for piece in pieces if piece.startswith("event: response.in_progress")]
        assert len(states) == 1
        assert COMMENT in pieces


async def test_a_socket_may_have_nothing_instead() -> None:
    async with chatting(SCRIPT, keep_alive=PATIENCE, keep_alive_events=False) as api:
        url = str(api.http.base_url).replace("http", "ws").rstrip("/") + "/v1/responses"
        async with connect(url) as socket:
            await socket.send(json.dumps({"type": "response.create", "model": "scripted", "input": "slow"}))
            types = [json.loads(await socket.recv())["type"]]
            while types[-1] != "response.completed":
                types.append(json.loads(await socket.recv())["type"])
        assert types.count("response.in_progress") == 1
