"""The tools of a request, and which of them an answer may or must call.

A server tool is named by its type; the model may get it as several functions.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from antiphon.apis.chat.schema import (
    AllowedTools,
    ChatOptions,
    GrammarInput,
    NamedTool,
    RequestCustom,
    RequestFunction,
    RequestMessage,
    RequestTool,
    ToolChoiceObject,
    ToolReference,
    WebSearchOptions,
)
from antiphon.apis.custom_tools import InputFormat, as_function
from antiphon.apis.request_object import Object
from antiphon.apis.tool_schemas import check_schema, further_members
from antiphon.apis.wire import invalid
from antiphon.core.constraint import GrammarFormat, Regex
from antiphon.core.errors import RequestError
from antiphon.core.hosts import DEFAULTS, Hosts, Note, unread
from antiphon.core.positions import FunctionsByPlace
from antiphon.core.turn import CallMode, Function, ToolChoice

WEB_SEARCH = "web_search"
"""The tool that the older `web_search_options` request."""
WEB_SEARCH_OPTIONS = "web_search_options"

_READ = {
    "function": RequestFunction.__struct_fields__,
    "custom": RequestCustom.__struct_fields__,
}
"""Type of a tool of the client's → its members that are acted on."""

NOTHING_ANNOUNCED: Mapping[int, tuple[Function, ...]] = MappingProxyType({})
INSTRUCTING = frozenset({"system", "developer"})
"""The roles whose messages may bring tools."""

_MODES = {calling.value: calling for calling in CallMode}
_UNKNOWN_CHOICE = (
    "Unknown tool choice. Use 'none', 'auto', 'required', "
    "or an object of type 'function', 'custom', 'allowed_tools', or of a tool that the server runs."
)


class _Names:
    """The model's names of tools: of the client's, and of server tools by their type."""

    def __init__(self, offered: Collection[Function]) -> None:
        self.clients = set[str]()
        self.hosted: dict[str, set[str]] = {}
        for tool in offered:
            names = self.hosted.setdefault(tool.hosted.type, set()) if tool.hosted else self.clients
            names.add(tool.name)
        self._remote = [(tool.name, tool.hosted) for tool in offered if tool.hosted and tool.hosted.label]

    def remote(self, label: str, action: str | None) -> Iterator[str]:
        """The model's names of the tools of a remote server: all, or the given one."""
        for name, hosted in self._remote:
            if hosted.label == label and action in (None, hosted.action):
                yield name


class Tools(Struct, frozen=True):
    """The tools that may be called. `custom` names custom tools; `legacy` requests have functions only.

    `notes` are on settings of tools without effect. `announced` are the functions that messages bring, by the
    index of the message: the conversation describes them there.
    """

    functions: tuple[Function, ...]
    choice: ToolChoice
    custom: frozenset[str] = frozenset()
    legacy: bool = False
    notes: tuple[Note, ...] = ()
    announced: Mapping[int, tuple[Function, ...]] = NOTHING_ANNOUNCED


NO_TOOLS = Tools((), ToolChoice())
"""Without tools."""


class AddedTools(NamedTuple):
    """The tools of a message, which count from there on. `leading`: nothing but instructions comes before."""

    message: int
    tools: tuple[tuple[str, Object], ...]
    leading: bool


def added_tools(messages: Sequence[RequestMessage], where: str) -> list[AddedTools]:
    """The tools that messages of the conversation bring, as for Kimi K3. Raises RequestError."""
    added, leading = [], True
    for index, message in enumerate(messages):
        instructs = message.role in INSTRUCTING
        if message.tools:
            if not instructs:
                param = f"{where}[{index}].tools"
                raise RequestError("Only system messages can add tools. Use 'tools'.", param=param)
            tools = tuple((f"{where}[{index}].tools[{n}]", tool) for n, tool in enumerate(message.tools))
            added.append(AddedTools(index, tools, leading))
        leading = leading and instructs
    return added


def tools_of(request: ChatOptions, hosts: Hosts, added: Sequence[AddedTools] = ()) -> Tools:
    """The request's tools and its tool choice; `hosts` are the tools of the server. Raises RequestError."""
    if request.functions or (request.function_call is not None and not request.tools):
        return _legacy(request)
    said = request.tools or request.tool_choice or request.parallel_tool_calls is not None
    if not (said or hosts.functions or hosts.notes or added):
        return NO_TOOLS  # to find out the same below takes 3 % of a full answer
    given = [_read(tool, f"tools[{index}]") for index, tool in enumerate(request.tools or ())]
    functions, announced = _with_added((*_offered(request, given, hosts),), added)
    choice = _choice(request.tool_choice, functions, hosts)
    if request.parallel_tool_calls is False:
        choice = replace(choice, parallel=False)
    given += [_read(raw, place) for message in added for place, raw in message.tools]
    custom = frozenset(tool.custom.name for tool in given if tool.custom and tool.type == "custom")
    notes = (*hosts.notes, *_notes(request.tools or ()))
    return Tools(functions, choice, custom, notes=notes, announced=announced)


def _with_added(
    listed: tuple[Function, ...], added: Iterable[AddedTools]
) -> tuple[tuple[Function, ...], Mapping[int, tuple[Function, ...]]]:
    """All functions, and those that the conversation describes, by the message that does."""
    places = FunctionsByPlace(listed)
    announced = {
        message.message: described
        for message in added
        if (described := places.add([*map(_brought, message.tools)], leading=message.leading))
    }
    return places.functions, announced


def _brought(placed: tuple[str, Object]) -> Function:
    """A function that a message brings. Raises RequestError for other tools."""
    place, raw = placed
    tool = _read(raw, place)
    if tool.type not in _READ:
        remedy = "Messages bring functions and custom tools only. Use 'tools'."
        raise RequestError(remedy, param=f"{place}.type")
    return _function(tool, raw, place)


def requested_tools(request: ChatOptions) -> dict[str, dict[str, Any]]:
    """The settings of tools that the server may run, by their place in the request. Raises RequestError."""
    if request.tools is None and request.web_search_options is None:
        return {}
    settings = {
        f"tools[{index}]": {name: value for name, value in tool.items() if value is not None}
        for index, tool in enumerate(request.tools or ())
        if _read(tool, f"tools[{index}]").type not in _READ
    }
    if request.web_search_options is not None:
        settings[WEB_SEARCH_OPTIONS] = _search_settings(request.web_search_options)
    return settings


def _read(tool: Object, where: str) -> RequestTool:
    """The client's tool at `where`. Raises RequestError."""
    try:
        return msgspec.convert(tool, RequestTool)
    except msgspec.ValidationError as error:
        raise invalid(str(error), where) from error


def _notes(tools: Iterable[Object]) -> Iterator[Note]:
    """Notes on settings of the client's own tools without effect."""
    for index, tool in enumerate(tools):
        kind, where = tool["type"], f"tools[{index}]"
        if kind in _READ:
            yield from unread(tool, where, ("type", kind))
            yield from unread(tool[kind], f"{where}.{kind}", _read_members(kind, tool[kind]))


def _read_members(kind: str, tool: Object) -> tuple[str, ...]:
    """The members of a tool of the client's that are acted on: of functions, also what templates may show."""
    return (*_READ[kind], *(further_members(tool, _READ[kind]) if kind == "function" else ()))


def _search_settings(options: WebSearchOptions) -> dict[str, Any]:
    """The settings of the tool that `web_search_options` requests."""
    settings: dict[str, Any] = {"type": WEB_SEARCH}
    if options.search_context_size is not None:
        settings["search_context_size"] = options.search_context_size
    if options.user_location is not None:
        settings["user_location"] = {"type": "approximate", **asdict(options.user_location.approximate)}
    return settings


def _legacy(request: ChatOptions) -> Tools:
    """`functions` and `function_call`: the older form, with at most one call in an answer."""
    for name in ("tools", "tool_choice", "web_search_options"):
        if getattr(request, name):
            message = (
                f"'{name}' and the older 'functions' and 'function_call' exclude each other. Use '{name}'."
            )
            raise RequestError(message, param=name)
    functions = tuple(
        _described(function, f"functions[{index}]") for index, function in enumerate(request.functions or ())
    )
    _refuse_duplicates(functions)
    match request.function_call:
        case NamedTool(name=name):
            only = frozenset({_known(name, _Names(functions), "function_call.name")})
            choice = ToolChoice(CallMode.REQUIRED, only, named=True)
        case None | "auto":
            choice = ToolChoice()
        case "none":
            choice = ToolChoice(CallMode.NONE)
        case _:
            message = "Unknown function call. Use 'none', 'auto' or an object with a 'name'."
            raise RequestError(message, param="function_call")
    return Tools(functions, replace(choice, parallel=False), legacy=True)


def _offered(request: ChatOptions, given: Iterable[RequestTool], hosts: Hosts) -> Iterator[Function]:
    """The functions that the model is offered, without duplicate names."""
    seen: set[str] = set()
    named = ((f"tools[{index}]", tool) for index, tool in enumerate(given))
    offers = [*zip(named, request.tools or (), strict=True)]
    for where, functions in [
        *((where, _functions(tool, raw, where, hosts)) for (where, tool), raw in offers),
        (WEB_SEARCH_OPTIONS, hosts.functions.get(WEB_SEARCH_OPTIONS, ())),
        (DEFAULTS, hosts.defaults),
    ]:
        for function in functions:
            if function.name in seen:
                param = where if function.hosted else f"{where}.function.name"
                message = f"There are two tools with the name '{function.name}'. Give each its own."
                raise RequestError(message, param=param)
            seen.add(function.name)
            yield function


def _functions(tool: RequestTool, raw: Object, where: str, hosts: Hosts) -> tuple[Function, ...]:
    """The functions that the model is offered for a tool."""
    if tool.type in ("function", "custom"):
        return (_function(tool, raw, where),)
    return hosts.functions.get(where, ())


def _function(tool: RequestTool, raw: Object, where: str) -> Function:
    match tool:
        case RequestTool(type="function", function=RequestFunction() as function):
            more = further_members(raw["function"], _READ["function"])
            return replace(_described(function, f"{where}.function"), more=more)
        case RequestTool(type="custom", custom=RequestCustom() as custom):
            return as_function(custom.name, custom.description, _form(custom), f"{where}.custom.format")
    raise _unwrapped(f"{where}.{tool.type}")


def _unwrapped(param: str) -> RequestError:
    """The error of what has the form of the Responses API: its members are those of the missing object."""
    message = f"Missing required parameter: '{param}'. In Chat Completions it is an object with the 'name'."
    return RequestError(message, param=param, code="missing_required_parameter")


def _described(function: RequestFunction, where: str) -> Function:
    source = f"{where}.parameters"
    check_schema(function.parameters or {}, source)
    return Function(function.name, function.description, function.parameters or {}, function.strict, source)


def _form(custom: RequestCustom) -> InputFormat | None:
    match custom.format:
        case GrammarInput(grammar=grammar) if grammar.syntax == "regex":
            return Regex(grammar.definition)
        case GrammarInput(grammar=grammar):
            return GrammarFormat(grammar.definition, grammar.syntax)
    return None


def _refuse_duplicates(functions: tuple[Function, ...]) -> None:
    seen: set[str] = set()
    for index, function in enumerate(functions):
        if function.name in seen:
            message = f"There are two tools with the name '{function.name}'. Give each its own."
            raise RequestError(message, param=f"functions[{index}].name")
        seen.add(function.name)


def _choice(choice: str | ToolChoiceObject | None, offered: tuple[Function, ...], hosts: Hosts) -> ToolChoice:
    """Which calls are wanted of the tools that are offered."""
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str) and choice not in _MODES:
        raise RequestError(_UNKNOWN_CHOICE, param="tool_choice")
    if not offered and choice not in ("none", "auto"):
        message = "'tool_choice' is only allowed when 'tools' are specified."
        raise RequestError(message, param="tool_choice")
    if isinstance(choice, str):
        return ToolChoice(_MODES[choice])
    known = _Names(offered)
    if choice.type == "allowed_tools" and choice.allowed_tools:
        names = frozenset(_allowed(choice.allowed_tools, known, hosts))
        return ToolChoice(_MODES[choice.allowed_tools.mode], names)
    return ToolChoice(CallMode.REQUIRED, _named(choice, known, hosts), named=True)


def _named(choice: ToolChoiceObject, offered: _Names, hosts: Hosts) -> frozenset[str]:
    """The model's names of the tool that must be called."""
    match choice:
        case ToolChoiceObject(type="function", function=NamedTool(name=name)):
            return frozenset({_known(name, offered, "tool_choice.function.name")})
        case ToolChoiceObject(type="custom", custom=NamedTool(name=name)):
            return frozenset({_known(name, offered, "tool_choice.custom.name")})
        case ToolChoiceObject(type="function" | "custom" | "allowed_tools"):
            raise _unwrapped(f"tool_choice.{choice.type}")
    hosted = _hosted(choice.type, offered, hosts)
    if choice.server_label is not None:
        hosted = frozenset(offered.remote(choice.server_label, choice.name))
    if not hosted:
        raise RequestError(_UNKNOWN_CHOICE, param="tool_choice.type")
    return hosted


def _hosted(type_: str | None, offered: _Names, hosts: Hosts) -> frozenset[str]:
    """The model's names of a server tool: none, if it is not offered."""
    return frozenset(offered.hosted.get(hosts.type_of(type_ or ""), ()))


def _allowed(allowed: AllowedTools, offered: _Names, hosts: Hosts) -> Iterator[str]:
    for index, tool in enumerate(allowed.tools):
        where = f"tool_choice.allowed_tools.tools[{index}]"
        match tool:
            case ToolReference(function=NamedTool(name=name)) | ToolReference(custom=NamedTool(name=name)):
                yield _known(name, offered, where)
            case ToolReference(type=type_) if hosted := _hosted(type_, offered, hosts):
                yield from hosted
            case _:
                message = (
                    f"'{where}' names no tool. Use an object of type 'function' or 'custom' that has "
                    "an object of that name with the 'name'."
                )
                raise RequestError(message, param=where)


def _known(name: str, offered: _Names, param: str) -> str:
    """The name, if it is that of one of the client's tools."""
    if name not in offered.clients:
        raise RequestError(
            f"There is no tool with the name '{name}' in the request. Offer it, or name another.", param=param
        )
    return name
