"""Whether an answer is what the request demanded, where the engine could not be held to it.

An answer that was cut is not judged: its end shows already that it is not whole. The
verdict goes to the client with the end of the answer; the answer itself stays
as the model wrote it.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from antiphon.constrain.matcher import matches
from antiphon.core.chunks import FinishReason
from antiphon.core.events import CallEnded, Event, Finished, TextEnded
from antiphon.core.items import FunctionCall, Item, Message, Status
from antiphon.core.turn import Calling, Turn
from antiphon.run.constraints import ConstraintPlan

COMMENTARY = "commentary"
"""The phase of a message that only leads to others: the format does not apply to it."""


class OutputCheck:
    """Reads along with the events of one generation, and adds to the last what is unmet."""

    def __init__(self, turn: Turn, plan: ConstraintPlan) -> None:
        self._turn = turn
        self._plan = plan
        self._items: list[Item] = []
        self._raw: list[str] = []

    def push(self, events: list[Event]) -> list[Event]:
        """The same events, the last one with the verdict."""
        for event in events:
            self._raw.append(event.raw)
            if isinstance(event, TextEnded | CallEnded) and event.item is not None:
                self._items.append(event.item)
        if events and isinstance(end := events[-1], Finished) and end.reason is FinishReason.STOP:
            return [*events[:-1], replace(end, unmet=tuple(self._violations()))]
        return events

    def _violations(self) -> Iterator[str]:
        calls = [item for item in self._items if isinstance(item, FunctionCall)]
        whole = [call for call in calls if call.status is Status.COMPLETED]
        if self._turn.tool_choice.calling is Calling.REQUIRED and not whole:
            called = "its call is incomplete" if calls else "the model called no tool"
            yield f"tool_choice: {called}."
        for call in whole:
            yield from self._violations_by_call(call)
        if self._turn.format is not None and not whole:
            texts = [item for item in self._items if isinstance(item, Message) and item.phase != COMMENTARY]
            yield from self._violations_by_text("".join(message.text for message in texts))

    def _violations_by_call(self, call: FunctionCall) -> Iterator[str]:
        schema = self._plan.schemas.tools.get(call.name)
        if schema is not None:
            source = next(tool.source for tool in self._turn.tools if tool.name == call.name)
            for fault in schema.faults(call.arguments):
                yield f"{source}: the arguments of '{call.name}'{fault}"

    def _violations_by_text(self, text: str) -> Iterator[str]:
        source, schema = self._turn.parameter("format"), self._plan.schemas.format
        grammar_ir = self._plan.enforced.grammar_ir
        if schema is not None:
            for fault in schema.faults(text):
                yield f"{source}: the answer{fault}"
        elif grammar_ir is not None and not matches(grammar_ir, "".join(self._raw)):
            yield f"{source}: the answer does not have the requested form."
