"""Runs the server tools for one answer. A failure of a tool does not end the answer."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from time import perf_counter
from typing import Any

import structlog

from antiphon.core.errors import EngineNotReadyError
from antiphon.core.items import FunctionCall, Status, object_in
from antiphon.core.observation import ObservedCall, observed
from antiphon.core.tool_result import OutputCallback, ToolResult
from antiphon.core.turn import TOOL_SEARCH, Function, Hosted, SearchAction
from antiphon.tools.tool import RequestedTool, ServerTool, Session

CLOSING = 5.0
"""Seconds that a tool may take to end a call, or to free its resources; the end of the answer waits for
it."""

_NO_OBJECT = "The arguments of this call are not a JSON object. Call it again, with valid JSON."
_TOO_LONG = "The call was stopped: the time of tools for this answer is used up. Continue without its result."
_FAILED = "This tool does not work at the moment. Continue without it."

log = structlog.get_logger()


class ToolSessions:
    """Runs the calls of one answer. A session is opened with the first call of its tool.

    `stopping` is set when the server stops: then nothing is waited for.
    """

    def __init__(
        self,
        tools: Mapping[str, ServerTool],
        offered: tuple[Function, ...],
        stopping: asyncio.Event,
        owner: str,
        answer: str = "",
    ) -> None:
        self._tools = tools
        self._owner = owner
        self._answer = answer
        self._stopping = stopping
        self._hosted = hosted_by_name(offered)
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
        work = asyncio.create_task(self._do(call, on_output))
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
                log.error("a tool does not end a call", tool=self._hosted[call.name].type)
        duration = perf_counter() - started_at
        self._note(call, started_at, duration, result)
        return result, duration

    async def _do(self, call: FunctionCall, on_output: OutputCallback) -> ToolResult:
        hosted = self._hosted[call.name]
        arguments = {"name": call.name} if is_found_by(hosted) else _arguments(call)
        if arguments is None:
            return ToolResult(_NO_OBJECT, failed=True)
        with _logged(hosted.type):
            return await self._session(hosted).run(hosted.action, arguments, on_output)
        return ToolResult(_FAILED, failed=True)  # it raised, which is logged

    def _note(self, call: FunctionCall, started_at: float, duration: float, result: ToolResult) -> None:
        hosted = self._hosted[call.name]
        observed().calls.append(
            ObservedCall(hosted.type, hosted.action, started_at, started_at + duration, result.failed)
        )
        seconds = round(duration, 3)
        log.info("tool called", tool=hosted.type, action=hosted.action, failed=result.failed, seconds=seconds)

    async def recall(self, call: FunctionCall, result: ToolResult) -> None:
        """Let the tool restore its state from calls that a crashed server had run."""
        hosted, arguments = self._hosted[call.name], _arguments(call)
        if arguments is not None:
            with _logged(hosted.type):
                await self._session(hosted).recall(hosted.action, arguments, result)

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
