"""Reads the header of a message, up to a marker; it decides which state reads the body.

Until it is complete, a header is provisional like the opening of a call: if it turns
out to be malformed it becomes text, and is read again.
"""

from antiphon.core.grammar import CallHeader, Grammar, Header, Route
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.lexer import Lexer, MarkerMatch
from antiphon.decode.readers import RETRACT, Step
from antiphon.decode.until_marker import ShortTextReader


class HeaderReader(ShortTextReader):
    """Reads one header of the messages of `grammar`."""

    def __init__(self, state: Header, lexer: Lexer, grammar: Grammar, builder: EventBuilder) -> None:
        super().__init__(lexer, builder, state.words)
        self._state = state
        self._grammar = grammar

    def _read(self, text: str, match: MarkerMatch) -> Step | None:
        if not self._state.begins(text[: match.start]):
            return Step(RETRACT, text)
        return super()._read(text, match)

    def _parse(self, header: str, marker: str, rest: str) -> Step | None:
        route = self._state.route(header)
        if route is None:
            return None
        call = self._call(route)
        to = route.to if call or route.otherwise is None else route.otherwise
        if to not in self._grammar.states:  # a call where none is allowed
            call, to = None, route.otherwise or self._grammar.text
        self._builder.markup(header)
        if call:
            self._builder.name_call(*call)
        return Step(to, rest, marker)

    def _end_of_input(self) -> Step | None:
        """The answer ended inside: the header was truncated, or is not one."""
        if not self._state.is_cut((self._builder.marker or "") + self._held):
            return super()._end_of_input()
        self._builder.markup(self._held)
        self._builder.malformed("a header without a message")
        self._builder.discard_call()
        return None

    def _call(self, route: Route) -> CallHeader | None:
        """The call that the message is, if it is one."""
        if route.call is None or self._builder.declares(route.call.name):
            return route.call
        declared = next(filter(self._builder.declares, route.names), None)
        if declared is not None:
            return CallHeader(declared, route.call.call_id)
        return route.call if route.otherwise is None else None
