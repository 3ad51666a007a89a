"""The tools of a request: the functions that the model is offered, and the client's names of them.

Functions are offered unchanged. A custom tool is offered as a function with one string. The tools of a
namespace are offered under flat names, joined by two underscores; the client gets both names. Client tools
with types of their own are in `client_tools.py`, tools that come in the input in `added_tools.py`. A server
tool is offered as the functions that it has for this model; `tools/discovery.py` decides what to do if the
server does not run it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.apis.custom_tools import InputFormat, as_function
from antiphon.apis.request_object import Object, RequestObject, object_at
from antiphon.apis.responses.added_tools import AddedTools, added_tools
from antiphon.apis.responses.client_tools import client_tool
from antiphon.apis.tool_schemas import check_schema, further_members
from antiphon.core.constraint import GrammarFormat, Regex
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts, Listing, Note, unread
from antiphon.core.turn import CallMode, Function, ToolChoice

SECRET = frozenset({"authorization", "headers"})
"""Members of a tool that only the server that it names may see."""
SEALED = "sealed_secrets"
"""The field with the sealed secrets of a stored tool."""
FUNCTION = "function"
CUSTOM = "custom"
NAMESPACE = "namespace"
ALWAYS_SENT = frozenset(
    {
        "image_generation",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Types that coding agents always list: clients work without them.

Codex 0.169.0 lists `web_search` in every request, and the other two for models that it knows. openai-agents
0.24.0 and the AI SDK list only the tools of their user.
"""

_READ = {
    FUNCTION: ("type", "name", "description", "parameters", "strict"),
    CUSTOM: ("type", "name", "description", "format"),
    NAMESPACE: ("type", "name", "description", "tools"),
}
"""Type of a tool of the client's → its members that are acted on."""

_NOTHING_ADDED: Mapping[str, Any] = MappingProxyType({})
_MODES = {calling.value: calling for calling in CallMode}


class Tool(Struct, frozen=True):
    """A tool that the model is offered. `name` and `namespace` are the client's names of it.

    A server tool has an entry for each of its functions, all of its type.
    """

    type: str
    name: str
    namespace: str | UnsetType
    function: Function


class Toolbox:
    """The tools that the model is offered, by the model's names of them."""

    def __init__(
        self,
        tools: dict[str, Tool],
        hosts: Hosts,
        notes: tuple[Note, ...] = (),
        announced: Mapping[str, Sequence[Function]] = _NOTHING_ADDED,
    ) -> None:
        self._tools = tools
        self._hosts = hosts
        self._announced = announced
        self.notes = notes
        self._by_type: dict[str, list[Function]] = {}
        self._by_plain_name: dict[tuple[str, str], list[str]] = {}
        for flat, tool in tools.items():
            self._by_type.setdefault(tool.type, []).append(tool.function)
            self._by_plain_name.setdefault((tool.type, tool.name), []).append(flat)

    @property
    def listings(self) -> tuple[Listing, ...]:
        """The listings of remote servers that are not in the conversation yet."""
        return tuple(listing for listing in self._hosts.listings if not listing.known)

    @property
    def functions(self) -> tuple[Function, ...]:
        """As the model is offered them."""
        return tuple(tool.function for tool in self._tools.values())

    def announced_by(self, item: RequestObject) -> Sequence[Function]:
        """The functions that the conversation describes at the place of this item."""
        return self._announced.get(item.value["id"], ())

    def find(self, name: str) -> Tool:
        """The tool that the model called. An unknown name is treated as a function."""
        return self._tools.get(name) or Tool(FUNCTION, name, UNSET, Function(name))

    def hosted(self, type_: str) -> tuple[Function, ...]:
        """The functions of a server tool that the model is offered."""
        return tuple(self._by_type.get(self._hosts.type_of(type_), ()))

    def named_of(self, reference: RequestObject, type_: str) -> Iterator[str]:
        """The model's names of a tool with its own type: of a remote server, all or the given one."""
        label, name = reference.text_or_none("server_label"), reference.text_or_none("name")
        for function in self.hosted(type_):
            hosted = function.hosted
            if hosted is None or (label in (None, hosted.server) and name in (None, hosted.action)):
                yield function.name

    def offered(self, type_: str) -> Function:
        """The model's function for a server tool; without one, its usual name."""
        return next(iter(self.hosted(type_)), Function(type_))

    def named(self, choice: RequestObject) -> str:
        """The flat name of the tool in a tool choice. Raises RequestError if it is not exactly one."""
        _refuse_wrapped(choice)
        name, space = choice.text("name"), choice.text_or_none("namespace")
        type_, flat = choice.value["type"], flat_name(space, name)
        tool, names = self._tools.get(flat), []
        if tool is not None and tool.type == type_:
            names = [flat]
        elif space is None:  # a plain name is accepted for a tool of a namespace, if it is unique
            names = self._by_plain_name.get((type_, name), [])
        if not names:
            raise choice.wrong("name", f"There is no such tool in 'tools': '{name}'.")
        if len(names) > 1:
            raise choice.wrong("name", f"It may be any of {', '.join(names)}. Use one of these names.")
        return names[0]

    def __bool__(self) -> bool:
        return bool(self._tools)


NO_TOOLS = Toolbox({}, Hosts())


def flat_name(namespace: str | None, name: str) -> str:
    """The model's name of a tool."""
    return f"{namespace}__{name}" if namespace else name


def toolbox(tools: list[Any] | None, hosts: Hosts, items: Sequence[RequestObject] = ()) -> Toolbox:
    """The tools of a request and of its items, with the server tools in `hosts`. Raises RequestError."""
    by_name: dict[str, Tool] = {}
    notes = [*hosts.notes]
    for index, tool in enumerate(tools or ()):
        where = object_at(tool, f"tools[{index}]")
        notes += _notes(where)
        for offered in _offered(where, hosts):
            name = offered.function.name
            if name in by_name:
                raise RequestError(_twins(by_name[name], offered), param=where.where)
            by_name[name] = offered
    for function in hosts.defaults:
        assert function.hosted is not None
        by_name.setdefault(function.name, Tool(function.hosted.type, function.name, UNSET, function))
    announced = {added.item: _added(added, by_name, hosts) for added in added_tools(items)}
    return Toolbox(by_name, hosts, tuple(notes), announced)


def _added(added: AddedTools, by_name: dict[str, Tool], hosts: Hosts) -> list[Function]:
    """Adds the tools of an item to those in `by_name`; returns those that it announces.

    Where the prompt lists no tools, it says nothing about calls, either: then it has to list these. A tool
    that it lists already stays there.
    """
    announces = added.announced and bool(by_name)
    functions = []
    for offered in (offer for tool in added.tools for offer in _offered(tool, hosts)):
        known = by_name.get(offered.function.name)
        announced = announces and (known is None or known.function.announced)
        function = replace(offered.function, announced=announced)
        by_name[function.name] = replace(offered, function=function)
        functions += [function] if announced else []
    return functions


def requested_tools(tools: list[Any] | None, added: Mapping[str, Any] = _NOTHING_ADDED) -> dict[str, Object]:
    """The settings of tools that the server may run, by their place: of the request, and of its items."""
    placed = {**{f"tools[{index}]": tool for index, tool in enumerate(tools or ())}, **added}
    return {
        place: tool
        for place, tool in placed.items()
        if isinstance(tool, dict) and _may_be_hosted(tool.get("type")) and client_tool(tool) is None
    }


def _may_be_hosted(type_: object) -> bool:
    """Whether a tool of this type is none that the client describes."""
    return isinstance(type_, str) and type_ not in _READ


def _notes(tool: RequestObject) -> Iterator[Note]:
    """Notes on settings of the client's own tools that have no effect."""
    type_, own = tool.text("type"), client_tool(tool.value)
    if own is not None:
        yield from own.notes(tool)
    elif type_ in _READ:
        shown = further_members(tool.value, _READ[type_]) if type_ == FUNCTION else ()
        yield from unread(tool.value, tool.where, (*_READ[type_], *shown))
    if type_ == NAMESPACE:
        for inner in tool.objects("tools"):
            yield from _notes(inner)


def _twins(first: Tool, second: Tool) -> str:
    """The reason why two tools cannot both be offered: they have one name for the model."""
    name, hosted = second.function.name, [tool for tool in (first, second) if tool.function.hosted]
    match hosted:
        case []:
            return f"There are two tools of the name '{name}'. Rename one."
        case [tool]:
            return f"The model knows '{tool.type}' as '{name}'. Rename the function of that name."
    if second.function.hosted is not None and second.function.hosted.label:
        return f"The model would know two tools as '{name}'. Allow one of them only."
    return f"There are two tools of the type '{second.type}'. Leave one out."


def _offered(tool: RequestObject, hosts: Hosts) -> Iterator[Tool]:
    """The tools that the model is offered for one of the request."""
    own = client_tool(tool.value)
    if own is not None:
        yield Tool(tool.text("type"), own.name, UNSET, own.function(tool))
        return
    match tool.text("type"):
        case "function" | "custom":
            yield _tool(tool, None)
        case "namespace":
            namespace = tool.named("name")
            for inner in tool.objects("tools"):
                yield _tool(inner, namespace)
        case type_:
            for function in hosts.functions.get(tool.where, ()):
                yield Tool(hosts.type_of(type_), function.name, UNSET, function)


def _tool(tool: RequestObject, namespace: str | None) -> Tool:
    type_ = tool.text("type")
    _refuse_wrapped(tool)
    name = tool.named("name")
    flat, about = flat_name(namespace, name), tool.text_or_none("description")
    if type_ == CUSTOM:
        function = as_function(flat, about, _text_form(tool), tool.place("format"))
    elif type_ == FUNCTION:
        parameters = tool.object_or_none("parameters")
        strict = tool.flag_or_none("strict")
        schema = parameters.value if parameters else {}
        check_schema(schema, tool.place("parameters"))
        more = further_members(tool.value, _READ[type_])
        function = Function(flat, about, schema, strict, tool.place("parameters"), more=more)
    else:
        raise tool.wrong("type", f"A namespace has no tools of type '{type_}'. Use 'function' or 'custom'.")
    return Tool(type_, name, namespace or UNSET, function)


def _refuse_wrapped(tool: RequestObject) -> None:
    """Refuse a tool, or the name of one, in the form of Chat Completions. Raises RequestError."""
    type_ = tool.value["type"]
    if "name" not in tool.value and type_ in tool.value:
        raise tool.missing("name", f"In the Responses API the members of '{type_}' stand beside its 'type'.")


def _text_form(tool: RequestObject) -> InputFormat | None:
    """The required form of the input of a custom tool."""
    form = tool.object_or_none("format")
    if form is None or form.value.get("type", "text") == "text":
        return None
    if form.value["type"] != "grammar":
        raise form.wrong("type", "Use 'text' or 'grammar'.")
    match form.text("syntax"):
        case "regex":
            return Regex(form.text("definition"))
        case "lark":
            return GrammarFormat(form.text("definition"), "lark")
    raise form.wrong("syntax", "Use 'lark' or 'regex'.")


def echo(tools: list[Object] | None) -> list[Object]:
    """The tools as the response returns them: functions with every field, and without secrets."""
    nothing = {"description": None, "parameters": None, "strict": None}
    return [nothing | tool if tool["type"] == FUNCTION else without_secrets(tool) for tool in tools or ()]


def without_secrets(tool: Object) -> Object:
    """The tool without the secrets for its server."""
    return {name: value for name, value in tool.items() if name not in (*SECRET, SEALED)}


def sealed_tools(tools: list[Any] | None, seal: Callable[[str], str] | None) -> list[Any] | None:
    """The tools as they are stored: with their secrets sealed for background responses, or without any."""
    return tools and [_sealed(tool, seal) if isinstance(tool, dict) else tool for tool in tools]


def _sealed(tool: Object, seal: Callable[[str], str] | None) -> Object:
    secrets = {name: tool[name] for name in SECRET if tool.get(name)}
    kept = without_secrets(tool)
    if secrets and seal is not None:
        kept[SEALED] = seal(msgspec.json.encode(secrets).decode())
    return kept


def unsealed_tools(tools: list[Any] | None, unseal: Callable[[str], str | None]) -> list[Any] | None:
    """The tools that were stored, with their secrets."""
    return tools and [_unsealed(tool, unseal) if isinstance(tool, dict) else tool for tool in tools]


def _unsealed(tool: Object, unseal: Callable[[str], str | None]) -> Object:
    sealed = unseal(str(tool[SEALED])) if SEALED in tool else None
    return tool if sealed is None else without_secrets(tool) | msgspec.json.decode(sealed)


# Tool choice


def tool_choice(choice: object, tools: Toolbox, parallel: bool | None) -> ToolChoice:
    """Which calls the answer may have, and whether it must have one. Raises RequestError."""
    requested = _choice(choice, tools)
    if requested.calling is CallMode.REQUIRED and not tools:
        message = "'tool_choice' requires a call, but 'tools' has none that the model can call."
        raise RequestError(message, param="tool_choice")
    return replace(requested, parallel=parallel is not False)


def _choice(choice: object, tools: Toolbox) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str):
        if choice not in _MODES:
            known = "'auto', 'none', 'required', or an object"
            raise RequestError(f"Unknown tool choice '{choice}'. Use {known}.", param="tool_choice")
        return ToolChoice(_MODES[choice])
    reference = object_at(choice, "tool_choice")
    if reference.text("type") != "allowed_tools":
        return ToolChoice(CallMode.REQUIRED, _allowed(reference, tools), named=True)
    mode = reference.text_or_none("mode") or CallMode.AUTO.value
    if mode not in _MODES:
        raise reference.wrong("mode", "Use 'auto' or 'required'.")
    allowed = reference.objects("tools")
    if not allowed:
        raise reference.wrong("tools", "Name at least one tool.")
    return ToolChoice(_MODES[mode], frozenset[str]().union(*(_allowed(tool, tools) for tool in allowed)))


def _allowed(reference: RequestObject, tools: Toolbox) -> frozenset[str]:
    """The flat names of a tool that a choice allows: a server tool may have several."""
    type_ = reference.text("type")
    if type_ in (FUNCTION, CUSTOM):
        return frozenset({tools.named(reference)})
    names = frozenset(tools.named_of(reference, type_))
    if not names:
        message = f"Tools of type '{type_}' are not offered to the model. Use one of those that are."
        raise reference.wrong("type", message)
    return names
