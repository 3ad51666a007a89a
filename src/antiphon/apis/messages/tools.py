"""The tools of a request, and which of them an answer may or must call.

Those with `defer_loading` wait until a search, or a message, brings them: see `tool_changes.py`.

Types of tools end with the date of their version, which does not matter here. Server tools have other types
than in the Responses API: their views (`server_tools.py`) map them.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.messages.client_tools import CLIENT_TOOLS, ClientTool
from antiphon.apis.messages.mcp import TOOLSET, is_deferred, is_enabled, mcp_settings, toolset_places
from antiphon.apis.messages.programs import (
    CALLER,
    CODE,
    callers_of,
    is_runner,
    note_on_callers,
    program_tools,
)
from antiphon.apis.messages.schema import ToolChoiceObject
from antiphon.apis.messages.server_tools import EVERY_TOOL, NO_VIEWS, ToolViews
from antiphon.apis.request_object import Object, RequestObject, object_at
from antiphon.apis.tool_callers import CALLERS, ONLY_DIRECT, Callers
from antiphon.apis.tool_schemas import check_schema, further_members
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts, Note, unread
from antiphon.core.positions import CatalogueEntry, are_few, catalogue_text
from antiphon.core.programs import PROGRAMS
from antiphon.core.turn import TOOL_SEARCH, CallMode, Function, Hosted, Placement, SearchAction, ToolChoice

CUSTOM = "custom"
SEARCHES: Mapping[str, Function] = {
    "tool_search_tool_regex": Function(
        "tool_search_tool_regex",
        "Searches for functions that you can call then, by a regular expression of Python (re.search) in "
        "their names, descriptions and arguments.",
        {
            "type": "object",
            "properties": {"pattern": {"type": "string", "description": "The regular expression."}},
            "required": ["pattern"],
        },
        hosted=Hosted(TOOL_SEARCH, SearchAction.PATTERN, parallel=True, idempotent=True),
    ),
    "tool_search_tool_bm25": Function(
        "tool_search_tool_bm25",
        "Searches for functions that you can call then. Say in a few words what you want to do.",
        {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What the functions should do."}},
            "required": ["query"],
        },
        hosted=Hosted(TOOL_SEARCH, SearchAction.QUERY, parallel=True, idempotent=True),
    ),
}
"""Tools that find further tools, by their types without dates."""

_CLIENTS = (CUSTOM, *CLIENT_TOOLS)
"""The types of tools that the client runs."""

NOTHING_INLINE: Mapping[str, Any] = MappingProxyType({})

_DISPLAY = ("display_width_px", "display_height_px")
_READ = {
    CUSTOM: (*EVERY_TOOL, "description", "input_schema", "input_examples", "strict"),
    **dict.fromkeys(CLIENT_TOOLS, EVERY_TOOL),
    "computer": (*EVERY_TOOL, *_DISPLAY, "enable_zoom"),
    **dict.fromkeys(SEARCHES, EVERY_TOOL),
    TOOLSET: ("type", "mcp_server_name", "default_config", "configs", "cache_control"),
}
"""Type → its members that are acted on, or need not be, of tools that have no view."""

_DATE = re.compile(r"_\d{8}$")
_CALLING = {"auto": CallMode.AUTO, "any": CallMode.REQUIRED, "tool": CallMode.REQUIRED, "none": CallMode.NONE}


class Tools(Struct, frozen=True):
    """The tools that the model is offered. `names` maps the client's names to the model's.

    `views` are those of all tools of the server. `inline` are those that messages bring, by their places.
    `catalogue` says what can be found; it is empty if nothing can, or if only the client searches.
    `in_programs` are the functions that programs may call: their calls have a caller of the type `caller`.
    """

    functions: tuple[Function, ...] = ()
    names: Mapping[str, frozenset[str]] = {}
    limit: int | None = None
    notes: tuple[Note, ...] = ()
    views: ToolViews = NO_VIEWS
    inline: Mapping[str, tuple[Function, ...]] = {}
    catalogue: str = ""
    in_programs: tuple[Function, ...] = ()
    caller: str = CALLER

    def hosted(self, tool: str, action: str | None) -> Function | None:
        """The function that the model is offered for an action of a server tool."""
        for function in self.functions:
            hosted = function.hosted
            if hosted and tool in (hosted.type, hosted.label) and action in (None, hosted.action):
                return function
        return None


def requested_tools(
    tools: Sequence[Any] | None,
    servers: Sequence[Any] | None,
    served: Container[str],
    views: ToolViews = NO_VIEWS,
    inline: Mapping[str, Any] = NOTHING_INLINE,
) -> dict[str, Object]:
    """The settings of tools that the server may run, by their place in the request. Raises RequestError.

    `inline` are the tools that messages bring, by their places.
    """
    requested: dict[str, Object] = mcp_settings(tools, servers)
    placed = {f"tools[{index}]": tool for index, tool in enumerate(tools or ())} | dict(inline)
    programs = PROGRAMS in served and _let_programs_call(tools or ())
    for place, tool in placed.items():
        where = object_at(tool, place)
        kind = _kind(where)
        if kind == TOOLSET and place in inline:
            message = "Messages bring no toolsets. Name it in 'tools', with 'defer_loading', and refer to it."
            raise where.wrong("type", message)
        if kind == PROGRAMS and PROGRAMS in served:
            remedy = f"Use that, and name it in '{CALLERS}' of the tools that programs may call."
            message = f"This API has '{PROGRAMS}' as '{CALLER}'. {remedy}"
            raise where.wrong("type", message)
        if kind == CODE and programs and place not in inline:
            requested[where.where] = {"type": PROGRAMS}
        elif views.stand_for(kind):
            requested[where.where] = views.own_settings(where, kind, served)
        elif kind not in (CUSTOM, TOOLSET, *CLIENT_TOOLS, *SEARCHES):
            requested[where.where] = {**where.value, "type": kind}
    return requested


def tools_of(  # noqa: PLR0913, PLR0917 - what a request and its server say of tools
    tools: Sequence[Any] | None,
    servers: Sequence[Any] | None,
    hosts: Hosts,
    views: ToolViews = NO_VIEWS,
    inline: Mapping[str, Any] = NOTHING_INLINE,
    context: int = 0,
) -> Tools:
    """The request's tools; `hosts` and `views` are those of the server. Raises RequestError.

    `inline` are the tools that messages bring, by their places, `context` the tokens of the model's context,
    0 if they are not known.
    """
    functions: dict[str, Function] = {}
    callers: dict[str, Callers] = {}
    names: dict[str, frozenset[str]] = {}
    notes = [*hosts.notes]
    places = toolset_places(tools, servers)
    for index, tool in enumerate(tools or ()):
        where = object_at(tool, f"tools[{index}]")
        offered = [*_offered(where, places, hosts, views)]
        kind = _kind(where)
        shown = further_members(where.value, _READ[CUSTOM]) if kind == CUSTOM else ()
        read: Iterable[str] = views.settings(kind) or _READ.get(kind) or where.value
        notes += unread(where.value, where.where, (*read, *shown))
        called_by = callers_of(where) if kind in _CLIENTS else ONLY_DIRECT
        for function in offered:
            twin = functions.setdefault(function.name, function)
            if twin is not function and not (function.hosted and twin.hosted):
                message = f"There are two tools with the name '{function.name}'. Give each its own."
                raise RequestError(message, param=where.place("name"))
            callers[function.name] = called_by
        if offered and called_by.direct:
            names[where.text_or_none("name") or offered[0].name] = frozenset(f.name for f in offered)
    others = (hosts.functions.get(f"mcp_servers[{index}]", ()) for index in range(len(servers or ())))
    for functions_of_one in (*others, hosts.defaults):
        for function in functions_of_one:
            if not _in_toolset(function, places):
                functions.setdefault(function.name, function)
    brought = {
        place: tuple(_offered(object_at(tool, place), places, hosts, views)) for place, tool in inline.items()
    }
    notes += _on_callers(tools or (), inline, hosts, runs=any(map(is_runner, functions.values())))
    programs = program_tools(functions, callers, tools or ())
    functions = {**programs.direct}
    if functions and not any(map(_is_described, functions.values())):
        functions = {name: _listed(function) for name, function in functions.items()}
        notes += _without_effect(tools or ())
    offered_functions, catalogue, why = _deferred([*functions.values()], context)
    return Tools(
        offered_functions,
        names | {function.name: frozenset({function.name}) for function in chain(*brought.values())},
        _limit(tools or (), hosts),
        (*notes, *why),
        views,
        brought,
        catalogue,
        programs.in_programs,
        programs.caller,
    )


def _let_programs_call(tools: Sequence[Any]) -> bool:
    """Whether programs may call a tool of the client. Raises RequestError."""
    given = [object_at(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    return any(callers_of(tool).programs for tool in given if _kind(tool) in _CLIENTS)


def _on_callers(
    tools: Sequence[Any], inline: Mapping[str, Any], hosts: Hosts, *, runs: bool
) -> Iterator[Note]:
    """Notes on tools that programs cannot call. Raises RequestError for those that only they may."""
    placed = {f"tools[{index}]": tool for index, tool in enumerate(tools)} | dict(inline)
    for place, tool in placed.items():
        where = object_at(tool, place)
        client = _kind(where) in _CLIENTS
        yield from note_on_callers(
            where, served=PROGRAMS in hosts.types, runs=runs, of_client=client, later=place in inline
        )


def _is_described(function: Function) -> bool:
    return function.placement is not Placement.SEARCH


def _listed(function: Function) -> Function:
    return replace(function, placement=Placement.PROMPT)


def _without_effect(tools: Sequence[Any]) -> Iterator[Note]:
    """Notes on tools that cannot wait: there is none to find or add them with."""
    for index, tool in enumerate(tools):
        read = [name for name in tool if name != "defer_loading"]
        yield from unread(tool, f"tools[{index}]", read)


def _deferred(functions: list[Function], context: int) -> tuple[tuple[Function, ...], str, tuple[Note, ...]]:
    """The functions as the model is offered them, what it can search for, and a note if it need not.

    Without a search of the server's the client finds tools, or adds them.
    """
    searches = [function for function in functions if function in SEARCHES.values()]
    others = [function for function in functions if function not in SEARCHES.values()]
    waiting = [function for function in others if function.placement is Placement.SEARCH]
    if not searches or not waiting:
        return tuple(others), "", _nothing_to_find(searches)
    if are_few(others, context):
        return tuple(map(_listed, others)), "", (Note("tools", _FEW),)
    return tuple(functions), catalogue_text(_entries(waiting), searches[0].name), ()


_FEW = (
    "The tools are few, and short: the model is given all from the beginning, and has nothing to search for."
)


def _nothing_to_find(searches: Sequence[Function]) -> tuple[Note, ...]:
    why = "No tool has 'defer_loading': the model is given all, and has nothing to search for."
    return (Note("tools", why),) if searches else ()


def _entries(functions: Iterable[Function]) -> list[CatalogueEntry]:
    """What can be found: the tools of a remote server by its name."""
    entries: dict[str, CatalogueEntry] = {}
    for function in functions:
        hosted = function.hosted
        if hosted is not None and hosted.label:
            before = entries.get(hosted.label)
            about = f"{before.about}, {hosted.action}" if before is not None else hosted.action
            entries[hosted.label] = CatalogueEntry(hosted.label, about)
        else:
            entries[function.name] = CatalogueEntry(function.name, function.description or "")
    return [*entries.values()]


def tool_choice(requested: ToolChoiceObject | None, tools: Tools) -> ToolChoice:
    """Which calls the answer may have, and whether it must have one. Raises RequestError."""
    if requested is None:
        return ToolChoice()
    calling, parallel = _CALLING[requested.type], not requested.disable_parallel_tool_use
    if calling is CallMode.REQUIRED and not tools.functions:
        message = "'tool_choice' requires a call, but 'tools' has none that the model can call."
        raise RequestError(message, param="tool_choice")
    if requested.disable_parallel_tool_use and tools.in_programs:
        message = "Programs make several calls at the same time. Leave it out, or let no programs call tools."
        raise RequestError(message, param="tool_choice.disable_parallel_tool_use")
    if requested.type != "tool":
        return ToolChoice(calling, parallel=parallel)
    choice = RequestObject(msgspec.to_builtins(requested), "tool_choice")
    only = tools.names.get(choice.text("name"))
    placements = {function.name: function.placement for function in tools.functions}
    if only and all(placements.get(name) is Placement.SEARCH for name in only):
        message = "The model has not found it yet. Let it search, or leave out 'defer_loading' of the tool."
        raise choice.wrong("name", message)
    if only is None and choice.value["name"] in {function.name for function in tools.in_programs}:
        raise choice.wrong("name", f"Only programs may call it. Name '{CODE}'.")
    if only is None:
        raise choice.wrong(
            "name",
            f"There is no tool with the name '{requested.name}' in the request. Offer it, or name another.",
        )
    return ToolChoice(calling, only, parallel, named=True)


def without_removed(choice: ToolChoice, functions: Sequence[Function], removed: frozenset[str]) -> ToolChoice:
    """The choice among the functions that were not removed. Raises RequestError if it named one that was."""
    if not removed:
        return choice
    every = frozenset(function.name for function in functions)
    names = every if choice.names is None else choice.names
    if choice.named and names <= removed:
        message = "A message has removed this tool. Name another, or add it again."
        raise RequestError(message, param="tool_choice.name")
    return replace(choice, names=names - removed)


def _kind(tool: RequestObject) -> str:
    """The type, without its date."""
    return _DATE.sub("", tool.text_or_none("type") or CUSTOM)


def _in_toolset(function: Function, places: Mapping[str, str]) -> bool:
    """Whether a toolset decides about it."""
    return function.source in places.values()


def _offered(
    tool: RequestObject, places: Mapping[str, str], hosts: Hosts, views: ToolViews
) -> Iterator[Function]:
    """The functions that the model is offered for a tool."""
    kind = _kind(tool)
    defers = bool(tool.flag_or_none("defer_loading"))
    if kind == CUSTOM:
        yield _waiting(_custom(tool), defers)
    elif kind in CLIENT_TOOLS:
        yield _waiting(_clients_own(tool, CLIENT_TOOLS[kind]), defers)
    elif kind in SEARCHES:
        yield SEARCHES[kind]
    elif kind == TOOLSET:
        for function in hosts.functions.get(places[tool.where], ()):
            if function.hosted and is_enabled(tool, function.hosted.action):
                yield _waiting(function, is_deferred(tool, function.hosted.action))
    else:
        actions = views.actions(kind)
        for function in hosts.functions.get(tool.where, ()):
            if function.hosted and (not actions or is_runner(function) or function.hosted.action in actions):
                yield _waiting(function, defers)


def _waiting(function: Function, defers: bool) -> Function:
    """The function, which waits until it is found if it is deferred."""
    return replace(function, placement=Placement.SEARCH) if defers else function


def _clients_own(tool: RequestObject, known: ClientTool) -> Function:
    """A tool that the client does not describe, with the size of its screen, if it has one."""
    width, height = (tool.value.get(name) for name in _DISPLAY)
    screen = "" if width is None or height is None else f" The screen has {width} by {height} pixels."
    return Function(tool.named("name"), known.description + screen, known.parameters, source=tool.where)


def _custom(tool: RequestObject) -> Function:
    schema = tool.object_or_none("input_schema")
    if schema is None:
        raise tool.missing("input_schema")
    description = tool.text_or_none("description")
    examples = tool.value.get("input_examples")
    if examples:
        shown = msgspec.json.encode(examples).decode()
        description = f"{description or ''}\nExamples of its input: {shown}".lstrip()
    check_schema(schema.value, tool.place("input_schema"))
    strict, more = tool.flag_or_none("strict"), further_members(tool.value, _READ[CUSTOM])
    return Function(
        *(tool.named("name"), description, schema.value, strict, tool.place("input_schema")), more=more
    )


def _limit(tools: Sequence[Object], hosts: Hosts) -> int | None:
    """The most calls of server tools: the total of the limits of the tools."""
    uses = [(index, tools[index].get("max_uses")) for index in range(len(tools))]
    hosted = [(index, limit) for index, limit in uses if hosts.functions.get(f"tools[{index}]")]
    limited = [(index, limit) for index, limit in hosted if limit is not None]
    for index, limit in limited:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise RequestObject({}, f"tools[{index}]").wrong("max_uses", "Use a whole number from 1 on.")
        if len(limited) < len(hosted):
            message = (
                "Calls are counted for all tools of the server together. Give it to each of them, or none."
            )
            raise RequestObject({}, f"tools[{index}]").wrong("max_uses", message)
    return sum(limit for _, limit in limited) if limited else None
