"""Server tools in the Messages API: in requests, in answers, and read back.

The text that the model was shown of a result is shown again when the client sends the result back. If
Anthropic's block has no field for it, it is sealed in a field that is opaque to clients.
"""

from collections.abc import Callable, Container, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

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
from antiphon.apis.responses.presenters import code_interpreter, shell, web_search
from antiphon.core.items import FunctionCall, object_in
from antiphon.core.tool_result import (
    CommandDetails,
    FindDetails,
    OpenDetails,
    ProgramDetails,
    SearchDetails,
    ToolResult,
)
from antiphon.core.turn import Function, Hosted

Seal = Callable[[str], str]
Unseal = Callable[[str], str | None]
Offered = Callable[[str, str | None], Function | None]
"""Type and action of a server tool → the function that the model is offered."""


class ToolMapping(NamedTuple):
    """The server tools that can implement one of Anthropic's: the first available one is used.

    `actions` are the ones to offer, None for all.
    """

    types: tuple[str, ...]
    actions: frozenset[str] | None = None


SERVER_TOOLS: Mapping[str, ToolMapping] = {
    "web_search": ToolMapping((web_search.TOOL,)),
    "web_fetch": ToolMapping((web_search.TOOL,), frozenset({"open", "find"})),
    "code_execution": ToolMapping((code_interpreter.TOOL, shell.TOOL)),
}
"""Type, without its date → the tools that implement it."""

_BLOCKS: Mapping[str, Mapping[str | None, str]] = {
    web_search.TOOL: {"search": "web_search", "open": "web_fetch", "find": "web_fetch"},
    code_interpreter.TOOL: {None: "code_execution"},
    shell.TOOL: {None: "bash_code_execution"},
}
"""Server tool → its action (None: any) → the name of the call's block."""
_ANTHROPIC_ONLY = ("text_editor_code_execution", "tool_search")  # in conversations that began at Anthropic
_NAMES = (*(name for names in _BLOCKS.values() for name in names.values()), *_ANTHROPIC_ONLY)
RESULTS = tuple(f"{name}_tool_result" for name in _NAMES)
"""The types of blocks with results."""
_FAILED = "unavailable"


def own_settings(tool: RequestObject, kind: str, served: Container[str]) -> Object:
    """The settings of the server tool that implements one of Anthropic's. Raises RequestError."""
    types = SERVER_TOOLS[kind].types
    type_ = next((type_ for type_ in types if type_ in served), types[0])
    if type_ != web_search.TOOL:
        return {"type": type_}
    names = ("allowed_domains", "blocked_domains")
    filters = {name: tool.value[name] for name in names if tool.value.get(name) is not None}
    settings: Object = {"type": type_}
    if filters:
        settings["filters"] = filters
    if tool.value.get("user_location") is not None:
        settings["user_location"] = tool.value["user_location"]
    return settings


# Shown


def is_known(function: Function) -> bool:
    """Whether Anthropic has blocks for this function."""
    return _block_name(_hosted(function)) is not None


def shown_call(id_: str, function: Function, call: FunctionCall) -> ServerToolUseBlock | McpToolUseBlock:
    """The block of a call."""
    hosted, arguments = _hosted(function), object_in(call.arguments) or {}
    name = _block_name(hosted)
    if name is None:
        return McpToolUseBlock(id_, hosted.action, hosted.server, arguments)
    if name == "bash_code_execution":
        arguments = {"command": "\n".join(shell.shell_action(call.arguments).commands)}
    elif name == "web_fetch" and isinstance(arguments.get("id"), str):
        arguments = {**arguments, "url": arguments["id"]}
    return ServerToolUseBlock(id_, name, arguments)


def shown_result(
    id_: str, function: Function, result: ToolResult, seal: Seal
) -> ServerToolResultBlock | McpToolResultBlock:
    """The block of the result of a call."""
    hosted = _hosted(function)
    name = _block_name(hosted)
    if name is None:
        return McpToolResultBlock(id_, result.failed, (TextBlock(result.text),))
    block = ServerToolResultBlock(f"{name}_tool_result", id_, _CONTENT[name](result, seal))
    if hosted.type == web_search.TOOL:
        block.caller = Caller()
    return block


def _searched(result: ToolResult, seal: Seal) -> Any:
    if result.failed or not isinstance(result.details, SearchDetails):
        return {"type": "web_search_tool_result_error", "error_code": _FAILED}
    # Each page is listed; the first one has the text that the model was shown of all.
    pages = zip_longest(result.details.sources, result.details.titles)
    return [
        {
            "type": "web_search_result",
            "url": url,
            "title": title or url,
            "encrypted_content": seal("" if index else result.text),
            "page_age": None,
        }
        for index, (url, title) in enumerate(pages)
    ]


def _fetched(result: ToolResult, seal: Seal) -> Any:
    if result.failed:
        return {"type": "web_fetch_tool_result_error", "error_code": _FAILED}
    url = result.details.url if isinstance(result.details, OpenDetails | FindDetails) else None
    source = {"type": "text", "media_type": "text/plain", "data": result.text}
    document = {"type": "document", "source": source, "title": None, "citations": None}
    return {"type": "web_fetch_result", "url": url or "", "content": document, "retrieved_at": None}


def _executed(result: ToolResult, seal: Seal) -> Any:
    match result.details:
        case ProgramDetails(logs):
            return _outcome("code_execution_result", logs, "", int(result.failed))
    return _outcome("code_execution_result", "", result.text, 1)


def _commands_run(result: ToolResult, seal: Seal) -> Any:
    match result.details:
        case CommandDetails(stdout, stderr, code):
            return _outcome("bash_code_execution_result", stdout, stderr, -1 if code is None else code)
    return _outcome("bash_code_execution_result", "", result.text, shell.NOT_RUN)


def _outcome(type_: str, stdout: str, stderr: str, code: int) -> Object:
    return {"type": type_, "stdout": stdout, "stderr": stderr, "return_code": code, "content": []}


_CONTENT: Mapping[str, Callable[[ToolResult, Seal], Any]] = {
    "web_search": _searched,
    "web_fetch": _fetched,
    "code_execution": _executed,
    "bash_code_execution": _commands_run,
}


# Read back


def read_call(
    block: RequestObject, call_id: str, offered: Callable[[str, str | None], Function | None]
) -> FunctionCall:
    """A call, of the model's function for the tool; without one, under the name of the block."""
    name, input_ = block.named("name"), block.object_or_none("input")
    arguments = dict(input_.value) if input_ else {}
    of = [(tool, action) for tool, names in _BLOCKS.items() for action in names if names[action] == name]
    if block.value["type"] == "mcp_tool_use":
        of = [(block.text_or_none("server_name") or "", name)]
    elif name == "web_fetch":
        of = [(web_search.TOOL, "find" if "pattern" in arguments else "open")]
        url = arguments.pop("url", None)
        if url is not None:
            arguments.setdefault("id", url)
    function = next(filter(None, (offered(*tool) for tool in of)), None)
    if name == "bash_code_execution" and "command" in arguments:
        properties = function.parameters.get("properties", {}) if function else {}
        arguments = shell.shell_arguments({"commands": [arguments["command"]]}, properties)
    return FunctionCall(call_id, function.name if function else name, json_text(arguments))


def read_result(block: RequestObject, unseal: Unseal) -> str:
    """The text for the model of a result, which is a block of its tool."""
    content = block.value.get("content")
    if block.value["type"] == "web_search_tool_result" and isinstance(content, list):
        return "\n".join(filter(None, (_page_text(page, unseal) for page in block.objects("content"))))
    match content:
        case {"type": "web_fetch_result", "content": {"source": {"data": str(text)}}}:
            return text
        case {"stdout": str(stdout), "stderr": str(stderr)}:
            return "\n".join(filter(None, (stdout, stderr)))
        case {"error_code": str(code)}:
            return f"Error: {code}"
        case [*parts] if parts and all(isinstance(part, dict) for part in parts):
            return "\n".join(text for part in parts if isinstance(text := part.get("text"), str))
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


def _page_text(page: RequestObject, unseal: Unseal) -> str:
    """The text for the model of a page that was found; title and address, if another server found it."""
    text = unseal(page.text_or_none("encrypted_content") or "")
    if text is not None:
        return text
    return " ".join(filter(None, (page.text_or_none("title"), page.text_or_none("url"))))


def _block_name(hosted: Hosted) -> str | None:
    """Anthropic's name for a function, if it has such a tool."""
    names = _BLOCKS.get(hosted.type, {})
    return names.get(None) or names.get(hosted.action)


def _hosted(function: Function) -> Hosted:
    assert function.hosted is not None, "a tool of the client"
    return function.hosted
