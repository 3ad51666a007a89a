"""An answer whose request and text a guard checks: a source that stands before another one.

                      ┌──────── guard ────────┐
    source ──push──► what is held ──push──► driver

In the mode `score` nothing is held: the texts are collected while they pass, and checked when the answer is
over. In the mode `block` the request is checked before the model reads it, and events are held until the
window of text that they belong to was checked. A choice with a window that is flagged ends there, as one that
a content filter ends: with the items so far, as far as they were checked. What is checked is all that the
model writes for the client: text, reasoning, and arguments of calls.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from itertools import islice
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import FinishReason
from antiphon.core.errors import RequestError
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Finished,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolCallsPending,
    ToolPrinted,
    ToolResultReceived,
    Usage,
)
from antiphon.core.items import FunctionCall, Item, Message, Reasoning, Role, Status, TextPart
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.core.moderation import (
    GuardFailure,
    GuardOutcome,
    GuardVerdict,
    ModerationBlockedError,
    ModerationFailedError,
    ModerationMode,
    ModerationPolicy,
    merged,
)
from antiphon.core.observation import observed
from antiphon.core.plain_tokens import DeltaWriter
from antiphon.core.turn import Turn
from antiphon.run.drive import Output, PassedOutput, Source, Steerable, wait_for_turn
from antiphon.run.guarding import OVERLAP, SAFE, WINDOW

DELTAS = (TextDelta, ReasoningDelta, ArgumentsDelta)

PRESSING = (Finished, ToolCallsPending, ToolPrinted, ToolResultReceived)
"""Events that the client waits for: what is held with them is checked, however little it is."""
Started = TextStarted | ReasoningStarted | CallStarted
Outcomes = Sequence[GuardOutcome]


class Checking(Protocol):
    """Checks texts of one request: its own, and those of its answers."""

    async def input(self, texts: Sequence[str]) -> GuardOutcome:
        """What the guard says of the request."""
        ...

    async def output(self, text: str) -> GuardOutcome:
        """What the guard says of a text of an answer."""
        ...

    def report(self, input_: GuardOutcome, outputs: Outcomes) -> None:
        """What it has said of all: the answer tells it."""
        ...


class ModeratedInput(Struct, frozen=True):
    """The texts of a request, and the parameter of its conversation. `unread`: it has media."""

    texts: tuple[str, ...]
    param: str
    unread: bool = False


class ModeratedSource:
    """The events of another source, checked; a `window` has so many characters. See `Source`."""

    def __init__(  # noqa: PLR0913 - what is checked, how, and by whom
        self,
        source: Source,
        checking: Checking,
        policy: ModerationPolicy,
        given: ModeratedInput,
        *,
        choices: int,
        window: int,
    ) -> None:
        self._source = source
        self._checking = checking
        self._policy = policy
        self._given = given
        self._choices = choices
        self._window = window
        self._held: HeldOutput | None = None

    async def run(self, output: Output) -> None:
        """Raises ModerationBlockedError for a request that is flagged, ModerationFailedError, in `block`."""
        policy, checking = self._policy, self._checking
        if policy.input is ModerationMode.BLOCK:
            asked = await self._checked_input()
            outputs = await self._answer(output)
            checking.report(asked, outputs)
            return
        asking = asyncio.create_task(checking.input(self._given.texts))
        try:
            outputs = await self._answer(output)
            checking.report(await asking, outputs)
        finally:
            await _cancelled(asking)

    async def _checked_input(self) -> GuardOutcome:
        """What the guard says of a request that is not blocked."""
        given = self._given
        if given.unread:
            message = "The guard model reads text only, so a request with media cannot be checked. Send text."
            raise ModerationBlockedError(message, param=given.param)
        outcome = await self._checking.input(given.texts)
        if isinstance(outcome, GuardFailure):
            if outcome.code == LIMIT_EXCEEDED:
                raise RequestError(outcome.message, param=given.param, code=outcome.code)
            raise ModerationFailedError(outcome.message)
        if outcome.flagged:
            names = ", ".join(name for name, flagged in outcome.categories.items() if flagged)
            message = f"The guard model flags this request{f' as {names}' if names else ''}. Change its text."
            raise ModerationBlockedError(message, param=given.param)
        return outcome

    async def _answer(self, output: Output) -> Outcomes:
        if self._policy.output is ModerationMode.SCORE:
            collected = CollectedOutput(output, self._choices)
            await self._source.run(collected)
            checks = [asyncio.create_task(self._checking.output(text)) for text in collected.texts]
            try:
                return [await check for check in checks]
            finally:
                await _cancelled(*checks)
        self._held = HeldOutput(output, self._checking.output, self._choices, self._window)
        return await self._held.run(self._source)

    def steer(self) -> None:
        if isinstance(self._source, Steerable):
            self._source.steer()

    def abandon(self) -> Iterable[tuple[int, Any]]:
        """What is held was not checked: it is dropped, and items end where they were shown."""
        last = self._source.abandon()
        return last if self._held is None else self._held.closing(last)


class CollectedOutput(PassedOutput):
    """Keeps the text of each choice, which is passed on."""

    def __init__(self, output: Output, choices: int) -> None:
        super().__init__(output)
        self._pieces: list[list[str]] = [[] for _ in range(choices)]

    @property
    def texts(self) -> list[str]:
        """All that the model has written for the client, of each choice."""
        return ["".join(pieces) for pieces in self._pieces]

    def push(self, choice: int, events: Sequence[Event]) -> None:
        """Take the texts of events, and pass them on."""
        self._pieces[choice] += [text for event in events if (text := text_of(event))]
        super().push(choice, events)

    def delta_writer(self, choice: int, delta: type[TextDelta | ReasoningDelta]) -> DeltaWriter | None:
        """The writer of the output, whose texts are kept, too."""
        write, pieces = super().delta_writer(choice, delta), self._pieces[choice]
        if write is None:
            return None

        def collect(text: str, tokens: Any) -> None:
            pieces.append(text)
            write(text, tokens)

        return collect


class _Choice:
    """One choice: its events that are held, the item that the client has the beginning of, and verdicts."""

    def __init__(self) -> None:
        self.held: deque[Event] = deque()
        self.counted = 0  # of the held events, those that are known to belong to the next window
        self.size = 0  # their characters
        self.is_whole = False  # they are all of it
        self.tail = ""  # the last characters that were passed on
        self.open: Started | None = None
        self.shown: list[str] = []  # of the open item
        self.verdicts: list[GuardVerdict] = []
        self.blocked = False
        self.over = False  # its end was passed on
        self.check: asyncio.Task[None] | None = None

    @property
    def whole(self) -> bool:
        """Its end is among the held events."""
        return bool(self.held) and type(self.held[-1]) is Finished

    def next(self, window: int) -> int:
        """How many of the held events are the next window, of so many characters; 0 if it is not whole.

        It does not depend on when they came, so that an answer that is replayed has the same windows. An
        answer begins with text that was checked; after that, events without text are not held for long.
        """
        while not self.is_whole and self.counted < len(self.held):
            event = self.held[self.counted]
            self.counted += 1
            self.size += len(text_of(event))
            self.is_whole = self.size >= window or isinstance(event, PRESSING)
        return self.counted if self.is_whole or (self.verdicts and not self.size) else 0

    def taken(self, count: int) -> list[Event]:
        """The first held events, which are held no more."""
        self.counted, self.size, self.is_whole = 0, 0, False
        return [self.held.popleft() for _ in range(count)]

    def passed(self, event: Event) -> None:
        """This event is passed on."""
        if isinstance(event, Started):
            self.open, self.shown = event, []
        elif isinstance(event, TextEnded | ReasoningEnded | CallEnded):
            self.open = None
        elif isinstance(event, Finished):
            self.over = True
        elif text := text_of(event):
            self.shown.append(text)
            self.tail = (self.tail + text)[-WINDOW:]

    def closing(self, end: Finished) -> list[Event]:
        """The events that end it here, with what was passed on."""
        opened, text = self.open, "".join(self.shown)
        events: list[Event] = []
        if isinstance(opened, TextStarted):
            said = Message(Role.ASSISTANT, (TextPart(text),), phase=opened.phase)
            events.append(TextEnded(index=opened.index, item=said))
        elif isinstance(opened, ReasoningStarted):
            events.append(ReasoningEnded(index=opened.index, item=Reasoning(text)))
        elif isinstance(opened, CallStarted):
            call = FunctionCall(opened.call_id, opened.name, text, Status.INCOMPLETE, opened.hosted)
            events.append(CallEnded(complete=False, index=opened.index, item=call))
        return [*events, replace(end, raw="", tokens=())]


class HeldOutput(PassedOutput):
    """Holds events until `check` has seen their text, in windows of so many characters."""

    def __init__(
        self, output: Output, check: Callable[[str], Awaitable[GuardOutcome]], choices: int, window: int
    ) -> None:
        super().__init__(output)
        self._check = check
        self._window = window
        self._choices = [_Choice() for _ in range(choices)]
        self._context = copy_context()  # engines push in one of their own
        self._stopping = asyncio.Event()  # the source is not needed any more: what it pushes is dropped
        self._failure: Exception | None = None

    def push(self, choice: int, events: Sequence[Event]) -> None:
        """Hold events, and begin to check them if they are a window."""
        state = self._choices[choice]
        if state.blocked or self._stopping.is_set():
            return
        state.held += events
        if state.check is None and state.next(self._window):
            self._begin(choice)

    def delta_writer(self, choice: int, delta: type[TextDelta | ReasoningDelta]) -> DeltaWriter | None:
        """Each delta is an event."""
        return None

    async def run(self, source: Source) -> Outcomes:
        """Run a source until it is over, or all of its choices were blocked; the verdicts on them."""
        working = asyncio.create_task(source.run(self))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                await self._flush()
            if self._failure is not None:
                raise self._failure
        finally:
            self._stopping.set()
            await _cancelled(working, stopping, *(state.check for state in self._choices if state.check))
        blocked = [index for index, state in enumerate(self._choices) if state.blocked and not state.over]
        last = _ends(source.abandon()) if blocked else {}
        if blocked:
            observed().ended = FinishReason.CONTENT_FILTER
        for index in blocked:
            state = self._choices[index]
            end = replace(_end_of(state, last.get(index)), reason=FinishReason.CONTENT_FILTER, error=None)
            self._pass(index, state.closing(replace(end, stop=None, unmet=())))
        return [merged(state.verdicts) if state.verdicts else SAFE for state in self._choices]

    def closing(self, last: Iterable[tuple[int, Any]]) -> Iterable[tuple[int, list[Event]]]:
        """The last events of an answer that failed: all that is held is dropped."""
        ends = _ends(last)
        for index, state in enumerate(self._choices):
            if not state.over and (index in ends or state.held or state.open):
                end = _end_of(state, ends.get(index))
                state.over = True
                yield index, state.closing(replace(end, reason=FinishReason.ERROR))

    def _begin(self, choice: int) -> None:
        state = self._choices[choice]
        state.check = asyncio.create_task(self._checked(choice, state), context=self._context)

    async def _checked(self, choice: int, state: _Choice) -> None:
        """Check the next window, and pass it on; then what has come meanwhile, if it is one."""
        try:
            while not state.blocked and (count := state.next(self._window)):
                text = "".join(text_of(event) for event in islice(state.held, count))
                if text.strip() and await self._flags(state, text):
                    break
                await wait_for_turn(self._output)
                self._pass(choice, state.taken(count))
        except Exception as error:  # raised by `run`
            self._failure = self._failure or error
        finally:
            state.check = None
        if self._failure is not None or self._is_blocked():
            self._stopping.set()

    def _is_blocked(self) -> bool:
        """Whether the source goes on in vain. One whose choices are all over ends by itself."""
        states = self._choices
        return any(one.blocked for one in states) and all(one.blocked or one.over for one in states)

    async def _flags(self, state: _Choice, text: str) -> bool:
        """Whether the guard flags a text, which follows what was passed on. Raises ModerationFailedError."""
        outcome = await self._check((state.tail + text)[-max(WINDOW, OVERLAP + len(text)) :])
        if isinstance(outcome, GuardFailure):
            raise ModerationFailedError(outcome.message)
        state.verdicts.append(outcome)
        state.blocked = outcome.flagged
        return outcome.flagged

    def _pass(self, choice: int, events: Sequence[Event]) -> None:
        state = self._choices[choice]
        for event in events:
            state.passed(event)
        self._output.push(choice, events)

    async def _flush(self) -> None:
        """Check and pass on all that is held: no more comes."""
        for index, state in enumerate(self._choices):
            while state.check is not None:
                await asyncio.wait((state.check,))
            assert not state.held or state.blocked or self._failure is not None, index


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait until they are over. A cancellation that comes meanwhile is raised then."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _ends(last: Iterable[tuple[int, Any]]) -> Mapping[int, Finished]:
    """The end of each choice among its last events."""
    return {choice: event for choice, events in last for event in events if isinstance(event, Finished)}


def _end_of(state: _Choice, last: Finished | None) -> Finished:
    """The end of a choice: its own, if that is held."""
    held = state.held[-1] if state.whole else None
    return held if isinstance(held, Finished) else last or Finished(FinishReason.ERROR, Usage())


def text_of(event: Event) -> str:
    """What an event adds to the text of an answer."""
    return event.text if isinstance(event, DELTAS) else ""


def texts_in(items: Iterable[Item]) -> list[str]:
    """The texts of a conversation: the last message of the user by itself, all before it together."""
    texts: list[str] = []
    last = 0
    for item in items:
        text = _text(item)
        if isinstance(item, Message) and item.role is Role.USER:
            last = len(texts)
        texts.append(text)
    before, after = texts[:last], texts[last:]
    return [text for text in ("\n\n".join(filter(None, before)), *after) if text.strip()]


def texts_beside(turn: Turn) -> list[str]:
    """The texts of a request that are no items: documents, and the beginning of its answer."""
    documents = turn.latest_variables.get("documents")
    listed = documents if isinstance(documents, list) else [documents]
    return [text for text in (*map(_strings, listed), turn.prefix) if text.strip()]


def _strings(value: Any) -> str:
    """All strings in a JSON value."""
    if isinstance(value, str):
        return value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return "\n".join(filter(None, map(_strings, inner)))


def _text(item: Item) -> str:
    match item:
        case FunctionCall():
            return item.arguments
        case Reasoning():
            return item.text
    return "\n".join(part.text for part in item.parts if isinstance(part, TextPart))
