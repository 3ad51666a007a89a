"""Real clients, each in an environment of its own: they call a tool, read its result, and understand the answer.

Set ANTIPHON_TEST_CLIENTS=1 for these: they install clients from PyPI and npm.
"""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon.apis.fields import ALIASES
from antiphon.apis.ollama import schema
from antiphon.core.limits import DEFAULTS
from antiphon.engines.engine import Engine
from antiphon.engines.llama_cpp import LlamaCppEngine, Options
from antiphon.engines.models import resolve
from antiphon.engines.scripted import ScriptedEngine
from antiphon.launch import AGENTS
from antiphon.run.models import Models
from antiphon.tools.mcp.open import open_mcp
from tests.acting import TakingTurns
from tests.clients.environments import ENVIRONMENTS, INSTALL_SECONDS, RUN_SECONDS
from tests.render.templates import CHATML
from tests.server import running, served_model
from tests.tools.mcp_servers import serving

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("ANTIPHON_TEST_CLIENTS") != "1",
        reason="installs clients: set ANTIPHON_TEST_CLIENTS=1",
    ),
    pytest.mark.timeout(INSTALL_SECONDS + RUN_SECONDS),
]

KEY = "secret"
LARGE = 200_000
"""The context that Claude Code needs: its own prompt has more than 20,000 tokens."""
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
CODEX: list[dict[str, Any]] = [
    # The answer of the first run, sent again by the second.
    {"when": "It ran.<|im_end|>\n<|im_start|>user\nWhat ran?", "output": "It was echo."},
    {"when": "Process exited with code 0", "output": "It ran."},
    {
        "when": "Run it.",
        "output": "<think>\nA shell.\n</think>\n\nI run it.\n"
        '<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "echo tool-ran-42"}}\n</tool_call>',
    },
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


async def run(
    client: str, *arguments: str, home: Path, script: list[dict[str, Any]] = SCRIPT, model: str = "scripted"
) -> Any:
    """What the client's program prints, asked of a server that plays `script`."""
    return await ask(
        client, *arguments, home=home, engine=ScriptedEngine(script, name=model, context=LARGE), model=model
    )


async def ask(
    client: str, *arguments: str, home: Path, engine: list[Any] | Engine, model: str, **options: Any
) -> Any:
    """What the client's program prints, asked of a server with this engine."""
    environment = ENVIRONMENTS[client]
    environment.ready()
    async with running(engine, api_key=[KEY], **options) as server:
        program = client.removesuffix("-0").replace("-", "_")  # an older version runs the same program
        return await environment.run(program, f"{server.url}/v1", model, *arguments, key=KEY, home=home)


@pytest.mark.parametrize(
    ("client", "api", "way"), [(client, api, way) for (client, api), ways in WAYS.items() for way in ways]
)
async def test_a_client_understands_the_answer(client: str, api: str, way: str, tmp_path: Path) -> None:
    assert await run(client, *filter(None, (api, way)), home=tmp_path) == WAYS[client, api][way]


async def test_every_parameter_that_ollama_knows_has_its_place(tmp_path: Path) -> None:
    """Each acts, is noted, or is refused: a newer package with another one fails here."""
    told = await run("ollama-python", "fields", home=tmp_path)
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
    report = await run("llm-comply", api, home=tmp_path, model=model)

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


async def test_codex_runs_a_command_and_resumes(tmp_path: Path) -> None:
    first, second = await run("codex", home=tmp_path, script=CODEX)

    assert first == {"ran": [[0, "tool-ran-42\n"]], "said": ["I run it.", "It ran."], "counted": True}
    assert second == {"ran": [], "said": ["It was echo."], "counted": True}


def called(name: str, **arguments: str) -> str:
    """A call, after a thought that the prompt has begun."""
    return (
        f"Step.\n</think>\n\nI use {name}.\n"
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    )


async def test_claude_code_runs_a_command_and_edits_a_file(tmp_path: Path) -> None:
    file = str(tmp_path / "made.txt")
    script: list[dict[str, Any]] = [
        {"when": "What ran?", "output": "Easy.\n</think>\n\nIt was echo."},
        {"when": "made.txt has been updated", "output": "</think>\n\nIt ran."},
        {
            "when": "File created",
            "output": called("Edit", file_path=file, old_string="one", new_string="two"),
        },
        {"when": "tool-ran-42\n</tool_response>", "output": called("Write", file_path=file, content="one")},
        {"when": "Run it.", "output": called("Bash", command="echo tool-ran-42")},
    ]

    first, second, text = await run("claude-code", file, home=tmp_path, script=script, model="claude-x")

    tools = ["Bash", "Write", "Edit"]
    assert first == {
        "thought": ["Step."] * 3,
        "used": tools,
        "said": [*(f"I use {name}." for name in tools), "It ran."],
        "result": "It ran.",
    }
    assert second == {"thought": ["Easy."], "used": [], "said": ["It was echo."], "result": "It was echo."}
    assert text == "two"


async def test_claude_code_talks_with_a_real_model(tmp_path: Path) -> None:
    # Several threads would wait for each other on a busy machine. So small a model often finds no end: Claude
    # Code sets no limit of its own, so the end (token 2) is made likely.
    engine = LlamaCppEngine(resolve(None), Options(context=4096, parallel=1, threads=1))
    sampling = {"temperature": 0, "logit_bias": {2: 3.0}}
    served = served_model(engine, model_name=("claude-*",), sampling=sampling)
    first, second = await ask(
        "claude-code", home=tmp_path, engine=[], model="claude-haiku-4-5", models=Models([served])
    )

    for answer in (first, second):
        assert len(re.findall(r"[A-Za-z]+", answer["result"])) >= 2, answer
        assert (answer["said"], answer["used"]) == ([answer["result"]], [])
    assert second["usage"]["cache_read_input_tokens"] > 50  # what changes in its prompts is left out


# Agents as `antiphon launch` starts them: agent → its environment, what it is given, its tool for commands.
LAUNCHED: dict[str, tuple[str, list[str], str, dict[str, Any]]] = {
    "codex": (
        "codex",
        ["exec", "--skip-git-repo-check", "-s", "danger-full-access"],
        "exec_command",
        {"cmd": "echo tool-ran-$((40+2))"},
    ),
    "claude": (
        "claude-code",
        ["--allowedTools=Bash", "-p"],
        "Bash",
        {"command": "echo tool-ran-$((40+2))", "description": "Run it"},
    ),
    "opencode": (
        "opencode",
        ["run"],
        "bash",
        {"command": "echo tool-ran-$((40+2))", "description": "Run it"},
    ),
    "pi": ("pi", ["-p"], "bash", {"command": "echo tool-ran-$((40+2))"}),
    "qwen": (
        "qwen",
        ["--yolo", "-p"],
        "run_shell_command",
        {"command": "echo tool-ran-$((40+2))", "is_background": False},
    ),
}


def test_every_agent_is_launched() -> None:
    assert LAUNCHED.keys() == AGENTS.keys()


@pytest.mark.parametrize("agent", LAUNCHED)
async def test_an_agent_that_is_launched_runs_a_command(agent: str, tmp_path: Path) -> None:
    name, arguments, tool, call = LAUNCHED[agent]
    environment = ENVIRONMENTS[name]
    environment.ready()
    written = json.dumps({"name": tool, "arguments": call})
    script = [
        {"when": "tool-ran-42", "output": "It has run."},
        {"when": f'"name": "{tool}"', "output": f"<tool_call>\n{written}\n</tool_call>"},
        {"output": "A title."},
    ]
    model = served_model(ScriptedEngine(script, name="m", context=LARGE), dialect="hermes", template=CHATML)
    async with running([], models=Models([model]), api_key=[KEY]) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antiphon", "launch", agent),
            *("--url", f"{server.url}/v1", "--api-key", KEY, *arguments, "Run it."),
            env={
                "PATH": f"{environment.folder / 'node_modules' / '.bin'}:{os.environ['PATH']}",
                "HOME": str(tmp_path),
            },
            cwd=tmp_path,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, error = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
    assert process.returncode == 0, error.decode()
    assert "It has run." in out.decode()
