"""Reads the header of a message, up to a marker; what it says decides how the body is read.

Until the header is whole, it is provisional like the opening of a call: one
that turns out to be none becomes text, and reading goes on where it began.
"""

from collections.abc import Container

from antiphon.core.grammar import Header
from antiphon.decode.headers import MAX_HEADER
from antiphon.decode.lexer import Found, Lexer
from antiphon.decode.readers import RETRACT, Step
from antiphon.decode.sink import Sink


class HeaderReader:
    """Reads one header. `states` are those that a route may lead to."""

    def __init__(self, state: Header, lexer: Lexer, states: Container[str], sink: Sink) -> None:
        self._state = state
        self._lexer = lexer
        self._sink = sink
        self._states = states
        self._held = ""

    def feed(self, text: str) -> Step | None:
        """Hold the header until it ends."""
        text, self._held = self._held + text, ""
        return self._read(text, self._lexer.find(text))

    def finish(self, text: str) -> Step | None:
        """A header without an end is none."""
        text, self._held = self._held + text, ""
        return self._read(text, self._lexer.find_final(text)) or Step(RETRACT, self._held)

    def _read(self, text: str, found: Found | None) -> Step | None:
        end = len(text) if found is None else found.start
        if end > MAX_HEADER:
            return Step(RETRACT, text)
        if found is None or not found.marker:
            self._held = text
            return None
        to = self._follow(text[:end])
        return Step(RETRACT, text) if to is None else Step(to, text[found.end :], found.marker)

    def _follow(self, header: str) -> str | None:
        """Open the call that the header asks for, if it does; the state to go to, None if there is none."""
        route = self._state.route(header)
        if route is None:
            return None
        calls = route.call and (route.otherwise is None or self._sink.declares(route.call.name))
        to = route.to if calls or route.otherwise is None else route.otherwise
        if to not in self._states:
            return None
        self._sink.markup(header)
        if route.call and calls:
            self._sink.call(*route.call)
        return to
