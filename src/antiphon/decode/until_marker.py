"""Base classes of the readers of `Name`, `Key`, `Value` and `Header`: text up to a marker."""

import re

from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.headers import MAX_HEADER, PUNCTUATION
from antiphon.decode.lexer import Lexer, MarkerMatch
from antiphon.decode.readers import RETRACT, Step

_PROSE = re.compile(f"[{PUNCTUATION}]")


class UntilMarkerReader:
    """A base for readers of text up to a marker."""

    def __init__(self, lexer: Lexer, builder: EventBuilder) -> None:
        self._lexer = lexer
        self._builder = builder
        self._held = ""

    def feed(self, text: str) -> Step | None:
        """Read more text, after the text that was held back."""
        text, self._held = self._held + text, ""
        return self._read(text, self._lexer.find(text) or MarkerMatch(len(text), len(text), ""))

    def finish(self, text: str) -> Step | None:
        """The same, at the end of the text."""
        text, self._held = self._held + text, ""
        # The second call finds the beginning of a marker that was cut off: it is not part of the text.
        match = self._lexer.find_final(text) or self._lexer.find(text)
        return self._read(text, match or MarkerMatch(len(text), len(text), "")) or self._end_of_input()

    def _read(self, text: str, match: MarkerMatch) -> Step | None:
        """Read text up to `match`; hold back the rest if that is only the start of a marker."""
        raise NotImplementedError

    def _end_of_input(self) -> Step | None:
        """Process the held text: the answer ended without a marker."""
        raise NotImplementedError


class ShortTextReader(UntilMarkerReader):
    """A base for readers of short text that is parsed when it is complete, and may be rejected.

    It is rejected as soon as it has more than `words`, so that prose after a marker is not held back.
    """

    def __init__(self, lexer: Lexer, builder: EventBuilder, words: int = MAX_HEADER) -> None:
        super().__init__(lexer, builder)
        self._words = words

    def _read(self, text: str, match: MarkerMatch) -> Step | None:
        header = text[: match.start]
        if len(header) > MAX_HEADER or len(header.split()) > self._words or _PROSE.search(header):
            return self._reject(text)
        if match.marker:
            return self._parse(header, match.marker, text[match.end :]) or self._reject(text)
        self._held = text
        return None

    def _end_of_input(self) -> Step | None:
        return Step(RETRACT, self._held)

    def _parse(self, header: str, marker: str, rest: str) -> Step | None:
        """The step that the header leads to. None: it is malformed."""
        raise NotImplementedError

    def _reject(self, text: str) -> Step:
        """Handle a malformed header."""
        return Step(RETRACT, text)
