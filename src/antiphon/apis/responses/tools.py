"""The tools of a request: the functions that the model is offered, and the client's names of them.

Functions are offered unchanged, those with `defer_loading` when a search has found them. A custom tool is
offered as a function with one string. The tools of a namespace are offered under flat names, joined by two
underscores; the client gets both names. Client tools with types of their own are in `client_tools.py`, tools
that come in the input in `added_tools.py`. A server tool is offered as the functions that it has for this
model; `tools/discovery.py` decides what to do if the server does not run it. Which of them the model may, or
must, call is in `tool_choice.py`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.apis.custom_tools import InputFormat, as_function
from antiphon.apis.request_object import Object, RequestObject, object_at
from antiphon.apis.responses.added_tools import (
    SEARCH_FUNCTION,
    AddedTools,
    added_tools,
    is_remote,
    search_ids,
)
from antiphon.apis.responses.client_tools import client_tool
from antiphon.apis.responses.programs import (
    callers_of,
    for_programs,
    notes_on_callers,
)
from antiphon.apis.responses.tool_secrets import without_secrets
from antiphon.apis.tool_callers import CALLERS, ONLY_DIRECT, Callers
from antiphon.apis.tool_schemas import check_schema, further_members
from antiphon.core.constraint import GrammarFormat, Regex
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts, Listing, Note, unread
from antiphon.core.positions import (
    MORE,
    CatalogueEntry,
    FunctionsByPlace,
    are_few,
    catalogue_text,
    describe,
    found_text,
)
from antiphon.core.turn import (
    TOOL_SEARCH,
    Function,
    Hosted,
    Placement,
    SearchAction,
)

FUNCTION = "function"
CUSTOM = "custom"
NAMESPACE = "namespace"
ALWAYS_SENT = frozenset(
    {
        "image_generation",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Types that coding agents always list: clients work without them.

Codex 0.169.0 lists `web_search` in every request, and the other for models that it knows. openai-agents
0.24.0 and the AI SDK list only the tools of their user.
"""

_READ = {
    FUNCTION: ("type", "name", "description", "parameters", "strict", "defer_loading", "async", CALLERS),
    CUSTOM: ("type", "name", "description", "format", "defer_loading", "async", CALLERS),
    NAMESPACE: ("type", "name", "description", "tools"),
    TOOL_SEARCH: ("type", "execution", "description", "parameters"),
}
"""Type of a tool of the client's, or one that every server has → its members that are acted on."""

SEARCH = Function(
    SEARCH_FUNCTION,
    "Searches for functions that you can call then. Say in a few words what you want to do.",
    {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "What the functions should do."}},
        "required": ["query"],
    },
    hosted=Hosted(TOOL_SEARCH, SearchAction.QUERY, parallel=True, idempotent=True),
)
"""The search that the server runs."""

_NOTHING_ADDED: Mapping[str, Any] = MappingProxyType({})
_NO_PROGRAMS: Mapping[str, Any] = MappingProxyType({})
_NOTHING_SAID: Mapping[int, str] = MappingProxyType({})


class Tool(Struct, frozen=True):
    """A tool that the model is offered. `name` and `namespace` are the client's names of it.

    A server tool has an entry for each of its functions, all of its type. `definition` is the tool as it was
    given, `group` the namespace that it was in, without its tools. `callers` may call it.
    """

    type: str
    name: str
    namespace: str | UnsetType
    function: Function
    definition: Mapping[str, Any] = {}
    group: Mapping[str, Any] = {}
    callers: Callers = ONLY_DIRECT

    @property
    def unawaited(self) -> bool | UnsetType:
        """Whether the conversation goes on before the client has run a call of it; unset if not."""
        return True if self.definition.get("async") is True else UNSET


class Toolbox:
    """The tools that the model is offered, by the model's names of them.

    `functions` are these as the model is offered them, also those that were replaced. `texts` are what the
    conversation says about its tools, by the index of the item that brings them, `search_ids` the ids of the
    calls of searches. `catalogue` says what can be found; it is empty if nothing can. `in_programs` are the
    tools that programs of the model may call.
    """

    def __init__(  # noqa: PLR0913 - what a request and its conversation say of tools
        self,
        tools: dict[str, Tool],
        hosts: Hosts,
        notes: tuple[Note, ...] = (),
        *,
        functions: tuple[Function, ...] = (),
        texts: Mapping[int, str] = _NOTHING_SAID,
        search_ids: Mapping[int, str] = _NOTHING_SAID,
        catalogue: str = "",
        in_programs: Mapping[str, Tool] = _NO_PROGRAMS,
    ) -> None:
        self._tools = tools
        self._in_programs = in_programs
        self._hosts = hosts
        self.functions = functions
        self.texts = texts
        self.search_ids = search_ids
        self.catalogue = catalogue
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

    def definitions(self, names: Iterable[str]) -> list[Object]:
        """The tools of these names as a search of the server's returns them, those of a group together."""
        shown: dict[str, Object] = {}
        for tool in (self._tools[name] for name in names if name in self._tools):
            hosted, inner = tool.function.hosted, dict(tool.definition)
            if hosted is not None:
                server = shown.setdefault(
                    f"{hosted.type} {hosted.label}",
                    {"type": hosted.type, "server_label": hosted.label, "allowed_tools": []},
                )
                server["allowed_tools"].append(hosted.action)
            elif tool.group:
                group = shown.setdefault(f"{NAMESPACE} {tool.namespace}", {**tool.group, "tools": []})
                group["tools"].append(inner)
            else:
                shown[f"{tool.type} {tool.name}"] = inner
        return echo([*shown.values()])

    def find(self, name: str) -> Tool:
        """The tool that the model called. An unknown name is treated as a function."""
        return self._tools.get(name) or Tool(FUNCTION, name, UNSET, Function(name))

    def offers(self, name: str) -> bool:
        """Whether the model may call the tool of this name itself."""
        return name in self._tools

    @property
    def in_programs(self) -> tuple[Function, ...]:
        """The functions that programs may call."""
        return tuple(tool.function for tool in self._in_programs.values())

    def find_in_programs(self, name: str) -> Tool:
        """The tool that a program called."""
        return self._in_programs[name]

    def name_in_programs(self, server: str | None, action: str) -> str:
        """The name for programs of a tool of the server's, as its calls are shown."""
        for function in self.in_programs:
            hosted = function.hosted
            if hosted and (hosted.server, hosted.action) == (server, action):
                return function.name
        return action

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
        tool, names = self._tools.get(flat) or self._in_programs.get(flat), []
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


def toolbox(
    tools: list[Any] | None, hosts: Hosts, items: Sequence[RequestObject] = (), context: int = 0
) -> Toolbox:
    """The tools of a request and of its items, with the server tools in `hosts`. Raises RequestError.

    `context` is the number of tokens of the model's context, 0 if it is not known.
    """
    read = _read(tools, hosts)
    given, in_programs = for_programs(read)
    added = [(entry, [*_offers(entry.tools, hosts)]) for entry in added_tools(items)]
    leading = [offers for entry, offers in added if entry.leading and not entry.found]
    beginning = [*given.values(), *(tool for offers in leading for tool in offers)]
    deferral = _deferral(beginning, context)
    places = FunctionsByPlace(tool.function for tool in map(deferral.placed, given.values()) if tool)
    by_name, texts = dict(given), dict[int, str]()
    for entry, offers in added:
        placed = [tool for offer in offers if (tool := deferral.placed(offer, found=entry.found))]
        texts[entry.index] = _add(entry, placed, places, by_name)
    current = {function.name: function for function in places.functions}
    return Toolbox(
        {name: replace(tool, function=current[name]) for name, tool in by_name.items() if name in current},
        hosts,
        (
            *hosts.notes,
            *_notes_on(tools, deferral.searches),
            *notes_on_callers(tools, items, read),
            *deferral.notes,
        ),
        functions=places.functions,
        texts=texts,
        search_ids=search_ids(items),
        catalogue=deferral.catalogue(beginning),
        in_programs=in_programs,
    )


def _read(tools: list[Any] | None, hosts: Hosts) -> dict[str, Tool]:
    """The tools of a request, and those that every request has, by the model's names of them."""
    by_name: dict[str, Tool] = {}
    for index, tool in enumerate(tools or ()):
        where = object_at(tool, f"tools[{index}]")
        for offered in _offered(where, hosts):
            name = offered.function.name
            if name in by_name:
                raise RequestError(_twins(by_name[name], offered), param=where.where)
            by_name[name] = offered
    for function in hosts.defaults:
        assert function.hosted is not None
        by_name.setdefault(function.name, Tool(function.hosted.type, function.name, UNSET, function))
    return by_name


def _offers(tools: Iterable[RequestObject], hosts: Hosts) -> Iterator[Tool]:
    for tool in tools:
        yield from _offered(tool, hosts)


def _notes_on(tools: list[Any] | None, searches: bool) -> Iterator[Note]:
    for index, tool in enumerate(tools or ()):
        yield from _notes(object_at(tool, f"tools[{index}]"), searches)


def _add(entry: AddedTools, tools: Sequence[Tool], places: FunctionsByPlace, by_name: dict[str, Tool]) -> str:
    """Adds the tools of an item; returns what the conversation says at its place."""
    unknown = [tool for tool in tools if places.get(tool.function.name) is None]
    by_name.update((tool.function.name, tool) for tool in tools)
    described = places.add([tool.function for tool in tools], leading=entry.leading)
    if entry.found:
        names = [tool.function.name for tool in tools]
        names += [name for tool in entry.tools if is_remote(tool.value) for name in _of_server(tool, by_name)]
        functions = places.find(names, leading=entry.leading)
        return "" if entry.leading else found_text(functions)
    later = [] if entry.leading else [tool for tool in unknown if _is_deferred(tool)]
    texts = [describe(described, MORE)] if described else []
    return "\n\n".join((*texts, *([catalogue_text(_entries(later), None)] if later else [])))


def _of_server(tool: RequestObject, by_name: Mapping[str, Tool]) -> Iterator[str]:
    """The model's names of the tools of a remote server that a search has found."""
    label, allowed = tool.text_or_none("server_label"), tool.value.get("allowed_tools")
    named = allowed if isinstance(allowed, list) else ()
    for name, known in by_name.items():
        hosted = known.function.hosted
        if hosted is not None and hosted.label == label and hosted.action in named:
            yield name


def _is_deferred(tool: Tool) -> bool:
    return tool.function.placement is Placement.SEARCH


class _Deferral(Struct, frozen=True):
    """Whether tools with `defer_loading` wait until they are found, with the function `search`.

    If not, the model is given all of them from the beginning, and `notes` say why. `searches`: the request
    has a search.
    """

    defers: bool
    searches: bool = True
    search: str | None = None
    notes: tuple[Note, ...] = ()

    def placed(self, tool: Tool, *, found: bool = False) -> Tool | None:
        """The tool as the model is offered it: one that was `found` is no longer deferred."""
        if _is_deferred(tool) and (found or not self.defers):
            return replace(tool, function=replace(tool.function, placement=Placement.PROMPT))
        return None if tool.function is SEARCH and not self.defers else tool

    def catalogue(self, tools: Iterable[Tool]) -> str:
        """What can be found from the beginning."""
        entries = _entries(tool for tool in tools if self.defers and _is_deferred(tool))
        return catalogue_text(entries, self.search) if entries else ""


def _deferral(beginning: Sequence[Tool], context: int) -> _Deferral:
    """What the tools at the beginning of a conversation say: later ones must not change its prompt."""
    searches = [tool for tool in beginning if tool.type == TOOL_SEARCH]
    name = searches[0].function.name if searches else None
    if any(tool.function is not SEARCH for tool in searches):  # the client's own: that decides
        return _Deferral(defers=True, search=name)
    if not searches:
        return _Deferral(defers=False, searches=False)
    if not any(map(_is_deferred, beginning)):
        return _Deferral(defers=False, notes=_nothing_to_find(searches))
    functions = [tool.function for tool in beginning if tool.function is not SEARCH]
    if are_few(functions, context):
        return _Deferral(defers=False, notes=(Note("tools", _FEW),))
    return _Deferral(defers=True, search=name)


_FEW = (
    "The tools are few, and short: the model is given all from the beginning, and has nothing to search for."
)


def _nothing_to_find(searches: Iterable[Tool]) -> tuple[Note, ...]:
    """The note on a search of the server's without tools to search for."""
    why = "No tool has 'defer_loading': the model is given all, and has nothing to search for."
    return tuple(Note("tools", why) for tool in searches if tool.function is SEARCH)[:1]


def _entries(tools: Iterable[Tool]) -> list[CatalogueEntry]:
    """What can be found: namespaces and remote servers by their names, other functions by theirs."""
    entries: dict[str, CatalogueEntry] = {}
    for tool in tools:
        function, hosted = tool.function, tool.function.hosted
        if hosted is not None:
            about = str(hosted.settings.get("server_description") or function.description or "")
            entries.setdefault(f"server {hosted.server}", CatalogueEntry(hosted.server, about))
        elif tool.group:
            about = str(tool.group.get("description") or "")
            entries.setdefault(f"namespace {tool.namespace}", CatalogueEntry(str(tool.namespace), about))
        else:
            entries[function.name] = CatalogueEntry(function.name, function.description or "")
    return [*entries.values()]


def requested_tools(tools: list[Any] | None, added: Mapping[str, Any] = _NOTHING_ADDED) -> dict[str, Object]:
    """The settings of tools that the server may run, by their place: of the request, and of its items."""
    placed = {**{f"tools[{index}]": tool for index, tool in enumerate(tools or ())}, **added}
    return {
        place: _settings(tool)
        for place, tool in placed.items()
        if isinstance(tool, dict) and _may_be_hosted(tool.get("type")) and client_tool(tool) is None
    }


def _settings(tool: Object) -> Object:
    """The settings that the server tool reads: those of remote servers may wait until they are found."""
    hidden = ("defer_loading", CALLERS) if is_remote(tool) else (CALLERS,)
    return {name: value for name, value in tool.items() if name not in hidden}


def _may_be_hosted(type_: object) -> bool:
    """Whether a tool of this type is none that the client describes."""
    return isinstance(type_, str) and type_ not in _READ


def _notes(tool: RequestObject, searches: bool) -> Iterator[Note]:
    """Notes on settings of the client's own tools that have no effect: nothing waits without a search."""
    type_, own = tool.text("type"), client_tool(tool.value)
    if own is not None:
        yield from own.notes(tool)
    elif type_ in _READ:
        shown = further_members(tool.value, _READ[type_]) if type_ == FUNCTION else ()
        read = [name for name in _READ[type_] if searches or name != "defer_loading"]
        yield from unread(tool.value, tool.where, (*read, *shown))
    if type_ == NAMESPACE:
        for inner in tool.objects("tools"):
            yield from _notes(inner, searches)


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
            tool.named("name")
            for inner in tool.objects("tools"):
                yield _tool(inner, tool)
        case "tool_search":
            yield Tool(TOOL_SEARCH, SEARCH_FUNCTION, UNSET, SEARCH)
        case type_:
            placement = _placement(tool) if is_remote(tool.value) else Placement.PROMPT
            for function in hosts.functions.get(tool.where, ()):
                placed = (
                    function if placement is function.placement else replace(function, placement=placement)
                )
                kind = hosts.type_of(type_)
                yield Tool(kind, function.name, UNSET, placed, callers=callers_of(tool))


def _placement(tool: RequestObject) -> Placement:
    """Where it is described: one that is deferred waits until it is found."""
    return Placement.SEARCH if tool.flag_or_none("defer_loading") else Placement.PROMPT


def _tool(tool: RequestObject, namespace: RequestObject | None) -> Tool:
    type_, space = tool.text("type"), None if namespace is None else namespace.named("name")
    _refuse_wrapped(tool)
    name = tool.named("name")
    flat, about = flat_name(space, name), tool.text_or_none("description")
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
    tool.flag_or_none("async")  # see `Tool.unawaited`
    placement = _placement(tool)
    if placement is not function.placement:
        function = replace(function, placement=placement)
    group = {} if namespace is None else {k: v for k, v in namespace.value.items() if k != "tools"}
    return Tool(type_, name, space or UNSET, function, tool.value, group, callers_of(tool))


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
