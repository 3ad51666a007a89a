"""Whether an answer is what the request demanded, where the engine could not be held to it.

An answer that was cut is not judged: it says already that it is not whole. The
verdict goes to the client with the end of the answer; the answer itself stays
as the model wrote it.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from antiphon.constrain.matcher import matches
from antiphon.core.chunks import FinishReason
from antiphon.core.events import Event, Finished
from antiphon.core.fold import Fold, Output
from antiphon.core.items import FunctionCall, Message, Status
from antiphon.core.turn import Calling, Turn
from antiphon.run.plan import Held

COMMENTARY = "commentary"
"""The phase of a message that only leads to others: no format is asked of it."""


class Check:
    """Reads along with the events of one generation, and adds to the last what is unmet."""

    def __init__(self, turn: Turn, held: Held) -> None:
        self._turn = turn
        self._held = held
        self._fold = Fold()
        self._raw: list[str] = []

    def seen(self, events: list[Event]) -> list[Event]:
        """The same events, the last one with the verdict."""
        for event in events:
            self._fold.push(event)
            self._raw.append(event.raw)
        if events and isinstance(end := events[-1], Finished) and end.reason is FinishReason.STOP:
            return [*events[:-1], replace(end, unmet=tuple(self._unmet(self._fold.output)))]
        return events

    def _unmet(self, output: Output) -> Iterator[str]:
        calls = [call for call in output.calls if call.status is Status.COMPLETED]
        if self._turn.tool_choice.calling is Calling.REQUIRED and not calls:
            yield "tool_choice: the model called no tool."
        for call in calls:
            yield from self._unmet_by_call(call)
        if self._turn.format is not None and not calls:
            said = (item for item in output.items if isinstance(item, Message) and item.phase != COMMENTARY)
            yield from self._unmet_by_text("".join(message.text for message in said))

    def _unmet_by_call(self, call: FunctionCall) -> Iterator[str]:
        schema = self._held.schemas.tools.get(call.name)
        if schema is not None:
            source = next(tool.source for tool in self._turn.tools if tool.name == call.name)
            for fault in schema.faults(call.arguments):
                yield f"{source}: the arguments of '{call.name}'{fault}"

    def _unmet_by_text(self, text: str) -> Iterator[str]:
        source, schema = self._turn.format_source, self._held.schemas.format
        language = self._held.enforced.language
        if schema is not None:
            for fault in schema.faults(text):
                yield f"{source}: the answer{fault}"
        elif language is not None and not matches(language, "".join(self._raw)):
            yield f"{source}: the answer does not have the form that was asked for."
