"""`antiphon launch` as a process, with programs in the place of agents that say what they were started with.

That real agents understand it is seen in `tests/clients/test_programs.py`.
"""

import asyncio
import json
import os
import re
import shlex
import socket
import stat
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.engines.scripted import ScriptedEngine
from antiphon.launch import AGENTS, NO_KEY
from antiphon.launch_codex import _Reader
from tests.server import running

ANTIPHON = Path(sys.executable).with_name("antiphon")
SOURCE = Path(antiphon.__file__).parents[1]
MODEL = 'org/a "model" of it'
CONTEXT = 100_000
KEY = "the-key"

AGENT = """
import json, os, sys
json.dump({"arguments": sys.argv[1:], "environment": dict(os.environ)}, open(os.environ["TOLD"], "w"))
sys.exit(7)
"""

Fact = Callable[[Path, Mapping[str, str]], Any]


def _config(folder: Path, _: Mapping[str, str]) -> dict[str, Any]:
    config = tomllib.loads((folder / "config.toml").read_text())
    return {
        "url": config["model_providers"][config["model_provider"]]["base_url"],
        "model": config["model"],
        "context": config["model_context_window"],
        "key": config["model_providers"]["antiphon"]["env_key"],
    }


def _claude(_: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    models = {value for name, value in environment.items() if name.endswith("_MODEL")}
    return {
        "url": environment["ANTHROPIC_BASE_URL"] + "/v1",
        "model": models.pop() if len(models) == 1 else models,
        "context": int(environment["CLAUDE_CODE_AUTO_COMPACT_WINDOW"]),
        "key": "ANTHROPIC_AUTH_TOKEN",
    }


def _opencode(_: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    config = json.loads(Path(environment["OPENCODE_CONFIG"]).read_text())
    provider = config["provider"]["antiphon"]
    [(model, facts)] = provider["models"].items()
    assert config["model"] == f"antiphon/{model}"
    return {
        "url": provider["options"]["baseURL"],
        "model": model,
        "context": facts["limit"]["context"],
        "key": provider["options"]["apiKey"].removeprefix("{env:").removesuffix("}"),
    }


def _pi(folder: Path, _: Mapping[str, str]) -> dict[str, Any]:
    provider = json.loads((folder / "models.json").read_text())["providers"]["antiphon"]
    [model] = provider["models"]
    facts = {"url": provider["baseUrl"], "model": model["id"], "context": model["contextWindow"]}
    return {**facts, "key": provider["apiKey"]}


def _qwen(_: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    facts = {"url": environment["OPENAI_BASE_URL"], "model": environment["OPENAI_MODEL"]}
    return {**facts, "context": CONTEXT, "key": "OPENAI_API_KEY"}


TOLD: Mapping[str, Fact] = {
    "codex": _config,
    "claude": _claude,
    "opencode": _opencode,
    "pi": _pi,
    "qwen": _qwen,
}
"""What each agent is told, as it would read it."""


class Home:
    """The home of a user who has these agents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir(parents=True)
        self.told = folder / "told.json"
        self.environment = {
            "PATH": f"{self.programs}:/usr/bin:/bin",
            "HOME": str(folder / "home"),
            "PYTHONPATH": str(SOURCE),  # also where another one is installed
            "TOLD": str(self.told),
            "ANTHROPIC_API_KEY": "of another server",
        }
        for name in (".codex", ".claude"):
            (folder / "home" / name).mkdir(parents=True)
            (folder / "home" / name / "mine").write_text("unchanged")

    def install(self, command: str, text: str = AGENT) -> None:
        program = self.programs / command
        # A path with spaces cannot stand in the first line of a script.
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(text)} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    @property
    def files(self) -> dict[str, str]:
        """All files in the home that are text, path → text."""
        home = Path(self.environment["HOME"])
        paths = [path for path in home.rglob("*") if path.is_file() and path.suffix not in (".db", ".log")]
        return {str(path.relative_to(home)): path.read_text(errors="replace") for path in paths}

    async def launch(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, and what was printed."""
        process = await asyncio.create_subprocess_exec(
            str(ANTIPHON),
            "launch",
            *arguments,
            env=self.environment,
            cwd=self.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, error = await process.communicate()
        return process.returncode or 0, out.decode(), error.decode()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "a shöp")


def engine(context: int = CONTEXT) -> ScriptedEngine:
    return ScriptedEngine([{"output": "Hello."}], name=MODEL, context=context)


def test_every_agent_is_here() -> None:
    assert TOLD.keys() == AGENTS.keys()


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_is_told_where_its_model_is(home: Home, name: str) -> None:
    agent = AGENTS[name]
    home.install(agent.command)
    before = home.files
    async with running(engine(), api_key=[KEY]) as server:
        code, _, error = await home.launch(
            name, "--url", f"{server.url}/v1", "--api-key", KEY, "--", "-p", "--model", "hi"
        )
    assert (code, error) == (7, "")
    told = json.loads(home.told.read_text())
    assert told["arguments"][-3:] == ["-p", "--model", "hi"]
    environment = told["environment"]
    folder = Path(home.environment["HOME"]) / ".local" / "share" / "antiphon" / "launch" / name
    facts = TOLD[name](folder, environment)
    assert environment[facts.pop("key")] == KEY
    assert facts == {"url": f"{server.url}/v1", "model": MODEL, "context": CONTEXT}
    assert ("ANTHROPIC_API_KEY" in environment) == (name != "claude")
    files = home.files
    assert all(path.startswith(".local/share/antiphon/launch/") for path in files.keys() - before.keys())
    assert {path: files[path] for path in before} == before


@pytest.mark.parametrize("name", AGENTS)
async def test_what_would_be_set_can_be_read(home: Home, name: str) -> None:
    """It can be given to a shell; the key is not in it, and nothing is written or started."""
    home.install(AGENTS[name].command)
    before = home.files
    async with running(engine(), api_key=[KEY]) as server:
        code, out, error = await home.launch(
            name, "--url", f"{server.url}/v1", "--api-key", KEY, "--print", "exec", "two words"
        )
    assert (code, error) == (0, "")
    assert KEY not in out
    lines = out.splitlines()
    command = next(line for line in lines if line.startswith(AGENTS[name].command))
    assert shlex.split(command)[-2:] == ["exec", "two words"]
    assert any(line.startswith("export ") for line in lines)
    assert home.files == before
    assert not home.told.exists()


@pytest.mark.parametrize("wanted", [None, "false"])
async def test_claude_code_looks_for_tools_unless_the_user_says_otherwise(
    home: Home, wanted: str | None
) -> None:
    home.install("claude")
    if wanted is not None:
        home.environment["ENABLE_TOOL_SEARCH"] = wanted
    async with running(engine()) as server:
        await home.launch("claude", "--url", f"{server.url}/v1")
    assert json.loads(home.told.read_text())["environment"]["ENABLE_TOOL_SEARCH"] == (wanted or "true")


async def test_what_an_agent_keeps_is_not_written_again(home: Home) -> None:
    home.install("claude")
    async with running(engine()) as server:
        await home.launch("claude", "--url", f"{server.url}/v1")
        told = json.loads(home.told.read_text())["environment"]
        state = Path(told["CLAUDE_CONFIG_DIR"]) / ".claude.json"
        assert json.loads(state.read_text()) == {"hasCompletedOnboarding": True}
        assert told["ANTHROPIC_AUTH_TOKEN"] == NO_KEY
        state.write_text("mine")
        await home.launch("claude", "--url", f"{server.url}/v1")
        assert state.read_text() == "mine"


async def test_a_model_is_chosen_by_its_name(home: Home) -> None:
    home.install("codex")
    async with running(engine()) as server:
        code, out, _ = await home.launch("codex", "--url", server.url, "--model", MODEL, "--print")
        assert (code, "model_context_window = 100000" in out) == (0, True)
        code, _, error = await home.launch("codex", "--url", server.url, "--model", "other", "--print")
        assert (code, "'other'" in error) == (1, True)


async def test_a_small_context_is_said(home: Home) -> None:
    home.install("claude")
    async with running(engine(8192)) as server:
        code, _, error = await home.launch("claude", "--url", f"{server.url}/v1")
    assert code == 7
    assert "claude takes about 15000 tokens for itself" in error
    assert "has 8192 in all" in error


async def test_what_is_not_there_is_said(home: Home) -> None:
    async with running(engine()) as server:
        code, _, error = await home.launch("pi", "--url", f"{server.url}/v1")
        assert (code, "The program pi is not installed. Install it with `npm install" in error) == (1, True)
    code, _, error = await home.launch("pi", "--url", "http://127.0.0.1:9/v1")
    assert (code, "No server at http://127.0.0.1:9/v1" in error) == (1, True)


# Asks the server that it is told of in its options, with a body of the test's, and is started like any agent then.
ASKING = (
    """
import os, re, sys, urllib.error, urllib.request
if "--ephemeral" in sys.argv:
    url = re.search('base_url="([^"]*)"', " ".join(sys.argv))[1]
    assert os.path.basename(os.environ["CODEX_HOME"]) != "codex"
    try:
        urllib.request.urlopen(url + "/responses", data=os.environ["ASKED"].encode())
    except urllib.error.HTTPError as error:
        sys.exit(error.code != 400)
"""
    + AGENT
)
DEVELOPER = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "You code."}]}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"instructions": "You code.", "input": [{**DEVELOPER, "content": "No."}]}, "You code."),
        ({"instructions": None, "input": [DEVELOPER, {**DEVELOPER, "content": "No."}]}, "You code."),
        ({"input": [{**DEVELOPER, "content": "You code."}]}, "You code."),
        ({"input": [{**DEVELOPER, "role": "user"}]}, None),
        ({"input": "You code."}, None),
        ({"input": []}, None),
        ("no request", None),
    ],
)
async def test_codex_has_a_catalogue_with_its_own_instructions(
    home: Home, asked: Any, told: str | None
) -> None:
    home.install("codex", ASKING)
    home.environment["ASKED"] = json.dumps(asked)
    async with running(engine()) as server:
        code, _, error = await home.launch("codex", "--url", f"{server.url}/v1", "exec", "hi")

    folder = Path(home.environment["HOME"]) / ".local" / "share" / "antiphon" / "launch" / "codex"
    assert (code, error) == (7, "")
    assert json.loads(home.told.read_text())["arguments"] == ["exec", "hi"]
    named = tomllib.loads((folder / "config.toml").read_text()).get("model_catalog_json")
    files = sorted(path.name for path in folder.iterdir())
    if told is None:
        assert (named, files) == (None, ["config.toml"])
        return
    assert (named, files) == (str(folder / "models.json"), ["config.toml", "models.json"])
    [model] = json.loads((folder / "models.json").read_text())["models"]
    assert (model["slug"], model["base_instructions"]) == (MODEL, told)
    assert (model["context_window"], model["max_context_window"]) == (CONTEXT, CONTEXT)


@pytest.mark.parametrize("length", ["-1", "many", "", "0", "2"])
def test_no_request_stops_the_reader_of_instructions(length: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A length that is none is that of no body: nothing waits for more, or is printed to the terminal."""
    with _Reader() as reader, socket.create_connection(("127.0.0.1", reader.server_port), 5) as connection:
        head = f"POST /v1/responses HTTP/1.1\r\ncontent-length: {length}\r\n\r\n"
        connection.sendall(head.encode() + b"{}")
        assert connection.recv(4096).startswith(b"HTTP/1.0 400")
    assert reader.instructions is None
    assert capfd.readouterr() == ("", "")


PRINTS_THE_SERVER = """
import json, os, sys, urllib.request
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
request = urllib.request.Request(url + "/models", headers={"Authorization": "Bearer " + key})
names = [model["id"] for model in json.load(urllib.request.urlopen(request))["data"]]
try:
    urllib.request.urlopen(url + "/models")
    names.append("open to anybody")
except OSError:
    pass
json.dump({"url": url, "names": names}, open(os.environ["TOLD"], "w"))
"""


async def test_a_server_is_started_for_the_agent(home: Home) -> None:
    home.install("qwen", PRINTS_THE_SERVER)
    script = home.folder / "script.jsonl"
    script.write_text('{"output": "Hello."}')
    options = shlex.join(
        ["--engine", "scripted", "--script", str(script), "--model-name", "of it", "--context", "50000"]
    )
    code, _, error = await home.launch("qwen", "--serve", options)
    assert (code, error) == (0, "")
    told = json.loads(home.told.read_text())
    assert told["names"] == ["of it"]
    port = int(re.findall(r":(\d+)/v1", told["url"])[0])
    with pytest.raises(OSError, match=r"refused|failed"):
        await asyncio.open_connection("127.0.0.1", port)
    folder = Path(home.environment["HOME"]) / ".local" / "share" / "antiphon" / "launch" / "qwen"
    assert "stopping" in (folder / "server.log").read_text()


async def test_a_server_that_does_not_start_is_said(home: Home) -> None:
    home.install("qwen")
    code, _, error = await home.launch("qwen", "--serve", "--engine scripted --script /no/such/file")
    assert code == 1
    assert error.startswith("antiphon: The server did not start: ")
    assert "/no/such/file" in error
    assert os.listdir(home.programs) == ["qwen"]
    assert not home.told.exists()
