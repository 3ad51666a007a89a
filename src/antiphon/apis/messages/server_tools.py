"""Server tools in the Messages API: in requests, in answers, and read back.

A tool that stands for one of Anthropic's has a view, which says how: by which types it is requested, and what
its blocks contain. Calls of other tools are shown as those of an MCP server.

The text that the model was shown of a result is shown again when the client sends the result back. If
Anthropic's block has no field for it, it is sealed in a field that is opaque to clients.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from antiphon.apis.messages.resource import (
    Caller,
    McpToolResultBlock,
    McpToolUseBlock,
    ServerToolResultBlock,
    ServerToolUseBlock,
    TextBlock,
)
from antiphon.apis.request_object import Object, RequestObject, json_text
from antiphon.core.items import FunctionCall, object_in
from antiphon.core.tool_result import FoundFunctions, ToolResult
from antiphon.core.turn import TOOL_SEARCH, Function, Hosted, SearchAction

Seal = Callable[[str], str]
Unseal = Callable[[str], str | None]
FunctionOf = Callable[[str, str | None], Function | None]
"""Type and action of a server tool → the function that the model is offered."""
Actions = frozenset[str] | None
"""Actions of a server tool, None for all."""

EARLY_CALL = "call"
"""The member of the input of a search with the call that counts as one."""
FAILED = "unavailable"
"""The code of a call that failed."""
EVERY_TOOL = ("type", "name", "cache_control", "allowed_callers", "defer_loading")
"""Members of every tool that are acted on, or need not be."""


class ToolView:
    """How a server tool of this `type` stands for tools of Anthropic's."""

    type: ClassVar[str]

    implements: ClassVar[Mapping[str, Actions]] = {}
    """Type of a tool of Anthropic's, without its date → the actions that models are offered for it."""

    substitutes: ClassVar[Mapping[str, Actions]] = {}
    """The same, if the server has no tool that implements it."""

    blocks: ClassVar[Mapping[str | None, str]] = {}
    """Action (None: any) → the name of the blocks of its calls. That of results is NAME_tool_result."""

    settings: ClassVar[tuple[str, ...]] = (*EVERY_TOOL, "max_uses")
    """The members of such a tool of a request that are acted on, or need not be."""

    shares_blocks: ClassVar[bool] = False
    """Its blocks may have names of another tool's, which a request then has instead."""

    names_caller: ClassVar[bool] = False
    """Blocks of results say who has called."""

    def result_type(self, name: str) -> str:
        """The type of the blocks with results of calls in blocks of this name."""
        return f"{name}_tool_result"

    def own_settings(self, tool: RequestObject) -> Object:
        """The settings of the server tool for one of the request. Raises RequestError."""
        return {"type": self.type}

    def input(self, name: str, call: FunctionCall) -> Object:
        """The input of the block of a call."""
        return object_in(call.arguments) or {}

    def content(self, name: str, result: ToolResult, seal: Seal) -> Any:
        """The content of the block of a result."""
        raise NotImplementedError

    def action(self, name: str, input_: Object) -> str | None:
        """The action of a call in a block of this name, None if any will do."""
        return None

    def arguments(self, name: str, input_: Object, function: Function | None) -> Object:
        """The arguments of a call in a block of this name, for the function that the model is offered."""
        return input_

    def result_text(self, block: RequestObject, unseal: Unseal) -> str:
        """The text for the model of a result."""
        return result_text(block)


class SearchView(ToolView):
    """The search for tools, which every server has. A call that counts as one is in its input."""

    type = TOOL_SEARCH
    blocks: ClassVar[Mapping[str | None, str]] = {
        SearchAction.QUERY: "tool_search_tool_bm25",
        SearchAction.PATTERN: "tool_search_tool_regex",
        SearchAction.CALL: "tool_search_tool_bm25",
    }

    def result_type(self, name: str) -> str:
        """The same for both searches."""
        return "tool_search_tool_result"

    def input(self, name: str, call: FunctionCall) -> Object:
        """The search, or the call that counts as one."""
        if call.name == name:
            return object_in(call.arguments) or {}
        return {"query": call.name, EARLY_CALL: {"name": call.name, "arguments": call.arguments}}

    def content(self, name: str, result: ToolResult, seal: Seal) -> Any:
        """What was found, or why nothing can be."""
        found = result.details
        if not isinstance(found, FoundFunctions):
            return {
                "type": "tool_search_tool_result_error",
                "error_code": "invalid_tool_input",
                "error_message": result.text,
            }
        references = [{"type": "tool_reference", "tool_name": name} for name in found.names]
        return {"type": "tool_search_tool_search_result", "tool_references": references}


def read_search(block: RequestObject, call_id: str) -> FunctionCall:
    """A search, or the call that counted as one, as the model wrote it."""
    name, input_ = block.named("name"), block.object_or_none("input")
    given = dict(input_.value) if input_ else {}
    match given.get(EARLY_CALL):
        case {"name": str(called), "arguments": str(text)} if called:
            return FunctionCall(call_id, called, text)
    return FunctionCall(call_id, name, json.dumps(given, ensure_ascii=False))


class ToolViews:
    """The views of a server's tools. Raises ValueError if two have blocks of one name."""

    def __init__(self, views: Iterable[ToolView] = ()) -> None:
        known = [SearchView(), *views]
        self._by_type = {view.type: view for view in known}
        self._by_block: dict[str, ToolView] = {}
        self._sharing = [view for view in known if view.shares_blocks]
        for view in known:
            for name in () if view.shares_blocks else view.blocks.values():
                if self._by_block.setdefault(name, view) is not view:
                    raise ValueError(f"Two tools have blocks of the name '{name}'. Leave one out.")
        self._by_result = {view.result_type(name): view for name, view in self._by_block.items()}
        self._by_kind: dict[str, dict[ToolView, Actions]] = {}  # those that implement a kind come first
        for view in known:
            for kind, actions in view.implements.items():
                self._by_kind.setdefault(kind, {})[view] = actions
        for view in known:
            for kind, actions in view.substitutes.items():
                self._by_kind.setdefault(kind, {})[view] = actions

    # Requested

    def stand_for(self, kind: str) -> bool:
        """Whether a tool stands for Anthropic's of this type, without its date."""
        return kind in self._by_kind

    def actions(self, kind: str) -> Actions:
        """The actions that models are offered for a tool of Anthropic's."""
        return next(iter(self._by_kind.get(kind, {}).values()), None)

    def settings(self, kind: str) -> tuple[str, ...] | None:
        """The members of such a tool that are acted on, or need not be; None if no tool stands for it."""
        return next((view.settings for view in self._by_kind.get(kind, ())), None)

    def own_settings(self, tool: RequestObject, kind: str, served: Container[str]) -> Object:
        """The settings of the server tool that stands for one of Anthropic's. Raises RequestError."""
        views = [*self._by_kind[kind]]
        return next((view for view in views if view.type in served), views[0]).own_settings(tool)

    # Shown

    def know(self, function: Function) -> bool:
        """Whether Anthropic has blocks for this function."""
        return self._named(_hosted(function)) is not None

    def shown_call(
        self, id_: str, function: Function, call: FunctionCall
    ) -> ServerToolUseBlock | McpToolUseBlock:
        """The block of a call."""
        hosted = _hosted(function)
        match self._named(hosted):
            case view, name:
                return ServerToolUseBlock(id_, name, view.input(name, call))
        return McpToolUseBlock(id_, hosted.action, hosted.server, object_in(call.arguments) or {})

    def shown_result(
        self, id_: str, function: Function, result: ToolResult, seal: Seal
    ) -> ServerToolResultBlock | McpToolResultBlock:
        """The block of the result of a call."""
        match self._named(_hosted(function)):
            case view, name:
                block = ServerToolResultBlock(view.result_type(name), id_, view.content(name, result, seal))
                if view.names_caller:
                    block.caller = Caller()
                return block
        return McpToolResultBlock(id_, result.failed, (TextBlock(result.text),))

    def _named(self, hosted: Hosted) -> tuple[ToolView, str] | None:
        """The view of a function, and the name of its blocks."""
        view = self._by_type.get(hosted.type)
        name = view and (view.blocks.get(hosted.action) or view.blocks.get(None))
        return (view, name) if view and name else None

    # Read back

    @property
    def result_types(self) -> tuple[str, ...]:
        """The types of blocks with results."""
        return tuple(self._by_result)

    def read_call(self, block: RequestObject, call_id: str, function_of: FunctionOf) -> FunctionCall:
        """A call, of the model's function for the tool; without one, under the name of the block."""
        name, input_ = block.named("name"), block.object_or_none("input")
        arguments, function = dict(input_.value) if input_ else {}, None
        if block.value["type"] == "mcp_tool_use":
            function = function_of(block.text_or_none("server_name") or "", name)
        elif (view := self._view_of(name, function_of)) is not None:
            function = function_of(view.type, view.action(name, arguments))
            arguments = view.arguments(name, arguments, function)
        return FunctionCall(call_id, function.name if function else name, json_text(arguments))

    def _view_of(self, name: str, function_of: FunctionOf) -> ToolView | None:
        """The view of the tool that has blocks of this name in the request."""
        for view in self._sharing:
            if name in view.blocks.values() and function_of(view.type, None) is not None:
                return view
        return self._by_block.get(name)

    def read_result(self, block: RequestObject, unseal: Unseal) -> str:
        """The text for the model of a result, which is a block of its tool."""
        view = self._by_result.get(block.value["type"])
        return result_text(block) if view is None else view.result_text(block, unseal)


NO_VIEWS = ToolViews()
"""Of a server without tools that stand for Anthropic's."""


def result_text(block: RequestObject) -> str:
    """The text in a block with a result, in any of the forms that several of Anthropic's tools have."""
    content = block.value.get("content")
    match content:
        case {"stdout": str(stdout), "stderr": str(stderr)}:
            return "\n".join(filter(None, (stdout, stderr)))
        case {"error_code": str(code)}:
            return f"Error: {code}"
        case [*parts] if parts and all(isinstance(part, dict) for part in parts):
            return "\n".join(text for part in parts if isinstance(text := part.get("text"), str))
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


def outcome(type_: str, stdout: str, stderr: str, code: int) -> Object:
    """The content of the result of a program, or of commands."""
    return {"type": type_, "stdout": stdout, "stderr": stderr, "return_code": code, "content": []}


def _hosted(function: Function) -> Hosted:
    assert function.hosted is not None, "a tool of the client"
    return function.hosted
