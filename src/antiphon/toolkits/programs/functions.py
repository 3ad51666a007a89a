"""The function of the tool, and the arguments with which a program calls its own."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.core.limits import Limits
from antiphon.core.program_functions import properties
from antiphon.core.programs import PROGRAMS
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.code_interpreter.processes import MODULES

ACTION = "run"
"""The action of the tool's function."""
MAX_DEPTH = 100
"""How deeply arguments may be nested."""

_ABOUT = """\
Runs a Python program that calls functions, and shows what it prints. Use it for calls that depend on each \
other, for loops over many calls, and to reduce large results: you see only what the program prints.
The program begins anew each time, without the variables of earlier ones. A function may be called directly, \
or with `await`; `asyncio.gather` makes several calls at the same time. A call that fails raises RuntimeError.
It is a subset of Python in a sandbox, without files, network or packages. It may make {calls} calls, and \
compute for {seconds} seconds. Inheritance, properties, generator functions and `async with` do not work.
Modules: asyncio, {modules}."""


def function(limits: Limits) -> Function:
    """The function for the model, without those of its programs."""
    about = _ABOUT.format(
        calls=limits.program_calls, seconds=limits.program_seconds, modules=", ".join(MODULES)
    )
    code = {"type": "string", "description": "The program."}
    return Function(
        PROGRAMS,
        about,
        {"type": "object", "properties": {"code": code}, "required": ["code"]},
        hosted=Hosted(PROGRAMS, ACTION, idempotent=True),
    )


def bound(
    name: str, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], limits: Limits
) -> str:
    """The arguments of a call as a JSON object. Raises TypeError for those that JSON, or it, has not."""
    names = [*properties(function)]
    if len(args) > len(names):
        raise TypeError(f"{name}() takes {len(names)} positional arguments, but {len(args)} were given")
    given = dict(zip(names, args, strict=False))
    for key, value in kwargs.items():
        if key in given:
            raise TypeError(f"{name}() got two values for '{key}'")
        given[key] = value
    return msgspec.json.encode(_Arguments(name, limits).plain(given, 0)).decode()


class _Arguments:
    """Reads the arguments of a call. One value may be in many places: each is counted."""

    def __init__(self, name: str, limits: Limits) -> None:
        self._name = name
        self._values = limits.program_values
        self._characters = limits.program_bytes

    def plain(self, value: Any, depth: int) -> Any:
        """A value as JSON has it."""
        self._values -= 1
        if isinstance(value, str):
            self._characters -= len(value)
        if depth > MAX_DEPTH or min(self._values, self._characters) < 0:
            raise TypeError(f"the arguments of {self._name}() are too large")
        match value:
            case None | bool() | int() | float() | str():
                return value
            case list() | tuple():
                return [self.plain(part, depth + 1) for part in value]
            case dict() if all(isinstance(key, str) for key in value):
                return {self.plain(key, depth): self.plain(part, depth + 1) for key, part in value.items()}
        raise TypeError(f"{self._name}() takes values of JSON only, no {type(value).__name__}")
