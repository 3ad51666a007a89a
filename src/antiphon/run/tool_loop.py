"""An answer of several generations: the model calls the server's tools, reads their results, and continues.

The calls and their results become part of the conversation, and the next
generation answers that. The answer ends when the model has called no tool of
the server's, when it calls a function of the client's, too, or when a limit is
reached; never because a tool failed, for the model gets the error as the result.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.core.accumulator import PARAGRAPH, Accumulator
from antiphon.core.chunks import FinishReason
from antiphon.core.errors import RequestError
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Finished,
    ToolCallsPending,
    ToolResultReceived,
    Usage,
)
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, TextPart
from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Calling, Ending, ToolChoice, Turn
from antiphon.run.drive import Driver
from antiphon.run.model import Model, Prepared
from antiphon.run.replay import PromptEntry, ReplayContext, ToolResultEntry
from antiphon.run.tool_sessions import ToolSessions

MAX_CALLS = 128
"""Calls of the server's tools in one answer, unless the request sets a lower limit."""

_ENOUGH = "No more tools can be called for this answer. Answer with what you know."


def hosts_tools(turn: Turn) -> bool:
    """The model may call tools of the server."""
    return turn.tool_choice.calling is not Calling.NONE and any(tool.hosted for tool in turn.tools)


class ApprovedCalls:
    """Runs the calls of a turn that its client has approved, before the model answers. Not for reuse.

    `items` numbers their items, and those of the answer after them.
    """

    def __init__(self, turn: Turn, model: Model, context: ReplayContext) -> None:
        self.items = Accumulator()
        self._turn = turn
        self._context = context
        self._sessions = ToolSessions(model.tools, turn.tools, model.stopping, turn.owner)
        self._over = False

    async def run(self, output: Driver, choice: int) -> Turn:
        """Run them; the turn with their results, each behind its call."""
        results: dict[str, FunctionOutput] = {}
        async with self._sessions:
            for call in self._turn.approved:
                output.push(choice, self.items.extend(_written(call)))
            output.push(choice, [ToolCallsPending()])
            for call in self._turn.approved:
                result = await _recorded_or_run(call, self._sessions, self._context)
                output.push(choice, [self.items.push(ToolResultReceived(call.call_id, result))])
                results[call.call_id] = FunctionOutput(call.call_id, (TextPart(result.text),), call.name)
        self._over = True
        items: list[Item] = []
        for item in self._turn.items:
            items.append(item)
            if isinstance(item, FunctionCall) and item.call_id in results:
                items.append(results.pop(item.call_id))
        return replace(self._turn, items=tuple(items), approved=())

    def abandon(self) -> list[Event]:
        """The last event of an answer that came to nothing."""
        return [] if self._over else [self.items.push(Finished(FinishReason.ERROR, Usage()))]


def _written(call: FunctionCall) -> list[Event]:
    """The events of a call, as if the model wrote it now."""
    return [
        CallStarted(call.call_id, call.name, hosted=True),
        ArgumentsDelta(call.arguments, ""),
        CallEnded(complete=True),
    ]


async def _recorded_or_run(call: FunctionCall, sessions: ToolSessions, context: ReplayContext) -> ToolResult:
    """The result of a call: as it was recorded, or else of running it."""
    log = context.log
    result = log.next_result() if log else None
    if result is not None:
        await sessions.recall(call, result)
        return result
    result = await sessions.run(call)
    if log is not None:
        log.write(ToolResultEntry(result))
    return result


class ToolLoop:
    """Generates one answer. Not for reuse. `items` are those of the answer so far."""

    def __init__(self, first: Prepared, index: int, context: ReplayContext, items: Accumulator) -> None:
        self._index = index
        self._context = context
        self._items = items
        self._first = len(items.items)  # number of the first item of the generation that is under way
        self._prepared = first
        self._generation = first.generation(index, context, self._items)
        self._end: Finished | None = None  # of the generation that is under way, once it is over
        self._over = False  # the end of the answer was emitted
        self._sessions = ToolSessions(
            first.model.tools, first.turn.tools, first.model.stopping, first.turn.owner
        )
        self._calls_left = MAX_CALLS if first.turn.tool_limit is None else first.turn.tool_limit
        self._usage = Usage()
        self._unmet: tuple[str, ...] = ()
        self._output: Driver
        self._choice: int

    async def run(self, output: Driver, choice: int) -> None:
        """Generate a choice of `output`, run tools, and so on, to the end. Raises AntiphonError."""
        self._output, self._choice = output, choice
        async with self._sessions:
            reason = None
            while reason is None:
                await self._generation.run(output, choice, self._push)
                calls = self._pending()
                if not calls:
                    return
                results = [await self._run(call) for call in calls]
                reason = await self._next(calls, results)
            self._over = True
            output.push(choice, [self._items.push(self._finished(reason))])

    def abandon(self) -> list[Event]:
        """The last events of an answer that came to nothing: what was new so far stands."""
        if self._over:
            return []
        self._over = self._end is not None
        if self._over:
            return [self._items.push(self._finished(FinishReason.ERROR))]
        return [self._counted(event) for event in self._generation.abandon()]

    def _push(self, choice: int, events: list[Event]) -> None:
        """Emit events of a generation, whose end is the end of the answer if it called no tools."""
        if isinstance(end := events[-1], Finished):
            self._end = end
            whole = self._counted(end)
            self._usage += end.usage
            self._unmet += end.unmet
            self._over = not self._pending()
            events[-1] = whole if self._over else ToolCallsPending(end.raw, end.tokens)
        self._output.push(choice, events)

    def _counted(self, event: Event) -> Event:
        """The end of a generation with what the generations before it used, and did not meet."""
        if not isinstance(event, Finished):
            return event
        return replace(event, usage=self._usage + event.usage, unmet=self._unmet + event.unmet)

    def _pending(self) -> list[FunctionCall]:
        """The calls that the server has to run: none, if a limit or the client's stop string ended it all."""
        end = self._end
        if end is None or end.reason is not FinishReason.STOP or isinstance(end.stop, str):
            return []
        return [item for item in self._new_items if isinstance(item, FunctionCall) and item.hosted]

    @property
    def _new_items(self) -> list[Item]:
        """The items of this generation."""
        return self._items.items[self._first :]

    async def _run(self, call: FunctionCall) -> ToolResult:
        """The result of a call, shown: as it was recorded, or else of running it."""
        log = self._context.log
        result = log.next_result() if log else None
        allowed, self._calls_left = self._calls_left > 0, self._calls_left - 1
        if result is None:
            result = await self._sessions.run(call) if allowed else ToolResult(_ENOUGH, failed=True)
            if log is not None:
                log.write(ToolResultEntry(result))
        elif allowed:
            await self._sessions.recall(call, result)
        self._output.push(self._choice, [self._items.push(ToolResultReceived(call.call_id, result))])
        return result

    async def _next(self, calls: list[FunctionCall], results: list[ToolResult]) -> FinishReason | None:
        """Set the next generation up; why the answer ends, if there is none."""
        new = [item for item in self._new_items if not isinstance(item, FunctionOutput)]
        if any(isinstance(item, FunctionCall) and not item.hosted for item in new):
            return FinishReason.STOP  # the client has to run its own first
        turn = self._next_turn(new, calls, results)
        if turn.sampling.max_tokens is not None and turn.sampling.max_tokens < 1:
            return FinishReason.LENGTH
        log = self._context.log
        recorded = log.next_prompt() if log else None
        try:
            self._prepared = await self._prepared.model.prepare(turn, recorded)
        except RequestError as error:
            if error.code != "context_length_exceeded":
                raise
            return FinishReason.LENGTH
        prompt = self._prepared.prompt.ids
        if log is not None and recorded is None:
            log.write(PromptEntry(prompt))
        self._usage += Usage(prompt_tokens=len(prompt))
        self._generation = self._prepared.generation(self._index, self._context, self._items)
        self._first, self._end = len(self._items.items), None
        return None

    def _next_turn(
        self, new: Sequence[Item], calls: Sequence[FunctionCall], results: Sequence[ToolResult]
    ) -> Turn:
        """The turn of the conversation with the new items and results, and what is left of its limits."""
        assert self._end is not None
        turn, used = self._prepared.turn, self._end.usage
        texts = [result.text for result in results]
        if self._calls_left < 1:
            texts[-1] += PARAGRAPH + _ENOUGH
        outputs = (
            FunctionOutput(call.call_id, (TextPart(text),), call.name)
            for call, text in zip(calls, texts, strict=True)
        )
        sampling = turn.sampling
        return replace(
            turn,
            items=(*_with_prefix(turn, new), *outputs),
            tool_choice=_choice_after(turn, self._calls_left),
            sampling=replace(
                sampling,
                max_tokens=_left(sampling.max_tokens, used.completion_tokens),
                min_tokens=_left(sampling.min_tokens, used.completion_tokens),
            ),
            reasoning_limit=_left(turn.reasoning_limit, used.reasoning_tokens),
            ending=Ending.ANSWER,
            prefix="",
        )

    def _finished(self, reason: FinishReason) -> Finished:
        return Finished(reason, self._usage, unmet=self._unmet)


def _choice_after(turn: Turn, calls_left: int) -> ToolChoice:
    """What may be called after the first calls, which have met the demand for one."""
    choice = turn.tool_choice
    names = None if choice.named else choice.names
    if calls_left > 0:
        return ToolChoice(Calling.AUTO, names, choice.parallel)
    own = frozenset(tool.name for tool in turn.tools if not tool.hosted)
    return ToolChoice(Calling.AUTO, own if names is None else own & names, choice.parallel)


def _left(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)


def _with_prefix(turn: Turn, new: Sequence[Item]) -> tuple[Item, ...]:
    """The conversation with what was new: a message that the client began is whole."""
    items = turn.items
    begun, last = turn.prefix, items[-1] if items else None
    if turn.ending is Ending.CONTINUED and isinstance(last, Message):
        items, begun = items[:-1], last.text + begun
    if begun and new and isinstance(new[0], Message):
        return (*items, replace(new[0], parts=(TextPart(begun + new[0].text),)), *new[1:])
    return (*turn.items, *new)
