"""The tool: programs run in Monty, a Python that is a sandbox by itself, with functions as its tools.

A call of a function stops the interpreter, which goes on with the result. A call that is awaited begins at
once and is waited for later, so several may run at the same time. When nothing can go on, the program needs
the results of all calls that have begun: always of all, so that it does the same if it is run again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from pydantic_monty import (
    AsyncFunctionSnapshot,
    AsyncFutureSnapshot,
    AsyncMontySession,
    AsyncNameLookupSnapshot,
    AsyncSnapshot,
    MontyComplete,
    MontyConversionError,
    MontyCrashedError,
    MontyRuntimeError,
    MontySyntaxError,
)

from antiphon.core.errors import ToolError
from antiphon.core.hosts import unread
from antiphon.core.limits import Limits
from antiphon.core.program_functions import OUTPUT_SCHEMA, TEXT, python_name
from antiphon.core.programs import PROGRAMS, CallOutcome
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function
from antiphon.toolkits.code_interpreter.cell import SILENT, as_cell
from antiphon.toolkits.code_interpreter.processes import GRACE, Processes
from antiphon.toolkits.programs.awaiting import awaited_calls
from antiphon.toolkits.programs.functions import ACTION, bound, function
from antiphon.tools.text import Excerpt
from antiphon.tools.tool import ProgramCall, RequestedTool, ToolOffer

_MEMORY = "The program was stopped: it took more than {} bytes of memory."
_CRASH = "The program was stopped: the interpreter crashed."
_MISSING = "`code` is missing. Give Python code as a string."
_NOTHING = "[{name} was called and never awaited: it was not run.]"


class Programs:
    """The tool: a `ServerTool`, and a `ProgramTool`. All programs take their processes from one pool."""

    type = PROGRAMS
    aliases: tuple[str, ...] = ()

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._processes = Processes()

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        return ToolOffer((function(self._limits),), unread(requested.settings, requested.where, ("type",)))

    def open(self, requested: RequestedTool) -> "ProgramSession":
        return ProgramSession(self)

    def begin(self, code: str, functions: Sequence[Function], seed: str, clock: int) -> "MontyProgram":
        return MontyProgram(self._processes, self._limits, code, functions, seed, clock)

    async def close(self) -> None:
        await self._processes.close()


class ProgramSession:
    """The tool for one answer: a `Session`. Here a program has no functions: answers `begin` theirs."""

    def __init__(self, tool: Programs) -> None:
        self._tool = tool

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        code = arguments.get("code")
        if action != ACTION or not isinstance(code, str):
            return ToolResult(_MISSING, failed=True)
        program = self._tool.begin(code, (), "", 0)
        try:
            result = await program.advance(())
        finally:
            await program.close()
        assert isinstance(result, ToolResult)
        return result

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        """Nothing: programs have no state in common."""

    async def close(self) -> None:
        """Nothing is held: each program is closed when it ends."""


class MontyProgram:
    """A program: a `Program`."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that decides what it does
        self,
        processes: Processes,
        limits: Limits,
        code: str,
        functions: Sequence[Function],
        seed: str,
        clock: int,
    ) -> None:
        self._processes = processes
        self._limits = limits
        self._code = code
        self._functions = {python_name(function.name): function for function in functions}
        self._seed = seed
        self._clock = clock
        self._printed = Excerpt(limits.program_characters)
        self._process: AsyncMontySession | None = None
        self._snapshot: AsyncSnapshot | None = None
        self._awaited = frozenset[int]()
        # By the numbers of calls, in the order in which they begin
        self._calls: list[tuple[Function, str]] = []
        self._outcomes: list[CallOutcome] = []
        self._begun: dict[int, int] = {}  # the interpreter's number of an awaited call → its own
        self._bytes = 0

    async def advance(self, outcomes: Sequence[CallOutcome]) -> Sequence[ProgramCall] | ToolResult:
        self._outcomes += outcomes
        self._bytes += sum(len(outcome.text.encode()) for outcome in outcomes)
        try:
            self._check_bytes("the results of its calls have")
            async with asyncio.timeout(self._limits.program_seconds + GRACE):
                return await self._run()
        except TimeoutError:
            reason = self._timeout
        except ToolError as error:
            reason = error.message
        except MontyCrashedError as error:
            reason = self._timeout if error.timed_out else _CRASH
        except (MontyRuntimeError, MontySyntaxError) as error:
            if error.traceback():  # a line of the program raised it: the model can correct that
                self._printed.write_line(error.display())
                return ToolResult(str(self._printed))
            reason = self._reason(error.exception())
        await self.close()
        self._printed.write_line(reason)
        return ToolResult(str(self._printed), failed=True)

    async def close(self) -> None:
        """A running program is killed."""
        process, self._process = self._process, None
        if process is not None:
            await process.__aexit__(None, None, None)

    async def _run(self) -> Sequence[ProgramCall] | ToolResult:
        """Run it to its end, or until it needs results."""
        snapshot = self._snapshot
        answer: AsyncSnapshot = await self._begin() if snapshot is None else await self._resumed(snapshot)
        while True:
            self._snapshot = answer
            match answer:
                case MontyComplete():
                    return ToolResult(self._ended())
                case AsyncNameLookupSnapshot():
                    answer = await self._looked_up(answer)
                case AsyncFunctionSnapshot() if answer.is_os_function:
                    answer = await answer.resume_not_handled()
                case AsyncFunctionSnapshot():
                    called = await self._called(answer)
                    if called is None:
                        return self._needed()
                    answer = called
                case AsyncFutureSnapshot():
                    if len(self._outcomes) < len(self._calls):
                        return self._needed()
                    answer = await self._resumed(answer)

    async def _begin(self) -> AsyncSnapshot:
        size = len(self._code.encode(errors="replace"))
        if size > self._limits.program_code_bytes:
            raise ToolError(self._too_much("program_code_bytes", "its code has", "bytes"))
        code = await asyncio.to_thread(as_cell, self._code)
        self._awaited = await asyncio.to_thread(awaited_calls, code, self._functions)
        self._process = await self._processes.begin(
            self._limits.program_seconds,
            {
                "sleep": "zero",  # there is nothing to wait for
                "datetime": datetime.fromtimestamp(self._clock, UTC),
                "random_start": {"seed": self._seed},
            },
            self._limits.program_memory_bytes,
        )
        return await self._process.feed_start(code, print_callback=lambda _, text: self._printed.write(text))

    async def _looked_up(self, lookup: AsyncNameLookupSnapshot) -> AsyncSnapshot:
        """A function that is used as a value."""
        name = lookup.variable_name
        if lookup.object_id is not None or (name not in self._functions and name != TEXT):
            return await lookup.resume()
        return await lookup.resume(value=_named(name))

    async def _called(self, call: AsyncFunctionSnapshot) -> AsyncSnapshot | None:
        """Begin a call; None if the program waits for its result."""
        name = str(call.function_name)
        function = self._functions.get(name)
        if function is None:
            if name != TEXT:
                return await call.resume({"exception": NameError(f"name '{name}' is not defined")})
            self._printed.write(" ".join(map(str, call.args)) + "\n")
            return await call.resume({"return_value": None})
        try:
            arguments = await asyncio.to_thread(bound, name, function, call.args, call.kwargs, self._limits)
        except TypeError as error:
            return await call.resume({"exception": error})
        self._bytes += len(arguments)
        self._check_bytes("its calls have")
        if len(self._calls) >= self._limits.program_calls:
            raise ToolError(self._too_much("program_calls", "it makes", "calls"))
        self._calls.append((function, arguments))
        if call.position.start in self._awaited:
            self._begun[call.call_id] = len(self._calls) - 1
            return await call.resume({"future": ...})
        return None

    async def _resumed(self, waiting: AsyncSnapshot) -> AsyncSnapshot:
        """Go on: the outcomes of all calls are known."""
        match waiting:
            case AsyncFunctionSnapshot():
                number = len(self._calls) - 1
                try:
                    return await waiting.resume(await asyncio.to_thread(self._outcome, number))
                except MontyConversionError:
                    return await waiting.resume({"return_value": self._outcomes[number].text})
            case AsyncFutureSnapshot():
                # The order decides in which order the program goes on: it has to be the same each time.
                numbers = {id_: self._begun[id_] for id_ in sorted(waiting.pending_call_ids)}
                known = {
                    id_: await asyncio.to_thread(self._outcome, number) for id_, number in numbers.items()
                }
                return await waiting.resume(known)
        raise AssertionError("nothing else waits for results")

    def _outcome(self, number: int) -> Any:
        """The outcome of a call, as the interpreter takes it."""
        outcome, (function, _) = self._outcomes[number], self._calls[number]
        if outcome.failed:
            return {"exception": RuntimeError(outcome.text)}
        if function.more.get(OUTPUT_SCHEMA) is not None:
            try:
                return {"return_value": msgspec.json.decode(outcome.text)}
            except (msgspec.DecodeError, RecursionError):
                pass  # the function has not kept its word: the program gets the text
        return {"return_value": outcome.text}

    def _check_bytes(self, what: str) -> None:
        if self._bytes > self._limits.program_bytes:
            raise ToolError(self._too_much("program_bytes", what, "bytes"))

    def _needed(self) -> Sequence[ProgramCall]:
        """The calls without an outcome."""
        return [
            ProgramCall(function.name, arguments)
            for function, arguments in self._calls[len(self._outcomes) :]
        ]

    def _ended(self) -> str:
        for called, _ in self._calls[len(self._outcomes) :]:
            self._printed.write_line(_NOTHING.format(name=called.name))
        return str(self._printed) or SILENT

    @property
    def _timeout(self) -> str:
        return f"The program was stopped: it computed for more than {self._limits.program_seconds} seconds."

    def _reason(self, error: BaseException) -> str:
        """Why a limit was met that the interpreter keeps."""
        match error:
            case TimeoutError():
                return self._timeout
            case MemoryError():
                return _MEMORY.format(self._limits.program_memory_bytes)
        return _CRASH

    def _too_much(self, limit: str, what: str, unit: str) -> str:
        return f"The program was stopped: {what} more than {getattr(self._limits, limit)} {unit}."


def _named(name: str) -> Any:
    """A function of this name, for the interpreter: it calls the program's instead."""

    def function() -> None:
        """Never called."""

    function.__name__ = name
    return function
