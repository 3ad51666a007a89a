"""Filters the model's calls: a client gets only those that its tool choice allows.

Other calls become markup, so no raw text is lost, and the client does not see them. With an engine that
enforces the tool choice they do not occur.
"""

from antiphon.core.events import ArgumentsDelta, CallEnded, CallStarted, Event, Finished, Markup
from antiphon.core.turn import CallMode, ToolChoice


class CallFilter:
    """Filters the events of one generation. `limit_reached`: the allowed number of calls is reached."""

    def __init__(self, choice: ToolChoice) -> None:
        self._names = frozenset() if choice.calling is CallMode.NONE else choice.names
        self._left = choice.max_calls
        self._hides_call = False
        self.limit_reached = False

    def filter(self, events: list[Event]) -> list[Event]:
        """The remaining events. After the last call that is allowed, this is only the end."""
        return [self._filtered(event) for event in events]

    def _filtered(self, event: Event) -> Event:
        # Markup instead of nothing: the raw text and the tokens of all events must stay those of the model.
        if self.limit_reached and not isinstance(event, Finished):
            return Markup(event.raw, event.tokens)
        if isinstance(event, CallStarted):
            self._hides_call = self._names is not None and event.name not in self._names
        if self._hides_call and isinstance(event, CallStarted | ArgumentsDelta | CallEnded):
            return Markup(event.raw, event.tokens)
        if isinstance(event, CallEnded) and self._left is not None:
            self._left -= 1
            self.limit_reached = not self._left
        return event
