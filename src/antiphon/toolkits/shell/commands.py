"""The commands in the arguments of a shell call, parsed leniently, in any of their forms.

The tool that runs commands and the presenter that shows them both parse them here, so both get the same. The
forms are `commands`, a list of command lines, and `cmd`, the words of one command, with which some models
were trained; a single text is a command line. If there are several forms, all are run: as one script, within
limits.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from antiphon.core.errors import ToolError

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
_LARGEST = 2**53
"""Not every JSON parser supports larger numbers."""

_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class ShellCommands(Struct, frozen=True):
    """Command lines for one shell, then the `words` of a last command. Both are empty if there is none.

    The limits, in milliseconds and characters, are None if not given. `ignored` are the names of arguments
    that are not supported, or only partly.
    """

    lines: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    timeout_ms: int | None = None
    max_output_length: int | None = None
    ignored: tuple[str, ...] = ()


def parse(arguments: Mapping[str, Any]) -> ShellCommands:
    """The commands in any JSON object. Never raises."""
    lines, words = _commands(arguments)
    return ShellCommands(
        (*_environment(arguments), *_directory(arguments), *lines) if lines or words else (),
        words,
        _number(arguments.get("timeout_ms")) or _number(arguments.get("timeout")) or None,
        _number(arguments.get("max_output_length")),
        (*_ignored(arguments),),
    )


def _commands(arguments: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Command lines, and the words of another command: one word alone is a line."""
    lines = _texts(arguments.get("commands"))
    words = _texts(arguments.get("cmd") or arguments.get("command"))
    if len(words) == 1:
        lines, words = (*lines, *words), ()
    return lines if any(line.strip() for line in lines) else (), words


def _environment(arguments: Mapping[str, Any]) -> Iterator[str]:
    # Inside the sandbox: it does not inherit its environment from outside.
    for name, text in _variables(arguments).items():
        yield f"export {name}={shlex.quote(text)}"


def _directory(arguments: Mapping[str, Any]) -> Iterator[str]:
    directory = arguments.get("workdir")
    if isinstance(directory, str) and directory:
        yield f"cd -- {shlex.quote(directory)} || exit"


def _ignored(arguments: Mapping[str, Any]) -> Iterator[str]:
    yield from (name for name in ("user", "session_name") if arguments.get(name))
    given = arguments.get("env")
    if given and (not isinstance(given, Mapping) or len(_variables(arguments)) < len(given)):
        yield "env"


def _variables(arguments: Mapping[str, Any]) -> dict[str, str]:
    given = arguments.get("env")
    texts = {name: _text(value) for name, value in given.items()} if isinstance(given, Mapping) else {}
    return {name: text for name, text in texts.items() if text is not None and _VARIABLE.fullmatch(name)}


def _texts(value: object) -> tuple[str, ...]:
    """The texts of a list; a single text is a list of one."""
    texts = map(_text, value if isinstance(value, list) else [value])
    return tuple(text for text in texts if text is not None)


def _text(value: object) -> str | None:
    if isinstance(value, int | float) and abs(value) < _LARGEST:
        return str(value)
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    """An integer from 0 on, also one that is written as a text; None for anything else."""
    text = _text(value)
    try:
        number = -1.0 if text is None else float(text)
    except ValueError:
        return None
    return int(number) if 0 <= number < _LARGEST else None


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
    parsed = parse(arguments)
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
