"""The calls of one answer: which run at the same time, which are not run again, and their budget.

Calls begin in the order in which the model wrote them, and their results are shown in this order.
Neighbouring calls whose tool allows it (`Hosted.parallel`) run in parallel; all others run alone.

If another server continues the answer, a call with a recorded result is not run. A call that had begun and
has no recorded result is run again only if that is harmless (`Hosted.idempotent`): otherwise the model is
told that the outcome is unknown.

The output of programs is shown while they run: ten times a second at most, and while the client does not
read, it is collected. If another server continues the answer, recorded output is replayed, and further
output is shown with the result.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from time import perf_counter

from antiphon.core.accumulator import Accumulator
from antiphon.core.errors import RequestError
from antiphon.core.events import ToolPrinted, ToolResultReceived
from antiphon.core.items import FunctionCall, FunctionOutput, MediaKind, Part, TextPart
from antiphon.core.limits import Limits
from antiphon.core.programs import PROGRAMS, UnfinishedProgram
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import UNKNOWN, Function, Hosted, Turn
from antiphon.run.documents import read_document
from antiphon.run.drive import Output
from antiphon.run.media import NOTES, format_of, read_media
from antiphon.run.model import Model
from antiphon.run.programs import ProgramEnd, Programs
from antiphon.run.replay import ReplayContext, ReplayLog, ToolPrintedEntry, ToolResultEntry
from antiphon.run.tool_sessions import ToolSessions, hosted_by_name

SHOWING = 0.1
"""Seconds between output of a program and its display, together with the output until then."""
_MEDIA = "tool result"
"""The parameter in errors for unreadable media: the model gets them."""
NO_MORE_CALLS = "No more tools can be called for this answer. Answer with what you know."
_NO_MORE_CALLS_OF_TOOL = "This tool cannot be called any more for this answer. Continue without it."
_NOT_OFFERED = Hosted(UNKNOWN, "", parallel=True, idempotent=True)
MAX_NAMED = 64
"""Characters of an unknown function's name in the answer to its call."""
_UNKNOWN = (
    "The outcome of this call is unknown: the server stopped while it ran. It may have had its effect, or a "
    "part of it. Check that before you call it again."
)


class ToolBudget:
    """The limits of the server tools in one answer, for all together and for each.

    There are at most `calls` calls, if it is not None. The other bounds come from the limits.
    """

    def __init__(self, limits: Limits, calls: int | None) -> None:
        self._limits = limits
        self._calls_left = limits.tool_calls if calls is None else calls
        self._seconds_left = float(limits.tool_seconds)
        self._tokens_left = limits.generation_tokens
        self._calls = Counter[str]()  # by type of the tool, as the following
        self._seconds = Counter[str]()
        self._tokens = Counter[str]()

    @property
    def is_used_up(self) -> bool:
        """No more tools are run."""
        return min(self._calls_left, self._seconds_left, self._tokens_left) <= 0

    def is_used_up_for(self, tool: str) -> bool:
        """Whether the budget of this tool is used up."""
        limits = self._limits
        return (
            self._calls[tool] >= limits.calls_per_tool
            or self._seconds[tool] >= limits.seconds_per_tool
            or self._tokens[tool] >= limits.tokens_per_tool
        )

    def seconds_for(self, tool: str) -> float:
        """The time limit of a call."""
        return min(self._seconds_left, self._limits.seconds_per_tool - self._seconds[tool])

    def begin(self, tool: str) -> None:
        """A call is run, or refused."""
        self._calls_left -= 1
        self._calls[tool] += 1

    def add_elapsed(self, seconds: float) -> None:
        """Calls that ran side by side took so long."""
        self._seconds_left -= seconds

    def add_tool_seconds(self, tool: str, seconds: float) -> None:
        """A call took so long."""
        self._seconds[tool] += seconds  # type: ignore[assignment]

    def generated(self, tokens: int) -> None:
        """Count the tokens that a generation read and wrote."""
        self._tokens_left -= tokens

    def add_result_tokens(self, tool: str, tokens: int) -> None:
        """Count the tokens of the result of a call."""
        self._tokens[tool] += tokens


class ToolCalls:
    """Runs the calls of one answer, and shows their results. `items` builds those of the answer."""

    def __init__(
        self,
        sessions: ToolSessions,
        turn: Turn,
        budget: ToolBudget,
        context: ReplayContext,
        items: Accumulator,
    ) -> None:
        self._sessions = sessions
        self._turn = turn
        self._hosted = hosted_by_name(turn.tools)
        self._in_programs = hosted_by_name(turn.in_programs)
        self._only_in_programs = {tool.name for tool in turn.in_programs} - {tool.name for tool in turn.tools}
        self._budget = budget
        self._context = context
        self._items = items

    def offer(self, tools: tuple[Function, ...]) -> None:
        """These are the functions from now on."""
        self._hosted = hosted_by_name(tools)
        self._sessions.offer(tools)
        self._only_in_programs -= {tool.name for tool in tools}

    async def run(
        self, calls: Sequence[FunctionCall], output: Output, choice: int
    ) -> list[ToolResult | None]:
        """Run these calls of one generation; returns their results, in order. Raises EngineNotReadyError.

        A program that waits for its client has none.
        """
        results: list[ToolResult | None] = []
        for programs, group in groupby(calls, lambda call: self.hosted(call).type == PROGRAMS):
            if programs:
                results += [await self.run_program(call, None, output, choice) for call in group]
            else:
                results += await self._run([*group], output, choice)
        return results

    async def run_program(
        self, call: FunctionCall, earlier: UnfinishedProgram | None, output: Output, choice: int
    ) -> ToolResult | None:
        """Run a program, or go on with an `earlier` one; None if it waits for its client."""
        seconds = self._allowed(call)
        if seconds is None:
            end = ProgramEnd(self._refused(), 0.0)
        else:
            started_at = perf_counter()
            programs = Programs(self._sessions, self._turn, self._items, self._run)
            end = await programs.run(call, seconds, earlier, output, choice)
            if end.result is not None:
                self._sessions.note_program(call, started_at, end.result)
        self._budget.add_tool_seconds(PROGRAMS, end.seconds)
        self._budget.add_elapsed(end.seconds)
        if end.result is None:
            return None
        entry = self._recorded(ToolResultEntry(end.result, end.seconds, results_in(self._items)))
        output.push(choice, [self._items.push(ToolResultReceived(call.call_id, entry.result))])
        return entry.result

    def _recorded(self, entry: ToolResultEntry) -> ToolResultEntry:
        """The result of a program as it was recorded; else it is recorded now."""
        log = self._context.log
        recorded = log.result_of(entry.number) if log else None
        if log is not None and recorded is None:
            log.write(entry)
        return recorded or entry

    async def _run(self, calls: Sequence[FunctionCall], output: Output, choice: int) -> list[ToolResult]:
        results: list[ToolResult] = []
        for group in self._groups(calls):
            results += await self._run_group(group, output, choice)
        return results

    def hosted(self, call: FunctionCall) -> Hosted:
        """The tool and action of the call."""
        return self._callable(call).get(call.name) or _NOT_OFFERED

    def _callable(self, call: FunctionCall) -> Mapping[str, Hosted]:
        """The server's functions that may be called where the call was made: by a program, or the model."""
        return self._in_programs if call.caller else self._hosted

    def _groups(self, calls: Iterable[FunctionCall]) -> Iterator[list[FunctionCall]]:
        """The calls, grouped into those that run in parallel."""
        for parallel, group in groupby(calls, lambda call: self.hosted(call).parallel):
            several = [*group]
            yield from [several] if parallel else ([call] for call in several)

    async def _run_group(
        self, calls: Sequence[FunctionCall], output: Output, choice: int
    ) -> list[ToolResult]:
        group = _Group(calls, self._items, self._context.log, output, choice)
        first = group.first
        allowed = [self._allowed(call) for call in calls]
        if not all(self.hosted(call).idempotent for call in calls):
            # Before they run: a server that continues the answer has to know that they may have run.
            await output.calls_begin(first + len(calls))
        tasks = [
            asyncio.create_task(self._recorded_or_run(call, first + number, seconds, group.listener(number)))
            for number, (call, seconds) in enumerate(zip(calls, allowed, strict=True))
        ]
        entries: list[ToolResultEntry] = []
        try:
            for call, task in zip(calls, tasks, strict=True):
                group.show_recorded()
                entries.append(await task)  # in the order of the calls, not of their ends
                group.show(ToolResultReceived(call.call_id, entries[-1].result))
        finally:
            group.over = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for call, entry in zip(calls, entries, strict=True):
            self._budget.add_tool_seconds(self.hosted(call).type, entry.seconds)
        self._budget.add_elapsed(max(entry.seconds for entry in entries))
        return [entry.result for entry in entries]

    def _allowed(self, call: FunctionCall) -> float | None:
        """The time limit of the call in seconds; None if it must not run."""
        tool = self.hosted(call).type
        if self._budget.is_used_up:
            return None
        seconds = None if self._budget.is_used_up_for(tool) else self._budget.seconds_for(tool)
        self._budget.begin(tool)
        return seconds

    async def _recorded_or_run(
        self, call: FunctionCall, number: int, seconds: float | None, on_output: OutputCallback
    ) -> ToolResultEntry:
        """The result of the call of this number in the answer: as it was recorded, or else of running it."""
        log = self._context.log
        recorded = log.result_of(number) if log else None
        if recorded is not None:
            if seconds is not None and call.name in self._callable(call):  # others have not changed a session
                await self._sessions.recall(call, recorded.result)
            return recorded
        entry = ToolResultEntry(*await self._result(call, number, seconds, on_output), number)
        if log is not None:
            log.write(entry)
        return entry

    async def _result(
        self, call: FunctionCall, number: int, seconds: float | None, on_output: OutputCallback
    ) -> tuple[ToolResult, float]:
        """The result of a call, and how many seconds it took."""
        if seconds is None:
            return self._refused(), 0.0
        if call.name not in self._callable(call):
            return ToolResult(self._unknown(call.name), failed=True), 0.0
        if number < self._context.calls_begun and not self.hosted(call).idempotent:
            return ToolResult(_UNKNOWN, failed=True), 0.0
        return await self._sessions.run(call, seconds, on_output)

    def _refused(self) -> ToolResult:
        text = NO_MORE_CALLS if self._budget.is_used_up else _NO_MORE_CALLS_OF_TOOL
        return ToolResult(text, failed=True)

    def _unknown(self, name: str) -> str:
        """What the model is told of a function that it cannot call."""
        if name in self._only_in_programs:
            return f"'{name}' can be called by programs only. Use '{PROGRAMS}'."
        return f"There is no function '{name[:MAX_NAMED]}'. You may call: {', '.join(self._hosted)}."


def results_in(items: Accumulator) -> int:
    """How many results the answer has: the number of the next one."""
    return sum(isinstance(item, FunctionOutput) for item in items.items)


class _Group:
    """Shows calls that run in parallel. The first of their results has the number `first`."""

    def __init__(
        self,
        calls: Sequence[FunctionCall],
        items: Accumulator,
        log: ReplayLog | None,
        output: Output,
        choice: int,
    ) -> None:
        self.first = self._results = results_in(items)
        self.output = output
        self.over = False
        self._calls = calls
        self._items = items
        self._log = log
        self._choice = choice
        numbers = range(self.first, self.first + len(calls))
        # If the calls had begun before, stored events may have to precede new output.
        self._shows_output = log is None or not any(
            log.result_of(number) or log.printed_after(number) for number in numbers
        )

    def listener(self, number: int) -> OutputCallback:
        """The callback for the output of this call of the group."""
        return _OutputBuffer(self, number).write if self._shows_output else ignore_output

    def is_running(self, number: int) -> bool:
        """Whether the call has no result yet."""
        return not self.over and self.first + number >= self._results

    def show(self, event: ToolResultReceived) -> None:
        """The next result, in the order of the calls."""
        self.output.push(self._choice, [self._items.push(event)])
        self._results += 1

    def show_recorded(self) -> None:
        """Show the recorded output of calls before the next result."""
        for entry in self._log.printed_after(self._results) if self._log else ():
            call = self._calls[entry.number - self.first]
            self.output.push(self._choice, [ToolPrinted(call.call_id, entry.stdout, entry.stderr)])

    def show_printed(self, number: int, stdout: str, stderr: str) -> None:
        """Show new output of the call of this number."""
        if self._log is not None:
            self._log.write(ToolPrintedEntry(self.first + number, self._results, stdout, stderr))
        try:
            self.output.push(self._choice, [ToolPrinted(self._calls[number].call_id, stdout, stderr)])
        except Exception as error:  # a bug: no caller awaits this
            self.output.stop(error)


class _OutputBuffer:
    """Collects the output of a call, and shows it at intervals."""

    def __init__(self, group: _Group, number: int) -> None:
        self._group = group
        self._number = number
        self._waits = False
        self._stdout = self._stderr = ""

    def write(self, stdout: str = "", stderr: str = "") -> None:
        self._stdout += stdout
        self._stderr += stderr
        if not self._waits:
            self._waits = True
            asyncio.get_running_loop().call_later(SHOWING, self._show)

    def _show(self) -> None:
        if not self._group.is_running(self._number):
            return
        if self._group.output.paused:
            self._group.output.on_resume(self._show)
            return
        stdout, stderr, self._stdout, self._stderr = self._stdout, self._stderr, "", ""
        self._waits = False
        self._group.show_printed(self._number, stdout, stderr)


async def content_of(result: ToolResult, model: Model) -> tuple[Part, ...]:
    """The media and files of a result, for this model: a note replaces those that it does not take."""
    return tuple([part for data in result.media for part in await _parts_of(data, model)])


async def _parts_of(data: bytes, model: Model) -> Sequence[Part]:
    kind = format_of(data).kind
    try:
        if kind is MediaKind.FILE:
            return [TextPart((await read_document(model.pool, data, _MEDIA)).text)]
        if kind not in model.card.capabilities.media:
            return [TextPart(NOTES[kind])]
        return await read_media(model.pool, data, model.limits, _MEDIA)
    except RequestError as error:
        return [TextPart(f"({error.message})")]
