"""What a model asks a shell for, read as kindly as can be: one script, whichever shape it came in.

Shapes are `commands`, a list of command lines, and `cmd`, the words of one
command, with which some models were trained; a text alone is a command line.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from antiphon.core.errors import ToolError

SECONDS = 60.0
"""How long commands may take, unless the call says how long."""

MAX_SECONDS = 600.0
"""The longest that a call may ask for."""

MAX_CHARS = 16_000
"""How much of each of its outputs is told."""

_LARGEST = 2**53
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_NO_COMMANDS = "`commands` is missing: give a list of command lines."
_LONGEST = f"Commands cannot run for more than {MAX_SECONDS:.0f} seconds."


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
    lines = (*_environment(arguments), *_directory(arguments), *_command_lines(arguments))
    seconds = _seconds(arguments)
    most = _number(arguments.get("max_output_length"))
    limit = MAX_CHARS if most is None else int(min(most, MAX_CHARS))
    return Commands("\n".join(lines) + "\n", min(seconds, MAX_SECONDS), limit, (*_notes(arguments, seconds),))


def _command_lines(arguments: Mapping[str, Any]) -> list[str]:
    words = _texts(arguments.get("cmd") or arguments.get("command"))
    lines = [*_texts(arguments.get("commands")), *(words if len(words) == 1 else [shlex.join(words)])]
    if not any(line.strip() for line in lines):
        raise ToolError(_NO_COMMANDS)
    return lines


def _environment(arguments: Mapping[str, Any]) -> Iterator[str]:
    # Inside the sandbox: it does not inherit its environment from outside.
    for name, text in _variables(arguments).items():
        yield f"export {name}={shlex.quote(text)}"


def _directory(arguments: Mapping[str, Any]) -> Iterator[str]:
    directory = arguments.get("workdir")
    if isinstance(directory, str) and directory:
        yield f"cd -- {shlex.quote(directory)} || exit"


def _seconds(arguments: Mapping[str, Any]) -> float:
    for name in ("timeout_ms", "timeout"):
        milliseconds = _number(arguments.get(name))
        if milliseconds:
            return milliseconds / 1000
    return SECONDS


def _notes(arguments: Mapping[str, Any], seconds: float) -> Iterator[str]:
    if seconds > MAX_SECONDS:
        yield _LONGEST
    for name in ("user", "session_name"):
        if arguments.get(name):
            yield f"`{name}` was ignored: there is one user, and each call begins a new shell."
    given = arguments.get("env")
    if given and (not isinstance(given, Mapping) or len(_variables(arguments)) < len(given)):
        yield "Some of `env` was ignored: it takes names of variables, and texts."


def _variables(arguments: Mapping[str, Any]) -> dict[str, str]:
    given = arguments.get("env")
    texts = {name: _text(value) for name, value in given.items()} if isinstance(given, Mapping) else {}
    return {name: text for name, text in texts.items() if text is not None and _VARIABLE.fullmatch(name)}


def _texts(value: object) -> list[str]:
    """The texts of a list; one alone stands for a list of it."""
    texts = map(_text, value if isinstance(value, list) else [value])
    return [text for text in texts if text is not None]


def _text(value: object) -> str | None:
    if isinstance(value, int | float) and abs(value) < _LARGEST:
        return str(value)
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    """A number from 0 on, None for anything else."""
    text = _text(value)
    try:
        number = -1.0 if text is None else float(text)
    except ValueError:
        return None
    return number if 0 <= number < _LARGEST else None
