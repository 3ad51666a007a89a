"""Real clients, each in an environment of its own: they call a tool, read its result, and understand the answer.

Set ANTIPHON_TEST_CLIENTS=1 for these: they install clients from PyPI and npm.
"""

from pathlib import Path
from typing import Any

import pytest

from antiphon.apis.fields import ALIASES
from antiphon.apis.ollama import schema
from antiphon.core.limits import DEFAULTS
from antiphon.tools.mcp.open import open_mcp
from tests.acting import TakingTurns
from tests.clients.asking import KEY, real_clients, run
from tests.clients.environments import ENVIRONMENTS
from tests.server import running
from tests.tools.mcp_servers import serving

pytestmark = real_clients

CITY = '{"name": "Rome", "hills": 7}'
SCRIPT: list[dict[str, Any]] = [
    {"when": "sunny, 21", "output": "It is sunny in Rome, 21 degrees."},
    {
        "when": "weather in Rome",
        "output": "<think>\nI need it.\n</think>\n\nLet me look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    },
    {
        "when": '"name": "City"',
        "output": f'<tool_call>\n{{"name": "City", "arguments": {CITY}}}\n</tool_call>',
    },
    {
        "when": "Respond with a JSON object.",
        "output": f'<tool_call>\n{{"name": "json", "arguments": {CITY}}}\n</tool_call>',
    },
    {"when": "Describe Rome.", "output": CITY},
    {"when": "Quote it.", "output": "It has seven 【doc0†L1】."},
    {"when": "What is this?\n<image>", "output": "A red square."},
    {"when": "<image>\nWhat is this?", "output": "A red square."},  # Ollama puts images first
    {
        "when": "weather in San Francisco",
        "output": '<tool_call>{"name": "get_weather", "arguments": {"location": "San Francisco"}}</tool_call>',
    },
    {"when": "15 * 37", "output": "<think>\n15 * 37 = 555\n</think>\n\n555"},
    {"output": "Hello there, friend!"},
]
FULL = {
    "text": "It is sunny in Rome, 21 degrees.",
    "calls": [["get_weather", {"city": "Rome"}]],
    "streamed": False,
    "counted": True,
}
STREAMED = {**FULL, "streamed": True}
PARSED = {"parsed": {"name": "Rome", "hills": 7}}
STORED = {
    "text": "Hello there, friend!",
    "same": True,
    "input": [{"type": "input_text", "text": "Hi"}],
    "counted": True,
    "deleted": True,
}

LOOKED = {"text": "A red square."}
CITED = {"told": ["It has seven hills."], "kept": [["char_location", "It has seven hills."]]}
SEEN = {**LOOKED, "image_tokens": 1}

OTHERS = {
    "counted": True,
    "models": ["scripted"],
    "results": [["a", "Hello there, friend!"]],
    "listed": True,
    "left": [],
}

# Of each way one that offers HTTP/2, and one that does not.
JAVA = {"whole": FULL, "whole_1_1": FULL, "stream": STREAMED, "stream_1_1": STREAMED}

MANAGED = {"models": ["scripted"], "tools": True, "pulled": "success"}

# client, API or provider → the ways to ask, and what comes of each
WAYS: dict[tuple[str, str], dict[str, dict[str, Any]]] = {
    ("openai-python", "chat"): {"create": FULL, "stream": STREAMED, "parse": PARSED, "image": SEEN},
    ("openai-python", "responses"): {
        "create": FULL,
        "stream": STREAMED,
        "create_kept": FULL,
        "stream_kept": STREAMED,
        "background": STREAMED,
        "parse": PARSED,
        "stored": STORED,
        "image": SEEN,
    },
    ("openai-js", "chat"): {"create": FULL, "stream": STREAMED},
    ("openai-js", "responses"): {"create": FULL, "stream": STREAMED},
    ("openai-agents", "chat"): {"run": FULL, "run_streamed": STREAMED},
    ("openai-agents", "responses"): {"run": FULL, "run_streamed": STREAMED},
    ("langchain", "chat"): {"invoke": FULL, "stream": STREAMED, "structured": PARSED},
    ("langchain", "responses"): {"invoke": FULL, "stream": STREAMED, "structured": PARSED},
    ("instructor", "chat"): {"TOOLS": PARSED, "JSON_SCHEMA": PARSED},
    ("instructor", "responses"): {"RESPONSES_TOOLS": PARSED},
    ("anthropic-python", ""): {
        "create": FULL,
        "stream": STREAMED,
        "tool_runner": FULL,
        "parse": PARSED,
        "cite": CITED,
        "others": OTHERS,
        "image": SEEN,
    },
    # It uses the older version of the API.
    ("anthropic-python-0", ""): {
        "create": FULL,
        "stream": STREAMED,
        "tool_runner": FULL,
        "parse": PARSED,
        "cite": CITED,
        "others": OTHERS,
    },
    ("anthropic-js", ""): {
        "create": FULL,
        "stream": STREAMED,
        "tool_runner": FULL,
        "parse": PARSED,
        "cite": CITED,
        "others": OTHERS,
    },
    ("ollama-python", ""): {
        "chat": FULL,
        "stream": STREAMED,
        "schema": PARSED,
        "image": LOOKED,
        "others": {
            **MANAGED,
            "loaded": "load",
            "context": True,
            "vectors": [2, True],
            "refused": [404, 400, 400],
            "async": "Hello there, friend!",
        },
    },
    ("ollama-js", ""): {
        "chat": FULL,
        "stream": STREAMED,
        "schema": PARSED,
        "others": {
            **MANAGED,
            "running": ["scripted"],
            "vectors": 2,
            "version": "string",
            "text": "Hello there, friend!",
            "refused": 404,
        },
    },
    ("langchain-ollama", ""): {
        "invoke": FULL,
        "stream": STREAMED,
        "structured": PARSED,
        "vectors": {"vectors": 2, "same": True},
    },
    ("java-http", "chat"): JAVA,
    ("java-http", "responses"): JAVA,
    ("ai-sdk", "anthropic"): {"generate": FULL, "stream": STREAMED, "object": PARSED, "image": LOOKED},
    ("ai-sdk", "openai.chat"): {"generate": FULL, "stream": STREAMED, "object": PARSED, "image": LOOKED},
    ("ai-sdk", "openai-compatible"): {
        "generate": FULL,
        "stream": STREAMED,
        "object": PARSED,
        "image": LOOKED,
    },
    ("ai-sdk", "openai.responses"): {"generate": FULL, "stream": STREAMED, "object": PARSED, "image": LOOKED},
    ("ai-sdk", "open-responses"): {"generate": FULL, "stream": STREAMED, "object": PARSED, "image": LOOKED},
}


@pytest.mark.parametrize(
    ("client", "api", "way"), [(client, api, way) for (client, api), ways in WAYS.items() for way in ways]
)
async def test_a_client_understands_the_answer(client: str, api: str, way: str, tmp_path: Path) -> None:
    assert (
        await run(client, *filter(None, (api, way)), home=tmp_path, script=SCRIPT) == WAYS[client, api][way]
    )


async def test_every_parameter_that_ollama_knows_has_its_place(tmp_path: Path) -> None:
    """Each acts, is noted, or is refused: a newer package with another one fails here."""
    told = await run("ollama-python", "fields", home=tmp_path, script=SCRIPT)
    options = {*schema.ChatRequest.__struct_fields__, *ALIASES}
    kinds = {
        "ChatRequest": schema.ChatRequest,
        "GenerateRequest": schema.GenerateRequest,
        "EmbedRequest": schema.EmbedRequest,
        "EmbeddingsRequest": schema.EmbeddingsRequest,
        "Message": schema.RequestMessage,
        "ToolCall": schema.ToolCall,
    }
    for name, kind in kinds.items():
        assert {*told[name]} - {*kind.__struct_fields__, "options"} == set(), name
    assert {*told["Options"]} - options == set()


@pytest.mark.parametrize(
    ("api", "model"),
    [("openai-chat", "gpt-5"), ("open-responses", "gpt-5"), ("anthropic", "claude-sonnet-4-6")],
)
async def test_llm_comply_finds_no_fault(api: str, model: str, tmp_path: Path) -> None:
    # It skips what it checks of reasoning unless the model's name is one of those that it knows to reason.
    report = await run("llm-comply", api, home=tmp_path, script=SCRIPT, model=model)

    faults = {
        result["id"]: result["errors"][0] for result in report["results"] if result["status"] != "passed"
    }
    assert faults == {}
    assert [result for result in report["results"] if result.get("warnings")] == []


@pytest.mark.parametrize("way", ["whole", "streamed"])
@pytest.mark.parametrize("client", ["openai-agents", "ai-sdk"])
async def test_a_client_approves_a_call_of_an_mcp_server(client: str, way: str, tmp_path: Path) -> None:
    environment = ENVIRONMENTS[client]
    environment.ready()
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
    mcp = open_mcp((), ("127.0.0.1",), DEFAULTS, str)
    await mcp.start()
    async with (
        serving() as sums,
        running(TakingTurns(call, "It is 5.", name="scripted"), tools=[mcp], api_key=[KEY]) as server,
    ):
        program = f"{client.replace('-', '_')}_mcp"
        fact = await environment.run(
            program, f"{server.url}/v1", "scripted", sums.url, way, key=KEY, home=tmp_path
        )

    assert fact == {"text": "It is 5.", "asked": [["sums", "add", {"a": 2, "b": 3}]], "ran": ["5"]}
    assert sums.told.calls == ["add"]
