"""Programs of models, which call tools: the server runs the calls of its own tools, the client all others.

A program of an answer is run again in the next one if it waits for the client: the calls that it made before
have their recorded outcomes, in the same order. Should it call something else this time, it fails, and says
so. Its calls are shown as items, but the model sees only what the program prints.

If another server continues an answer, its programs are run again: the recorded results of calls count.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from antiphon.core.accumulator import Accumulator
from antiphon.core.events import ArgumentsDelta, CallEnded, CallStarted, Event
from antiphon.core.items import FunctionCall, Status, object_in
from antiphon.core.programs import (
    CallOutcome,
    RecordedCall,
    UnfinishedProgram,
    id_of_call,
    seed_of,
)
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Turn
from antiphon.run.drive import Output
from antiphon.run.tool_sessions import ToolSessions
from antiphon.tools.tool import Program, ProgramCall

_NO_CODE = "The arguments of this call have no `code`. Call it again, with a program."
_DIVERGED = (
    "The program was stopped: run again, it did not call what it had called before. Call {number} was "
    "{before}, and is {now}."
)
MAX_SHOWN = 200
"""The most characters of a call in an error."""

RunCalls = Callable[[Sequence[FunctionCall], Output, int], Awaitable[list[ToolResult]]]
"""Runs calls of the server's tools, and shows their results."""


def events_of(call: FunctionCall) -> list[Event]:
    """The events of a call, as if the model wrote it now."""
    return [
        CallStarted(call.call_id, call.name, hosted=call.hosted, caller=call.caller),
        ArgumentsDelta(call.arguments, ""),
        CallEnded(complete=True),
    ]


class ProgramEnd(NamedTuple):
    """How a program ended, and how many seconds it computed. Without a result it waits for the client."""

    result: ToolResult | None
    seconds: float


class Programs:
    """Runs the programs of one answer. `items` builds those of the answer, `run_calls` runs their calls."""

    def __init__(self, sessions: ToolSessions, turn: Turn, items: Accumulator, run_calls: RunCalls) -> None:
        self._sessions = sessions
        self._functions = turn.in_programs
        self._hosted = {function.name: function.hosted is not None for function in turn.in_programs}
        self._clock = turn.created_at
        self._items = items
        self._run_calls = run_calls

    async def run(
        self,
        call: FunctionCall,
        seconds: float,
        earlier: UnfinishedProgram | None,
        output: Output,
        choice: int,
    ) -> ProgramEnd:
        """Run the program of this call for at most so many seconds. Raises EngineNotReadyError."""
        arguments = object_in(call.arguments) if call.status is Status.COMPLETED else None
        code = (arguments or {}).get("code")
        if not isinstance(code, str):
            return ProgramEnd(ToolResult(_NO_CODE, failed=True), 0.0)
        clock = self._clock if earlier is None else earlier.clock
        program = self._sessions.begin_program(code, self._functions, seed_of(call.call_id), clock)
        running = _Running(self, call, earlier.calls if earlier else (), output, choice)
        try:
            return await running.run(program, seconds)
        finally:
            await program.close()

    def call(self, program: FunctionCall, made: ProgramCall, number: int) -> FunctionCall:
        """A call of a program."""
        return FunctionCall(
            id_of_call(program.call_id, number),
            made.name,
            made.arguments,
            hosted=self._hosted[made.name],
            caller=program.call_id,
        )

    async def advance(
        self, program: Program, outcomes: Sequence[CallOutcome], seconds: float
    ) -> tuple[Sequence[ProgramCall] | ToolResult, float]:
        """The next calls of a program, or its result, and the seconds until then."""
        return await self._sessions.advance(program, outcomes, seconds)

    async def outcomes(
        self, calls: Sequence[FunctionCall], output: Output, choice: int
    ) -> list[CallOutcome] | None:
        """Make these calls, and run those of the server's tools. None if others wait for the client."""
        for call in calls:
            output.push(choice, self._items.extend(events_of(call)))
        results = await self._run_calls([call for call in calls if call.hosted], output, choice)
        if not all(call.hosted for call in calls):
            return None
        return [CallOutcome(result.text, result.failed) for result in results]


class _Running:
    """One run of a program. `recorded` are the calls that it has made before."""

    def __init__(
        self,
        programs: Programs,
        call: FunctionCall,
        recorded: Sequence[RecordedCall],
        output: Output,
        choice: int,
    ) -> None:
        self._programs = programs
        self._call = call
        self._recorded = recorded
        self._output = output
        self._choice = choice
        self._made = 0

    async def run(self, program: Program, seconds: float) -> ProgramEnd:
        outcomes: list[CallOutcome] | None = []
        computed = 0.0
        while outcomes is not None:
            step, elapsed = await self._programs.advance(program, outcomes, seconds - computed)
            computed += elapsed
            if isinstance(step, ToolResult):
                return ProgramEnd(self._whole(step), computed)
            known = self._recorded[self._made :][: len(step)]
            for number, (made, before) in enumerate(zip(step, known, strict=False), self._made + 1):
                if not _is_same(made, before):
                    now = _shown(made.name, made.arguments)
                    return ProgramEnd(_diverged(number, _shown(before.name, before.arguments), now), computed)
            outcomes = await self._outcomes(step, known)
        return ProgramEnd(None, computed)

    async def _outcomes(
        self, step: Sequence[ProgramCall], known: Sequence[RecordedCall]
    ) -> list[CallOutcome] | None:
        new = [
            self._programs.call(self._call, made, number)
            for number, made in enumerate(step[len(known) :], self._made + len(known))
        ]
        self._made += len(step)
        outcomes = await self._programs.outcomes(new, self._output, self._choice) if new else []
        return None if outcomes is None else [*(before.outcome for before in known), *outcomes]

    def _whole(self, result: ToolResult) -> ToolResult:
        """The result of a program that has made all calls again that it had made before."""
        if self._made >= len(self._recorded):
            return result
        before = self._recorded[self._made]
        return _diverged(self._made + 1, _shown(before.name, before.arguments), "none")


def _is_same(made: ProgramCall, before: RecordedCall) -> bool:
    return made.name == before.name and object_in(made.arguments) == object_in(before.arguments)


def _shown(name: str, arguments: str) -> str:
    return f"{name}({arguments})"[:MAX_SHOWN]


def _diverged(number: int, before: str, now: str) -> ToolResult:
    return ToolResult(_DIVERGED.format(number=number, before=before, now=now), failed=True)
