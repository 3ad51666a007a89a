"""Programs of models that call tools: which tools they may call, and how one goes on from its items.

A tool says in `allowed_callers` who calls it: the model itself (`direct`), its programs (`programmatic`), or
both. The calls of a program are items with a `caller`. The model sees none of them, only the program and its
output. A program without an output goes on when its client sends the results of its calls.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.apis.custom_tools import to_arguments
from antiphon.apis.request_object import RequestObject, json_text, object_at
from antiphon.apis.responses.added_tools import added_tools, last_compaction
from antiphon.apis.responses.client_tools import client_tool
from antiphon.apis.tool_callers import CALLERS, DIRECT, LATER, Callers, read_callers
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Note
from antiphon.core.items import FunctionCall
from antiphon.core.program_functions import with_functions
from antiphon.core.programs import PROGRAMS, CallOutcome, RecordedCall, UnfinishedProgram, clock_of
from antiphon.core.turn import TOOL_SEARCH, Placement

if TYPE_CHECKING:
    from antiphon.apis.responses.tools import Tool, Toolbox

BY_PROGRAMS = "programmatic"
PROGRAM, OUTPUT = "program", "program_output"

_CALLS = ("function_call", "custom_tool_call", "mcp_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ALONE = "No tool 'programmatic_tool_calling' is in 'tools': only the model itself calls it."
_NAMESPACE = "namespace"
_TEXTS = ("input_text", "output_text", "text")
_UNKNOWN = "The outcome of this call is unknown."


class ProgramCaller(Struct, frozen=True, tag_field="type", tag=PROGRAM):
    """The program that makes a call: the id of its own call."""

    caller_id: str


def calling(program: str) -> ProgramCaller | UnsetType:
    """The `caller` of a call by the program with this id; none for a call of the model itself."""
    return ProgramCaller(program) if program else UNSET


def callers_of(tool: RequestObject) -> Callers:
    """Who may call a tool of a request. Raises RequestError."""
    return read_callers(tool, lambda name: name == BY_PROGRAMS, BY_PROGRAMS)


def for_programs(tools: "Mapping[str, Tool]") -> "tuple[dict[str, Tool], dict[str, Tool]]":
    """The tools that the model may call, and those that its programs may. Raises RequestError."""
    direct = {name: tool for name, tool in tools.items() if tool.callers.direct}
    runner = next((tool for tool in direct.values() if tool.type == PROGRAMS), None)
    if runner is None:
        return direct, {}
    called = {
        name: replace(tool, function=replace(tool.function, placement=Placement.PROMPT))
        for name, tool in tools.items()
        if tool.callers.programs and not _needs_approval(tool)
    }
    functions = [tool.function for tool in called.values()]
    direct[runner.function.name] = replace(
        runner, function=with_functions(runner.function, functions, BY_PROGRAMS)
    )
    return direct, called


def notes_on_callers(
    tools: list[Any] | None, items: Sequence[RequestObject], direct: "Mapping[str, Tool]"
) -> Iterator[Note]:
    """Notes on tools that programs cannot call. Raises RequestError for those that only programs may."""
    given = [
        inner
        for index, tool in enumerate(tools or ())
        for inner in _with_inner(object_at(tool, f"tools[{index}]"))
    ]
    alone = not any(tool.type == PROGRAMS for tool in direct.values())
    for tool in given:
        if (why := _ALONE if alone else _barred(tool, direct.values())) is not None:
            yield from _only_direct(tool, why)
    for entry in added_tools(items):
        for inner in (inner for tool in entry.tools for inner in _with_inner(tool)):
            yield from _only_direct(inner, LATER)


def _only_direct(tool: RequestObject, why: str) -> tuple[Note, ...]:
    """For a tool that programs cannot call: a note if it is for them, too. Raises RequestError if only so."""
    callers = callers_of(tool)
    if not callers.direct:
        raise tool.wrong(CALLERS, f"{why} Add '{DIRECT}'.")
    return (Note(tool.place(CALLERS), why),) if callers.programs else ()


def _with_inner(tool: RequestObject) -> list[RequestObject]:
    """The tools that a tool of a request is: those of a namespace."""
    return tool.objects("tools") if tool.value.get("type") == _NAMESPACE else [tool]


def _barred(tool: RequestObject, offered: "Iterable[Tool]") -> str | None:
    """Why programs cannot call a tool; None if they can."""
    if client_tool(tool.value) is not None or tool.value.get("type") in (TOOL_SEARCH, PROGRAMS):
        return "Programs cannot call tools of this type."
    if any(_needs_approval(known) and known.function.source == tool.where for known in offered):
        return "Programs cannot make calls that need an approval."
    return None


def _needs_approval(tool: "Tool") -> bool:
    return tool.function.hosted is not None and tool.function.hosted.approval


# Items


def hidden_calls(items: Sequence[RequestObject]) -> frozenset[int]:
    """The indexes of the items that the model does not see: calls of programs, and their results."""
    programs = {item.text("call_id") for item in items if item.value["type"] == PROGRAM}
    if not programs:
        return frozenset()
    hidden, ids = set(), set()
    for index, item in enumerate(items):
        type_ = item.value["type"]
        if type_ in _CALLS and _caller_of(item) in programs:
            hidden.add(index)
            ids.add(item.text_or_none("call_id"))
        elif type_ in _OUTPUTS and item.text_or_none("call_id") in ids:
            hidden.add(index)
    return frozenset(hidden)


def unfinished_programs(
    history: Sequence[RequestObject], given: Sequence[RequestObject], tools: "Toolbox"
) -> tuple[UnfinishedProgram, ...]:
    """The programs that go on with the results among the `given` items. Raises RequestError."""
    items = [*history, *given]
    items = items[last_compaction(items) + 1 :]
    programs = {item.text("call_id"): item for item in items if item.value["type"] == PROGRAM}
    for item in items:
        if item.value["type"] == OUTPUT:
            programs.pop(item.text("call_id"), None)
    if not programs:
        return ()
    sent = {item.text("call_id") for item in given if item.value["type"] in _OUTPUTS}
    outputs = {item.text("call_id"): item for item in items if item.value["type"] in _OUTPUTS}
    calls: dict[str, list[RequestObject]] = {id_: [] for id_ in programs}
    for item in items:
        if item.value["type"] in _CALLS and (caller := _caller_of(item)) in calls:
            calls[caller].append(item)
    return tuple(
        _unfinished(program, calls[id_], outputs, tools)
        for id_, program in programs.items()
        if any(call.text_or_none("call_id") in sent for call in calls[id_])
    )


def _unfinished(
    program: RequestObject,
    calls: Iterable[RequestObject],
    outputs: Mapping[str, RequestObject],
    tools: "Toolbox",
) -> UnfinishedProgram:
    function = next(iter(tools.hosted(PROGRAMS)), None)
    if function is None:
        message = f"A program continues with these outputs. Send its tools, too, with '{PROGRAMS}'."
        raise RequestError(message, param="tools")
    call_id, code = program.text("call_id"), program.text("code")
    clock = clock_of(code, program.text_or_none("fingerprint") or "")
    if clock is None:
        message = "This server did not run this program, or it was changed. Leave its outputs out."
        raise program.wrong("fingerprint", message)
    recorded = tuple(_recorded(call, call_id, outputs, tools) for call in calls)
    call = FunctionCall(call_id, function.name, json_text({"code": code}), hosted=True)
    return UnfinishedProgram(call, recorded, clock)


def _recorded(
    call: RequestObject, program: str, outputs: Mapping[str, RequestObject], tools: "Toolbox"
) -> RecordedCall:
    """A call of a program, with its outcome."""
    if call.value["type"] == "mcp_call":
        name = tools.name_in_programs(call.text_or_none("server_label"), call.text("name"))
        return RecordedCall(name, json_text(call.value.get("arguments")), _outcome_of(call))
    space, name = call.text_or_none("namespace"), call.named("name")
    name = f"{space}__{name}" if space else name
    custom = call.value["type"] == "custom_tool_call"
    arguments = to_arguments(call.text("input")) if custom else call.text("arguments")
    output = outputs.get(call.text("call_id"))
    if output is None:
        message = (
            f"The program that called '{name}' waits for the output of '{call.text('call_id')}', too. "
            "Send the outputs of all its calls together."
        )
        raise RequestError(message, param="input")
    caller = _caller_of(output)
    if caller not in ("", program):
        raise output.wrong("caller", f"The call is one of the program '{program[:64]}'.")
    return RecordedCall(name, arguments, CallOutcome(_text_of(output)))


def _outcome_of(call: RequestObject) -> CallOutcome:
    """The outcome of a call of the server's."""
    output, error = call.value.get("output"), call.value.get("error")
    match error:
        case None if call.value.get("status", "completed") != "completed":
            return CallOutcome(_UNKNOWN, failed=True)
        case None:
            return CallOutcome(output if isinstance(output, str) else json_text(output or ""))
        case {"content": [{"text": str(text)}]}:
            return CallOutcome(text, failed=True)
    return CallOutcome(json_text(error), failed=True)


def _text_of(output: RequestObject) -> str:
    value = output.value.get("output")
    if isinstance(value, str):
        return value
    texts = []
    for part in output.objects("output"):
        if part.text("type") not in _TEXTS:
            raise part.wrong("type", "A program takes text only. Use 'input_text'.")
        texts.append(part.text("text"))
    return "".join(texts)


def _caller_of(item: RequestObject) -> str:
    """The id of the program that made a call; empty if the model did."""
    caller = item.value.get("caller")
    if not isinstance(caller, dict) or caller.get("type") != PROGRAM:
        return ""
    return str(caller.get("caller_id"))
