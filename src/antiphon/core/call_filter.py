"""Which of the model's calls a client sees: those that its tool choice allows.

What else the model called becomes markup: nothing is lost, and nothing of it
shows. Engines that are held to the tool choice never get that far.
"""

from antiphon.core.events import ArgumentsDelta, CallEnded, CallStarted, Event, Finished, Markup
from antiphon.core.turn import CallMode, ToolChoice


class CallFilter:
    """Filters the events of one generation. `over`: as many calls as may be are made."""

    def __init__(self, choice: ToolChoice) -> None:
        self._names = frozenset() if choice.calling is CallMode.NONE else choice.names
        self._left = choice.most
        self._hiding = False
        self.over = False

    def filter(self, events: list[Event]) -> list[Event]:
        """The events that are left. Behind the last call that may be, only the end is."""
        return [self._filtered(event) for event in events]

    def _filtered(self, event: Event) -> Event:
        # Markup, rather than nothing: the raw text and the tokens of all events stay what the model wrote.
        if self.over and not isinstance(event, Finished):
            return Markup(event.raw, event.tokens)
        if isinstance(event, CallStarted):
            self._hiding = self._names is not None and event.name not in self._names
        if self._hiding and isinstance(event, CallStarted | ArgumentsDelta | CallEnded):
            return Markup(event.raw, event.tokens)
        if isinstance(event, CallEnded) and self._left is not None:
            self._left -= 1
            self.over = not self._left
        return event
