r"""Regular expressions as tables can use them: literal markers, and what stands between.

A table knows literal markers and space that belongs to them. Most patterns that
templates give for markers are no more than that: `\s*<tool_call>\s*`, `</a>|</b>`,
`<f=(?P<name>\w+)>`. `read` takes such a pattern apart: into its alternatives, and
each into literals, space, captures and other text. What it does not know it refuses.

Captures are read with the pattern itself (`captured`). It comes from a model's files,
so its size is limited: trying it costs little, whoever wrote it.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from itertools import product
from typing import NamedTuple

from antiphon.decode.headers import MAX_NAME

MAX_PATTERN = 2000
"""Characters of a pattern."""
MAX_ALTERNATIVES = 32
"""Ways in which a pattern may be written out."""
MAX_LOOSE = 3
"""Repetitions in one alternative: what a search may have to try again and again."""


class Part(Enum):
    """What a piece of a pattern matches."""

    LITERAL = auto()
    SPACE = auto()
    """Space, or none."""
    CAPTURE = auto()
    OTHER = auto()
    """Text that the pattern describes only roughly, or a condition on it."""
    START = auto()
    """The beginning of the answer."""


class Piece(NamedTuple):
    """A piece of a pattern: its `source`, and `text`, which is the literal or the name of the capture."""

    part: Part
    source: str
    text: str = ""


Alternative = tuple[Piece, ...]


class UnknownPatternError(Exception):
    """The pattern holds something that is not understood; the message says what."""


def read(pattern: str) -> list[Alternative]:
    """The alternatives of a pattern. Raises UnknownPatternError."""
    if len(pattern) > MAX_PATTERN:
        raise UnknownPatternError("it is too long")
    try:
        _compiled(pattern)
        return [_joined(alternative) for alternative in _Reader(pattern).alternatives()]
    except (re.error, OverflowError) as error:
        raise UnknownPatternError(f"it does not compile: {error}") from error
    except RecursionError as error:
        raise UnknownPatternError("its brackets are nested too deeply") from error


def literal(text: str) -> list[Alternative]:
    """A literal as what a pattern for it would be."""
    return [(Piece(Part.LITERAL, re.escape(text), text),)]


def captured(pieces: Sequence[Piece], before: str, after: str, group: str) -> Callable[[str], str | None]:
    """Finds what `group` captures in a text that stands between the literals `before` and `after`.

    `pieces` are all of them together. Raises UnknownPatternError if trying them could take long.
    """
    loose = "".join(piece.source for piece in pieces if piece.part is not Part.LITERAL)
    if len(_REPEATS.findall(loose)) > MAX_LOOSE:
        raise UnknownPatternError("it leaves too much open")
    pattern = _compiled("".join(piece.source for piece in pieces))

    def find(text: str) -> str | None:
        # Space that touches a marker belongs to it, whether the pattern says so or not.
        ways = (text, text.rstrip()) if len(text) <= MAX_NAME else ()
        found = next(filter(None, (pattern.fullmatch(before + way + after) for way in ways)), None)
        return found and found[group]

    return find


def _compiled(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what may mean something else one day
        return re.compile(pattern, re.DOTALL)


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def alternatives(self) -> list[Alternative]:
        """Up to the end, or to a bracket that closes."""
        found = list(self._sequence())
        while self._take("|"):
            found += self._sequence()
        return found

    def _sequence(self) -> Iterator[Alternative]:
        """Pieces in a row, written out in every way that they allow."""
        ways: list[Sequence[Alternative]] = []
        count = 1
        while self._pattern[self._at : self._at + 1] not in ("", "|", ")"):
            ways.append(self._item())
            count *= len(ways[-1])
            if count > MAX_ALTERNATIVES:
                raise UnknownPatternError("it has too many alternatives")
        return (tuple(piece for way in chosen for piece in way) for chosen in product(*ways))

    def _item(self) -> Sequence[Alternative]:
        """One thing, and how often it may stand there."""
        begun = self._at
        found = self._group() if self._take("(") else [(self._single(),)]
        atom = self._pattern[begun : self._at]
        often = _OFTEN.match(self._pattern, self._at)
        if often is None:
            return found
        self._at = often.end()
        if all(piece.part is Part.SPACE or piece.text.isspace() for way in found for piece in way):
            return [(_SPACE,)]
        if found[0] and found[0][0].part is Part.OTHER and atom[0] != "(":
            return [(Piece(Part.OTHER, atom + often[0]),)]
        if often[1] == "?":
            return [*found, ()]
        raise UnknownPatternError(f"{atom + often[0]!r} repeats what should stand there once")

    def _group(self) -> list[Alternative]:
        """What stands between brackets, the opening one of which was read."""
        begun = self._at
        if self._take("?P<"):
            name, _, _ = self._pattern[self._at :].partition(">")
            self._at += len(name) + 1
            inner = self.alternatives()
            if len(inner) != 1 or any(piece.part in (Part.CAPTURE, Part.START) for piece in inner[0]):
                raise UnknownPatternError(f"the group {name!r} holds more than one kind of text")
            self._close()
            return [(Piece(Part.CAPTURE, f"({self._pattern[begun : self._at]}", name),)]
        if self._take("?="):
            self.alternatives()  # what follows is read by what comes next
            self._close()
            return [()]
        if not self._take("?:") and self._pattern[self._at : self._at + 1] == "?":
            raise UnknownPatternError(f"{self._pattern[begun - 1 : begun + 2]!r} is not understood")
        found = self.alternatives()
        self._close()
        return found

    def _close(self) -> None:
        if not self._take(")"):
            raise UnknownPatternError("a bracket is not closed")

    def _single(self) -> Piece:
        """One character, or what stands for one, or for a place."""
        found = _SINGLE.match(self._pattern, self._at)
        if found is None:
            raise UnknownPatternError(f"{self._pattern[self._at]!r} is not understood")
        self._at = found.end()
        source = found[0]
        if source in ("^", r"\A"):
            return Piece(Part.START, source)
        if source in _SPACES or _SPACE_SET.fullmatch(source):
            return _SPACE
        if source[0] == "[" or source in _ROUGH:
            return Piece(Part.OTHER, source)
        text = _CONTROLS.get(source, source.removeprefix("\\"))
        if source[0] == "\\" and text.isalnum():
            raise UnknownPatternError(f"{source!r} is not understood")
        return Piece(Part.LITERAL, source, text)

    def _take(self, text: str) -> bool:
        """Read on if this text comes next."""
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) * found
        return found


def _joined(alternative: Alternative) -> Alternative:
    """The same with neighbouring literals as one."""
    out: list[Piece] = []
    for piece in alternative:
        if out and piece.part is out[-1].part is Part.LITERAL:
            out[-1] = Piece(Part.LITERAL, out[-1].source + piece.source, out[-1].text + piece.text)
        elif not out or piece.part is not out[-1].part or piece.part is not Part.SPACE:
            out.append(piece)
    return tuple(out)


_OFTEN = re.compile(r"([?*+]|\{\d*,?\d*\})\??")
_SINGLE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[\]{}?*+()|]", re.DOTALL)
_REPEATS = re.compile(r"[*+{]")
_SPACE = Piece(Part.SPACE, r"\s*")
_SPACES = (r"\s", "$", r"\Z")
"""Space, and the end of the answer, which ends every field in any case."""
_SPACE_SET = re.compile(r"\[(?:\\[snrt]|\s)+\]")
_ROUGH = (".", r"\w", r"\d", r"\S", r"\D", r"\b")
_CONTROLS = {r"\n": "\n", r"\r": "\r", r"\t": "\t"}
