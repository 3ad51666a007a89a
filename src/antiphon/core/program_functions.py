"""The functions of programs as Python has them: their names, and how they are described.

Their names are those that the model has for them, with "_" for what no name in Python has. Types are those of
the JSON Schemas, which are shown too: no types say as much.
"""

import builtins
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.core.errors import RequestError
from antiphon.core.turn import Function

OUTPUT_SCHEMA = "output_schema"
"""The member of a function that says what it returns."""
TEXT = "text"
"""A function that every program has: it prints."""
NONE = "This program has no functions: no tool of the request may be called by programs."
INTRODUCTION = "Functions of the program:"

_BUILT_IN = frozenset(dir(builtins))
_NO_NAME = re.compile(r"[^A-Za-z0-9_]")
_TYPES = {
    "string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list",
    "object": "dict", "null": "None",
}  # fmt: skip


def python_name(name: str) -> str:
    """The name in Python of a function with this name."""
    plain = _NO_NAME.sub("_", name)
    return f"_{plain}" if plain[:1].isdigit() or keyword.iskeyword(plain) else plain


def properties(function: Function) -> Mapping[str, Any]:
    """The arguments of a function by name, with their schemas."""
    given = function.parameters.get("properties")
    return given if isinstance(given, dict) else {}


def described(functions: Sequence[Function]) -> str:
    """What the model is told of the functions of programs."""
    return "\n".join((INTRODUCTION, *map(_stub, functions))) if functions else NONE


def with_functions(runner: Function, functions: Sequence[Function], caller: str) -> Function:
    """The function that runs programs, which describes those of its programs.

    Raises RequestError for names that programs cannot have: `caller` lets programs call a tool.
    """
    _check_names(functions, caller)
    return replace(runner, description=f"{runner.description}\n\n{described(functions)}")


def _check_names(functions: Sequence[Function], caller: str) -> None:
    """Raise RequestError if functions of programs have one name in Python, or that of one of its own."""
    known: dict[str, str] = {}
    for function in functions:
        name = python_name(function.name)
        if name in _BUILT_IN:
            message = f"Python has a function '{name}' itself. Rename the tool, or leave out '{caller}'."
            raise RequestError(message, param=function.source_of_name)
        if name in known:
            message = f"In programs it has the name of '{known[name]}'. Rename one."
            raise RequestError(message, param=function.source_of_name)
        known[name] = function.name


def _stub(function: Function) -> str:
    return "\n    ".join((_signature(function), *_about(function)))


def _signature(function: Function) -> str:
    schemas, required = properties(function), function.parameters.get("required")
    needed = required if isinstance(required, list) else ()
    named = {name: schema for name, schema in schemas.items() if name.isidentifier()}
    order = sorted(named, key=lambda name: name not in needed)
    arguments = [
        f"{name}: {_type(named[name])}{'' if name in needed else ' = None'}"
        for name in order
        if not keyword.iskeyword(name)
    ]
    if len(arguments) < len(schemas):
        arguments.append("**others")
    returned = function.more.get(OUTPUT_SCHEMA)
    returns = "str" if returned is None else _type(returned)
    return f"def {python_name(function.name)}({', '.join(arguments)}) -> {returns}: ..."


def _about(function: Function) -> Iterator[str]:
    if function.description:
        yield from function.description.strip().splitlines()
    if schemas := properties(function):
        yield f"Arguments: {_json(schemas)}"
    if (returned := function.more.get(OUTPUT_SCHEMA)) is not None:
        yield f"Returns: {_json(returned)}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _type(schema: Any) -> str:
    given = schema.get("type") if isinstance(schema, dict) else None
    names: Iterable[Any] = given if isinstance(given, list) else (given,)
    return " | ".join(_TYPES.get(name, "Any") if isinstance(name, str) else "Any" for name in names) or "Any"
