"""Determines, for each request, which functions of the server tools its model is offered.

It handles every tool of every API that is not the client's own. A tool that this server does not run is
refused by its type, with the remedy; or, if clients always list it, it is not offered, and a note says so.

To add a reason why a tool is not run: the `remedy` of its toolkit; for types that no toolkit has, `REMEDIES`
here; `tests/tools/test_discovery.py`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.errors import RequestError
from antiphon.core.hosts import DEFAULTS, STANDING, TRAINED_LABELS, Hosts, Listing, Note, unread
from antiphon.core.programs import PROGRAMS
from antiphon.core.turn import Function, Hosted
from antiphon.tools.tool import LabelledTool, RequestedTool, ServerTool, ToolOffer

RESERVED = frozenset({"function", "custom", "namespace", "allowed_tools"})
"""The types of a client's own tools, each in some of the APIs: they are no types of server tools."""

Tools = Mapping[str, ServerTool]
"""The tools of a server, by type."""

MAX_NAMED = 64
"""Characters of an unknown type in an error."""

MAX_NAME = 64
"""Characters of a function's name with the label of its tool."""

_ITEMS = "Use the Responses API, which has this tool, or give the model a function of your own."
_FLAT = "In this API a function has no type: give only its 'name', 'description' and 'input_schema'."
_PROGRAMS = "Use the Responses API, or leave this tool out: in this API the model calls tools itself."
REMEDIES: Mapping[str, str] = {
    "local_shell": _ITEMS,
    "apply_patch": _ITEMS,
    "image_generation": "Name an MCP server that generates images, or give the model a function of your own.",
    "computer": _ITEMS,
    "computer_use_preview": _ITEMS,
    "tool_search": "Leave it out: in this API the model always gets all tools.",
    "mcp": "Start it with --mcp-host HOST, or with [[mcp_servers]] in its TOML file.",
    "container": "Use 'code_interpreter' or 'shell'.",
    "function": _FLAT,
    "namespace": "Use the Responses API, or give each function of the namespace as a tool.",
    "allowed_tools": "Write it as 'tool_choice'.",
}
"""Type without a toolkit → how a server gets such tools, or what replaces them."""


class ToolRequester(Struct, frozen=True):
    """The requester of tools, and its settings.

    `optional` are the types of tools that need not be run. `listings` are those of remote servers in its
    conversation, by label; `container` is the last one in which programs ran in it. `names` are those of the
    client's own functions. With `items` the API shows listings, and requests for approvals, as items.
    With `programs` it shows their calls. `defaults` are the settings of tools that every request has.
    `remedies` are those of toolkits, by type or alias.
    """

    owner: str = ""
    optional: frozenset[str] = frozenset()
    listings: Mapping[str, Listing] = {}
    container: str | None = None
    names: frozenset[str] = frozenset()
    items: bool = False
    programs: bool = False
    defaults: tuple[Mapping[str, Any], ...] = ()
    remedies: Mapping[str, str] = {}

    def missing_defaults(
        self, requested: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The default tools, except those that the request has itself, by their places."""
        named = [str(settings.get("server_label")) for settings in requested.values()]
        for index, settings in enumerate(self.defaults):
            if settings["server_label"] not in named:
                yield f"{DEFAULTS}[{index}]", settings


_NO_NAMES = frozenset[str]()


def client_names(tools: Iterable[Any] | None) -> frozenset[str]:
    """The names of a client's own tools, in any API."""
    if not tools:
        return _NO_NAMES
    own = (tool if isinstance(tool, dict) else {} for tool in tools)
    named = (value for tool in own for value in (tool, tool.get("function"), tool.get("custom")))
    names = (value.get("name") for value in named if isinstance(value, dict))
    return frozenset(name for name in names if isinstance(name, str))


_NO_HOSTS = Hosts()
NO_FUNCTIONS: Mapping[str, tuple[Function, ...]] = MappingProxyType({})


def by_type(tools: Iterable[ServerTool]) -> Tools:
    """The tools of a server by type. Raises ValueError if two have the same type or alias."""
    tools_by_type: dict[str, ServerTool] = {}
    names = set(RESERVED)
    for tool in tools:
        for name in (tool.type, *tool.aliases):
            if name in names:
                raise ValueError(f"Two tools are called '{name}'. Leave one out, or rename it.")
            names.add(name)
        tools_by_type[tool.type] = tool
    return tools_by_type


def offered_nothing(tools: Tools) -> Hosts:
    """The hosts of a request that names no server tool."""
    if not tools:
        return _NO_HOSTS
    return Hosts(types={name: tool.type for tool in tools.values() for name in (tool.type, *tool.aliases)})


async def discover(
    tools: Tools,
    requested: Mapping[str, Mapping[str, Any]],
    trained: Mapping[str, tuple[Function, ...]] = NO_FUNCTIONS,
    asking: ToolRequester = ToolRequester(),  # noqa: B008 (frozen)
) -> Hosts:
    """The functions that a model is offered for the `requested` tools: settings, by place in the request.

    `trained` are functions that the model was trained with, by type of the tool that runs them: these are
    offered instead. Raises RequestError for tools that are not run here, and unsupported settings; and
    ToolError if a tool cannot determine its functions now.
    """
    types = offered_nothing(tools).types
    by_place: dict[str, tuple[Function, ...]] = {}
    notes: list[Note] = []
    listings: list[Listing] = []
    requested_tools: list[RequestedTool] = []
    _check_programs(requested, types, asking)
    for where, given in (*requested.items(), *asking.missing_defaults(requested)):
        settings, ignored = _of_operator(given, where, tools, types)
        notes += ignored
        listing = asking.listings.get(str(settings.get("server_label")))
        requested_tools.append(
            RequestedTool(settings, where, asking.owner, listing=listing, container=asking.container)
        )
    if not requested_tools:
        return Hosts(types=types)
    offers = await _offers(tools, types, requested_tools)
    for tool in requested_tools:
        where, settings, offer = tool.where, tool.settings, offers[tool.where]
        name = settings["type"]
        type_, functions = types.get(name), offer.functions
        kind = _trained_kind(settings) or type_
        if not asking.items and (note := _unapproved(where, settings, functions)) is not None:
            notes.append(note)
            continue
        if functions and kind is not None and kind in trained:
            functions = tuple(_with_descriptions(trained[kind], functions))
        if offer.listing is not None:
            if offer.listing.label in {listing.label for listing in listings}:
                message = f"There are two servers with the label '{offer.listing.label}'. Rename one."
                raise RequestError(message, param=f"{where}.server_label")
            listings.append(offer.listing)
            if offer.listing.error is not None and not asking.items:
                message = f"The MCP server '{offer.listing.label}' has no tools now: {offer.listing.error}"
                notes.append(Note(where, message))
        elif not functions:
            notes.append(_not_offered(name, where, types, asking))
        notes += offer.notes
        chosen = settings if offer.settings is None else offer.settings
        by_place[where] = tuple(_with_source(function, where, chosen) for function in functions)
    return Hosts(_labelled(by_place, asking.names), types, tuple(notes), tuple(listings))


def _check_programs(
    requested: Mapping[str, Mapping[str, Any]], types: Container[str], asking: ToolRequester
) -> None:
    """Raise RequestError for programs, in an API that cannot show their calls."""
    runs = PROGRAMS in types and not (asking.items or asking.programs)
    for where, settings in requested.items():
        if runs and settings["type"] == PROGRAMS:
            message = f"This API does not run tools of type '{PROGRAMS}'. {_PROGRAMS}"
            raise RequestError(message, param=f"{where}.type")


def _of_operator(
    settings: Mapping[str, Any], where: str, tools: Tools, types: Container[str]
) -> tuple[Mapping[str, Any], tuple[Note, ...]]:
    """The settings with which the operator's MCP server is used that stands for a tool, if one does.

    It is requested by its label, with any address because clients' types ask for one, or by the type of the
    tool, if the server does not run that itself. Notes are on what has no effect then. Raises RequestError
    for what would restrict a search.
    """
    labels, type_ = _labels(tools), settings["type"]
    label = settings.get("server_label") if type_ == "mcp" else STANDING.get(type_)
    if label not in labels or label not in TRAINED_LABELS:
        return settings, ()
    if type_ == "mcp":
        kept = {name: value for name, value in settings.items() if name not in _ADDRESS}
    elif type_ in types:
        return settings, ()
    elif settings.get("filters"):
        message = f"The MCP server '{label}', which runs this tool, does not support filters. Leave them out."
        raise RequestError(message, param=f"{where}.filters")
    else:
        kept = {"type": "mcp", "server_label": label}
    given = {name: value for name, value in settings.items() if value != _ANY_CONTAINER}
    return kept, unread(given, where, ("type", *kept))


_ADDRESS = frozenset({"server_url", "authorization", "headers"})
_ANY_CONTAINER = {"type": "auto"}


def _labels(tools: Tools) -> Container[str]:
    """The labels of the operator's MCP servers."""
    remote = tools.get("mcp")
    return remote.labels if isinstance(remote, LabelledTool) else ()


async def _offers(
    tools: Tools, types: Mapping[str, str], requested: Iterable[RequestedTool]
) -> Mapping[str, ToolOffer]:
    """The offers of the tools, by place. They are requested in parallel: each may wait for another server.

    Raises the error of the first of them in the request.
    """

    async def offer(tool: RequestedTool) -> ToolOffer:
        replacement = _replacing_tool(tool.settings, tools)
        if replacement is not None:
            return await _as_server(replacement, tool)
        type_ = types.get(tool.settings["type"])
        return ToolOffer() if type_ is None else await tools[type_].offer(tool)

    places = [tool.where for tool in requested]
    results = await asyncio.gather(*map(offer, requested), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return dict(zip(places, results, strict=True))  # type: ignore[arg-type]


def _trained_kind(settings: Mapping[str, Any]) -> str | None:
    """The type of the tool that models were trained with, if an MCP server with this label replaces it."""
    if settings["type"] != "mcp" or settings.get("server_url") is not None:
        return None
    return TRAINED_LABELS.get(str(settings.get("server_label")))


def _replacing_tool(settings: Mapping[str, Any], tools: Tools) -> ServerTool | None:
    """The server tool for a label, if the operator has no MCP server with that label."""
    kind = None if settings.get("server_label") in _labels(tools) else _trained_kind(settings)
    return None if kind is None else tools.get(kind)


async def _as_server(tool: ServerTool, requested: RequestedTool) -> ToolOffer:
    """The offer of a tool that is requested as an MCP server. Raises RequestError."""
    label, where = str(requested.settings["server_label"]), requested.where
    if requested.settings.get("require_approval") not in (None, "never"):
        message = "Calls of this server's own tools need no approval. Use 'never'."
        raise RequestError(message, param=f"{where}.require_approval")
    settings = {"type": tool.type}
    offer = await tool.offer(replace(requested, settings=settings))
    functions = tuple(
        replace(function, hosted=replace(_hosted(function), label=label)) for function in offer.functions
    )
    notes = unread(
        requested.settings, where, ("type", "server_label", "server_description", "require_approval")
    )
    return replace(
        offer, functions=functions, notes=(*offer.notes, *notes), settings=offer.settings or settings
    )


def _unapproved(where: str, settings: Mapping[str, Any], functions: Iterable[Function]) -> Note | None:
    """The note on a tool whose calls have to be approved, which this API cannot. Raises RequestError.

    Only a tool that nobody named is left out; see `ToolRequester.defaults`.
    """
    if not any(_hosted(function).approval for function in functions):
        return None
    message = (
        "Calls that need an approval can be made only in the Responses API. "
        "Use 'require_approval': 'never', if the operator of the server allows it."
    )
    if not where.startswith(DEFAULTS):
        raise RequestError(message, param=f"{where}.require_approval")
    return Note(where, f"'{settings['server_label']}' is not offered. {message}")


def _not_offered(name: str, where: str, types: Mapping[str, str], asking: ToolRequester) -> Note:
    """The note on a tool without offered functions. Raises RequestError, unless it is optional."""
    if name in types:
        param, why = where, "This server does not run the tool with these settings."
        remedy = f"Leave out '{where}', or its settings."
    else:
        shown = name[:MAX_NAMED]
        # A tool that is requested by an option has no type.
        param = f"{where}.type" if where.endswith("]") else where
        why = f"This server does not run tools of type '{shown}'."
        run = f"It runs: {', '.join(dict.fromkeys(types.values())) or 'none'}."
        remedy = asking.remedies.get(name) or REMEDIES.get(name, run)
    if name not in asking.optional:
        raise RequestError(f"{why} {remedy}", param=param)
    return Note(param, f"{why} The model does not get it. {remedy}")


def _with_descriptions(trained: Iterable[Function], functions: Iterable[Function]) -> Iterator[Function]:
    """The functions of a model's family; missing descriptions are the tool's.

    The tool decides how calls may be run.
    """
    own = {_hosted(function).action: function for function in functions}
    remote = any(_hosted(function).label for function in functions)
    for function in trained:
        same = own.get(_hosted(function).action)
        if same is not None:
            description = function.description or same.description
            yield replace(function, description=description, hosted=replace(_hosted(same), native=True))
        elif not remote:
            yield function


def _with_source(function: Function, where: str, settings: Mapping[str, Any]) -> Function:
    return replace(function, source=where, hosted=replace(_hosted(function), settings=settings))


def _labelled(
    by_place: Mapping[str, tuple[Function, ...]], names: frozenset[str]
) -> Mapping[str, tuple[Function, ...]]:
    """The functions, each tool's label before names that several tools share, or that the client has, too."""
    tools: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for function in chain.from_iterable(by_place.values()):
        tools[function.name].add(_hosted(function).key)
    return {
        where: tuple(
            replace(function, name=f"{_hosted(function).server}__{function.name}"[:MAX_NAME])
            if not _hosted(function).native
            and (len(tools[function.name]) > 1 or (function.name in names and _hosted(function).label))
            else function
            for function in functions
        )
        for where, functions in by_place.items()
    }


def _hosted(function: Function) -> Hosted:
    assert function.hosted is not None, "a tool offers a function that it does not run"
    return function.hosted
