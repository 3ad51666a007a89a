"""Tools that messages add, remove and find: they count from their place on, see `core/positions.py`.

Messages of the system have `tool_addition` and `tool_removal` blocks, which refer to tools of the request by
name, or bring a definition. A search of the server's has found those in its result, one of the client's those
that it returns as `tool_reference`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.apis.messages.compaction import ADDITION, COMPACTION, REMOVAL, TOOL_CHANGES
from antiphon.apis.messages.schema import RequestMessage
from antiphon.apis.messages.tools import Tools
from antiphon.apis.request_object import RequestObject, object_at
from antiphon.core.errors import RequestError
from antiphon.core.positions import FunctionsByPlace, describe, found_text, removed_text
from antiphon.core.turn import Function

REFERENCE = "tool_reference"
DEFINITION = "tool_definition"


class Definition(Struct, frozen=True):
    """A tool that a message brings, and its place."""

    where: str
    tool: Mapping[str, Any]


def definitions_in(messages: Sequence[RequestMessage]) -> Iterator[Definition]:
    """The tools that messages bring. Raises RequestError."""
    for index, message in enumerate(messages):
        blocks = message.content if isinstance(message.content, list) else ()
        for number, value in enumerate(blocks):
            block = object_at(value, f"messages[{index}].content[{number}]")
            if block.value.get("type") == COMPACTION:
                for change in block.objects(TOOL_CHANGES):
                    yield from _definition(change)
            else:
                yield from _definition(block)


def _definition(block: RequestObject) -> Iterator[Definition]:
    """The tool that a block brings, if it does."""
    tool = block.object_or_none("tool") if block.value.get("type") == ADDITION else None
    if tool is not None and tool.value.get("type") == DEFINITION:
        definition = tool.object_or_none("definition")
        if definition is None:
            raise tool.missing("definition")
        yield Definition(definition.where, definition.value)


class ToolChanges:
    """The functions of a conversation. Each method returns what the model is told at its place."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._places = FunctionsByPlace(tools.functions)
        self._made: dict[tuple[str, ...], Mapping[str, Any]] = {}  # the last change of each tool

    @property
    def functions(self) -> tuple[Function, ...]:
        """All functions; see `Turn.tools`."""
        return self._places.functions

    @property
    def removed(self) -> frozenset[str]:
        """The names of functions that may not be called any more."""
        return self._places.removed

    @property
    def made(self) -> tuple[Mapping[str, Any], ...]:
        """The blocks that change the tools of the request to those that count in the end."""
        return tuple(self._made.values())

    def begin_anew(self) -> None:
        """The conversation so far is replaced: what it has changed counts from the beginning."""
        self._places.begin_anew()

    def change(self, blocks: Iterable[RequestObject], *, leading: bool) -> Iterator[str]:
        """The changes of one message: what it adds, and what it removes, in its order."""
        for block in blocks:
            tool = block.object_or_none("tool")
            if tool is None:
                raise block.missing("tool")
            self._note(block.value["type"], tool)
            if block.value["type"] == REMOVAL:
                gone = self._places.remove(self._referred(tool))
                yield from [removed_text(gone)] if gone else []
            elif tool.text("type") == DEFINITION:
                described = self._places.add(self._defined(tool), leading=leading)
                yield from [describe(described)] if described else []
            else:
                described = self._places.restore(self._referred(tool), leading=leading)
                yield from [describe(described)] if described else []

    def found(self, references: Sequence[str]) -> str:
        """The result of a search that has found the tools of these names."""
        names = [name for reference in references for name in self._named(reference)]
        for name in names:
            if self._places.get(name) is not None:
                self._note(ADDITION, RequestObject({"type": REFERENCE, "name": name}, ""))
        return found_text(self._places.find(names))

    def _note(self, type_: str, tool: RequestObject) -> None:
        """Note a change, in the place of an earlier one of the same tool."""
        value = {name: member for name, member in tool.value.items() if name != "cache_control"}
        match value:
            case {"type": "tool_definition", "definition": {"name": str(name)}}:
                key: tuple[str, ...] = (REFERENCE, name)
            case {"type": str(kind), **of}:
                key = (kind, *map(str, (of.get("server_name", ""), of.get("name", ""))))
                key = key if kind != REFERENCE else (REFERENCE, str(of.get("name", "")))
            case _:
                return  # it is refused
        earlier = self._made.pop(key, {})
        if type_ == REMOVAL and earlier.get("tool", {}).get("type") == DEFINITION:
            return  # without both, there is no such tool
        self._made[key] = {"type": type_, "tool": value}

    def _named(self, name: str) -> Iterable[str]:
        """The names of the functions of a tool."""
        return [name] if self._places.get(name) is not None else self._tools.names.get(name, ())

    def _defined(self, tool: RequestObject) -> tuple[Function, ...]:
        where = tool.place("definition")
        functions = self._tools.inline.get(where, ())
        for function in functions:
            if self._places.conflicts(function):
                message = f"There is another tool of the name '{function.name}'. Rename this one."
                raise RequestError(message, param=f"{where}.name", code="tool_name_conflict")
        return functions

    def _referred(self, tool: RequestObject) -> list[str]:
        """The functions that a block refers to. Raises RequestError if there are none."""
        match tool.text("type"):
            case "tool_reference":
                names = [*self._named(tool.named("name"))]
            case "mcp_tool_reference":
                names = [*self._of_server(tool.named("server_name"), tool.named("name"))]
            case "mcp_toolset_reference":
                names = [*self._of_server(tool.named("server_name"), None)]
            case _:
                raise tool.wrong("type", f"Use one of: {', '.join(_REFERENCES)}.")
        if not names and tool.value.get("name") in {tool.name for tool in self._tools.in_programs}:
            message = "Only programs call it: it stays. Leave it out here, or add 'direct' to its callers."
            raise RequestError(message, param=tool.where, code="tool_reference_unresolved")
        if not names:
            message = "There is no such tool in 'tools', or before it in 'messages'."
            raise RequestError(message, param=tool.where, code="tool_reference_unresolved")
        return names

    def _of_server(self, server: str, name: str | None) -> Iterator[str]:
        for function in self._places.functions:
            hosted = function.hosted
            if hosted is not None and hosted.server == server and name in (None, hosted.action):
                yield function.name


_REFERENCES = (REFERENCE, "mcp_tool_reference", "mcp_toolset_reference", DEFINITION)
