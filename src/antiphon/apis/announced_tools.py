"""The text that describes functions at their place in a conversation: those that its prompt does not list."""

from collections.abc import Iterable

import msgspec

from antiphon.core.turn import Function

MORE = "You have more functions from now on. Call them like your others:"


def describe(functions: Iterable[Function], introduction: str = MORE) -> str:
    """A line for each function, as JSON: templates write tools so, too."""
    return "\n".join((introduction, *map(_line, functions)))


def _line(function: Function) -> str:
    described = {
        "name": function.name,
        "description": function.description or "",
        "parameters": function.parameters or {"type": "object", "properties": {}},
    }
    return msgspec.json.encode(described).decode()
