"""An answer of several generations: the model calls the server's tools, reads what they say, and goes on.

The calls and their outcomes become part of the conversation, and the next
generation answers that. The answer ends when the model has called no tool of
the server's, when it wants something of the client, too, or when a limit is
reached; never because a tool failed, for that is told to the model.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from antiphon.core.chunks import FinishReason
from antiphon.core.errors import RequestError
from antiphon.core.events import Answered, CallStarted, Event, Finished, Paused, Usage
from antiphon.core.fold import Fold, Output
from antiphon.core.items import FunctionCall, FunctionOutput, Status, TextPart
from antiphon.core.outcome import Outcome
from antiphon.core.turn import Calling, Ending, Function, Hosted, ToolChoice, Turn
from antiphon.run.round import Recording, Round, prepare
from antiphon.run.tape import NextPrompt, ToolAnswer
from antiphon.tools.tool import ServerTool, Session

MAX_CALLS = 128
"""Calls of the server's tools in one answer, unless the request says less: nothing goes on for ever."""

_BROKEN = "The arguments of this call are not a JSON object. Call it again, with valid JSON."
_ENOUGH = "No more tools can be called for this answer. Answer with what you know."
_STUMBLED = "This tool does not work at the moment. Go on without it."

log = structlog.get_logger()


def serves(turn: Turn) -> bool:
    """The model may call tools of the server."""
    return turn.tool_choice.calling is not Calling.NONE and any(tool.hosted for tool in turn.tools)


class Serving:
    """Generates one answer. Not for reuse."""

    def __init__(self, first: Round, index: int, recording: Recording) -> None:
        self._index = index
        self._recording = recording
        self._round = first
        self._choice = first.choice(index, recording)
        self._sessions = Sessions(first.model.tools, first.turn.tools)
        self._max_tokens = first.turn.sampling.max_tokens
        self._calls_left = MAX_CALLS if first.turn.tool_limit is None else first.turn.tool_limit
        self._usage = Usage()
        self._unmet: tuple[str, ...] = ()

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """What the model says and the tools answer, in batches as it comes. Raises EngineError."""
        async with self._sessions:
            end: Finished | None = None
            while end is None:
                fold = Fold()
                async with aclosing(self._choice.events()) as batches:
                    async for events in batches:
                        yield self._shown(events, fold)
                output, outcomes = fold.output, []
                for call in _served(output):
                    outcomes.append(await self._answer(call))
                    yield [Answered(call.call_id, outcomes[-1])]
                if not outcomes:
                    return
                end = await self._go_on(output, outcomes)
            yield [end]

    def fail(self, error: Exception) -> list[Event]:
        """The last events of an answer that `error` ended: what was said so far stands."""
        *events, end = self._choice.fail(error)
        assert isinstance(end, Finished)
        return [*events, replace(end, usage=self._usage + end.usage)]

    def _shown(self, events: list[Event], fold: Fold) -> list[Event]:
        """The events of a generation, whose end is the end of the answer if it called no tools."""
        shown = [self._marked(event) for event in events]
        for event in shown:
            fold.push(event)
        if shown and isinstance(end := shown[-1], Finished):
            self._usage += end.usage
            self._unmet += end.unmet
            whole = replace(end, usage=self._usage, unmet=self._unmet)
            shown[-1] = Paused(end.raw, end.tokens) if _served(fold.output) else whole
        return shown

    def _marked(self, event: Event) -> Event:
        if isinstance(event, CallStarted) and self._sessions.serve(event.name):
            return replace(event, hosted=True)
        return event

    async def _answer(self, call: FunctionCall) -> Outcome:
        """The outcome of a call: as it was recorded, or else of running it."""
        tape = self._recording.tape
        played = tape.play_answer() if tape else None
        allowed, self._calls_left = self._calls_left > 0, self._calls_left - 1
        if played is not None:
            if allowed:
                await self._sessions.recall(call, played)
            return played
        outcome = await self._sessions.run(call) if allowed else Outcome(_ENOUGH, failed=True)
        if tape is not None:
            tape.write(ToolAnswer(outcome))
        return outcome

    async def _go_on(self, output: Output, outcomes: list[Outcome]) -> Finished | None:
        """Set the next generation up; the end of the answer, if there is none."""
        if output.calls:  # the client's own: it has to answer them first
            return self._end(FinishReason.STOP)
        left = None if self._max_tokens is None else self._max_tokens - self._usage.completion_tokens
        if left is not None and left < 1:
            return self._end(FinishReason.LENGTH)
        tape = self._recording.tape
        played = tape.play_prompt() if tape else None
        turn = self._next_turn(output, outcomes, left)
        try:
            self._round = await prepare(turn, self._round.model, played)
        except RequestError as error:
            if error.code != "context_length_exceeded":
                raise
            return self._end(FinishReason.LENGTH)
        prompt = self._round.prompt.ids
        if tape is not None and played is None:
            tape.write(NextPrompt(prompt))
        self._usage += Usage(prompt_tokens=len(prompt))
        self._choice = self._round.choice(self._index, self._recording)
        return None

    def _next_turn(self, output: Output, outcomes: list[Outcome], max_tokens: int | None) -> Turn:
        """The turn of the conversation with what was said and done."""
        turn = self._round.turn
        answers = (
            FunctionOutput(call.call_id, (TextPart(outcome.text),), call.name)
            for call, outcome in zip(_served(output), outcomes, strict=True)
        )
        return replace(
            turn,
            items=(*turn.items, *output.items, *answers),
            tool_choice=_choice_after(turn, self._calls_left),
            sampling=replace(turn.sampling, max_tokens=max_tokens),
            ending=Ending.ANSWER,
            prefix="",
        )

    def _end(self, reason: FinishReason) -> Finished:
        return Finished(reason, self._usage, unmet=self._unmet)


def _served(output: Output) -> list[FunctionCall]:
    """The calls that the server has to answer: none, if the generation was cut."""
    if output.reason is not FinishReason.STOP:
        return []
    return [item for item in output.items if isinstance(item, FunctionCall) and item.hosted]


def _choice_after(turn: Turn, calls_left: int) -> ToolChoice:
    """What may be called after the first calls, which have met the demand for one."""
    choice = turn.tool_choice
    if calls_left > 0:
        return replace(choice, calling=Calling.AUTO)
    names = {tool.name for tool in turn.tools if not tool.hosted}
    left = frozenset(names if choice.names is None else names & choice.names)
    return ToolChoice(Calling.AUTO if left else Calling.NONE, left or None, choice.parallel)


class Sessions:
    """The server's tools at work for one answer. A tool begins to work with its first call."""

    def __init__(self, tools: Mapping[str, ServerTool], offered: tuple[Function, ...]) -> None:
        self._tools = tools
        self._served = {function.name: function.hosted for function in offered if function.hosted}
        self._open: dict[str, Session] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> None:
        await self._stack.__aenter__()

    async def __aexit__(self, *exception: Any) -> None:
        await self._stack.__aexit__(*exception)

    def serve(self, name: str) -> bool:
        """The server runs this function."""
        return name in self._served

    async def run(self, call: FunctionCall) -> Outcome:
        """Do what the model asks for."""
        arguments = _arguments(call)
        if arguments is None:
            return Outcome(_BROKEN, failed=True)
        hosted = self._served[call.name]
        try:
            return await self._session(hosted).run(hosted.action, arguments)
        except Exception:  # it broke its contract, which is no reason to break off the answer
            log.exception("a tool failed", tool=hosted.type, action=hosted.action)
            return Outcome(_STUMBLED, failed=True)

    async def recall(self, call: FunctionCall, outcome: Outcome) -> None:
        """Let the tool take up what it did on a server that is gone."""
        hosted, arguments = self._served[call.name], _arguments(call)
        if arguments is not None:
            await self._session(hosted).recall(hosted.action, arguments, outcome)

    def _session(self, hosted: Hosted) -> Session:
        if hosted.type not in self._open:
            session = self._tools[hosted.type].open(hosted.settings)
            self._stack.push_async_callback(session.close)
            self._open[hosted.type] = session
        return self._open[hosted.type]


def _arguments(call: FunctionCall) -> dict[str, Any] | None:
    """The arguments of a call, None if they are not whole, or no object."""
    if call.status is not Status.COMPLETED:
        return None
    try:
        arguments = msgspec.json.decode(call.arguments)
    except RecursionError:  # nested deeper than any tool wants it
        return None
    return arguments if isinstance(arguments, dict) else None
