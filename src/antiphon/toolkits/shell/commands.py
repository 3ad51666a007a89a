"""The commands of a call, as one script that runs within limits."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from antiphon.core.errors import ToolError
from antiphon.toolkits.shell import shell_commands
from antiphon.toolkits.shell.shell_commands import ShellCommands

SECONDS = 60.0
"""The default time limit of commands."""

MAX_SECONDS = 600.0
"""The longest that a call may ask for."""

MAX_CHARS = 16_000
"""How many characters of each of its outputs the model gets."""

_NO_COMMANDS = "`commands` is missing. Give a list of command lines."
_LONGEST = f"Commands cannot run for more than {MAX_SECONDS:.0f} seconds."
_IGNORED = {
    "user": "`user` was ignored: there is only one user.",
    "session_name": "`session_name` was ignored: each call starts a new shell.",
    "env": "Some of `env` was ignored: names must be valid names of variables, and values strings.",
}


class Commands(Struct, frozen=True):
    """A script that may run for `seconds`. `limit` characters of each output are returned.

    `notes` list parameters that are not supported.
    """

    script: str
    seconds: float
    limit: int
    notes: tuple[str, ...] = ()


def parse_commands(arguments: Mapping[str, Any]) -> Commands:
    """The commands in the arguments of a call. Raises ToolError if there is no command."""
    parsed = shell_commands.parse(arguments)
    lines = [*parsed.lines, *([shlex.join(parsed.words)] if parsed.words else [])]
    if not lines:
        raise ToolError(_NO_COMMANDS)
    seconds = SECONDS if parsed.timeout_ms is None else parsed.timeout_ms / 1000
    limit = MAX_CHARS if parsed.max_output_length is None else min(parsed.max_output_length, MAX_CHARS)
    return Commands("\n".join(lines) + "\n", min(seconds, MAX_SECONDS), limit, (*_notes(parsed, seconds),))


def _notes(parsed: ShellCommands, seconds: float) -> Iterator[str]:
    if seconds > MAX_SECONDS:
        yield _LONGEST
    yield from (_IGNORED[name] for name in parsed.ignored)
