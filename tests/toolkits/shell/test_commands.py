"""What a model asks a shell for is read once, so that what clients are shown is what is run."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import ToolError
from antiphon.toolkits.shell import commands
from antiphon.toolkits.shell.commands import ShellCommands, parse
from antiphon.toolkits.shell.presenter import shell_action

NAMES = (
    "commands", "cmd", "command", "workdir", "env", "timeout_ms", "timeout", "max_output_length", "user", "session_name",
)  # fmt: skip

SCALAR = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e9, 1e9) | st.text(max_size=9)
VALUE = (
    SCALAR | st.lists(SCALAR, max_size=3) | st.dictionaries(st.text("AB_ -", max_size=3), SCALAR, max_size=3)
)
ARGUMENTS = st.dictionaries(st.sampled_from(NAMES), VALUE, max_size=6)


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ({}, ShellCommands()),
        ({"commands": [" "], "workdir": "/x", "env": {"A": "b"}}, ShellCommands()),
        ({"commands": ["a", 3, None, {}], "timeout_ms": "1500"}, ShellCommands(("a", "3"), timeout_ms=1500)),
        ({"commands": "a", "cmd": "b"}, ShellCommands(("a", "b"))),
        ({"cmd": None, "command": ["a", 2]}, ShellCommands(words=("a", "2"))),
        ({"commands": ["a"], "cmd": ["b", "c"]}, ShellCommands(("a",), ("b", "c"))),
        ({"cmd": ["a", "b"], "workdir": "/x y"}, ShellCommands(("cd -- '/x y' || exit",), ("a", "b"))),
        ({"cmd": "a", "env": {"A": 1, "B": "c d"}}, ShellCommands(("export A=1", "export B='c d'", "a"))),
        ({"cmd": "a", "env": {"A-B": "c"}}, ShellCommands(("a",), ignored=("env",))),
        ({"cmd": "a", "user": "root", "env": ["A=b"]}, ShellCommands(("a",), ignored=("user", "env"))),
        ({"cmd": "a", "timeout_ms": 0, "timeout": 700.5}, ShellCommands(("a",), timeout_ms=700)),
        ({"cmd": "a", "timeout": True, "max_output_length": 0}, ShellCommands(("a",), max_output_length=0)),
        ({"cmd": "a", "timeout": 2**70, "max_output_length": -1}, ShellCommands(("a",))),
        ({"cmd": "a", "timeout": float("nan"), "max_output_length": 10**400}, ShellCommands(("a",))),
    ],
)
def test_commands_come_in_many_shapes(arguments: dict[str, Any], asked: ShellCommands) -> None:
    assert parse(arguments) == asked


@given(ARGUMENTS)
def test_what_is_shown_is_what_is_run(arguments: dict[str, Any]) -> None:
    shown = shell_action(msgspec.json.encode(arguments).decode())
    try:
        asked = commands.parse_commands(arguments)
    except ToolError:
        assert shown.commands == ()
        return
    assert asked.script == "\n".join(shown.commands) + "\n"
    if shown.timeout_ms is not None:
        assert asked.seconds == min(shown.timeout_ms / 1000, commands.MAX_SECONDS)


@pytest.mark.parametrize("shell", [["bash", "-lc"], ["/bin/sh", "-c"]])
def test_of_a_shell_within_the_shell_its_script_is_shown(shell: list[str]) -> None:
    arguments = {"cmd": [*shell, "ls | wc"], "workdir": "/x"}
    shown = shell_action(msgspec.json.encode(arguments).decode()).commands
    assert shown == ("cd -- /x || exit", "ls | wc")
    assert commands.parse_commands(arguments).script == f"cd -- /x || exit\n{' '.join(shell)} 'ls | wc'\n"
