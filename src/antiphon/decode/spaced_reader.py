"""Reads text whose space is its own, also next to markers. Space without text is markup, as elsewhere."""

from antiphon.decode.lexer import MAX_SPACE, MarkerMatch
from antiphon.decode.readers import RETRACT, SpanReader, Step


class SpacedSpanReader(SpanReader):
    """Reads text of one kind, up to the next marker. Space at its start is held until text follows."""

    def _read(self, text: str, match: MarkerMatch) -> Step | None:
        body, rest = text[: match.start], text[match.start :]
        if self.at_start and not body.strip():
            if match.marker or self._final or len(body) > MAX_SPACE:
                return super()._read(text, match)
            self._held = text
            return None
        self.at_start = False
        if body.strip() and self._lexer is self._table.begin:
            return self._begin(body, rest)
        self._report(body)
        if match.marker in self._table.peek:
            return Step(self._table.to[match.marker], rest)
        if match.marker:
            return Step(self._table.to[match.marker], text[match.end :], match.marker)
        self._held = rest
        return Step(RETRACT, rest) if self._builder.over_limit else None

    def _skip_space(self, text: str) -> str:
        if not text.strip():
            return super()._skip_space(text)
        self.at_start = False
        return text
