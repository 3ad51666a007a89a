"""What the server's tools are asked to do: the arguments of a call → what the client is shown of them.

Models write what they like, so nothing here raises: what cannot be read is
shown as empty, and the tool tells the model what was wrong.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from antiphon.apis.responses.resource import (
    FindAction,
    OpenPageAction,
    SearchAction,
    ShellAction,
    WebAction,
)
from antiphon.core import shell_commands
from antiphon.core.items import object_in
from antiphon.core.outcome import Facts, Found, Opened, Searched

LOGIN_SHELL = ("bash", "-lc")
"""What runs a command line where a tool wants programs with their arguments."""

_SHELLS = frozenset({"bash", "sh"})
_SCRIPTS = frozenset({"-c", "-lc"})


def web_action(action: str, arguments: str) -> WebAction:
    """What the model asks for in the web, by a tool that knows it as `action`."""
    given = object_in(arguments) or {}
    match action:
        case "open":
            page = given.get("id")
            return OpenPageAction(page if isinstance(page, str) else None)
        case "find":
            return FindAction("", _text(given, "pattern"))
    query = _text(given, "query")
    return SearchAction(query, (query,))


def as_done(facts: Facts | None) -> WebAction | None:
    """What was done in the web, None if nobody says."""
    match facts:
        case Searched():
            return SearchAction(facts.query, (facts.query,))
        case Opened():
            return OpenPageAction(facts.url)
        case Found():
            return FindAction(facts.url or "", facts.pattern)
    return None


def shell_action(arguments: str) -> ShellAction:
    """The command lines of a call, as they are run, and the limits that it asks for."""
    asked = shell_commands.read(object_in(arguments) or {})
    commands = (*asked.lines, *([_command_line(asked.words)] if asked.words else []))
    return ShellAction(commands, asked.timeout_ms, asked.max_output_length)


def shell_arguments(action: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call with this action, for a function with these properties."""
    if "cmd" not in properties:
        return {name: value for name, value in action.items() if value is not None}
    asked = shell_commands.read(action)
    words = [*LOGIN_SHELL, "\n".join(asked.lines)]
    return {"cmd": words} if asked.timeout_ms is None else {"cmd": words, "timeout": asked.timeout_ms}


def _command_line(words: tuple[str, ...]) -> str:
    """The words of a command as a shell reads them; the script alone, where a shell is all that they call."""
    match words:
        case (shell, flag, script) if shell.rpartition("/")[2] in _SHELLS and flag in _SCRIPTS:
            return script
    return shlex.join(words)


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    return value if isinstance(value, str) else ""
