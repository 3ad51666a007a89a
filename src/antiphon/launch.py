"""`antiphon launch`: a coding agent that works with the model of this server.

An agent is a row of `AGENTS`: its command, and the environment variables and files that tell it where the
server is, and how much its model can read. The files are in a folder of Antiphon's own, in which the agent
also keeps its sessions: the user's configuration of the same agent is neither read nor changed.

To add an agent: a function that returns its `Setup`, a row of `AGENTS`, its program in `tests/clients`.
"""

import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from typing import IO, Any
from urllib.request import urlopen

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.chat import ChatClient
from antiphon.core.errors import AntiphonError
from antiphon.launch_codex import codex_instructions, codex_models

NO_KEY = "none"
"""What an agent that insists on a key sends to a server without keys."""
PROVIDER = "antiphon"
TOOL_SEARCH = "ENABLE_TOOL_SEARCH"
"""The variable by which Claude Code keeps rarely used tools away from the model until it looks for them."""
CATALOGUE = "models.json"
"""The file in which Codex reads of the models."""
KEY = "ANTIPHON_API_KEY"
"""The variable with the key, for agents that read it by name."""
ANSWER_SHARE = 4
"""The fraction of the context (1/4) that an answer may take."""
LONGEST_ANSWER = 32_000
"""Tokens."""
UNKNOWN_CONTEXT = 32_768
"""Tokens, where the server does not tell the context of its model."""
START_SECONDS = 600
POLL_SECONDS = 0.25
POLL_TIMEOUT = 10
STOP_SECONDS = 30


class LaunchError(AntiphonError):
    """The agent cannot be started."""


class Server(Struct, frozen=True):
    """Where an agent finds its model: `url` is that of the API, with /v1; `context` is in tokens."""

    url: str
    model: str
    context: int
    key: str = NO_KEY
    catalogue: Sequence[Mapping[str, Any]] = ()
    """Its models as Codex reads them; empty if it is another server than Antiphon."""
    instructions: str | None = "…"
    """What the agent said when it was asked (`Agent.ask`)."""

    @property
    def answer(self) -> int:
        """The most tokens of an answer."""
        return min(self.context // ANSWER_SHARE, LONGEST_ANSWER)


class Setup(Struct, frozen=True):
    """What an agent is started with.

    `environment` is added to the user's, and `hidden` are variables of it that the agent must not see.
    `files` are written into its folder each time, path → text; those of `once` only if they are not there.
    `arguments` stand before the user's.
    """

    environment: Mapping[str, str]
    hidden: Sequence[str] = ()
    files: Mapping[str, str] = {}
    once: Mapping[str, str] = {}
    arguments: Sequence[str] = ()


class Agent(Struct, frozen=True):
    """A coding agent. `own` is about how many tokens its own instructions and tools take.

    `ask` finds out what only the installed program knows; it may write below this folder.
    """

    name: str
    command: str
    install: str
    own: int
    setup: Callable[[Server, Path], Setup]
    ask: Callable[[Path], str | None] | None = None


def _codex(server: Server, folder: Path) -> Setup:
    config = f"""\
model = {_text(server.model)}
model_provider = "{PROVIDER}"
model_context_window = {server.context}

[model_providers.{PROVIDER}]
name = "Antiphon"
base_url = {_text(server.url)}
env_key = "{KEY}"
wire_api = "responses"
"""
    environment = {"CODEX_HOME": str(folder), KEY: server.key}
    if server.instructions is None or not server.catalogue:
        return Setup(environment, files={"config.toml": config})
    models = [{**model, "base_instructions": server.instructions} for model in server.catalogue]
    config = f"model_catalog_json = {_text(str(folder / CATALOGUE))}\n{config}"
    return Setup(environment, files={"config.toml": config, CATALOGUE: _json({"models": models})})


def _claude(server: Server, folder: Path) -> Setup:
    models = ("ANTHROPIC_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
    # Else it sends all tools to a server that it does not know, which might not read tool references.
    searches = {TOOL_SEARCH: os.environ.get(TOOL_SEARCH, "true")} if server.catalogue else {}
    sizes = tuple(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("OPUS", "SONNET", "HAIKU"))
    return Setup(
        environment={
            "CLAUDE_CONFIG_DIR": str(folder),
            "ANTHROPIC_BASE_URL": server.url.removesuffix("/v1"),
            "ANTHROPIC_AUTH_TOKEN": server.key,
            **dict.fromkeys((*models, *sizes), server.model),
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(server.context),
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(server.answer),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            **searches,
        },
        hidden=("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
        once={".claude.json": _json({"hasCompletedOnboarding": True})},
    )


def _opencode(server: Server, folder: Path) -> Setup:
    limits = {"context": server.context, "output": server.answer}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Antiphon",
        "options": {"baseURL": server.url, "apiKey": f"{{env:{KEY}}}"},
        "models": {server.model: {"name": server.model, "limit": limits}},
    }
    name = f"{PROVIDER}/{server.model}"
    config = {"model": name, "small_model": name, "provider": {PROVIDER: provider}, "autoupdate": False}
    environment = {"OPENCODE_CONFIG": str(folder / "opencode.json"), KEY: server.key}
    return Setup(environment, files={"opencode.json": _json(config)})


def _pi(server: Server, folder: Path) -> Setup:
    model = {"id": server.model, "contextWindow": server.context, "maxTokens": server.answer}
    provider = {"baseUrl": server.url, "api": "openai-completions", "apiKey": KEY, "models": [model]}
    return Setup(
        environment={"PI_CODING_AGENT_DIR": str(folder), KEY: server.key},
        files={"models.json": _json({"providers": {PROVIDER: provider}})},
        arguments=("--provider", PROVIDER, "--model", server.model),
    )


def _qwen(server: Server, folder: Path) -> Setup:
    return Setup(
        environment={
            "QWEN_HOME": str(folder),
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": server.key,
            "OPENAI_MODEL": server.model,
            "QWEN_CODE_MAX_OUTPUT_TOKENS": str(server.answer),
        },
        once={"settings.json": _json({"security": {"auth": {"selectedType": "openai"}}})},
    )


AGENTS = {
    agent.name: agent
    for agent in (
        Agent("codex", "codex", "npm install -g @openai/codex", 10_000, _codex, codex_instructions),
        Agent("claude", "claude", "npm install -g @anthropic-ai/claude-code", 15_000, _claude),
        Agent("opencode", "opencode", "npm install -g opencode-ai", 10_000, _opencode),
        Agent("pi", "pi", "npm install -g @mariozechner/pi-coding-agent", 2_000, _pi),
        Agent("qwen", "qwen", "npm install -g @qwen-code/qwen-code", 20_000, _qwen),
    )
}


def launch(agent: Agent, server: Server, arguments: Sequence[str]) -> int:
    """Run the agent until it ends; its exit code. Raises LaunchError if it is not installed."""
    program = shutil.which(agent.command)
    if program is None:
        raise LaunchError(f"The program {agent.command} is not installed. Install it with `{agent.install}`.")
    if server.context < 2 * agent.own:
        print(
            f"antiphon: {agent.name} takes about {agent.own} tokens for itself, and {server.model} has "
            f"{server.context} in all. Serve it with a larger --context.",
            file=sys.stderr,
        )
    folder = folder_of(agent)
    if agent.ask is not None:
        server = replace(server, instructions=agent.ask(folder))
    setup = agent.setup(server, folder)
    _write(folder, setup)
    before = signal(SIGINT, SIG_IGN)  # Ctrl-C is the agent's
    try:
        return subprocess.call(  # noqa: S603 - the agent that the user names
            [program, *setup.arguments, *arguments], env=_environment(setup)
        )
    finally:
        signal(SIGINT, before)


def described(agent: Agent, server: Server, arguments: Sequence[str]) -> str:
    """What `launch` would set and run, with the key left out."""
    folder = folder_of(agent)
    setup = agent.setup(replace(server, key="…" if server.key != NO_KEY else NO_KEY), folder)
    lines = [f"unset {name}" for name in setup.hidden]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in setup.environment.items()]
    lines += [shlex.join([agent.command, *setup.arguments, *arguments])]
    for path, text in {**setup.once, **setup.files}.items():
        lines += ["", f"# {folder / path}", text.rstrip()]
    return "\n".join(lines)


def folder_of(agent: Agent) -> Path:
    """Where the agent keeps its files when it is launched from here."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "antiphon" / "launch" / agent.name


def _environment(setup: Setup) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in setup.hidden}
    return {**environment, **setup.environment}


def _write(folder: Path, setup: Setup) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in setup.files.items():
            (folder / path).write_text(text)
        for path, text in setup.once.items():
            if not (folder / path).exists():
                (folder / path).write_text(text)
    except OSError as error:
        raise LaunchError(f"{folder} cannot be written: {error.strerror or error}.") from error


def _text(text: str) -> str:
    """A string in TOML: that of JSON."""
    return msgspec.json.encode(text).decode()


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode() + "\n"


# The server


def server_at(client: ChatClient, key: str | None) -> Server:
    """The server of this client, with its model. Raises ChatError."""
    context = client.context() or UNKNOWN_CONTEXT
    return Server(client.url.geturl(), client.model(), context, key or NO_KEY, codex_models(client))


@contextmanager
def started(options: str, folder: Path) -> Iterator[tuple[str, str]]:
    """The URL and the key of a server with these options of `antiphon serve`, which ends with the block.

    Its log is in the folder. Raises LaunchError, with its last line, if it does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    key, log = secrets.token_urlsafe(), folder / "server.log"
    command = [sys.executable, "-m", "antiphon", "serve", *shlex.split(options)]
    with log.open("wb") as out:
        process = _serve([*command, "--host", "127.0.0.1", "--port", str(port)], key, out)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(process, f"{url}/health", log)
        yield f"{url}/v1", key
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _serve(command: Sequence[str], key: str, out: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - ourselves
        command,
        env={**os.environ, KEY: key},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        start_new_session=True,  # Ctrl-C in the agent is not for the server
    )


def _wait(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    """Wait until the server has loaded its model."""
    until = time.monotonic() + START_SECONDS
    while not _answers(health):
        if process.poll() is not None or time.monotonic() > until:
            lines = log.read_text(errors="replace").strip().splitlines()
            why = lines[-1] if lines else "it has written nothing"
            raise LaunchError(f"the server did not start: {why.removeprefix('antiphon: ')}")
        time.sleep(POLL_SECONDS)


def _answers(url: str) -> bool:
    """Whether something is there, and well."""
    try:
        with urlopen(url, timeout=POLL_TIMEOUT) as response:  # noqa: S310 - http
            return bool(response.status == 200)
    except OSError:
        return False
