"""Programs of models that call tools, as Anthropic's code execution: who may call tools, how one goes on.

A tool says in `allowed_callers` who calls it: the model itself (`direct`), programs of `code_execution`, or
both. If the server runs programs (`--programs`) and a tool lets them call it, `code_execution` runs them;
otherwise it is the server's interpreter. The version of the tool does not matter.

A call of a program is a `tool_use` block with a `caller`. The model sees none of them, only the program and
its output. A program without a result goes on when its client sends the results of its calls, after the last
message of the assistant: it is run again, from the blocks of the request alone. Its fingerprint is in its id.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.messages.ids import core_id, fingerprint_in
from antiphon.apis.request_object import RequestObject, json_text
from antiphon.apis.tool_callers import CALLERS, DIRECT, LATER, ONLY_DIRECT, Callers, read_callers
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Note
from antiphon.core.items import FunctionCall
from antiphon.core.program_functions import with_functions
from antiphon.core.programs import PROGRAMS, CallOutcome, RecordedCall, UnfinishedProgram, clock_of
from antiphon.core.turn import Function, Placement

if TYPE_CHECKING:
    from antiphon.apis.messages.tools import Tools

CODE = "code_execution"
"""The type of the tool, without its date, and the name of its blocks."""
CALLER = "code_execution_20260120"
"""What calls of programs have as the type of their caller, unless the tool has an older version."""
PYTHON_ONLY = "code_execution_20250825"
"""The other type that Anthropic's clients know."""

_CONTAINER = "container_"
_CONTAINER_ID = re.compile(r"container_py1_[0-9a-f]{1,12}_[0-9a-f]{32}")
_NOT_RUN = "This server runs no programs that call tools: it needs --programs."
_ALONE = f"No tool of the type '{CALLER}' is in 'tools': only the model itself calls it."
_OF_SERVER = "Programs call tools of the client only, in this API: the model itself calls it."
_LOST = "Its program is not in the conversation: the model sees this call as one of its own."


def callers_of(tool: RequestObject) -> Callers:
    """Who may call a tool of a request; an empty list is as none. Raises RequestError."""
    if tool.value.get(CALLERS) == []:
        return ONLY_DIRECT
    return read_callers(tool, lambda name: name.startswith(f"{CODE}_"), CALLER)


def is_runner(function: Function) -> bool:
    """Whether it runs programs."""
    return function.hosted is not None and function.hosted.type == PROGRAMS


class ProgramTools(Struct, frozen=True):
    """The functions that the model may call, and those that its programs may, which have this `caller`."""

    direct: Mapping[str, Function]
    in_programs: tuple[Function, ...] = ()
    caller: str = CALLER


def program_tools(
    functions: Mapping[str, Function], callers: Mapping[str, Callers], tools: Sequence[Any]
) -> ProgramTools:
    """Who may call which function. `callers` are those of the client's, by name. Raises RequestError."""
    runner = next(filter(is_runner, functions.values()), None)
    if runner is None:
        return ProgramTools(functions)
    called = tuple(
        replace(function, placement=Placement.PROMPT)
        for name, function in functions.items()
        if callers.get(name, ONLY_DIRECT).programs
    )
    direct = {name: tool for name, tool in functions.items() if callers.get(name, ONLY_DIRECT).direct}
    direct[runner.name] = with_functions(runner, called, CALLER)
    older = any(
        f"tools[{n}]" == runner.source and tool["type"] == PYTHON_ONLY for n, tool in enumerate(tools)
    )
    return ProgramTools(direct, called, PYTHON_ONLY if older else CALLER)


def note_on_callers(
    tool: RequestObject, *, served: bool, runs: bool, of_client: bool, later: bool
) -> Iterator[Note]:
    """The note on a tool that programs cannot call. Raises RequestError for a client's that only they may.

    Programs are `served` by the server, and `runs` by a tool of the request. It is a tool of the client, or
    one that comes `later`, in a message.
    """
    callers = callers_of(tool)
    if not callers.programs:
        return
    if not served:
        why = _NOT_RUN
    elif not of_client:
        why = _OF_SERVER
    elif later:
        why = LATER
    elif not runs:
        why = _ALONE
    else:
        return
    if of_client and not callers.direct:
        raise tool.wrong(CALLERS, f"{why} Add '{DIRECT}', or leave it out.")
    yield Note(tool.place(CALLERS), why)


def container_of(fingerprint: str) -> str:
    """The id of the container in which a program seems to run."""
    return _CONTAINER + fingerprint


class ProgramHistory:
    """The programs of a conversation, and their calls, which are read block by block."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        """Notes on calls whose program is not there."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """The conversation so far is replaced."""
        self._programs: dict[str, tuple[RequestObject, FunctionCall]] = {}
        self._open: dict[str, list[RequestObject]] = {}  # those without a result → their calls
        self._callers: dict[str, str] = {}  # id of a call → its program
        self._results: dict[str, RequestObject] = {}
        self.begin_answer()

    def begin_answer(self) -> None:
        """The assistant's next message: only what follows the last one goes on."""
        self._sent: set[str] = set()

    def add_program(self, block: RequestObject, call: FunctionCall) -> None:
        """A call of the tool."""
        self._programs[call.call_id] = (block, call)
        self._open[call.call_id] = []

    def hides_call(self, block: RequestObject, call_id: str) -> bool:
        """Whether a program has made this call: then the model does not see it."""
        self._callers.pop(call_id, None)
        caller = block.value.get("caller")
        if not isinstance(caller, dict) or caller.get("type") in (None, DIRECT):
            return False
        given = caller.get("tool_id")
        program = core_id(given) if isinstance(given, str) else ""
        if program not in self._programs:
            self.notes.append(Note(block.place("caller"), _LOST))
            return False
        self._callers[call_id] = program
        if program in self._open:
            self._open[program].append(block)
        return True

    def hides_result(self, block: RequestObject, call_id: str) -> bool:
        """Whether this is the result of a program's call."""
        if call_id not in self._callers:
            return False
        self._results[call_id] = block
        self._sent.add(call_id)
        return True

    def end(self, call_id: str) -> None:
        """The program of this id, if there is one, has a result."""
        self._open.pop(call_id, None)

    def unfinished(self, tools: "Tools") -> tuple[UnfinishedProgram, ...]:
        """The programs that go on. Raises RequestError."""
        return tuple(
            self._unfinished(*self._programs[program], calls, tools)
            for program, calls in self._open.items()
            if any(
                self._callers.get(_id_of(call)) == program and _id_of(call) in self._sent for call in calls
            )
        )

    def _unfinished(
        self, block: RequestObject, call: FunctionCall, calls: Iterable[RequestObject], tools: "Tools"
    ) -> UnfinishedProgram:
        runner = next(filter(is_runner, tools.functions), None)
        if runner is None:
            message = f"A program continues with these results. Send its tools, too, with '{CALLER}'."
            raise RequestError(message, param="tools")
        input_ = block.object_or_none("input")
        code = input_.text_or_none("code") if input_ else None
        clock = clock_of(code or "", fingerprint_in(block.text("id")))
        if clock is None:
            message = (
                "This server did not run this program, or it was changed. Leave out its calls and results."
            )
            raise block.wrong("id", message)
        recorded = tuple(map(self._recorded, calls))
        arguments = json_text({"code": code})
        return UnfinishedProgram(
            FunctionCall(call.call_id, runner.name, arguments, hosted=True), recorded, clock
        )

    def _recorded(self, call: RequestObject) -> RecordedCall:
        """A call of a program, with its outcome."""
        result, name, input_ = (
            self._results.get(_id_of(call)),
            call.named("name"),
            call.object_or_none("input"),
        )
        if result is None:
            message = (
                f"The program that called '{name}' waits for the result of '{call.text('id')}', too. "
                "Send the results of all its calls together."
            )
            raise RequestError(message, param="messages")
        outcome = CallOutcome(_text_of(result), bool(result.flag_or_none("is_error")))
        return RecordedCall(name, json_text(input_.value if input_ else {}), outcome)


def _id_of(call: RequestObject) -> str:
    return core_id(call.text("id"))


def _text_of(result: RequestObject) -> str:
    content = result.value.get("content")
    if isinstance(content, str):
        return content
    texts = []
    for part in result.objects("content"):
        if part.text("type") != "text":
            raise part.wrong("type", "A program takes text only. Use 'text'.")
        texts.append(part.text("text"))
    return "".join(texts)


def check_container(given: object) -> None:
    """Raise RequestError for a container that is not of a program: only such a one need not be kept."""
    match given:
        case None:
            return
        case {"skills": skills} if skills:
            message = "There are no skills. Leave them out."
            raise RequestError(f"'container.skills' is not supported. {message}", param="container.skills")
        case str(id_) | {"id": str(id_)} if _CONTAINER_ID.fullmatch(id_):
            return
    message = "Sandboxes are not kept: 'container' may only name that of a program. Leave it out."
    raise RequestError(f"'container' is not supported. {message}", param="container")
