"""The fields of a response template: what opens and closes them, and how they are read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self

from antiphon.dialects.response_template.patterns import (
    Alternative,
    Part,
    Piece,
    UnknownPatternError,
    literal,
    read,
)

_KEYS = {
    *("open", "open_pattern", "close", "close_pattern", "content", "content_args"),
    *("repeats", "join", "optional", "transform", "transform_each"),
}
_END = "eos"
"""Written for "the end of the answer", which ends every field in any case."""


class RefusalError(Exception):
    """The template asks for something that no table says; the message tells what."""


class Field:
    """One field. `opens` and `closes` are the alternatives of its markers; none of them is empty."""

    def __init__(self, name: str, spec: Any) -> None:
        self.name = name
        self._spec: Mapping[str, Any] = spec if isinstance(spec, dict) else self.refuse("is no object")
        if unknown := sorted(set(self._spec) - _KEYS):
            self.refuse(f"has a key that is not known, `{unknown[0]}`")
        self.content = self.get("content", "text")
        self.arguments: Mapping[str, Any] = self.get("content_args", {})
        opens = self.alternatives("open")
        self.from_start = any(_is_start(each) for each in opens)
        """The answer begins inside of this field."""
        self.opens = [each for each in opens if _solid(each)]
        self.closes = [each for each in self.alternatives("close") if _solid(each)]

    def get(self, key: str, default: Any = None) -> Any:
        """What the field says under a key; it has the type of `default`, unless that is None."""
        found = self._spec.get(key, default)
        if default is not None and not isinstance(found, type(default)):
            self.refuse(f"has a `{key}` that is no {type(default).__name__}")
        return found

    def refuse(self, why: str) -> NoReturn:
        """Raise RefusalError, which names the field."""
        raise RefusalError(f"the field '{self.name}' {why}")

    def alternatives(self, key: str) -> list[Alternative]:
        """What `open` or `close`, or the pattern in its place, may be."""
        given, pattern = self.get(key), self.get(f"{key}_pattern")
        if pattern is not None:
            return self.pattern(pattern)
        texts = [given] if isinstance(given, str) else given or []
        if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
            self.refuse(f"has a `{key}` that is no text")
        return [way for text in texts if (key, text) != ("close", _END) for way in literal(text)]

    def pattern(self, source: Any) -> list[Alternative]:
        """The alternatives of a pattern in this field."""
        try:
            return read(source if isinstance(source, str) else "(")
        except UnknownPatternError as error:
            self.refuse(f"has the pattern {source!r}: {error}")

    def markers(self, key: str) -> list[str]:
        """The markers that open or close the field, where each is one literal."""
        return [marker for (marker,) in self.chains(self.opens if key == "open" else self.closes, 1)]

    def chains(self, alternatives: Iterable[Alternative], most: int) -> Iterator[Sequence[str]]:
        """The literals of each alternative, with nothing but space between them."""
        for alternative in alternatives:
            solid = _solid(alternative)
            if len(solid) > most or any(piece.part is not Part.LITERAL for piece in solid):
                source = "".join(piece.source for piece in alternative)
                self.refuse(f"has the pattern {source!r}, which is no fixed marker")
            yield [self.marker(piece) for piece in solid]

    def marker(self, piece: Piece) -> str:
        """A literal as a marker of a table, to which the space around it belongs in any case."""
        return piece.text.strip() or self.refuse("has a marker that is only space")


class Markers(dict[str, str]):
    """Marker → state, without contradictions."""

    def add(self, field: Field, markers: Iterable[str], to: str) -> Self:
        """Let these markers of a field lead to a state."""
        for marker in markers:
            if self.setdefault(marker, to) != to:
                field.refuse(f"has the marker {marker!r}, which leads elsewhere, too")
        return self


def _solid(alternative: Alternative) -> list[Piece]:
    """The pieces of which something is left once space is not looked at."""
    return [piece for piece in alternative if piece.part not in (Part.SPACE, Part.START)]


def _is_start(alternative: Alternative) -> bool:
    return any(piece.part is Part.START for piece in alternative) and not _solid(alternative)
