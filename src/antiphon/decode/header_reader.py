"""Reads the header of a message, up to a marker; what it says decides how the body is read.

Until the header is whole, it is provisional like the opening of a call: one
that turns out to be none becomes text, and reading goes on where it began.
"""

from collections.abc import Container

from antiphon.core.grammar import Header
from antiphon.decode.lexer import Lexer
from antiphon.decode.marked import ShortReader
from antiphon.decode.readers import Step
from antiphon.decode.sink import Sink


class HeaderReader(ShortReader):
    """Reads one header. `states` are those that a route may lead to."""

    def __init__(self, state: Header, lexer: Lexer, states: Container[str], sink: Sink) -> None:
        super().__init__(lexer, sink)
        self._state = state
        self._states = states

    def _understand(self, header: str, marker: str, rest: str) -> Step | None:
        to = self._follow(header)
        return None if to is None else Step(to, rest, marker)

    def _leave(self) -> Step | None:
        """No message will follow: either it was cut, or it is none."""
        if not self._state.cut((self._sink.marker or "") + self._held):
            return super()._leave()
        self._sink.markup(self._held)
        self._sink.malformed("a header without a message")
        self._sink.forget_call()
        return None

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
