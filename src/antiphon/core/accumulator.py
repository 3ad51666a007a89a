"""Builds the items of an answer from its events: the only place where their text is joined.

The events of one choice pass through one `Accumulator`, over all generations of its answer. It adds the
item's number to the events that start or end an item, and the item itself to its end. Everything that needs
whole items (a full answer, a response object, the tool loop, the checks) takes them from these events, so all
of them get the same items.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import FinishReason
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Finished,
    GenerationUsage,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextStarted,
    ToolResultReceived,
    Usage,
)
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role, Status, TextPart

PARAGRAPH = "\n\n"
"""The separator of two messages, or two reasonings, for clients that know only one text."""

_ASSISTANT = Role.ASSISTANT

DELTAS = frozenset({TextDelta, ReasoningDelta, ArgumentsDelta})
"""The types of the frequent events: one or more for each token."""


class Output(Struct, frozen=True):
    """A finished answer, whole."""

    items: tuple[Item, ...]
    reason: FinishReason
    usage: Usage
    stop: str | int | None = None
    error: str | None = None
    unmet: tuple[str, ...] = ()
    generations: tuple[GenerationUsage, ...] = ()
    kv_transfer_params: Mapping[str, Any] | None = None
    closed: int = 0
    unused: int = 0

    @property
    def text(self) -> str:
        """All visible text: each message is a paragraph."""
        return PARAGRAPH.join([item.text for item in self.items if type(item) is Message])

    @property
    def reasoning(self) -> str:
        """The reasoning: each is a paragraph."""
        return PARAGRAPH.join([item.text for item in self.items if type(item) is Reasoning])

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """The calls of the client's functions, in order, incomplete ones included."""
        return tuple([item for item in self.items if type(item) is FunctionCall and not item.hosted])


class Accumulator:
    """Numbers the items of one choice, and builds them.

    `items` are the complete ones. `pieces` is the text of the open item: code on the hot path may append the
    text of deltas to it instead of calling `push` for them.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.pieces: list[str] = []
        self._opened: TextStarted | ReasoningStarted | CallStarted | None = None
        self._finished: Finished | None = None

    def push(self, event: Event) -> Event:
        """Process the next event; returns it with the item's number, and with the item at its end."""
        kind = type(event)
        if kind in DELTAS:
            self.pieces.append(event.text)  # type: ignore[union-attr]
            return event
        build = _BUILDERS.get(kind)
        return build(self, event) if build else event

    def extend(self, events: Iterable[Event]) -> list[Event]:
        """`push` for each of several events."""
        return [self.push(event) for event in events]

    @property
    def output(self) -> Output:
        """The answer as a whole. Raises RuntimeError before `Finished`."""
        if self._finished is None:
            raise RuntimeError("an answer has no output before it is finished")
        return output_of(self.items, self._finished)

    def _start(self, event: TextStarted | ReasoningStarted | CallStarted) -> Event:
        self._opened = event
        # Most answers have one item, with number 0, which is also the default of events: no copy is needed.
        return replace(event, index=len(self.items)) if self.items else event

    def _end_text(self, event: TextEnded) -> Event:
        assert type(self._opened) is TextStarted
        part = TextPart("".join(self.pieces))
        return self._end(event, Message(_ASSISTANT, (part,), phase=self._opened.phase))

    def _end_reasoning(self, event: ReasoningEnded) -> Event:
        return self._end(event, Reasoning("".join(self.pieces)))

    def _end_call(self, event: CallEnded) -> Event:
        call = self._opened
        assert type(call) is CallStarted
        status = Status.COMPLETED if event.complete else Status.INCOMPLETE
        arguments = "".join(self.pieces)
        item = FunctionCall(call.call_id, call.name, arguments, status, call.hosted, caller=call.caller)
        return self._end(event, item)

    def _end(self, event: TextEnded | ReasoningEnded | CallEnded, item: Item) -> Event:
        self.pieces.clear()
        self.items.append(item)
        return replace(event, index=len(self.items) - 1, item=item)

    def _add_result(self, event: ToolResultReceived) -> Event:
        self.items.append(FunctionOutput(event.call_id, (TextPart(event.result.text),)))
        return replace(event, index=len(self.items) - 1)

    def _finish(self, event: Finished) -> Event:
        self._finished = event
        return event


_BUILDERS: dict[type[Event], Callable[[Accumulator, Any], Event]] = {
    TextStarted: Accumulator._start,
    ReasoningStarted: Accumulator._start,
    CallStarted: Accumulator._start,
    TextEnded: Accumulator._end_text,
    ReasoningEnded: Accumulator._end_reasoning,
    CallEnded: Accumulator._end_call,
    ToolResultReceived: Accumulator._add_result,
    Finished: Accumulator._finish,
}
"""The handler of each rare event. The types that are not here concern no item."""


def output_of(items: Iterable[Item], end: Finished) -> Output:
    """The answer that these items and this end make."""
    return Output(
        tuple(items),
        end.reason,
        end.usage,
        end.stop,
        end.error,
        end.unmet,
        end.generations,
        end.kv_transfer_params,
        end.closed,
        end.unused,
    )
