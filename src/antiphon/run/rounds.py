"""An answer of several generations: the model calls the server's tools, reads what they say, and goes on.

The calls and their outcomes become part of the conversation, and the next
generation answers that. The answer ends when the model has called no tool of
the server's, when it wants something of the client, too, or when a limit is
reached; never because a tool failed, for that is told to the model.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.core.chunks import FinishReason
from antiphon.core.errors import RequestError
from antiphon.core.events import Answered, CallStarted, Event, Finished, Paused, Usage
from antiphon.core.fold import PARAGRAPH, Fold, Output
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, TextPart
from antiphon.core.outcome import Outcome
from antiphon.core.turn import Calling, Ending, ToolChoice, Turn
from antiphon.run.choice import told
from antiphon.run.round import Recording, Round, prepare
from antiphon.run.sessions import Sessions
from antiphon.run.tape import NextPrompt, ToolAnswer

MAX_CALLS = 128
"""Calls of the server's tools in one answer, unless the request says less: nothing goes on for ever."""

_ENOUGH = "No more tools can be called for this answer. Answer with what you know."


def hosts_tools(turn: Turn) -> bool:
    """The model may call tools of the server."""
    return turn.tool_choice.calling is not Calling.NONE and any(tool.hosted for tool in turn.tools)


class Rounds:
    """Generates one answer. Not for reuse."""

    def __init__(self, first: Round, index: int, recording: Recording) -> None:
        self._index = index
        self._recording = recording
        self._round = first
        self._choice = first.choice(index, recording)
        self._sessions = Sessions(first.model.tools, first.turn.tools, first.model.stopping)
        self._over = False  # the generation that `choice` makes is over
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
                answers: list[tuple[FunctionCall, Outcome]] = []
                for call in _hosted(fold.output):
                    outcome = await self._answer(call)
                    answers.append((call, outcome))
                    yield [Answered(call.call_id, outcome)]
                if not answers:
                    return
                end = await self._go_on(fold.output, answers)
            yield [end]

    def fail(self, error: Exception) -> list[Event]:
        """The last events of an answer that `error` ended: what was said so far stands."""
        if self._over:
            return [replace(self._end(FinishReason.ERROR), error=told(error).message)]
        *events, end = self._choice.fail(error)
        assert isinstance(end, Finished)
        return [*events, replace(end, usage=self._usage + end.usage, unmet=self._unmet)]

    def _shown(self, events: list[Event], fold: Fold) -> list[Event]:
        """The events of a generation, whose end is the end of the answer if it called no tools."""
        shown = [self._marked(event) for event in events]
        for event in shown:
            fold.push(event)
        if shown and isinstance(end := shown[-1], Finished):
            self._over = True
            self._usage += end.usage
            self._unmet += end.unmet
            whole = replace(end, usage=self._usage, unmet=self._unmet)
            shown[-1] = Paused(end.raw, end.tokens) if _hosted(fold.output) else whole
        return shown

    def _marked(self, event: Event) -> Event:
        if isinstance(event, CallStarted) and self._sessions.host(event.name):
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

    async def _go_on(self, output: Output, answers: list[tuple[FunctionCall, Outcome]]) -> Finished | None:
        """Set the next generation up; the end of the answer, if there is none."""
        if output.calls:  # the client's own: it has to answer them first
            return self._end(FinishReason.STOP)
        turn = self._next_turn(output, answers)
        if turn.sampling.max_tokens is not None and turn.sampling.max_tokens < 1:
            return self._end(FinishReason.LENGTH)
        tape = self._recording.tape
        played = tape.play_prompt() if tape else None
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
        self._over = False
        return None

    def _next_turn(self, output: Output, answers: list[tuple[FunctionCall, Outcome]]) -> Turn:
        """The turn of the conversation with what was said and done, and with what is left of its limits."""
        turn, used = self._round.turn, output.usage
        texts = [outcome.text for _, outcome in answers]
        if self._calls_left < 1:
            texts[-1] += PARAGRAPH + _ENOUGH
        outputs = (
            FunctionOutput(call.call_id, (TextPart(text),), call.name)
            for (call, _), text in zip(answers, texts, strict=True)
        )
        sampling = turn.sampling
        return replace(
            turn,
            items=(*_with_what_it_began(turn, output.items), *outputs),
            tool_choice=_choice_after(turn, self._calls_left),
            sampling=replace(
                sampling,
                max_tokens=_left(sampling.max_tokens, used.completion_tokens),
                min_tokens=_left(sampling.min_tokens, used.completion_tokens),
            ),
            thinking_limit=_left(turn.thinking_limit, used.reasoning_tokens),
            ending=Ending.ANSWER,
            prefix="",
        )

    def _end(self, reason: FinishReason) -> Finished:
        return Finished(reason, self._usage, unmet=self._unmet)


def _hosted(output: Output) -> list[FunctionCall]:
    """The calls that the server has to answer: none, if a limit or the client's stop string ended it all."""
    if output.reason is not FinishReason.STOP or isinstance(output.stop, str):
        return []
    return [item for item in output.items if isinstance(item, FunctionCall) and item.hosted]


def _choice_after(turn: Turn, calls_left: int) -> ToolChoice:
    """What may be called after the first calls, which have met the demand for one."""
    choice = turn.tool_choice
    names = None if choice.named else choice.names
    if calls_left > 0:
        return ToolChoice(Calling.AUTO, names, choice.parallel)
    own = frozenset(tool.name for tool in turn.tools if not tool.hosted)
    left = own if names is None else own & names
    return ToolChoice(Calling.AUTO if left else Calling.NONE, left or None, choice.parallel)


def _left(limit: int | None, used: int) -> int | None:
    return None if limit is None else max(0, limit - used)


def _with_what_it_began(turn: Turn, said: tuple[Item, ...]) -> tuple[Item, ...]:
    """The conversation with what was said: a message that the client began is whole."""
    items = turn.items
    begun, last = turn.prefix, items[-1] if items else None
    if turn.ending is Ending.CONTINUED and isinstance(last, Message):
        items, begun = items[:-1], last.text + begun
    if begun and said and isinstance(said[0], Message):
        return (*items, replace(said[0], parts=(TextPart(begun + said[0].text),)), *said[1:])
    return (*turn.items, *said)
