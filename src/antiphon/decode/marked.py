"""Reads text that a marker ends: what `Name`, `Key`, `Value` and `Header` states have in common."""

from antiphon.decode.headers import MAX_HEADER
from antiphon.decode.lexer import Found, Lexer
from antiphon.decode.readers import RETRACT, Step
from antiphon.decode.sink import Sink


class MarkedReader:
    """A base for readers of text up to a marker."""

    def __init__(self, lexer: Lexer, sink: Sink) -> None:
        self._lexer = lexer
        self._sink = sink
        self._held = ""

    def feed(self, text: str) -> Step | None:
        """Read on, with what was held back."""
        text, self._held = self._held + text, ""
        return self._read(text, self._lexer.find(text) or Found(len(text), len(text), ""))

    def finish(self, text: str) -> Step | None:
        """The same; no marker will come after this."""
        text, self._held = self._held + text, ""
        step = self._read(text, self._lexer.find_final(text) or Found(len(text), len(text), ""))
        return step or self._leave()

    def _read(self, text: str, found: Found) -> Step | None:
        """Take text up to `found`; hold the rest if that is no whole marker."""
        raise NotImplementedError

    def _leave(self) -> Step | None:
        """No marker came: say what becomes of the text that is held."""
        raise NotImplementedError


class ShortReader(MarkedReader):
    """A base for readers of short text that is needed whole, and refused if it makes no sense."""

    def _read(self, text: str, found: Found) -> Step | None:
        if found.start > MAX_HEADER:
            return self._refuse(text)
        if found.marker:
            return self._understand(text[: found.start], found.marker, text[found.end :]) or self._refuse(
                text
            )
        self._held = text
        return None

    def _leave(self) -> Step | None:
        return Step(RETRACT, self._held)

    def _understand(self, header: str, marker: str, rest: str) -> Step | None:
        """What the header says decides where to go on. None: it makes no sense."""
        raise NotImplementedError

    def _refuse(self, text: str) -> Step:
        """There is no such header."""
        return Step(RETRACT, text)
