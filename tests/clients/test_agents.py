"""Coding agents: Claude Code, and each agent as `antiphon launch` starts it.

Set ANTIPHON_TEST_CLIENTS=1 for these: they install clients from npm.
"""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import antiphon
from antiphon.engines.llama_cpp import LlamaCppEngine, Options
from antiphon.engines.models import resolve
from antiphon.launch import AGENTS
from antiphon.run.models import Models
from tests.acting import TakingTurns, hermes_turns
from tests.clients.asking import KEY, LARGE, ask, called, real_clients, run
from tests.clients.environments import ENVIRONMENTS, RUN_SECONDS
from tests.clients.recorder import Recorder
from tests.render.templates import CHATML
from tests.server import running, served_model
from tests.tools.mcp_servers import serving

pytestmark = real_clients


def thought(name: str, **arguments: str) -> str:
    """A call, after a thought that the prompt has begun."""
    return f"Step.\n</think>\n\nI use {name}.\n{called(name, arguments)}"


async def test_claude_code_runs_a_command_and_edits_a_file(tmp_path: Path) -> None:
    file = str(tmp_path / "made.txt")
    script: list[dict[str, Any]] = [
        {"when": "What ran?", "output": "Easy.\n</think>\n\nIt was echo."},
        {"when": "made.txt has been updated", "output": "</think>\n\nIt ran."},
        {
            "when": "File created",
            "output": thought("Edit", file_path=file, old_string="one", new_string="two"),
        },
        {"when": "tool-ran-42\n</tool_response>", "output": thought("Write", file_path=file, content="one")},
        {"when": "Run it.", "output": thought("Bash", command="echo tool-ran-42")},
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


class Launched(Struct, frozen=True):
    """An agent as `antiphon launch` starts it.

    Its task is to run a command, to write a file, and to change it: `calls` are of its tools. `{file}` in them
    stands for the file's path. `path` is where it asks.
    """

    environment: str
    arguments: list[str]
    path: str
    calls: list[tuple[str, dict[str, Any]]]


SOURCE = Path(antiphon.__file__).parents[1]
RUN = "echo tool-ran-$((40+2))"
CHAT = "/v1/chat/completions"
PATCH = "*** Begin Patch\n*** {} File: made.txt\n{}\n*** End Patch\n"
LAUNCHED: dict[str, Launched] = {
    "codex": Launched(
        "codex",
        ["exec", "--skip-git-repo-check", "-s", "danger-full-access"],
        "/v1/responses",
        [
            ("exec_command", {"cmd": RUN}),
            ("apply_patch", {"input": PATCH.format("Add", "+one")}),
            ("apply_patch", {"input": PATCH.format("Update", "@@\n-one\n+two")}),
        ],
    ),
    "claude": Launched(
        "claude-code",
        ["--allowedTools=Bash,Write,Edit", "-p"],
        "/v1/messages",
        [
            ("Bash", {"command": RUN, "description": "Run it"}),
            ("Write", {"file_path": "{file}", "content": "one\n"}),
            ("Edit", {"file_path": "{file}", "old_string": "one", "new_string": "two"}),
        ],
    ),
    "opencode": Launched(
        "opencode",
        ["run"],
        CHAT,
        [
            ("bash", {"command": RUN, "description": "Run it"}),
            ("write", {"filePath": "{file}", "content": "one\n"}),
            ("edit", {"filePath": "{file}", "oldString": "one", "newString": "two"}),
        ],
    ),
    "pi": Launched(
        "pi",
        ["-p"],
        CHAT,
        [
            ("bash", {"command": RUN}),
            ("write", {"path": "{file}", "content": "one\n"}),
            ("edit", {"path": "{file}", "edits": [{"oldText": "one", "newText": "two"}]}),
        ],
    ),
    "qwen": Launched(
        "qwen",
        ["--yolo", "-p"],
        CHAT,
        [
            ("run_shell_command", {"command": RUN, "is_background": False}),
            ("write_file", {"file_path": "{file}", "content": "one\n"}),
            ("edit", {"file_path": "{file}", "old_string": "one", "new_string": "two"}),
        ],
    ),
}


class Working(TakingTurns):
    """Does the next step where the agent offers `tool`; other requests, such as those for a title, get the last."""

    def __init__(self, tool: str, *answers: str, **options: Any) -> None:
        super().__init__(*answers, turns=self.step, **options)
        self.tool = tool

    def step(self, prompt: str) -> int:
        last = len(self.answers) - 1
        return min(hermes_turns(prompt), last) if f'"name": "{self.tool}"' in prompt else last


def test_every_agent_is_launched() -> None:
    assert LAUNCHED.keys() == AGENTS.keys()


@pytest.mark.parametrize("name", LAUNCHED)
async def test_an_agent_that_is_launched_does_a_task(name: str, tmp_path: Path) -> None:
    agent, made, recorder = LAUNCHED[name], tmp_path / "made.txt", Recorder()
    ENVIRONMENTS[agent.environment].ready()
    calls = [
        (tool, json.loads(json.dumps(arguments).replace("{file}", str(made))))
        for tool, arguments in agent.calls
    ]
    engine = Working(calls[0][0], *(called(*call) for call in calls), "It has run.", name="m", context=LARGE)
    model = served_model(engine, dialect="hermes", template=CHATML)
    async with running([], models=Models([model]), api_key=[KEY], before=recorder.before) as server:
        code, out, error = await launched(name, server.url, [*agent.arguments, "Run it."], tmp_path)

    assert code == 0, error
    assert "It has run." in out
    assert made.read_text() == "two\n"
    asked = [request for request in recorder.asked(agent.path) if request.get("tools")]
    assert len(asked) >= len(calls) + 1
    # The result is told as one: the command itself has no such word.
    assert "tool-ran-42" in json.dumps(asked[-1])
    assert {seen.status for seen in recorder.of(agent.path)} == {200}


async def test_claude_code_finds_a_tool(tmp_path: Path) -> None:
    recorder = Recorder()
    engine = TakingTurns(
        called("ToolSearch", {"query": "select:mcp__sums__add", "max_results": 1}),
        called("mcp__sums__add", {"a": 2, "b": 3}),
        "It is 5.",
        name="m",
        context=LARGE,
    )
    ENVIRONMENTS["claude-code"].ready()
    model = served_model(engine, dialect="hermes", template=CHATML)
    async with (
        serving() as sums,
        running([], models=Models([model]), api_key=[KEY], before=recorder.before) as server,
    ):
        config = json.dumps({"mcpServers": {"sums": {"type": "http", "url": sums.url}}})
        asked = ["--mcp-config", config, "--allowedTools=mcp__sums__add", "-p", "2 + 3?"]
        code, out, error = await launched("claude", server.url, asked, tmp_path)

    assert (code, out.strip()) == (0, "It is 5."), error
    assert sums.told.calls == ["add"]
    first, second, _ = recorder.asked("/v1/messages")
    assert not any(tool["name"].startswith("mcp__") for tool in first["tools"])
    [result, *_] = second["messages"][-1]["content"]
    assert result["content"] == [{"type": "tool_reference", "tool_name": "mcp__sums__add"}]
    assert "Adds two numbers." not in engine.seen[0].prompt.text
    assert "Adds two numbers." in engine.seen[1].prompt.text


async def launched(name: str, url: str, arguments: list[str], home: Path) -> tuple[int | None, str, str]:
    """The exit code of an agent that asks this server, and what it has printed."""
    binaries = ENVIRONMENTS[LAUNCHED[name].environment].folder / "node_modules" / ".bin"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "antiphon", "launch", name),
        *("--url", f"{url}/v1", "--api-key", KEY, *arguments),
        env={
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "HOME": str(home),
            "PYTHONPATH": str(SOURCE),  # also where another one is installed
        },
        cwd=home,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, error = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        pytest.fail(f"{name} did not end within {RUN_SECONDS} seconds")
    return process.returncode, out.decode(), error.decode()
