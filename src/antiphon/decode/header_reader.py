"""Reads the header of a message, up to a marker; it decides which state reads the body.

Until it is complete, a header is provisional like the opening of a call: if it turns
out to be malformed it becomes text, and is read again.
"""

from collections.abc import Container

from antiphon.core.grammar import Header
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.lexer import Lexer
from antiphon.decode.readers import Step
from antiphon.decode.until_marker import ShortTextReader


class HeaderReader(ShortTextReader):
    """Reads one header. `states` are the possible states after it."""

    def __init__(self, state: Header, lexer: Lexer, states: Container[str], builder: EventBuilder) -> None:
        super().__init__(lexer, builder, state.words)
        self._state = state
        self._states = states

    def _parse(self, header: str, marker: str, rest: str) -> Step | None:
        to = self._follow(header)
        return None if to is None else Step(to, rest, marker)

    def _end_of_input(self) -> Step | None:
        """The answer ended inside: the header was truncated, or is not one."""
        if not self._state.is_cut((self._builder.marker or "") + self._held):
            return super()._end_of_input()
        self._builder.markup(self._held)
        self._builder.malformed("a header without a message")
        self._builder.discard_call()
        return None

    def _follow(self, header: str) -> str | None:
        """Commit the call that the header starts, if any; the next state, None if this is not a header."""
        route = self._state.route(header)
        if route is None:
            return None
        is_call = route.call and (route.otherwise is None or self._builder.declares(route.call.name))
        to = route.to if is_call or route.otherwise is None else route.otherwise
        if to not in self._states:
            return None
        self._builder.markup(header)
        if route.call and is_call:
            self._builder.name_call(*route.call)
        return to
