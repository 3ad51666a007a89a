"""What the compliance suites of Open Responses check over HTTP; what they check on sockets is in test_socket.py."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.http.api import Api, ask, client, items_of, prompt_of, text_of, user
from tests.openai_schema import OPEN_RESPONSES, validate_event
from tests.response_invariants import check
from tests.server import Running, running

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "San Francisco, CA"}}\n</tool_call>'
SCRIPT: list[Any] = [
    {"when": "Our conversation is getting long", "output": "They said hello."},
    {"when": "64 degrees", "output": "It is 64 degrees and clear."},
    {"when": "weather like", "output": CALL},
    {"when": "Count from 1 to 5", "output": "<think>\nEasy.\n</think>\n\n1, 2, 3, 4, 5"},
    {"output": "Hello there, friend!"},
]
WEATHER = "What's the weather like in San Francisco?"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string", "description": "The city and state"}},
        "required": ["location"],
    },
}
PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


async def answered(api: Api, given: Any, **fields: Any) -> Any:
    """The response, which is the same streamed and not."""
    response, streamed = await api.create(given, **fields), await api.streamed(given, **fields)
    assert response["status"] == streamed["status"] == "completed"
    assert text_of(response) == text_of(streamed)
    return response


async def test_basic_response(api: Api) -> None:
    assert (await answered(api, [user("Say hello in exactly 3 words.")]))["output"]


@pytest.mark.parametrize("phase", ["commentary", "final_answer", None])
async def test_assistant_phase(api: Api, server: Running, phase: str | None) -> None:
    before = {"type": "message", "role": "assistant", "content": "Let me see.", "phase": phase}
    await answered(api, [user("Hi"), before, user("Go on.")])
    assert "Let me see." in prompt_of(server)


@pytest.mark.parametrize("events", ["openai", "open-responses"])
async def test_streaming_response(events: str) -> None:
    async with running(SCRIPT, reasoning_events=events) as server, client(server) as api:
        payloads = await api.stream([user("Count from 1 to 5.")])
        final = check(payloads)
        assert text_of(final) == "1, 2, 3, 4, 5"
        assert final["usage"]["output_tokens"] > 0
        types = [json.loads(payload)["type"] for payload in payloads]
        assert types[:2] == ["response.created", "response.in_progress"]
        name = "response.reasoning_text.delta" if events == "openai" else "response.reasoning.delta"
        assert name in types
        if events == "open-responses":  # every event is one that its suite knows
            assert [validate_event(payload, OPEN_RESPONSES) for payload in payloads] == types


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_system_prompt(api: Api, server: Running, role: str) -> None:
    pirate = {"type": "message", "role": role, "content": "You are a pirate."}
    await answered(api, [pirate, user("Say hello.")])
    assert prompt_of(server).startswith("<|im_start|>system\nYou are a pirate.")


async def test_tool_calling(api: Api) -> None:
    [call] = (await answered(api, [user(WEATHER)], tools=[TOOL]))["output"]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert json.loads(call["arguments"]) == {"location": "San Francisco, CA"}


async def test_tool_calling_streaming(api: Api) -> None:
    events = [json.loads(payload) for payload in await api.stream([user(WEATHER)], tools=[TOOL])]
    types = [event["type"] for event in events if "function_call" in json.dumps(event.get("item", event))]
    assert types[0] == "response.output_item.added"
    assert "response.function_call_arguments.delta" in types
    assert types[-3:-1] == ["response.function_call_arguments.done", "response.output_item.done"]


async def test_function_call_round_trip(api: Api) -> None:
    choice = {"type": "function", "name": "get_weather"}
    first = await api.create([user(WEATHER)], tools=[TOOL], tool_choice=choice)
    [call] = items_of(first, "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "64 degrees and clear"}

    kept = await answered(api, [result], tools=[TOOL], previous_response_id=first["id"])
    sent = await answered(api, [user(WEATHER), *first["output"], result], tools=[TOOL], store=False)

    assert text_of(kept) == text_of(sent) == "It is 64 degrees and clear."


async def test_image_input(api: Api, server: Running) -> None:
    parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PNG}]
    await answered(api, [user("Hi"), {**user(""), "content": parts}])
    assert [part.kind for part in server.engine.seen[-1].prompt.media] == ["image"]
    assert "What is it?\n<image><|im_end|>" in prompt_of(server)


async def test_multi_turn(api: Api, server: Running) -> None:
    said = {"type": "message", "role": "assistant", "content": "Hello Alice!"}
    await answered(api, [user("My name is Alice."), said, user("What is my name?")])
    assert "<|im_start|>assistant\nHello Alice!<|im_end|>" in prompt_of(server)


async def test_compact_response(api: Api) -> None:
    said = {"type": "message", "role": "assistant", "content": "Hello Alice!"}
    short = await api.post("/responses/compact", ask([user("My name is Alice."), said]))
    assert short["object"] == "response.compaction"
    assert [item["type"] for item in short["output"]] == ["message", "compaction"]
    assert "Hello Alice" not in json.dumps(short)
    assert (await answered(api, [*short["output"], user("Who am I?")]))["output"]


async def test_compact_missing_model(api: Api) -> None:
    error = (await api.post("/responses/compact", {"input": "x"}, 400))["error"]
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")


async def test_previous_response_id(api: Api, server: Running) -> None:
    first = await api.create([user("My name is Alice.")])
    second = await answered(api, "What is my name?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert "My name is Alice." in prompt_of(server)


@pytest.mark.parametrize("head", ["", "data:text/plain;base64,"])
async def test_file_input(api: Api, server: Running, head: str) -> None:
    data = head + base64.b64encode("Überraschung: 42".encode()).decode()
    part = {"type": "input_file", "filename": "notes.txt", "file_data": data}
    await answered(api, [{**user(""), "content": [part, {"type": "input_text", "text": "Sum it up."}]}])
    assert "notes.txt:\nÜberraschung: 42" in prompt_of(server)


@pytest.mark.parametrize(
    ("part", "status"),
    [
        ({"filename": "a.pdf", "file_data": base64.b64encode(b"%PDF-1.7\n\xff\xfe\0").decode()}, 400),
        ({"filename": "a.txt", "file_data": "no base64!"}, 400),
        ({"file_id": "file_1"}, 404),
        ({"file_url": "https://example.com/a.txt"}, 400),
    ],
)
async def test_files_that_cannot_be_read(api: Api, part: dict[str, Any], status: int) -> None:
    content = [{"type": "input_file", **part}]
    error = await api.refused([{**user(""), "content": content}], status)
    assert error["param"] == "input[0].content[0]"


async def test_reasoning_summary(api: Api) -> None:
    response = await answered(api, "Count from 1 to 5.", reasoning={"effort": "low", "summary": "auto"})
    [thought] = items_of(response, "reasoning")
    assert thought["summary"] == [{"type": "summary_text", "text": "Easy."}]
    assert response["reasoning"] == {"effort": "low", "summary": "auto"}
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


async def test_error_handling(api: Api) -> None:
    error = (await api.post("/responses", {"input": "x"}, 400))["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "model")
