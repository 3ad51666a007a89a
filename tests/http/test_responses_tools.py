"""Tools over HTTP: functions, custom tools, namespaces, and what a coding agent sends."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tests.http.api import Api, ask, check_stream, client, items_of, prompt_of, text_of, user
from tests.response_invariants import read_sse
from tests.server import Running, running

END = "<|im_end|>\n<|im_start|>assistant\n"


def called(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


PATCH = '*** Begin Patch\n+ "é" \\ \n*** End Patch'
SCRIPT: list[Mapping[str, Any]] = [
    {"when": f"22 degrees\n</tool_response>{END}<think>", "output": "Warm.\n</think>\n\nIt is warm."},
    {"when": "22 degrees", "output": "It is warm."},
    {"when": f"patch{END}", "output": called("apply_patch", json.dumps({"input": PATCH}))},
    {"when": f"odd{END}", "output": called("apply_patch", '{"file": "a"}')},
    {"when": f"query{END}", "output": called("db__query", '{"sql": "SELECT 1"}')},
    {"when": f"without{END}", "output": called("query", '{"sql": "SELECT 1"}')},
    {"when": f"bare{END}", "output": called("raw", '{"input": "VACUUM"}')},
    {"when": f"raw{END}", "output": called("db__raw", '{"input": "VACUUM"}')},
    {"when": f"two{END}", "output": called("f", '{"a": 1}') + "\n" + called("f", '{"a": 2}')},
    {"when": f"empty{END}", "output": called("f", "{}")},
    {"when": f"made up{END}", "output": called("nobody", '{"a": 1}')},
    {"when": f"cut{END}", "output": called("f", '{"a": "one two three four five six seven"}')},
    {"when": f"broken{END}", "output": called("f", '{"a": one}') + "\nSorry."},
    {"when": f"unclosed{END}", "output": '<tool_call>\n{"name": "f", "arguments": {"a": 1'},
    {"when": f"nothing{END}", "output": 'I call.\n<tool_call>\n{"name": "f", "arg'},
    {"output": "Hello there!"},
]
FUNCTION = {"type": "function", "name": "f", "description": "A function.", "parameters": {"type": "object"}}
CUSTOM = {"type": "custom", "name": "apply_patch", "description": "Applies a patch."}
REGEX = {"type": "grammar", "syntax": "regex", "definition": r"\d+"}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
NAMESPACE = {
    "type": "namespace",
    "name": "db",
    "description": "A database.",
    "tools": [
        {"type": "function", "name": "query", "parameters": {"type": "object"}},
        {"type": "custom", "name": "raw", "format": {"type": "text"}},
    ],
}
HOSTED = [
    {"type": "web_search"},
    {"type": "image_generation"},
]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


async def output_of(api: Api, given: Any, **fields: Any) -> list[Any]:
    """The output, which is the same streamed and not but for its ids."""
    whole, streamed = await api.create(given, **fields), await api.streamed(given, **fields)
    for response in (whole, streamed):
        for item in response["output"]:
            del item["id"]
            item.pop("call_id", None)
    assert whole["output"] == streamed["output"]
    assert whole["tools"] == streamed["tools"]
    output: list[Any] = whole["output"]
    return output


@pytest.mark.parametrize("form", [None, {"type": "text"}, LARK])
async def test_custom_tools_get_text_as_it_is(api: Api, server: Running, form: Any) -> None:
    tool = CUSTOM if form is None else CUSTOM | {"format": form}
    [call] = await output_of(api, "patch", tools=[tool])
    assert call == {
        "type": "custom_tool_call",
        "status": "completed",
        "name": "apply_patch",
        "input": PATCH,
    }
    if form is LARK:
        assert "start: /.+/" in prompt_of(server)
    [odd] = await output_of(api, "odd", tools=[tool])
    assert odd["input"] == '{"file": "a"}'


async def test_a_custom_tool_with_a_regular_expression(api: Api) -> None:
    tool = CUSTOM | {"format": REGEX}
    body = await api.create("patch", tools=[tool])
    assert body["tools"] == [tool]
    # The engine cannot be held to it: the answer says so, and is what the model wrote.
    assert items_of(body, "custom_tool_call")[0]["input"] == PATCH
    assert any("apply_patch" in unmet for unmet in body["unmet"])


async def test_a_custom_tool_and_its_result(api: Api, server: Running) -> None:
    first = await api.create("patch", tools=[CUSTOM])
    [call] = items_of(first, "custom_tool_call")
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "22 degrees"}
    kept = await api.create([result], tools=[CUSTOM], previous_response_id=first["id"])
    sent = await api.create([user("patch"), *first["output"], result], tools=[CUSTOM], store=False)
    assert text_of(kept) == text_of(sent) == "It is warm."
    assert json.dumps({"input": PATCH}, ensure_ascii=False)[1:-1] in prompt_of(server)


async def test_tools_of_a_namespace(api: Api, server: Running) -> None:
    [query] = await output_of(api, "query", tools=[NAMESPACE])
    assert (query["type"], query["namespace"], query["name"]) == ("function_call", "db", "query")
    [raw] = await output_of(api, "raw", tools=[NAMESPACE])
    assert (raw["type"], raw["namespace"], raw["name"], raw["input"]) == (
        *("custom_tool_call", "db", "raw"),
        "VACUUM",
    )
    assert '"db__query"' in prompt_of(server)

    first = await api.create("query", tools=[NAMESPACE])
    [call] = items_of(first, "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "22 degrees"}
    second = await api.create([result], tools=[NAMESPACE], previous_response_id=first["id"])
    assert text_of(second) == "It is warm."
    assert '{"name": "db__query"' in prompt_of(server)


async def test_tools_that_clients_always_send_are_told_back_and_not_offered(
    api: Api, server: Running
) -> None:
    with capture_logs() as logs:
        body = await api.create("Hi", tools=[*HOSTED, FUNCTION])
    [noted] = [log["notes"] for log in logs if log["event"] == "parts of a request have no effect"]
    assert noted == [note["message"] for note in body["notes"]]
    assert [note["param"] for note in body["notes"]] == [
        f"tools[{index}].type" for index in range(len(HOSTED))
    ]
    assert body["tools"] == [*HOSTED, {**FUNCTION, "strict": None}]
    prompt = prompt_of(server)
    assert "web_search" not in prompt
    assert '"name": "f"' in prompt
    assert (await api.create("Hi", tools=HOSTED))["status"] == "completed"


async def test_tools_that_the_server_does_not_run_are_refused_by_their_type(api: Api) -> None:
    mcp = {"type": "mcp", "server_label": "s", "server_url": "https://example.com"}
    for background in (False, True):
        error = await api.refused("Hi", tools=[FUNCTION, mcp], background=background)
        assert error["param"] == "tools[1].type"


@pytest.mark.parametrize("parallel", [True, False, None])
async def test_parallel_calls(api: Api, parallel: bool | None) -> None:
    calls = await output_of(api, "two", tools=[FUNCTION], parallel_tool_calls=parallel)
    expected = ['{"a": 1}', '{"a": 2}']
    assert [call["arguments"] for call in calls] == expected[: 1 if parallel is False else 2]


@pytest.mark.parametrize("most", [1, 5, None])
async def test_the_limit_of_tool_calls_is_told_back(api: Api, most: int | None) -> None:
    # It bounds tools that run on the server, of which there are none; those of the client are its own.
    body = await api.create("two", tools=[FUNCTION], max_tool_calls=most)
    assert body["max_tool_calls"] == most
    assert len(items_of(body, "function_call")) == 2


async def test_choices(api: Api, server: Running) -> None:
    other = {**FUNCTION, "name": "g"}
    for choice, calls in (
        ("auto", 2),
        ("none", 0),
        ("required", 2),
        ({"type": "function", "name": "f"}, 1),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}, 0),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}, 2),
    ):
        body = await api.create("two", tools=[FUNCTION, other], tool_choice=choice)
        assert body["tool_choice"] == choice
        assert len(items_of(body, "function_call")) == calls, choice
        assert ("<tool_call>" in json.dumps(body)) == (choice == "none")  # there it is text
        assert "<tools>" in prompt_of(server)


async def test_a_call_without_arguments(api: Api) -> None:
    [call] = await output_of(api, "empty", tools=[FUNCTION])
    assert call["arguments"] == "{}"


async def test_a_tool_that_the_model_made_up(api: Api) -> None:
    [call] = await output_of(api, "made up", tools=[FUNCTION])
    assert (call["type"], call["name"]) == ("function_call", "nobody")


async def test_a_call_that_is_cut(api: Api) -> None:
    for response in (
        await api.create("cut", tools=[FUNCTION], max_output_tokens=24),
        await api.streamed("cut", tools=[FUNCTION], max_output_tokens=24),
    ):
        assert response["status"] == "incomplete"
        [call] = response["output"]
        assert call["status"] == "incomplete"
        assert '{"a": "one two three four five six seven"}'.startswith(call["arguments"])


@pytest.mark.parametrize(("said", "arguments"), [("broken", '{"a": one}}\n'), ("unclosed", '{"a": 1')])
async def test_a_call_that_the_model_broke(api: Api, said: str, arguments: str) -> None:
    call, *_ = await output_of(api, said, tools=[FUNCTION])
    assert (call["status"], call["arguments"]) == ("incomplete", arguments)

    for background in (False, True):
        stored = await api.create(said, tools=[FUNCTION], background=background)
        async with asyncio.timeout(10):
            while (body := await api.get(f"/responses/{stored['id']}"))["status"] != "completed":
                await asyncio.sleep(0.01)
        assert body["output"][0]["status"] == "incomplete"
        output = {"type": "function_call_output", "call_id": body["output"][0]["call_id"], "output": "No."}
        again = await api.create([output], tools=[FUNCTION], previous_response_id=body["id"])
        assert again["status"] == "completed"


async def test_a_call_without_any_argument_is_text_if_it_is_broken_and_nothing_if_it_is_cut(api: Api) -> None:
    [message] = await output_of(api, "nothing", tools=[FUNCTION])
    assert message["content"][0]["text"] == 'I call.\n<tool_call>\n{"name": "f", "arg'

    tokens = (await api.create("nothing", tools=[FUNCTION]))["usage"]["output_tokens"]
    [message] = await output_of(api, "nothing", tools=[FUNCTION], max_output_tokens=tokens - 1)
    assert (message["content"][0]["text"], message["status"]) == ("I call.", "incomplete")


# What a coding agent sends


def coding_agent() -> dict[str, Any]:
    """A request as Codex makes it."""
    environment = "<environment_context>\n<cwd>/tmp</cwd>\n</environment_context>"
    tools = [
        {
            "type": "function",
            "name": "exec_command",
            "description": "Runs a command.",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {"cmd": {"type": "string"}, "yield_time_ms": {"type": "number"}},
                "required": ["cmd"],
                "additionalProperties": False,
            },
        },
        CUSTOM | {"format": LARK},
        NAMESPACE,
        {"type": "web_search", "external_web_access": False},
        {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {}},
    ]
    return {
        "model": "scripted",
        "instructions": "You are a coding agent.",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "id": "msg_made_by_the_client",
                "content": [{"type": "input_text", "text": "<permissions instructions>…"}],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": environment}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "patch"}]},
        ],
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "service_tier": "priority",
        "prompt_cache_key": "0199-session",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "1"},
    }


async def test_what_a_coding_agent_sends(api: Api, server: Running) -> None:
    body = coding_agent()
    first = await api.http.post("/responses", json=body)
    assert first.status_code == 200, first.text
    response = check_stream(read_sse(first.content))
    [call] = items_of(response, "custom_tool_call")
    assert call["input"] == PATCH

    # It sends everything again, with the output, and the result.
    result = {
        "type": "custom_tool_call_output",
        "call_id": call["call_id"],
        "output": "22 degrees",
        "id": "x",
    }
    body["input"] += [*response["output"], result]
    second = await api.http.post("/responses", json=body)
    assert second.status_code == 200, second.text
    last = check_stream(read_sse(second.content))
    assert text_of(last) == "It is warm."
    [thought] = items_of(last, "reasoning")
    assert thought["summary"] == [{"type": "summary_text", "text": "Warm."}]
    assert thought["encrypted_content"]
    await api.get(f"/responses/{response['id']}", 404)


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "ebnf"}}, "format.syntax"),
        ({"type": "custom", "name": "c", "format": {"type": "json"}}, "format.type"),
        ({"type": "custom"}, "name"),
        ({"type": "namespace", "name": "n", "tools": [{"type": "web_search", "name": "x"}]}, "tools[0].type"),
        ({"type": "namespace", "tools": []}, "name"),
        ({"name": "f"}, "type"),
        ({**FUNCTION, "parameters": "{}"}, "parameters"),
        ({**FUNCTION, "strict": "yes"}, "strict"),
        ({**FUNCTION, "strict": True, "parameters": {"type": "string"}}, "parameters"),
        ({**CUSTOM, "format": {**REGEX, "definition": "("}}, "format"),
    ],
)
async def test_tools_that_make_no_sense(api: Api, tool: Any, param: str) -> None:
    error = await api.refused("Hi", tools=[{"type": "function", "name": "first"}, tool])
    assert error["param"] == f"tools[1].{param}"


async def test_measuring_counts_tools(api: Api) -> None:
    without = await api.post("/responses/input_tokens", ask("Hi"))
    counted = await api.post("/responses/input_tokens", ask("Hi", tools=[FUNCTION, CUSTOM, NAMESPACE]))
    assert counted["input_tokens"] > without["input_tokens"]
    body = await api.create("Hi", tools=[FUNCTION, CUSTOM, NAMESPACE])
    assert body["usage"]["input_tokens"] == counted["input_tokens"]


@pytest.mark.parametrize("choice", ["auto", {"type": "function", "namespace": "db", "name": "query"}])
async def test_a_call_without_its_namespace_finds_it(api: Api, choice: Any) -> None:
    (call,) = await output_of(api, "without", tools=[NAMESPACE, FUNCTION], tool_choice=choice)

    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "db", "query")


async def test_a_custom_call_without_its_namespace_finds_it(api: Api) -> None:
    (call,) = await output_of(api, "bare", tools=[NAMESPACE])

    assert (call["namespace"], call["name"], call["input"]) == ("db", "raw", "VACUUM")


async def test_of_two_namespaces_none_is_chosen(api: Api) -> None:
    other = {**NAMESPACE, "name": "archive"}
    (call,) = await output_of(api, "without", tools=[NAMESPACE, other])

    assert call["name"] == "query"
    assert "namespace" not in call
