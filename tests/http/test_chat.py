"""Chat completions over a real socket: what clients see of answers, streams and errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from antiphon.core.limits import Limits
from tests.server import NO_TLS, Running, running

WEATHER = """<think>
I need the weather.
</think>

Let me look.
<tool_call>
{"name": "get_weather", "arguments": {"city": "Rome"}}
</tool_call>"""

SCRIPT: list[dict[str, Any]] = [
    {"when": "weather?", "output": WEATHER},
    {"when": "never starts", "output": "abc", "fail_after": 0},
    {"when": "breaks off", "output": "one two three four", "fail_after": 3},
    {"when": "markers", "output": "Use <tool_call> and </tool_call>."},
    {"when": "nothing", "output": ""},
    {"when": "only a call", "output": '<tool_call>{"name": "get_weather"}</tool_call>'},
    {"when": "slow", "output": "word ", "tokens": 10_000, "delay_ms": 5},
    {"output": "Hello there, friend!"},
]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest_asyncio.fixture
async def client(server: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=10) as client:
        yield client


def ask(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": content}], **more}


async def chat(client: httpx.AsyncClient, body: Any, status: int = 200) -> Any:
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == status, response.text
    return response.json()


async def stream(client: httpx.AsyncClient, body: Any) -> list[Any]:
    """The events of a stream, decoded; the end mark stays a string."""
    response = await client.post("/v1/chat/completions", json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.removesuffix("\n\n").split("\n\n")
    payloads = [event.removeprefix("data: ") for event in events]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


async def test_a_full_answer(client: httpx.AsyncClient) -> None:
    body = await chat(client, ask("Hi"))

    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"]) == ("chat.completion", "scripted")
    [choice] = body["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hello there, friend!",
        "refusal": None,
        "annotations": [],
    }
    assert (choice["finish_reason"], choice["logprobs"]) == ("stop", None)
    usage = body["usage"]
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_a_call_with_thoughts(client: httpx.AsyncClient) -> None:
    [choice] = (await chat(client, ask("weather?", tools=TOOLS)))["choices"]

    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("I need the weather.", "Let me look.")
    [call] = message["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}


async def test_reasoning_tokens_are_counted(client: httpx.AsyncClient) -> None:
    usage = (await chat(client, ask("weather?", tools=TOOLS)))["usage"]

    assert 4 <= usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


async def test_a_call_without_text_has_null_content(client: httpx.AsyncClient) -> None:
    [choice] = (await chat(client, ask("only a call", tools=TOOLS)))["choices"]

    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{}"


async def test_with_tool_choice_none_what_looks_like_a_call_is_text(client: httpx.AsyncClient) -> None:
    [choice] = (await chat(client, ask("weather?", tools=TOOLS, tool_choice="none")))["choices"]

    assert choice["message"]["content"].startswith("Let me look.\n<tool_call>")
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


async def test_without_tools_a_call_is_text(client: httpx.AsyncClient) -> None:
    [choice] = (await chat(client, ask("weather?")))["choices"]

    assert choice["message"]["content"] == WEATHER.split("</think>\n\n")[1]


async def test_markers_in_prose_stay_prose(client: httpx.AsyncClient) -> None:
    [choice] = (await chat(client, ask("markers", tools=TOOLS)))["choices"]

    assert choice["message"]["content"] == "Use <tool_call> and </tool_call>."


async def test_stop_strings_cut_the_answer(client: httpx.AsyncClient) -> None:
    [choice] = (await chat(client, ask("Hi", stop=["friend", " there"])))["choices"]

    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", "stop")


async def test_max_tokens_cut_the_answer(client: httpx.AsyncClient) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        body = await chat(client, ask("Hi", **{name: 2}))

        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == 2


async def test_a_cut_call_ends_with_length(client: httpx.AsyncClient) -> None:
    for body in (ask("weather?", tools=TOOLS, max_tokens=40), ask("weather?", tools=TOOLS, max_tokens=25)):
        assert (await chat(client, body))["choices"][0]["finish_reason"] == "length"


async def test_n_answers(client: httpx.AsyncClient) -> None:
    body = await chat(client, ask("Hi", n=3))

    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in body["choices"]} == {"Hello there, friend!"}
    single = await chat(client, ask("Hi"))
    assert body["usage"]["completion_tokens"] == 3 * single["usage"]["completion_tokens"]
    assert body["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]


async def test_a_stream(client: httpx.AsyncClient) -> None:
    *chunks, last, end = await stream(client, ask("Hi"))

    assert end == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[1:]]
    assert all(set(delta) == {"content"} and delta["content"] for delta in deltas)
    assert "".join(delta["content"] for delta in deltas) == "Hello there, friend!"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in [*chunks, last]}) == 1
    assert "usage" not in chunks[0]


async def test_a_streamed_call_names_itself_once(client: httpx.AsyncClient) -> None:
    *chunks, _ = await stream(client, ask("weather?", tools=TOOLS))

    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert (calls[0]["type"], calls[0]["index"]) == ("function", 0)
    assert all(call.keys() == {"index", "function"} for call in calls[1:])
    assert len(calls) > 3
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Rome"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["choices"][0]["delta"] == {}


async def test_a_stream_with_usage(client: httpx.AsyncClient) -> None:
    *chunks, usage, _ = await stream(client, ask("Hi", n=2, stream_options={"include_usage": True}))

    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"] == (await chat(client, ask("Hi", n=2)))["usage"]


async def test_the_choices_of_a_stream_finish_once_each(client: httpx.AsyncClient) -> None:
    *chunks, _ = await stream(client, ask("weather?", n=3, tools=TOOLS))

    finished = [c["choices"][0] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(choice["index"] for choice in finished) == [0, 1, 2]
    for index in range(3):
        mine = [c["choices"][0]["delta"] for c in chunks if c["choices"][0]["index"] == index]
        assert mine[0]["role"] == "assistant"
        arguments = [call["function"]["arguments"] for d in mine for call in d.get("tool_calls", ())]
        assert "".join(arguments) == '{"city": "Rome"}'


async def test_an_empty_answer_is_an_empty_text(client: httpx.AsyncClient) -> None:
    assert (await chat(client, ask("nothing")))["choices"][0]["message"]["content"] == ""
    *chunks, _ = await stream(client, ask("nothing"))
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == ""
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_unknown_fields_and_nulls_are_ignored(client: httpx.AsyncClient) -> None:
    await chat(client, ask("Hi", wibble={"a": 1}, temperature=None, stop=None, n=None, tools=None, seed=None))


async def test_all_roles_and_forms_of_content(client: httpx.AsyncClient) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "x"}'}}
    messages = [
        {"role": "system", "content": "Be kind."},
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}],
        },
        {"role": "user", "content": "Hi", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
        {"role": "assistant", "content": "Sunny.", "reasoning_content": "hm"},
        {"role": "system", "content": "Be quick."},
        {"role": "user", "content": "Bye"},
    ]
    await chat(client, {"model": "scripted", "messages": messages, "tools": TOOLS})


BAD: list[tuple[Any, int, str | None]] = [
    ({"messages": [{"role": "user", "content": "x"}], "model": 3}, 400, "model"),
    ({"model": "scripted"}, 400, "messages"),
    ({"model": "scripted", "messages": []}, 400, "messages"),
    ({"model": "scripted", "messages": "x"}, 400, "messages"),
    ({"model": "scripted", "messages": [{"content": "x"}]}, 400, "messages[0].role"),
    ({"model": "scripted", "messages": [{"role": "wizard"}]}, 400, "messages[0].content"),
    ({"model": "scripted", "messages": [{"role": "user", "content": 3}]}, 400, "messages[0].content"),
    ({"model": "scripted", "messages": [{"role": "user"}]}, 400, "messages[0].content"),
    (
        {"model": "scripted", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "messages[0].content[0].image_url",
    ),
    (ask("x") | {"model": "gpt-9"}, 404, "model"),
    (ask("x", temperature=-1), 400, "temperature"),
    (ask("x", temperature="hot"), 400, "temperature"),
    (ask("x", top_p=1.1), 400, "top_p"),
    (ask("x", presence_penalty=-3), 400, "presence_penalty"),
    (ask("x", frequency_penalty=3), 400, "frequency_penalty"),
    (ask("x", n=0), 400, "n"),
    (ask("x", n=1000), 400, "n"),
    (ask("x", max_tokens=-2), 400, "max_tokens"),
    (ask("x", stop=[3]), 400, "stop[0]"),
    (ask("x", stop=["a"] * 17), 400, "stop"),
    (ask("x", seed="one"), 400, "seed"),
    (ask("x", tools=[{"type": "magic"}]), 400, "tools[0].type"),
    (ask("x", tools=[{"type": "function"}]), 400, "tools[0].function"),
    (ask("x", tools=TOOLS, tool_choice="maybe"), 400, "tool_choice"),
    (ask("x", tool_choice="required"), 400, "tool_choice"),
    (ask("x", stream_options={"include_usage": True}), 400, "stream_options"),
    (ask("word " * 40_000), 400, "messages"),
    ([], 400, None),
]


@pytest.mark.parametrize(("body", "status", "param"), BAD)
async def test_bad_input_is_refused_by_name(
    client: httpx.AsyncClient, body: Any, status: int, param: str | None
) -> None:
    for more in ({}, {"stream": True}) if isinstance(body, dict) and "stream_options" not in body else ({},):
        error = (await chat(client, {**body, **more} if more else body, status))["error"]

        assert error.keys() == {"message", "type", "param", "code"}
        assert error["param"] == param
        assert error["message"]
        assert "Traceback" not in error["message"]


async def test_a_long_prompt_is_refused_with_both_numbers(client: httpx.AsyncClient) -> None:
    error = (await chat(client, ask("word " * 40_000), 400))["error"]

    assert error["code"] == "context_length_exceeded"
    assert "32768" in error["message"]
    assert any(number.isdigit() and int(number) >= 40_000 for number in error["message"].split())


async def test_a_body_that_is_no_json(client: httpx.AsyncClient) -> None:
    for content in (b"{", b"", b"\xff\xfe", b'{"model": "\xff"}', b"[" * 100_000):
        response = await client.post(
            "/v1/chat/completions", content=content, headers={"content-type": "application/json"}
        )

        assert response.status_code == 400, content[:10]
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_body_of_another_type(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions", data={"model": "scripted"})

    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


async def test_a_body_over_the_limit() -> None:
    async with (
        running(SCRIPT, limit=Limits(body_bytes=1000)) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        error = (await chat(client, ask("x" * 2000), 413))["error"]

        assert "1000" in error["message"]
        await chat(client, ask("x"))


async def test_an_engine_that_fails_before_the_first_token(client: httpx.AsyncClient) -> None:
    for more in ({}, {"stream": True}):
        error = (await chat(client, ask("never starts", **more), 500))["error"]

        assert error["type"] == "server_error"
        assert error["code"] == "engine_error"


async def test_an_engine_that_fails_in_the_middle(client: httpx.AsyncClient) -> None:
    *chunks, error, end = await stream(client, ask("breaks off"))

    assert end == "[DONE]"
    assert error["error"]["type"] == "server_error"
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * len(chunks)
    assert (await chat(client, ask("breaks off"), 500))["error"]["code"] == "engine_error"


async def test_one_failing_choice_ends_the_answer_and_stops_the_others(server: Running) -> None:
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client:
        assert (await chat(client, ask("breaks off", n=4), 500))["error"]["code"] == "engine_error"

    assert server.engine.load.running == 0


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_stops_the_engine(server: Running, streamed: bool) -> None:
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client:
        asking = asyncio.create_task(chat(client, ask("slow", stream=streamed, n=2)))
        while server.engine.load.running < 2:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(30):  # much sooner than the answer would end
        while server.engine.load.running:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_the_queue_never_starts(streamed: bool) -> None:
    async with (
        running(SCRIPT, parallel=1) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        first = asyncio.create_task(chat(client, ask("slow")))
        while not server.engine.load.running:
            await asyncio.sleep(0.01)
        queued = asyncio.create_task(chat(client, ask("slow", stream=streamed)))
        await asyncio.sleep(0.1)
        queued.cancel()
        await asyncio.gather(queued, return_exceptions=True)
        await asyncio.sleep(0.05)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.sleep(0.1)

        assert server.engine.load.running == 0
        await asyncio.wait_for(chat(client, ask("Hi")), 30)


async def test_many_streams_at_once_do_not_mix(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(stream(client, ask("weather?", tools=TOOLS)) for _ in range(50)))

    def content(chunks: list[Any]) -> str:
        return "".join(c["choices"][0]["delta"].get("reasoning_content") or "" for c in chunks[:-1])

    assert {content(chunks) for chunks in answers} == {"I need the weather."}
    assert len({chunks[0]["id"] for chunks in answers}) == 50
