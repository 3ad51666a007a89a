"""The base of readers that are machines of phases: of calls, and of their arguments.

A phase reads from the start of a text. It returns the rest of it, for the next phase; a `Step`, which ends
the reading; or None if it has read all, or holds the rest back.
"""

from collections.abc import Callable

from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.lexer import Lexer
from antiphon.decode.readers import Step

Phase = Callable[[str], Step | str | None]


def _ended(text: str) -> None:
    """The phase of a reader that reads no more."""
    raise AssertionError(text)


class PhaseReader:
    """Runs phases from `begin` on; then comes the state `then`. `closers` find the markers that may follow.

    `_held` is text that is read again, before more text. `_broken` says why arguments are malformed.
    """

    _broken = "the call was truncated"

    def __init__(self, begin: Phase, then: str, closers: Lexer, builder: EventBuilder) -> None:
        self._phase = begin
        self._then = then
        self._closers = closers
        self._builder = builder
        self._held = ""

    def feed(self, text: str) -> Step | None:
        """Run phases until the text is consumed, or one of them returns a step."""
        text, self._held = self._held + text, ""
        while text:
            result = self._phase(text)
            if isinstance(result, Step):
                self._phase = _ended  # the last one refers to this object: no cycle is left
                return result
            text = result or ""
        return None

    def finish(self, text: str) -> Step | None:
        """Read the last text. See `StateReader`."""
        step = self._finish(text)
        self._phase = _ended
        return step

    def _finish(self, text: str) -> Step | None:
        """Read the last text: the model stopped here."""
        raise NotImplementedError

    def _break(self, text: str) -> Step | None:
        """After malformed arguments: all text up to a marker belongs to them, so no text is lost."""
        match = self._closers.find(text)
        end = len(text) if match is None else match.start
        self._builder.broken_arguments(text[:end], text[:end], self._broken)
        if match is None or not match.marker:
            self._held = text[end:]
            return None
        self._builder.fail_call(self._broken)
        return Step(self._then, text[end:])
