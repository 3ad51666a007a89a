"""`shell` as models use it: real shells, and a real sandbox where the machine has one."""

import asyncio
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from antiphon.core.errors import RequestError, ToolError
from antiphon.core.tool_result import ToolResult
from antiphon.render.harmony_tools import CONTAINER
from antiphon.toolkits.shell.commands import MAX_CHARS, MAX_SECONDS, SECONDS, parse_commands
from antiphon.toolkits.shell.details import CommandDetails
from antiphon.toolkits.shell.tool import Shell
from antiphon.tools import process
from antiphon.tools.tool import RequestedTool, ServerTool, Session, ToolOffer
from tests.contracts.tool import ToolContract, failure, opened, successful
from tests.tools.processes import children, running, until_there_are

DOCS = (Path(__file__).parents[3] / "docs" / "tools.md").read_text()
BWRAP, DOCKER = (
    tomllib.loads(file)["shell"] for file in re.findall("```toml\n(shell.*?)```", DOCS, re.DOTALL)
)
"""The sandboxes of the docs."""


def works(command: str) -> bool:
    """Whether this machine can run the sandbox."""
    folder = Path(__file__).parent
    words = shlex.split(command.replace("{workspace}", str(folder)))
    if shutil.which(words[0]) is None:
        return False
    tried = subprocess.run(words, input="true", text=True, capture_output=True, check=False)  # noqa: S603
    return tried.returncode == 0


sandboxed = pytest.mark.skipif(not works(BWRAP), reason="bubblewrap is not there, or may not make namespaces")


def commands(*lines: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "exec", {"commands": [*lines], **more}


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    async with opened(Shell("sh")) as session:
        yield session


async def done(session: Session, *lines: str, **more: Any) -> CommandDetails:
    details = successful(await session.run(*commands(*lines, **more))).details
    assert isinstance(details, CommandDetails)
    return details


class ShellContract(ToolContract):
    call = commands("echo sung")
    endless = commands("sleep 1000")
    telling = commands("echo begun", "sleep 1000")
    lengthy = commands("i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done", "ls /none")
    sets = commands("echo antiphon > choir")
    gets = commands("cat choir")
    left = "antiphon"
    arguments = ("cmd", "command", "workdir", "env", "timeout", "user", "session_name", "max_output_length")
    settings = ("type", "environment")


class TestContract(ShellContract):
    @pytest.fixture
    def tool(self) -> ServerTool:
        return Shell("sh")

    @pytest.fixture
    def harmless(self) -> ServerTool:
        return Shell("sh -n")  # reads what chance has written, and does not run it


@sandboxed
class TestContractInBubblewrap(ShellContract):
    @pytest.fixture
    def tool(self) -> ServerTool:
        return Shell(BWRAP)


async def test_a_model_reads_both_outputs_and_how_it_ended(session: Session) -> None:
    result = await session.run(*commands("echo sung", "echo flat >&2", "exit 3"))
    assert result.text == "sung\n[stderr]\nflat\n[exit code 3]"
    assert result.details == CommandDetails("sung\n", "flat\n", 3)


async def test_what_prints_nothing_has_ended_all_the_same(session: Session) -> None:
    assert (await session.run(*commands("true"))).text == "[exit code 0]"


@pytest.mark.parametrize(
    "arguments",
    [
        {"commands": ["echo a", "echo b"]},
        {"commands": "echo a; echo b"},
        {"cmd": ["sh", "-c", "echo a; echo b"]},
        {"cmd": ["printf", "%s\\n", "a", "b"]},
        {"cmd": ["echo a; echo b"]},
        {"cmd": "echo a; echo b"},
        {"command": ["sh", "-c", "echo a\necho b"]},
        {"commands": ["false", "echo a", "echo b"], "cmd": None, "user": "", "session_name": None},
    ],
)
async def test_commands_come_in_many_shapes(session: Session, arguments: dict[str, Any]) -> None:
    result = successful(await session.run("exec", arguments))
    assert result.details == CommandDetails("a\nb\n", "", 0)
    assert result.text == "a\nb\n[exit code 0]"


def test_it_reads_what_gpt_oss_was_trained_to_write() -> None:
    (function,) = CONTAINER.functions
    written = {"cmd": ["bash", "-lc", "ls"], "workdir": "/x y", "env": {"A": "b c"}, "timeout": 500}
    assert set(written) == set(function.parameters["properties"])
    asked = parse_commands(written)
    assert asked.script == "export A='b c'\ncd -- '/x y' || exit\nbash -lc ls\n"
    assert (asked.seconds, asked.notes) == (0.5, ())


@pytest.mark.parametrize(
    "arguments", [{}, {"commands": []}, {"commands": [" "]}, {"cmd": None}, {"commands": [{}]}, {"cmd": {}}]
)
async def test_no_command_is_told_in_words(session: Session, arguments: dict[str, Any]) -> None:
    assert "commands" in failure(await session.run("exec", arguments))


async def test_a_command_has_the_variables_and_the_folder_that_it_asks_for(session: Session) -> None:
    await done(session, "mkdir 'a b'")
    asked = await done(session, 'echo "$SONG"', "pwd", env={"SONG": "it's; rm"}, workdir="a b")
    assert asked.stdout.startswith("it's; rm\n")
    assert asked.stdout.endswith("/a b\n")
    nowhere = await done(session, "echo here", workdir="/none")
    assert nowhere.stdout == ""
    assert nowhere.exit_code


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"user": "root"}, "`user` was ignored"),
        ({"session_name": "mine"}, "`session_name` was ignored"),
        ({"env": {"A-B": "c"}}, "`env` was ignored"),
        ({"env": {"A": {}}}, "`env` was ignored"),
        ({"env": "A=b"}, "`env` was ignored"),
        ({"timeout_ms": 10**9}, f"more than {MAX_SECONDS:.0f} seconds"),
    ],
)
async def test_what_it_cannot_do_is_told(session: Session, asked: dict[str, Any], words: str) -> None:
    result = successful(await session.run(*commands("echo sung", **asked)))
    assert words in result.text
    assert result.details == CommandDetails("sung\n", "", 0)


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ({}, SECONDS),
        ({"timeout_ms": 1500}, 1.5),
        ({"timeout": "2000"}, 2.0),
        ({"timeout_ms": None, "timeout": 700.0}, 0.7),
        ({"timeout_ms": 10**400}, SECONDS),
        ({"timeout_ms": 10**12}, MAX_SECONDS),
        ({"timeout_ms": 0}, SECONDS),
        ({"timeout_ms": -1}, SECONDS),
        ({"timeout_ms": "soon"}, SECONDS),
        ({"timeout_ms": float("nan")}, SECONDS),
    ],
)
def test_how_long_commands_may_take(asked: dict[str, Any], seconds: float) -> None:
    assert parse_commands({"commands": ["ls"], **asked}).seconds == seconds


async def test_when_the_time_is_up_all_is_killed(session: Session) -> None:
    pause = f"sleep 71.{os.getpid()}"
    result = successful(
        await session.run(*commands("echo begun", f"{pause} &", f"{pause} & wait", timeout_ms=300))
    )
    assert result.details == CommandDetails("begun\n", "", None)
    assert result.text == "begun\n[stopped after 0.3 seconds: this is the time limit]"
    await until_there_are(0, pause)
    assert not children("sh")


async def test_a_cancelled_call_leaves_no_process_and_no_zombie(session: Session) -> None:
    pause = f"sleep 72.{os.getpid()}"
    call = asyncio.create_task(session.run(*commands(f"{pause} &", pause)))
    await until_there_are(2, pause)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_there_are(0, pause)
    assert not children("sh")


async def test_what_begins_while_its_call_is_cancelled_twice_ends_before_the_server() -> None:
    begins, goes_on = asyncio.Event(), asyncio.Event()
    pause = f"77.{os.getpid()}"

    async def beginning() -> asyncio.subprocess.Process:
        begins.set()
        await goes_on.wait()
        return await asyncio.create_subprocess_exec(
            "sleep",
            pause,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    call = asyncio.create_task(process.start_process(beginning()))
    await begins.wait()
    for _ in range(2):  # as by a client that disconnects, and then by the server that stops
        call.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await call
    goes_on.set()
    await Shell("sh").close()
    assert not children("sleep")  # nor a zombie, whose pipes the event loop would have to close


async def test_what_is_stopped_takes_those_along_that_have_left_the_group(session: Session) -> None:
    pause = f"sleep 76.{os.getpid()}"
    call = asyncio.create_task(session.run(*commands(f"setsid sh -c '{pause}; :' & wait")))
    await until_there_are(1, pause)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until_there_are(0, pause)


async def test_what_runs_in_the_background_ends_with_the_call(session: Session) -> None:
    pause = f"sleep 73.{os.getpid()}"
    assert await done(session, f"{pause} &", "echo on") == CommandDetails("on\n", "", 0)
    await until_there_are(0, pause)


async def test_who_leaves_the_group_is_not_waited_for(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "DRAIN_SECONDS", 0.1)
    pause = f"sleep 75.{os.getpid()}"
    left = f"setsid sh -c 'touch left; exec {pause}' &"
    assert await done(session, left, "until [ -e left ]; do :; done", "echo on") == CommandDetails(
        "on\n", "", 0
    )
    (left_over,) = running(pause)
    os.kill(left_over.pid, signal.SIGKILL)


async def test_a_signal_has_the_code_that_shells_give_it(session: Session) -> None:
    assert (await done(session, "kill -TERM $$")).exit_code == 143


async def test_endless_output_takes_no_memory_and_no_time_of_others(session: Session) -> None:
    details = await done(session, "yes antiphon & yes loud >&2", timeout_ms=500)
    for text in (details.stdout, details.stderr):
        assert MAX_CHARS <= len(text) < MAX_CHARS + 100
        assert "characters are left out" in text


async def test_as_much_as_is_asked_for_is_told(session: Session) -> None:
    details = await done(session, "echo 0123456789", max_output_length=4)
    assert details.stdout == "01\n[7 characters are left out here]\n9\n"


async def test_output_that_is_no_text_is_read_as_far_as_can_be(session: Session) -> None:
    assert (await done(session, r"printf 'a\377\303'")).stdout == "a\ufffd\ufffd"


async def test_a_script_of_any_length_is_run(session: Session) -> None:
    details = await done(session, *["# " + "x" * 1000] * 1000, "echo sung")
    assert details == CommandDetails("sung\n", "", 0)


async def test_the_secrets_of_the_server_are_not_passed_on(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_API_KEY", "secret")
    names = {line.split("=")[0] for line in (await done(session, "env")).stdout.splitlines()}
    assert {"PATH", "HOME", "LANG", "TERM"} <= names
    assert names <= {"PATH", "HOME", "LANG", "TERM", "PWD", "OLDPWD", "SHLVL", "_"}


async def test_the_workspace_is_for_its_owner_only_and_goes_with_the_session() -> None:
    async with opened(Shell("sh -s {workspace} 'a b'")) as session:
        path, words = (await done(session, 'echo "$1"', 'echo "$2"')).stdout.splitlines()
        assert words == "a b"
        assert (await done(session, "pwd", 'echo "$HOME"')).stdout == f"{path}\n{path}\n"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
        await done(session, "mkdir -p deep/er", "touch deep/er/file", "ln -s / root")
    assert not Path(path).exists()  # noqa: ASYNC240


async def test_a_shell_that_does_not_start_is_told_without_its_reasons() -> None:
    async with opened(Shell("/none/sandbox sh")) as session:
        words = failure(await session.run(*commands("ls")))
        assert "none" not in words


def test_the_sandboxes_of_the_docs_get_the_workspace() -> None:
    for command in (BWRAP, DOCKER):
        Shell(command)
        assert "{workspace}" in command


@pytest.mark.parametrize("command", ["", "  ", "sh 'open"])
def test_a_command_that_is_none_is_an_error_at_once(command: str) -> None:
    with pytest.raises(ToolError, match=r"empty|quotation"):
        Shell(command)


async def test_the_model_is_told_that_earlier_files_are_lost(session: Session) -> None:
    await session.recall(*commands("touch a"), ToolResult("[exit code 0]", CommandDetails("", "", 0)))
    first = await session.run(*commands("ls"))
    assert (
        first.text.splitlines()[0] == "The files of earlier commands are lost: the sandbox was created again."
    )
    assert (await session.run(*commands("ls"))).text == "[exit code 0]"


async def test_nothing_is_lost_where_nothing_was_run(session: Session) -> None:
    await session.recall("exec", {}, ToolResult("`commands` is missing", failed=True))
    assert (await session.run(*commands("true"))).text == "[exit code 0]"


def test_it_works_in_the_loop_that_servers_use() -> None:
    async def work() -> tuple[CommandDetails, CommandDetails]:
        async with opened(Shell("sh")) as session:
            short = await done(session, "sleep 50 &", "echo sung", "exit 2")
            return short, await done(session, "yes", timeout_ms=200)

    short, endless = uvloop.run(work())
    assert short == CommandDetails("sung\n", "", 2)
    assert endless.exit_code is None
    assert len(endless.stdout) > MAX_CHARS


@sandboxed
async def test_a_sandbox_keeps_commands_away_from_the_machine() -> None:
    async with opened(Shell(BWRAP)) as session:
        tried = await done(session, "pwd", "ls /etc /root", "echo > /usr/file", "ls /sys/class/net")
        assert tried.stdout == "/workspace\n"
        assert "Read-only" in tried.stderr
        names = (await done(session, "env | cut -d= -f1 | sort")).stdout.split()
        assert set(names) <= {"HOME", "PATH", "PWD", "SHLVL", "_"}


@sandboxed
async def test_nothing_of_a_sandbox_outlives_its_time() -> None:
    pause = f"sleep 74.{os.getpid()}"
    async with opened(Shell(BWRAP)) as session:
        details = await done(session, f"setsid {pause} &", f"{pause}", timeout_ms=500)
        assert details.exit_code is None
        await until_there_are(0, pause)


@pytest.mark.parametrize(
    "environment",
    [
        None,
        {},
        {"type": "container_auto", "file_ids": []},
    ],
)
async def test_a_sandbox_of_its_own_is_what_it_has(environment: object) -> None:
    assert await Shell("sh").offer(RequestedTool({"environment": environment}, "tools[0]"))


@pytest.mark.parametrize("environment", [{"type": "local"}, {"type": "local", "skills": [1]}])
async def test_a_local_shell_is_the_clients(environment: object) -> None:
    assert await Shell("sh").offer(RequestedTool({"environment": environment}, "tools[0]")) == ToolOffer()


@pytest.mark.parametrize(
    ("environment", "param"),
    [
        ("auto", ""),
        ({"type": "container_reference", "container_id": "cntr_1"}, ""),
        ({"type": "container_auto", "file_ids": ["file_1"]}, ".file_ids"),
        ({"type": "container_auto", "skills": [{}]}, ".skills"),
        ({"type": "container_auto", "memory_limit": 4}, ".memory_limit"),
        ({"type": "container_auto", "network_policy": {"type": "allowlist"}}, ".network_policy"),
    ],
)
async def test_other_environments_are_refused(environment: object, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        await Shell("sh").offer(RequestedTool({"environment": environment}, "tools[0]"))
    assert raised.value.param == f"tools[0].environment{param}"
