"""What a model asks a shell for, as one script that runs within limits."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from antiphon.core import shell_commands
from antiphon.core.errors import ToolError
from antiphon.core.shell_commands import ShellCommands

SECONDS = 60.0
"""How long commands may take, unless the call says how long."""

MAX_SECONDS = 600.0
"""The longest that a call may ask for."""

MAX_CHARS = 16_000
"""How much of each of its outputs is told."""

_NO_COMMANDS = "`commands` is missing: give a list of command lines."
_LONGEST = f"Commands cannot run for more than {MAX_SECONDS:.0f} seconds."
_IGNORED = {
    "user": "`user` was ignored: there is one user.",
    "session_name": "`session_name` was ignored: each call begins a new shell.",
    "env": "Some of `env` was ignored: it takes names of variables, and texts.",
}


class Commands(Struct, frozen=True):
    """A script that may run for `seconds`. `limit` characters of each output are told.

    `notes` say what was asked for and cannot be done.
    """

    script: str
    seconds: float
    limit: int
    notes: tuple[str, ...] = ()


def read(arguments: Mapping[str, Any]) -> Commands:
    """What is asked for. Raises ToolError if there is no command."""
    asked = shell_commands.read(arguments)
    lines = [*asked.lines, *([shlex.join(asked.words)] if asked.words else [])]
    if not lines:
        raise ToolError(_NO_COMMANDS)
    seconds = SECONDS if asked.timeout_ms is None else asked.timeout_ms / 1000
    limit = MAX_CHARS if asked.max_output_length is None else min(asked.max_output_length, MAX_CHARS)
    return Commands("\n".join(lines) + "\n", min(seconds, MAX_SECONDS), limit, (*_notes(asked, seconds),))


def _notes(asked: ShellCommands, seconds: float) -> Iterator[str]:
    if seconds > MAX_SECONDS:
        yield _LONGEST
    yield from (_IGNORED[name] for name in asked.ignored)
