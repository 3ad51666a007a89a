"""The fields of a response template: their markers, and how their text is parsed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self

from antiphon.dialects.response_template.patterns import (
    Alternative,
    PatternPart,
    PatternPiece,
    UnsupportedPatternError,
    literal,
    parse_pattern,
)

_KEYS = {
    *("open", "open_pattern", "close", "close_pattern", "content", "content_args"),
    *("repeats", "join", "optional", "transform", "transform_each"),
}
_END = "eos"
"""The end of the answer, which ends every field in any case."""


class UnsupportedTemplateError(Exception):
    """The template has a part that no grammar can express; the message names it."""


class Field:
    """One field. `opens` and `closes` are the alternatives of its markers; none of them is empty."""

    def __init__(self, name: str, spec: Any) -> None:
        self.name = name
        self._spec: Mapping[str, Any] = spec if isinstance(spec, dict) else self.reject("is not an object")
        if unknown := sorted(set(self._spec) - _KEYS):
            self.reject(f"has an unknown key, `{unknown[0]}`")
        self.content = self.get("content", "text")
        self.arguments: Mapping[str, Any] = self.get("content_args", {})
        opens = self.alternatives("open")
        self.from_start = any(_is_start(way) for way in opens)
        """The answer begins inside this field."""
        self.opens = [way for way in opens if _without_space(way)]
        self.closes = [way for way in self.alternatives("close") if _without_space(way)]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default`. It must have the type of `default`, unless that is None."""
        value = self._spec.get(key, default)
        if default is not None and not isinstance(value, type(default)):
            self.reject(f"has a `{key}` that is not a {type(default).__name__}")
        return value

    def reject(self, why: str) -> NoReturn:
        """Raise UnsupportedTemplateError with the name of the field."""
        raise UnsupportedTemplateError(f"the field '{self.name}' {why}")

    def alternatives(self, key: str) -> list[Alternative]:
        """The alternatives of `open` or `close`, or of the pattern in its place."""
        value, pattern = self.get(key), self.get(f"{key}_pattern")
        if pattern is not None:
            return self.pattern(pattern)
        texts = [value] if isinstance(value, str) else value or []
        if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
            self.reject(f"has a `{key}` that is not a string")
        return [way for text in texts if (key, text) != ("close", _END) for way in literal(text)]

    def pattern(self, source: Any) -> list[Alternative]:
        """The alternatives of a pattern in this field."""
        try:
            return parse_pattern(source if isinstance(source, str) else "(")
        except UnsupportedPatternError as error:
            self.reject(f"has the pattern {source!r}: {error}")

    def markers(self, key: str) -> list[str]:
        """The markers that open or close the field, where each is one literal."""
        return [marker for (marker,) in self.chains(self.opens if key == "open" else self.closes, 1)]

    def chains(self, alternatives: Iterable[Alternative], maximum: int) -> Iterator[Sequence[str]]:
        """The literals of each alternative, with nothing but space between them."""
        for alternative in alternatives:
            solid = _without_space(alternative)
            if len(solid) > maximum or any(piece.part is not PatternPart.LITERAL for piece in solid):
                source = "".join(piece.source for piece in alternative)
                self.reject(f"has the pattern {source!r}, which is not a fixed marker")
            yield [self.marker(piece) for piece in solid]

    def marker(self, piece: PatternPiece) -> str:
        """A literal as a marker of a grammar, which includes the space around it in any case."""
        return piece.text.strip() or self.reject("has a marker of only whitespace")


class Markers(dict[str, str]):
    """Marker → state, where no marker may lead to two states."""

    def add(self, field: Field, markers: Iterable[str], to: str) -> Self:
        """Add markers of a field that lead to a state."""
        for marker in markers:
            if self.setdefault(marker, to) != to:
                field.reject(f"has the marker {marker!r}, which another field uses differently")
        return self


def _without_space(alternative: Alternative) -> list[PatternPiece]:
    """The pieces other than space and start of answer."""
    return [piece for piece in alternative if piece.part not in (PatternPart.SPACE, PatternPart.START)]


def _is_start(alternative: Alternative) -> bool:
    return any(piece.part is PatternPart.START for piece in alternative) and not _without_space(alternative)
