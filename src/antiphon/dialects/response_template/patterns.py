r"""Parses regular expressions into what grammars can use: literal markers, and the text between.

A grammar has literal markers, and space that belongs to them. Most patterns that
templates specify for markers are no more than that: `\s*<tool_call>\s*`, `</a>|</b>`,
`<f=(?P<name>\w+)>`. `read` takes such a pattern apart: into its alternatives, and
each into literals, space, captures and other text. Anything else is rejected.

Captures are found with the pattern itself (`capture_between`). It comes from a model's
files, which are not trusted, so its size and its repetitions are limited.
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
"""Alternatives of one pattern, with all options written out."""
MAX_REPETITIONS = 3
"""Repetitions in one alternative: each one may multiply the time of a search by the text's length."""


class PatternPart(Enum):
    """The type of a piece of a pattern."""

    LITERAL = auto()
    SPACE = auto()
    """Space, or none."""
    CAPTURE = auto()
    OTHER = auto()
    """A character class, or a condition such as a word boundary."""
    START = auto()
    """The start of the answer."""


class PatternPiece(NamedTuple):
    """A piece of a pattern: its `source`, and `text`, which is the literal or the name of the capture."""

    part: PatternPart
    source: str
    text: str = ""


Alternative = tuple[PatternPiece, ...]


class UnsupportedPatternError(Exception):
    """The pattern has a part that is not supported; the message says which."""


def parse_pattern(pattern: str) -> list[Alternative]:
    """The alternatives of a pattern. Raises UnsupportedPatternError."""
    if len(pattern) > MAX_PATTERN:
        raise UnsupportedPatternError("it is too long")
    try:
        _compiled(pattern)
        return [_joined(alternative) for alternative in _PatternParser(pattern).alternatives()]
    except (re.error, OverflowError) as error:
        raise UnsupportedPatternError(f"it does not compile: {error}") from error
    except RecursionError as error:
        raise UnsupportedPatternError("its groups are nested too deeply") from error


def literal(text: str) -> list[Alternative]:
    """The alternatives of a pattern that matches just this text."""
    return [(PatternPiece(PatternPart.LITERAL, re.escape(text), text),)]


def capture_between(
    pieces: Sequence[PatternPiece], before: str, after: str, group: str
) -> Callable[[str], str | None]:
    """A function that finds what `group` captures in text between the literals `before` and `after`.

    `pieces` include both. Raises UnsupportedPatternError if a search could take long.
    """
    inexact = "".join(piece.source for piece in pieces if piece.part is not PatternPart.LITERAL)
    if len(_REPEATS.findall(inexact)) > MAX_REPETITIONS:
        raise UnsupportedPatternError("it has too many repetitions")
    pattern = _compiled("".join(piece.source for piece in pieces))

    def find(text: str) -> str | None:
        # Space before a marker belongs to it in a grammar, whether the pattern matches it or not.
        ways = (text, text.rstrip()) if len(text) <= MAX_NAME else ()
        match = next(filter(None, (pattern.fullmatch(before + way + after) for way in ways)), None)
        return match and match[group]

    return find


def _compiled(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FutureWarning: set syntax that may change
        return re.compile(pattern, re.DOTALL)


class _PatternParser:
    """A recursive descent parser of patterns."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def alternatives(self) -> list[Alternative]:
        """Up to the end, or to a closing parenthesis."""
        alternatives = list(self._sequence())
        while self._take("|"):
            alternatives += self._sequence()
        return alternatives

    def _sequence(self) -> Iterator[Alternative]:
        """A sequence of items, in each combination of their alternatives."""
        ways: list[Sequence[Alternative]] = []
        count = 1
        while self._pattern[self._at : self._at + 1] not in ("", "|", ")"):
            ways.append(self._item())
            count *= len(ways[-1])
            if count > MAX_ALTERNATIVES:
                raise UnsupportedPatternError("it has too many alternatives")
        return (tuple(piece for way in chosen for piece in way) for chosen in product(*ways))

    def _item(self) -> Sequence[Alternative]:
        """An atom and its quantifier."""
        start = self._at
        ways = self._group() if self._take("(") else [(self._single(),)]
        atom = self._pattern[start : self._at]
        quantifier = _QUANTIFIER.match(self._pattern, self._at)
        if quantifier is None:
            return ways
        self._at = quantifier.end()
        if all(piece.part is PatternPart.SPACE or piece.text.isspace() for way in ways for piece in way):
            return [(_SPACE,)]
        is_class = atom[0] == "[" and quantifier[1] != "?"
        if is_class or (ways[0] and ways[0][0].part is PatternPart.OTHER and atom[0] != "("):
            return [(PatternPiece(PatternPart.OTHER, atom + quantifier[0]),)]
        if quantifier[1] == "?":
            return [*ways, ()]
        raise UnsupportedPatternError(f"{atom + quantifier[0]!r} repeats what must occur once")

    def _group(self) -> list[Alternative]:
        """A group, after its opening parenthesis."""
        start = self._at
        if self._take("?P<"):
            name, _, _ = self._pattern[self._at :].partition(">")
            self._at += len(name) + 1
            inner = (piece for way in self.alternatives() for piece in way)
            if any(piece.part in (PatternPart.CAPTURE, PatternPart.START) for piece in inner):
                raise UnsupportedPatternError(f"the group {name!r} has a capture or an anchor inside")
            self._close()
            return [(PatternPiece(PatternPart.CAPTURE, f"({self._pattern[start : self._at]}", name),)]
        if self._take("?="):
            self.alternatives()  # a lookahead consumes nothing
            self._close()
            return [()]
        if not self._take("?:") and self._pattern[self._at : self._at + 1] == "?":
            raise UnsupportedPatternError(f"{self._pattern[start - 1 : start + 2]!r} is not supported")
        alternatives = self.alternatives()
        self._close()
        return alternatives

    def _close(self) -> None:
        if not self._take(")"):
            raise UnsupportedPatternError("a group is not closed")

    def _single(self) -> PatternPiece:
        """One character, class or anchor."""
        match = _SINGLE.match(self._pattern, self._at)
        if match is None:
            raise UnsupportedPatternError(f"{self._pattern[self._at]!r} is not supported")
        self._at = match.end()
        source = match[0]
        if source in ("^", r"\A"):
            return PatternPiece(PatternPart.START, source)
        if source in _SPACES or _SPACE_SET.fullmatch(source):
            return _SPACE
        if match[1] or match[2]:
            return PatternPiece(PatternPart.LITERAL, source, chr(int(match[1] or match[2], 16)))
        if single := _ONE_CHARACTER.fullmatch(source):
            return PatternPiece(PatternPart.LITERAL, source, single[1])
        if source[0] == "[" or source in _CLASSES:
            return PatternPiece(PatternPart.OTHER, source)
        text = _CONTROLS.get(source, source.removeprefix("\\"))
        if source[0] == "\\" and text.isalnum():
            raise UnsupportedPatternError(f"{source!r} is not supported")
        return PatternPiece(PatternPart.LITERAL, source, text)

    def _take(self, text: str) -> bool:
        """Skip this text if it is next."""
        follows = self._pattern.startswith(text, self._at)
        self._at += len(text) * follows
        return follows


def _joined(alternative: Alternative) -> Alternative:
    """The same with adjacent literals joined."""
    out: list[PatternPiece] = []
    for piece in alternative:
        if out and piece.part is out[-1].part is PatternPart.LITERAL:
            out[-1] = PatternPiece(
                PatternPart.LITERAL, out[-1].source + piece.source, out[-1].text + piece.text
            )
        elif not out or piece.part is not out[-1].part or piece.part is not PatternPart.SPACE:
            out.append(piece)
    return tuple(out)


_QUANTIFIER = re.compile(r"([?*+]|\{\d*(?:,\d*)?\})\??")
_SINGLE = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[\]{}?*+()|]", re.DOTALL
)
_REPEATS = re.compile(r"[*+{]")
_SPACE = PatternPiece(PatternPart.SPACE, r"\s*")
_SPACES = (r"\s", "$", r"\Z")
"""Space, and the end of the answer, which ends every field in any case."""
_SPACE_SET = re.compile(r"\[(?:\\[snrt]|\s)+\]")
_ONE_CHARACTER = re.compile(r"\[\\?([^\w\s^\\])\]")
"""A class of one character, as patterns write it in the place of an escape: `[<]`, `[\\[]`."""
_CLASSES = (".", r"\w", r"\d", r"\S", r"\D", r"\b")
_CONTROLS = {r"\n": "\n", r"\r": "\r", r"\t": "\t"}
