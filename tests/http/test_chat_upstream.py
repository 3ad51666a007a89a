"""A server whose model is another server's, asked for chats: what OpenAI's own client gets of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai import AsyncOpenAI
from structlog.testing import capture_logs

from antiphon.core.call_results import NO_RESULT
from antiphon.engines.upstream import Options, UpstreamEngine
from tests.acting import ActingTool
from tests.engines.canned import answer, canned
from tests.media import data_url, png
from tests.run.support import until
from tests.server import NO_TLS, Running, running

RUN = '<tool_call>\n{"name": "python", "arguments": {"code": "6*7"}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"when": "<tool_response>", "output": "It is 42."},
    {"when": "run it", "output": f"<think>Let me see.</think>{RUN}"},
    {"when": "my name", "output": "You are Ada."},
    {"when": "endless", "output": "word ", "tokens": 20_000, "delay_ms": 1},
    {"output": "Hello, Ada."},
]


@pytest.fixture
async def behind() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest.fixture
async def server(behind: Running) -> AsyncIterator[Running]:
    engine = UpstreamEngine(Options(behind.url, upstream_kind="chat"))
    async with running(engine, dialect=None, tools=[ActingTool()]) as server:
        yield server


@pytest.fixture
async def client(server: Running) -> AsyncIterator[AsyncOpenAI]:
    http = httpx.AsyncClient(verify=NO_TLS)
    async with AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="-", max_retries=0, http_client=http
    ) as client:
        yield client


async def test_it_is_recognised_though_it_has_paths_of_others(behind: Running) -> None:
    engine = UpstreamEngine(Options(behind.url))
    await engine.start()
    assert engine.card.capabilities.chat
    await engine.stop()


async def test_state_is_kept_here(client: AsyncOpenAI, behind: Running) -> None:
    first = await client.responses.create(model="scripted", input="I am Ada.")
    second = await client.responses.create(
        model="scripted", input="What is my name?", previous_response_id=first.id
    )
    assert (first.output_text, second.output_text) == ("Hello, Ada.", "You are Ada.")
    assert "I am Ada." in behind.engine.seen[-1].prompt.text
    assert second.usage is not None
    assert second.usage.input_tokens == len(behind.engine.seen[-1].prompt.ids)


async def test_the_servers_tools_are_run_here_also_in_the_background(client: AsyncOpenAI) -> None:
    tools: Any = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    response = await client.responses.create(model="scripted", input="run it", tools=tools, background=True)
    assert response.status == "queued"
    stream = await client.responses.retrieve(response.id, stream=True)
    kinds = [event.type async for event in stream]
    assert kinds[-1] == "response.completed"
    assert "response.code_interpreter_call.completed" in kinds
    assert "response.reasoning_text.delta" in kinds
    whole = await client.responses.retrieve(response.id)
    assert [item.type for item in whole.output] == ["reasoning", "code_interpreter_call", "message"]
    assert whole.output_text == "It is 42."


async def test_what_the_other_server_counted_is_noted(client: AsyncOpenAI, behind: Running) -> None:
    with capture_logs() as logs:
        await client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "Hi"}])
    prompt = len(behind.engine.seen[-1].prompt.ids)
    noted = [line["prompt_tokens"] for line in logs if line["event"] == "request" and "prompt_tokens" in line]
    assert noted == [prompt, prompt]  # by both


async def test_a_client_that_leaves_stops_the_other_server(client: AsyncOpenAI, behind: Running) -> None:
    stream = await client.responses.create(model="scripted", input="endless", stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    assert behind.engine.load.running
    await stream.close()
    await until(lambda: not behind.engine.load.running)


async def test_a_conversation_is_summed_up_by_the_other_server(client: AsyncOpenAI) -> None:
    compacted = await client.responses.compact(model="scripted", input="I am Ada.")
    assert compacted.output[-1].type == "compaction"


async def test_what_needs_tokens_is_refused_or_estimated(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        await client.completions.create(model="scripted", prompt="Once")
    assert (error.value.code, error.value.param) == ("conversations_only", "prompt")
    counted = await client.responses.input_tokens.count(model="scripted", input="x" * 40)
    assert counted.input_tokens == 10
    assert counted.to_dict()["estimated"] is True


@pytest.mark.parametrize("kind", ["chat", "anthropic"])
async def test_images_are_passed_on_where_they_stand(behind: Running, kind: str) -> None:
    """In messages, and after the result of a tool: all servers support the former, few the latter."""
    engine = UpstreamEngine(Options(behind.url, upstream_kind=kind))
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    red, wide = png(3, 2), png(56, 28)
    messages = [
        {"role": "user", "content": [*said("First", red), *said("then", wide)]},
        {"role": "assistant", "content": None, "tool_calls": [call, {**call, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c1", "content": said("found", wide)},
        {"role": "tool", "tool_call_id": "c2", "content": "nothing"},
        {"role": "user", "content": "So?"},
    ]
    async with (
        running(engine, dialect=None) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        [model] = (await http.get("/v1/models")).json()["data"]
        answered = await http.post("/v1/chat/completions", json={"model": "scripted", "messages": messages})
    assert "image" in model["input_modalities"]
    assert answered.status_code == 200, answered.text
    prompt = behind.engine.seen[-1].prompt
    assert [part.data for part in prompt.media] == [red, wide, wide]
    order = ["First", "<image>", "then", "<image>", "found", "nothing", "<image>", "So?"]
    places = [prompt.text.index(order[0])]
    for each in order[1:]:
        places.append(prompt.text.index(each, places[-1] + 1))


@pytest.mark.parametrize("kind", ["chat", "anthropic"])
async def test_results_are_passed_on_in_the_order_of_their_calls(behind: Running, kind: str) -> None:
    """Also if some are missing, or had their calls cut off, which most servers refuse."""
    engine = UpstreamEngine(Options(behind.url, upstream_kind=kind))
    calls = [
        {"id": f"call_{name}", "type": "function", "function": {"name": f"f_{name}", "arguments": "{}"}}
        for name in "abc"
    ]

    def result(name: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": f"call_{name}", "content": f"value-{name}"}

    messages = [
        *({"role": "user", "content": "First"}, result("x")),
        *({"role": "assistant", "content": None, "tool_calls": calls}, result("c"), result("a")),
        {"role": "user", "content": "So?"},
    ]
    async with (
        running(engine, dialect=None) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        answered = await http.post("/v1/chat/completions", json={"model": "scripted", "messages": messages})
    assert answered.status_code == 200, answered.text
    prompt = behind.engine.seen[-1].prompt.text
    order = ["First", "unnamed", "value-x", "f_a", "f_b", "f_c", "value-a", NO_RESULT, "value-c", "So?"]
    places = [prompt.find(each) for each in order]
    assert -1 not in places
    assert places == sorted(places)


def said(text: str, image: bytes) -> list[Any]:
    return [
        {"type": "text", "text": text},
        {"type": "image_url", "image_url": {"url": data_url(image)}},
    ]


async def test_when_to_try_again_reaches_the_client() -> None:
    head, _, body = answer(429, {"error": {"message": "Rate limit reached for org-secret"}}).partition(
        b"\r\n"
    )
    models = [answer(200, {"data": [{"id": "m", "owned_by": "deepseek"}]})]
    answers = {"/v1/models": models, "/v1/chat/completions": [head + b"\r\nRetry-After: 21\r\n" + body]}
    async with (
        canned(answers) as behind,
        running(UpstreamEngine(Options(behind.url)), dialect=None) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        response = await http.post("/v1/chat/completions", json=asked)
        again = await asyncio.gather(*(http.post("/v1/chat/completions", json=asked) for _ in range(3)))
    assert (response.status_code, response.headers["retry-after"]) == (429, "21")
    assert "secret" not in response.text
    assert {each.status_code for each in again} == {429}
