"""Checks whether an answer meets the demands of the request that the engine could not enforce.

An answer that was cut is not checked, unless it was closed: its finish reason shows that it is incomplete.
The violations are reported with the end of the answer, whose text stays as the model wrote it.
"""

from msgspec import Struct
from msgspec.structs import replace

from antiphon.constrain.matcher import matches
from antiphon.core.chunks import FinishReason
from antiphon.core.errors import RequestError
from antiphon.core.events import CallEnded, Event, Finished, TextEnded
from antiphon.core.items import FunctionCall, Item, Message, Status
from antiphon.core.turn import CallMode, Turn
from antiphon.run.bounded import BoundedPool
from antiphon.run.constraints import ConstraintPlan, demands_of
from antiphon.run.schemas import Schema

COMMENTARY = "commentary"
"""The phase of a message that precedes others. The format applies to it only if there is no other."""


class CheckedParts(Struct, frozen=True):
    """The parts of an answer that are checked: calls as (source of the schema, name, arguments).

    `text` is what the client sees, if it has to be in a format, which is that of the parameter `source`.
    """

    calls: tuple[tuple[str, str, str], ...] = ()
    text: str | None = None
    source: str = ""


class OutputCheck:
    """Observes the events of one generation, and adds the unmet demands to the last."""

    def __init__(self, turn: Turn, plan: ConstraintPlan, pool: BoundedPool) -> None:
        self._turn = turn
        self._plan = plan
        self._pool = pool
        self._items: list[Item] = []
        self._end: Finished | None = None

    def push(self, events: list[Event]) -> list[Event]:
        """The same events, without the last one if it has to wait for the check."""
        for event in events:
            if isinstance(event, TextEnded | CallEnded) and event.item is not None:
                self._items.append(event.item)
        if events and isinstance(end := events[-1], Finished) and _is_whole(end):
            self._end = end
            return events[:-1]
        return events

    def end(self) -> list[Event]:
        """The last event, if it still waits."""
        end, self._end = self._end, None
        return [] if end is None else [end]

    async def verdict(self) -> list[Event]:
        """The last event with the unmet demands, if it had to wait for the check."""
        if self._end is None:
            return []
        unmet = await self._violations()
        return [replace(end, unmet=unmet) for end in self.end() if isinstance(end, Finished)]

    async def _violations(self) -> tuple[str, ...]:
        calls = [item for item in self._items if isinstance(item, FunctionCall)]
        complete = [call for call in calls if call.status is Status.COMPLETED]
        unmet: tuple[str, ...] = ()
        if self._turn.tool_choice.calling is CallMode.REQUIRED and not complete:
            fault = "its call is incomplete" if calls else "the model called no tool"
            unmet = (f"tool_choice: {fault}.",)
        checked = self._checked(complete)
        try:
            return unmet + await self._pool.run(checked.source, violations, self._plan, checked)
        except RequestError as error:
            return *unmet, f"{checked.source}: the answer could not be checked. {error.message}"

    def _checked(self, calls: list[FunctionCall]) -> CheckedParts:
        sources = {tool.name: tool.source for tool in self._turn.tools}
        text = None
        if self._turn.format is not None and not calls:
            messages = [item for item in self._items if isinstance(item, Message)]
            answers = [message for message in messages if message.phase != COMMENTARY] or messages
            text = "".join(message.text for message in answers)
        return CheckedParts(
            tuple((sources.get(call.name, "tools"), call.name, call.arguments) for call in calls),
            text,
            "tools" if self._turn.format is None else self._turn.parameter("format"),
        )


def _is_whole(end: Finished) -> bool:
    """Whether the answer came to its end, or was closed."""
    return end.reason is FinishReason.STOP or end.closed > 0 or end.unused > 0


def violations(plan: ConstraintPlan, answer: CheckedParts) -> tuple[str, ...]:
    """The demands that an answer does not meet, of those that were not enforced.

    May not end: see `bounded.py`.
    """
    demands = demands_of(plan)
    unmet = [
        f"{source}: the arguments of '{name}'{fault}"
        for source, name, arguments in answer.calls
        if name in demands.schemas.tools
        for fault in Schema(demands.schemas.tools[name], source).faults(arguments)
    ]
    if answer.text is not None:
        if demands.schemas.format is not None:
            faults = Schema(demands.schemas.format, "format").faults(answer.text)
            unmet += [f"{answer.source}: the answer{fault}" for fault in faults]
        elif demands.form is not None and not matches(demands.form, answer.text):
            unmet.append(f"{answer.source}: the answer does not have the requested form.")
    return tuple(unmet)
