"""Regular expressions → forms: what of ECMA-262's notation describes a regular language by itself.

Strategy: recursive descent, one method per level of the notation. Anchors are
understood at the edges of a pattern's alternatives, where they say whether
other text may stand beside it. What looks around, looks back or has flags
raises `UnsupportedRegexError`, which names it.
"""

from typing import NoReturn

from antiphon.constrain.form import (
    ANY,
    EMPTY,
    MAX_CHAR,
    MAX_COUNT,
    Chars,
    Form,
    Literal,
    chars,
    choice,
    repeat,
    sequence,
    united,
    without,
)
from antiphon.constrain.readings import AmbiguousError, told_apart
from antiphon.core.errors import RequestError

MAX_GROUPS = 64
"""How deep groups are nested."""

_ANYTHING = repeat(ANY)
_DIGIT, _WORD, _BLANK = chars("0-9"), chars("A-Za-z0-9_"), chars(" \t\n\r\f\v")
_ALL_BLANKS = Chars(
    united(
        [
            *_BLANK.ranges,
            *((0x1C, 0x1F), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
            *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
        ]
    )
)
_CLASSES = {
    "d": _DIGIT,
    "D": without(ANY, _DIGIT),
    "w": _WORD,
    "W": without(ANY, _WORD),
    "s": _BLANK,
    "S": without(ANY, _ALL_BLANKS),
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_HEX_DIGITS = {"x": 2, "u": 4}
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class UnsupportedRegexError(ValueError):
    """The pattern is broken, or uses what no form can say. The message says which."""


def searched(pattern: str) -> Form:
    """Text in which the pattern is found somewhere, as JSON Schema means it."""
    alternatives = _Parser(pattern).read()
    return _readable(
        choice(
            *(
                sequence(EMPTY if begins else _ANYTHING, form, EMPTY if ends else _ANYTHING)
                for begins, form, ends in alternatives
            )
        )
    )


def whole(pattern: str) -> Form:
    """Text that as a whole matches the pattern."""
    return _readable(choice(*(form for _, form, _ in _Parser(pattern).read())))


def matching(pattern: str) -> Form:
    """The same for a client's own pattern. Raises RequestError."""
    try:
        return whole(pattern)
    except UnsupportedRegexError as why:
        raise RequestError(f"This pattern cannot be enforced: it has {why}.", param="format") from None


def _readable(form: Form) -> Form:
    try:
        return told_apart(form)
    except AmbiguousError as why:
        raise UnsupportedRegexError(str(why)) from None


class _Parser:
    """Reads one pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def read(self) -> list[tuple[bool, Form, bool]]:
        """The alternatives, each with whether it is anchored at its beginning and end."""
        alternatives = [self._anchored()]
        while self._take("|"):
            alternatives.append(self._anchored())
        if self._at < len(self._text):
            self._fail("an unmatched ')'")
        return alternatives

    def _anchored(self) -> tuple[bool, Form, bool]:
        begins = self._take("^")
        while self._take("^"):
            pass
        form = self._sequence()
        ends = False
        while self._take("$"):
            ends = True
        if self._at < len(self._text) and self._text[self._at] not in "|)":
            self._fail("an anchor in the middle")
        return begins, form, ends

    def _alternatives(self) -> Form:
        """Within a group, where there are no anchors."""
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return choice(*options)

    def _sequence(self) -> Form:
        parts: list[Form] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)$":
            parts.append(self._quantified(self._atom()))
        return sequence(*parts)

    def _quantified(self, form: Form) -> Form:
        char = self._text[self._at : self._at + 1]
        if char in _QUANTIFIERS and char:
            self._at += 1
            least, most = _QUANTIFIERS[char]
        elif char == "{" and (counts := self._counts()):
            least, most = counts
        else:
            return form
        if self._take("+"):
            self._fail("a possessive quantifier")
        self._take("?")  # lazy or not, the texts are the same
        return repeat(form, least, most)

    def _counts(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}` or `{2,5}`; None if the brace is only a brace."""
        end = self._text.find("}", self._at)
        least, comma, most = self._text[self._at + 1 : max(end, 0)].partition(",")
        if end < 0 or not least.isdecimal() or (most and not most.isdecimal()):
            return None
        counts = int(least), (int(most) if most else None if comma else int(least))
        if max(counts[0], counts[1] or 0) > MAX_COUNT or (counts[1] is not None and counts[1] < counts[0]):
            self._fail(f"the counts {{{least}{comma}{most}}}")
        self._at = end + 1
        return counts

    def _atom(self) -> Form:
        char = self._text[self._at]
        self._at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == ".":
            return without(ANY, "\n\r\u2028\u2029")
        if char == "\\":
            found = self._escape()
            return found if isinstance(found, Chars) else Literal(found)
        if char in "*+?^":
            self._fail("an anchor in the middle" if char == "^" else f"a '{char}' without anything before it")
        return Literal(char)

    def _group(self) -> Form:
        if self._take("?") and not self._take(":"):
            named = self._text.find(">", self._at)
            if self._text[self._at : self._at + 1] == "P":
                self._at += 1
            if not self._take("<") or self._text[self._at : self._at + 1] in ("=", "!") or named < 0:
                self._fail("a group that looks around, or has flags")
            self._at = named + 1
        self._depth += 1
        if self._depth > MAX_GROUPS:
            self._fail("groups nested too deeply")
        form = self._alternatives()
        self._depth -= 1
        if not self._take(")"):
            self._fail("an anchor in a group, or a group that is not closed")
        return form

    def _class(self) -> Chars:
        negated, ranges = self._take("^"), list[tuple[int, int]]()
        while not self._take("]"):
            low = self._member()
            if isinstance(low, Chars):
                ranges += _ALL_BLANKS.ranges if negated and low == _BLANK else low.ranges
            elif (
                self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] != "]"
            ):
                self._at += 1
                high = self._member()
                if isinstance(high, Chars) or high < low:
                    self._fail("a range in a class that is none")
                ranges.append((ord(low), ord(high)))
            else:
                ranges.append((ord(low), ord(low)))
        found = Chars(united(ranges))
        return without(ANY, found) if negated else found

    def _member(self) -> Chars | str:
        if self._at >= len(self._text):
            self._fail("a class that is not closed")
        char = self._text[self._at]
        self._at += 1
        if char != "\\":
            return char
        if self._take("b"):
            return "\b"
        return "-" if self._take("-") else self._escape()

    def _escape(self) -> Chars | str:
        char = self._text[self._at : self._at + 1]
        self._at += 1
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _HEX_DIGITS:
            return self._code(_HEX_DIGITS[char])
        if not char or char.isalnum():
            self._fail(f"'\\{char}'")
        return char

    def _code(self, digits: int) -> str:
        text = self._text[self._at : self._at + digits]
        self._at += digits
        if len(text) < digits or not all(c in "0123456789abcdefABCDEF" for c in text):
            self._fail("a code that is not hexadecimal")
        code = int(text, 16)
        if 0xD800 <= code <= 0xDFFF or code > MAX_CHAR:
            self._fail("half a surrogate pair")
        return chr(code)

    def _take(self, char: str) -> bool:
        found = self._text.startswith(char, self._at)
        self._at += found
        return found

    def _fail(self, what: str) -> NoReturn:
        raise UnsupportedRegexError(what)
