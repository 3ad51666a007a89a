"""An answer of several generations: the model calls server tools, reads their results, and continues.

The calls and their results become part of the conversation, and the next generation continues that. The
answer ends when a generation calls no server tool, or also calls a function of the client, or when a limit
is reached. It never ends because a tool failed: the model gets the error as the result. When the budget of
the tools is used up, there is one more generation, without tools. If it has no text either, the answer ends
for that reason. An answer that is steered ends between two generations, when the calls of the first have run.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from antiphon.core.accumulator import PARAGRAPH, Accumulator
from antiphon.core.chunks import FinishReason
from antiphon.core.errors import RequestError
from antiphon.core.events import (
    CallStarted,
    Event,
    Finished,
    GenerationUsage,
    ToolCallsPending,
    Usage,
)
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, TextPart
from antiphon.core.observation import observed
from antiphon.core.positions import found_in
from antiphon.core.programs import PROGRAMS
from antiphon.core.tool_result import FoundFunctions, ToolResult
from antiphon.core.turn import TOOL_SEARCH, CallMode, Function, PromptEnding, ToolChoice, Turn
from antiphon.run.drive import Output
from antiphon.run.model import Model, Prepared
from antiphon.run.programs import events_of
from antiphon.run.replay import PromptEntry, ReplayContext
from antiphon.run.tool_calls import NO_MORE_CALLS, ToolBudget, ToolCalls, content_of
from antiphon.run.tool_search import ToolSearch
from antiphon.run.tool_sessions import ToolSessions

_WHOLE = frozenset({FinishReason.STOP, FinishReason.STEERED})
"""How a generation ends whose calls are complete."""


def hosts_tools(turn: Turn) -> bool:
    """The model may call tools of the server."""
    if not turn.tools or turn.tool_choice.calling is CallMode.NONE:
        return False
    return any(tool.answered_by for tool in turn.tools)


class EarlierCalls:
    """Runs the calls of a turn that its client has approved, before the model answers. Not for reuse.

    Programs go on that wait for results of the client.

    `items` numbers their items, and those of the answer after them.
    """

    def __init__(self, turn: Turn, model: Model, context: ReplayContext) -> None:
        self.items = Accumulator()
        self._turn = turn
        self._model = model
        self._sessions = ToolSessions(model.tools, turn, model.stopping)
        calls = len(turn.approved) if not turn.unfinished else turn.tool_limit
        budget = ToolBudget(model.limits, calls)
        self._calls = ToolCalls(self._sessions, turn, budget, context, self.items)
        self._over = False

    async def run(self, output: Output, choice: int) -> Turn | None:
        """Run them; returns the turn with their results, each after its call.

        None if a program waits for the client: then the answer is over.
        """
        async with self._sessions:
            returned = await self._run_approved(output, choice)
            returned |= await self._run_programs(output, choice)
            results = {
                call.call_id: (call, await self._output(call, result)) for call, result in returned.items()
            }
        self._over = True
        if len(results) < len(self._turn.approved) + len(self._turn.unfinished):
            output.push(choice, [self.items.push(Finished(FinishReason.STOP, Usage()))])
            return None
        programs = {program.call.call_id for program in self._turn.unfinished}
        items: list[Item] = []
        printed: list[Item] = []  # after the calls beside them, as in later requests
        for item in self._turn.items:
            if not isinstance(item, FunctionCall):
                items += printed
                printed = []
            items.append(item)
            if isinstance(item, FunctionCall) and item.call_id in results:
                (printed if item.call_id in programs else items).append(results.pop(item.call_id)[1])
        items += printed
        for call, result in results.values():  # a summary has replaced the call
            items += call, result
        return replace(self._turn, items=tuple(items), approved=(), unfinished=())

    async def _run_approved(self, output: Output, choice: int) -> dict[FunctionCall, ToolResult]:
        approved = self._turn.approved
        if not approved:
            return {}
        for call in approved:
            output.push(choice, self.items.extend(events_of(call)))
        output.push(choice, [ToolCallsPending()])
        returned = await self._calls.run(approved, output, choice)
        return {call: result for call, result in zip(approved, returned, strict=True) if result is not None}

    async def _run_programs(self, output: Output, choice: int) -> dict[FunctionCall, ToolResult]:
        """Go on with programs; returns the results of those that end."""
        results: dict[FunctionCall, ToolResult] = {}
        for program in self._turn.unfinished:
            call = program.call
            output.push(choice, [CallStarted(call.call_id, call.name, hosted=True, resumed=True)])
            result = await self._calls.run_program(call, program, output, choice)
            if result is not None:
                results[call] = result
        return results

    async def _output(self, call: FunctionCall, result: ToolResult) -> FunctionOutput:
        parts = TextPart(result.text), *await content_of(result, self._model)
        return FunctionOutput(call.call_id, parts, call.name)

    def steer(self) -> None:
        """They are run: the generation after them ends."""

    def abandon(self) -> list[Event]:
        """The last event of an answer that failed."""
        return [] if self._over else [self.items.push(Finished(FinishReason.ERROR, Usage()))]


class ToolLoop:
    """Generates one answer. A loop is used once. `items` builds those of the answer."""

    def __init__(self, first: Prepared, index: int, context: ReplayContext, items: Accumulator) -> None:
        self._index = index
        self._context = context
        self._items = items
        self._first = len(items.items)  # number of the first item of the current generation
        self._prepared = first
        self._generation = first.generation(index, context, self._items)
        self._end: Finished | None = None  # of the current generation, when it is over
        self._over = False  # the end of the answer was emitted
        tools = {**first.model.tools, TOOL_SEARCH: ToolSearch(first.turn.tools, first.pool)}
        turn = first.turn
        self._sessions = ToolSessions(tools, turn, first.model.stopping)
        # A program that is demanded may call.
        once = turn.tool_choice.named and not turn.tool_choice.admits(PROGRAMS)
        max_calls = 1 if once else turn.tool_limit
        self._budget = ToolBudget(first.model.limits, max_calls)
        self._calls = ToolCalls(self._sessions, first.turn, self._budget, context, items)
        self._steered = False  # it ends before the next generation
        self._last = False  # no more calls of the server's tools are run: the model has to answer
        self._generations: list[GenerationUsage] = []
        self._usage = Usage()
        self._unmet: tuple[str, ...] = ()
        self._observation = observed()
        self._output: Output
        self._choice: int

    async def run(self, output: Output, choice: int) -> None:
        """Generate a choice of `output`, run tools, and so on, to the end. Raises AntiphonError."""
        self._output, self._choice = output, choice
        log = self._context.log
        between = output if log is None else log.between(output)
        async with self._sessions:
            reason = None
            while reason is None:
                if self._steered:
                    self._generation.steer()
                await self._generation.run(output, choice, self._push)
                calls = self._pending()
                if not calls:
                    return
                results = await self._calls.run(calls, between, choice)
                reason = await self._next(calls, results)
            self._over = True
            self._observation.ended = reason
            between.push(choice, [self._items.push(self._finished(reason))])

    def steer(self) -> None:
        """End as soon as a conversation can go on: the calls that the model has written are run."""
        self._steered = True
        self._generation.steer()

    def abandon(self) -> list[Event]:
        """The last events of an answer that has failed: its new items so far are kept."""
        if self._over:
            return []
        self._over = self._end is not None
        if self._over:
            return [self._items.push(self._finished(FinishReason.ERROR))]
        events = self._generation.abandon()
        return [self._with_total_usage(event) if isinstance(event, Finished) else event for event in events]

    def _push(self, choice: int, events: list[Event]) -> None:
        """Emit events of a generation, whose end is the end of the answer if it called no tools."""
        if isinstance(end := events[-1], Finished):
            self._end = end
            total = self._with_total_usage(end)
            usage = self._usage_of(end)
            self._generations.append(usage)
            self._budget.generated(usage.input_tokens + usage.output_tokens)
            self._usage += end.usage
            self._unmet += end.unmet
            self._over = not self._pending()
            if self._over:
                self._observation.ended = total.reason
            # In place of the end, with its text and tokens: no token of a generation may be missing.
            events[-1] = total if self._over else ToolCallsPending(end.raw, end.tokens)
        self._output.push(choice, events)

    def _with_total_usage(self, event: Finished) -> Finished:
        """The end of a generation with the usage and the unmet demands of all generations."""
        silent = (
            self._last and event.reason is FinishReason.STOP and not any(map(_is_visible, self._new_items))
        )
        return replace(
            event,
            reason=FinishReason.TOOL_LIMIT if silent else event.reason,
            usage=self._usage + event.usage,
            unmet=self._unmet + event.unmet,
            generations=(*self._generations, self._usage_of(event)) if self._generations else (),
        )

    def _usage_of(self, end: Finished) -> GenerationUsage:
        """The usage of the current generation."""
        return GenerationUsage.of(end.usage, len(self._prepared.prompt.ids))

    def _pending(self) -> list[FunctionCall]:
        """The calls that the server has to run: none after a limit, or the client's stop string."""
        end = self._end
        if end is None or end.reason not in _WHOLE or isinstance(end.stop, str):
            return []
        return [
            item
            for item in self._new_items
            if isinstance(item, FunctionCall) and item.hosted and not item.caller
        ]

    @property
    def _new_items(self) -> list[Item]:
        """The items of this generation."""
        return self._items.items[self._first :]

    async def _next(
        self, calls: list[FunctionCall], returned: list[ToolResult | None]
    ) -> FinishReason | None:
        """Prepare the next generation; returns why the answer ends, if there is none."""
        results = [result for result in returned if result is not None]
        await self._count([call for call, result in zip(calls, returned, strict=True) if result], results)
        new_items = [item for item in self._new_items if not isinstance(item, FunctionOutput)]
        if any(isinstance(item, FunctionCall) and not item.hosted for item in new_items):
            return FinishReason.STOP  # the client has to run its own first
        log = self._context.log
        if self._steered and not (log and log.is_continued):
            return FinishReason.STEERED
        new_items = [item for item in new_items if not (isinstance(item, FunctionCall) and item.caller)]
        self._last = self._budget.is_used_up or self._all_used_up()
        turn = await self._next_turn(new_items, calls, results)
        self._calls.offer(turn.tools)
        if turn.sampling.max_tokens is not None and turn.sampling.max_tokens < 1:
            return FinishReason.LENGTH
        recorded = log.next_prompt() if log else None
        try:
            self._prepared = await self._prepared.model.prepare(turn, recorded)
        except RequestError as error:
            # The rest of the context, or of the limit, may be too little for a demanded form.
            if error.code != "context_length_exceeded" and error.param != "max_tokens":
                raise
            return FinishReason.LENGTH
        prompt = self._prepared.prompt.ids
        if log is not None and recorded is None:
            log.write(PromptEntry(prompt))  # rendered again it may differ: templates may contain the time
        self._usage += Usage(prompt_tokens=len(prompt))
        self._generation = self._prepared.generation(self._index, self._context, self._items)
        self._first, self._end = len(self._items.items), None
        return None

    async def _next_turn(
        self, new_items: Sequence[Item], calls: Sequence[FunctionCall], results: Sequence[ToolResult]
    ) -> Turn:
        """The turn of the conversation with the new items and results, and the rest of its limits."""
        assert self._end is not None
        turn, usage = self._prepared.turn, self._end.usage
        texts = [result.text for result in results]
        if self._last and texts[-1] != NO_MORE_CALLS:
            texts[-1] += PARAGRAPH + NO_MORE_CALLS
        outputs = [
            FunctionOutput(
                call.call_id, (TextPart(text), *await content_of(result, self._prepared.model)), call.name
            )
            for call, text, result in zip(calls, texts, results, strict=True)
        ]
        sampling, tools = turn.sampling, found_in(turn.tools, _found(results))
        return replace(
            turn,
            items=(*_with_prefix(turn, new_items), *outputs),
            tools=tools,
            tool_choice=self._next_choice(calls, tools),
            sampling=replace(
                sampling,
                max_tokens=_left(sampling.max_tokens, usage.completion_tokens),
                min_tokens=_left(sampling.min_tokens, usage.completion_tokens),
            ),
            reasoning_limit=_left(turn.reasoning_limit, usage.reasoning_tokens),
            ending=PromptEnding.ANSWER,
            prefix="",
        )

    async def _count(self, calls: Sequence[FunctionCall], results: Sequence[ToolResult]) -> None:
        """Note how many tokens the results have."""
        sizes = [await self._prepared.tokens_in(result.text) for result in results]
        for call, tokens in zip(calls, sizes, strict=True):
            self._budget.add_result_tokens(self._calls.hosted(call).type, tokens)
        self._generations[-1] = replace(
            self._generations[-1], tool_calls=len(calls), tool_output_tokens=sum(sizes)
        )

    def _all_used_up(self) -> bool:
        """Whether the individual budget of each server tool is used up."""
        turn = self._prepared.turn
        hosted = (tool.answered_by for tool in turn.tools if turn.tool_choice.admits(tool.name))
        return all(self._budget.is_used_up_for(tool.type) for tool in hosted if tool is not None)

    def _next_choice(self, calls: Sequence[FunctionCall], tools: Sequence[Function]) -> ToolChoice:
        """The choice among these tools after these calls.

        They have met a demand for a call, unless they have only searched. A named call is demanded once,
        and is the only call of that answer.
        """
        choice = self._prepared.turn.tool_choice
        searched = all(self._calls.hosted(call).type == TOOL_SEARCH for call in calls)
        if searched and not (self._last or choice.named):
            return choice
        names = frozenset[str]() if choice.named else choice.names
        if self._last:
            client_names = frozenset(tool.name for tool in tools if not tool.answered_by)
            names = client_names if names is None else client_names & names
        return ToolChoice(CallMode.AUTO, names, choice.parallel)

    def _finished(self, reason: FinishReason) -> Finished:
        return Finished(reason, self._usage, unmet=self._unmet, generations=tuple(self._generations))


def _found(results: Iterable[ToolResult]) -> Iterator[str]:
    """The names of the functions that searches among these results have found."""
    for result in results:
        if isinstance(result.details, FoundFunctions):
            yield from result.details.names


def _is_visible(item: Item) -> bool:
    """Whether a client can continue with the item."""
    return (isinstance(item, Message) and bool(item.text.strip())) or (
        isinstance(item, FunctionCall) and not item.hosted
    )


def _left(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)


def _with_prefix(turn: Turn, new_items: Sequence[Item]) -> tuple[Item, ...]:
    """The conversation with the new items: a message that the client has begun is completed."""
    items = turn.items
    opening, last_item = turn.prefix, items[-1] if items else None
    if turn.ending is PromptEnding.CONTINUED and isinstance(last_item, Message):
        items, opening = items[:-1], last_item.text + opening
    if opening and new_items and isinstance(new_items[0], Message):
        return (*items, replace(new_items[0], parts=(TextPart(opening + new_items[0].text),)), *new_items[1:])
    return (*turn.items, *new_items)
