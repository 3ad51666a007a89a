"""Runs the server tools for one answer. A failure of a tool does not end the answer."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from time import perf_counter
from typing import Any, TypeVar

import structlog

from antiphon.core.errors import EngineNotReadyError
from antiphon.core.items import FunctionCall, Status, object_in
from antiphon.core.observation import ObservedCall, observed
from antiphon.core.programs import PROGRAMS, CallOutcome
from antiphon.core.tool_result import OutputCallback, ToolResult
from antiphon.core.turn import TOOL_SEARCH, Function, Hosted, SearchAction, Turn
from antiphon.tools.tool import Program, ProgramCall, ProgramTool, RequestedTool, ServerTool, Session

T = TypeVar("T")

CLOSING = 5.0
"""Seconds that a tool may take to end a call, or to free its resources; the end of the answer waits for
it."""

_NO_OBJECT = "The arguments of this call are not a JSON object. Call it again, with valid JSON."
_TOO_LONG = "The call was stopped: the time of tools for this answer is used up. Continue without its result."
_FAILED = "This tool does not work at the moment. Continue without it."

log = structlog.get_logger()


class ToolSessions:
    """Runs the calls of the answer to a turn. A session is opened with the first call of its tool.

    `stopping` is set when the server stops: then nothing is waited for.
    """

    def __init__(self, tools: Mapping[str, ServerTool], turn: Turn, stopping: asyncio.Event) -> None:
        self._tools = tools
        self._owner = turn.owner
        self._answer = turn.id
        self._stopping = stopping
        self._hosted = hosted_by_name(turn.tools)
        self._in_programs = hosted_by_name(turn.in_programs)
        self._open: dict[tuple[str, str], Session] = {}  # by `Hosted.key`
        self._stack = AsyncExitStack()

    def offer(self, offered: tuple[Function, ...]) -> None:
        """These are the functions from now on."""
        self._hosted = hosted_by_name(offered)

    async def __aenter__(self) -> None:
        await self._stack.__aenter__()

    async def __aexit__(self, *exception: Any) -> None:
        await self._stack.__aexit__(*exception)

    async def run(
        self, call: FunctionCall, seconds: float, on_output: OutputCallback
    ) -> tuple[ToolResult, float]:
        """Run a call for at most `seconds`; returns its result, and the time it took.

        Raises EngineNotReadyError if the server stops before it is done.
        """
        started_at = perf_counter()
        result, duration = await self._bounded(self._do(call, on_output), seconds, self._of(call).type)
        self._note(call, started_at, duration, result)
        return result, duration

    def begin_program(self, code: str, functions: Sequence[Function], seed: str, clock: int) -> Program:
        """A program that may call these functions."""
        tool = self._tools[PROGRAMS]
        assert isinstance(tool, ProgramTool)
        return tool.begin(code, functions, seed, clock)

    async def advance(
        self, program: Program, outcomes: Sequence[CallOutcome], seconds: float
    ) -> tuple[Sequence[ProgramCall] | ToolResult, float]:
        """Go on with a program for at most `seconds`: its next calls, or its result, and the time it took.

        Raises EngineNotReadyError if the server stops before that.
        """
        return await self._bounded(self._go_on(program, outcomes), seconds, PROGRAMS)

    async def _go_on(
        self, program: Program, outcomes: Sequence[CallOutcome]
    ) -> Sequence[ProgramCall] | ToolResult:
        with _logged(PROGRAMS):
            return await program.advance(outcomes)
        return ToolResult(_FAILED, failed=True)  # it raised, which is logged

    async def _bounded(
        self, working: Coroutine[Any, Any, T], seconds: float, type_: str
    ) -> tuple[T | ToolResult, float]:
        """The result of work that a tool does for at most `seconds`, and the time it took."""
        started_at = perf_counter()
        work = asyncio.create_task(working)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((work, stopping), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done() and not work.done():
                raise EngineNotReadyError
            result = work.result() if work.done() else ToolResult(_TOO_LONG, failed=True)
        finally:
            for task in (work, stopping):
                task.cancel()
            await asyncio.wait((work, stopping), timeout=CLOSING)
            if not work.done():
                log.error("a tool does not end a call", tool=type_)
        return result, perf_counter() - started_at

    async def _do(self, call: FunctionCall, on_output: OutputCallback) -> ToolResult:
        hosted = self._of(call)
        arguments = {"name": call.name} if is_found_by(hosted) else _arguments(call)
        if arguments is None:
            return ToolResult(_NO_OBJECT, failed=True)
        with _logged(hosted.type):
            return await self._session(hosted).run(hosted.action, arguments, on_output)
        return ToolResult(_FAILED, failed=True)  # it raised, which is logged

    def note_program(self, call: FunctionCall, started_at: float, result: ToolResult) -> None:
        """A program has ended."""
        self._note(call, started_at, perf_counter() - started_at, result)

    def _note(self, call: FunctionCall, started_at: float, duration: float, result: ToolResult) -> None:
        hosted = self._of(call)
        observed().calls.append(
            ObservedCall(hosted.type, hosted.action, started_at, started_at + duration, result.failed)
        )
        seconds = round(duration, 3)
        log.info("tool called", tool=hosted.type, action=hosted.action, failed=result.failed, seconds=seconds)

    async def recall(self, call: FunctionCall, result: ToolResult) -> None:
        """Let the tool restore its state from calls that a crashed server had run."""
        hosted, arguments = self._of(call), _arguments(call)
        if arguments is not None:
            with _logged(hosted.type):
                await self._session(hosted).recall(hosted.action, arguments, result)

    def _of(self, call: FunctionCall) -> Hosted:
        return (self._in_programs if call.caller else self._hosted)[call.name]

    def _session(self, hosted: Hosted) -> Session:
        if hosted.key not in self._open:
            session = self._tools[hosted.type].open(
                RequestedTool(hosted.settings, owner=self._owner, answer=self._answer)
            )
            self._stack.push_async_callback(_close, hosted.type, session)
            self._open[hosted.key] = session
        return self._open[hosted.key]


def hosted_by_name(functions: Iterable[Function]) -> dict[str, Hosted]:
    """How the server answers the calls of functions, by their names: of those that it answers."""
    counting = {function.name: function.answered_by for function in functions}  # the last of each name
    return {name: hosted for name, hosted in counting.items() if hosted is not None}


def is_found_by(hosted: Hosted) -> bool:
    """Whether a call counts as a search for its function."""
    return (hosted.type, hosted.action) == (TOOL_SEARCH, SearchAction.CALL)


async def _close(type_: str, session: Session) -> None:
    with _logged(type_):
        async with asyncio.timeout(CLOSING):
            await session.close()


@contextmanager
def _logged(type_: str) -> Iterator[None]:
    """Log a tool that breaks its contract: it must not end the answer."""
    try:
        yield
    except Exception:
        log.exception("a tool failed", tool=type_)


def _arguments(call: FunctionCall) -> dict[str, Any] | None:
    """The arguments of a call; None if they are incomplete, or not an object."""
    return object_in(call.arguments) if call.status is Status.COMPLETED else None
