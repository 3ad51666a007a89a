"""Regular expressions in ECMA-262's notation → grammar IR.

Recursive descent. Anchors are supported at the edges of alternatives.
Lookarounds, backreferences and flags raise `UnsupportedRegexError`.
"""

from typing import NoReturn

from antiphon.constrain.ambiguity import AmbiguousError, disambiguated
from antiphon.constrain.analysis import counts_too_much_of_nothing
from antiphon.constrain.budget import WorkBudget, number
from antiphon.constrain.grammar_ir import (
    ANY_CHAR,
    EMPTY,
    MAX_CHAR,
    CharClass,
    Expr,
    GrammarIR,
    Literal,
    alternation,
    char_class,
    merged_ranges,
    repeat,
    sequence,
    without,
)
from antiphon.core.errors import RequestError

MAX_GROUPS = 64
"""How deep groups are nested."""

_ANY_TEXT = repeat(ANY_CHAR)
_DIGIT, _WORD, _BLANK = char_class("0-9"), char_class("A-Za-z0-9_"), char_class(" \t\n\r\f\v")
_ALL_BLANKS = CharClass(
    merged_ranges(
        [
            *_BLANK.ranges,
            *((0x1C, 0x1F), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
            *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
        ]
    )
)
_CLASSES = {
    "d": _DIGIT,
    "D": without(ANY_CHAR, _DIGIT),
    "w": _WORD,
    "W": without(ANY_CHAR, _WORD),
    "s": _BLANK,
    "S": without(ANY_CHAR, _ALL_BLANKS),
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_HEX_DIGITS = {"x": 2, "u": 4}
QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class UnsupportedRegexError(ValueError):
    """The pattern is invalid, or has a feature that cannot be expressed. The message says which."""


def searching(pattern: str, budget: WorkBudget) -> Expr:
    """Text in which the pattern is found somewhere, as JSON Schema means it."""
    alternatives = _RegexParser(pattern, budget).read()
    return _unambiguous(
        alternation(
            *(
                sequence(EMPTY if begins else _ANY_TEXT, expr, EMPTY if ends else _ANY_TEXT)
                for begins, expr, ends in alternatives
            )
        ),
        budget,
    )


def matching(pattern: str, budget: WorkBudget) -> Expr:
    """Text that as a whole matches the pattern."""
    return _unambiguous(alternation(*(expr for _, expr, _ in _RegexParser(pattern, budget).read())), budget)


def client_regex(pattern: str, budget: WorkBudget) -> Expr:
    """The same for a client's own pattern. Raises RequestError."""
    try:
        return matching(pattern, budget)
    except UnsupportedRegexError as why:
        raise RequestError(f"This pattern cannot be enforced: it has {why}.", param="format") from None


def _unambiguous(expr: Expr, budget: WorkBudget) -> Expr:
    if counts_too_much_of_nothing(GrammarIR(expr)):
        raise UnsupportedRegexError("a high count of what may be empty")
    try:
        return disambiguated(expr, {}, budget)
    except AmbiguousError as why:
        raise UnsupportedRegexError(str(why)) from None


class _RegexParser:
    """Parses one pattern from left to right."""

    def __init__(self, pattern: str, budget: WorkBudget) -> None:
        self._text = pattern
        self._budget = budget
        self._at = 0
        self._depth = 0

    def read(self) -> list[tuple[bool, Expr, bool]]:
        """The alternatives, each with whether it is anchored at its beginning and end."""
        alternatives = [self._anchored()]
        while self._take("|"):
            alternatives.append(self._anchored())
        if self._at < len(self._text):
            self._fail("an unmatched ')'")
        return alternatives

    def _anchored(self) -> tuple[bool, Expr, bool]:
        begins = self._take("^")
        while self._take("^"):
            pass
        expr = self._sequence()
        ends = False
        while self._take("$"):
            ends = True
        if self._at < len(self._text) and self._text[self._at] not in "|)":
            self._fail("an anchor in the middle")
        return begins, expr, ends

    def _alternatives(self) -> Expr:
        """Within a group, where there are no anchors."""
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return alternation(*options)

    def _sequence(self) -> Expr:
        parts: list[Expr] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)$":
            parts.append(self._quantified(self._atom()))
        return sequence(*parts)

    def _quantified(self, expr: Expr) -> Expr:
        char = self._text[self._at : self._at + 1]
        if char in QUANTIFIERS and char:
            self._at += 1
            minimum, maximum = QUANTIFIERS[char]
        elif char == "{" and (counts := self._counts()):
            minimum, maximum = counts
        else:
            return expr
        if self._take("+"):
            self._fail("a possessive quantifier")
        self._take("?")  # lazy or not, the texts are the same
        return repeat(expr, minimum, maximum)

    def _counts(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}` or `{2,5}`; None if the brace is a literal."""
        end = self._text.find("}", self._at)
        minimum, comma, maximum = self._text[self._at + 1 : max(end, 0)].partition(",")
        if end < 0 or not minimum.isdecimal() or (maximum and not maximum.isdecimal()):
            return None
        low, high = number(minimum), (number(maximum) if maximum else None if comma else number(minimum))
        if high is not None and high < low:
            self._fail(f"the counts {{{minimum}{comma}{maximum}}}")
        self._at = end + 1
        return self._budget.within_reach(low, high)

    def _atom(self) -> Expr:
        char = self._text[self._at]
        self._at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == ".":
            return without(ANY_CHAR, "\n\r\u2028\u2029")
        if char == "\\":
            escape = self._escape()
            return escape if isinstance(escape, CharClass) else Literal(escape)
        if char in "*+?^":
            self._fail("an anchor in the middle" if char == "^" else f"a '{char}' without anything before it")
        return Literal(char)

    def _group(self) -> Expr:
        if self._take("?") and not self._take(":"):
            definitions = self._text.find(">", self._at)
            if self._text[self._at : self._at + 1] == "P":
                self._at += 1
            if not self._take("<") or self._text[self._at : self._at + 1] in ("=", "!") or definitions < 0:
                self._fail("a group that looks around, or has flags")
            self._at = definitions + 1
        self._depth += 1
        if self._depth > MAX_GROUPS:
            self._fail("groups nested too deeply")
        expr = self._alternatives()
        self._depth -= 1
        if not self._take(")"):
            self._fail("an anchor in a group, or a group that is not closed")
        return expr

    def _class(self) -> CharClass:
        negated, ranges = self._take("^"), list[tuple[int, int]]()
        while not self._take("]"):
            low = self._member()
            if isinstance(low, CharClass):
                ranges += _ALL_BLANKS.ranges if negated and low == _BLANK else low.ranges
            elif (
                self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] != "]"
            ):
                self._at += 1
                high = self._member()
                if isinstance(high, CharClass) or high < low:
                    self._fail("a range in a class that is none")
                ranges.append((ord(low), ord(high)))
            else:
                ranges.append((ord(low), ord(low)))
        char_class = CharClass(merged_ranges(ranges))
        return without(ANY_CHAR, char_class) if negated else char_class

    def _member(self) -> CharClass | str:
        if self._at >= len(self._text):
            self._fail("a class that is not closed")
        char = self._text[self._at]
        self._at += 1
        if char != "\\":
            return char
        if self._take("b"):
            return "\b"
        return "-" if self._take("-") else self._escape()

    def _escape(self) -> CharClass | str:
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
        follows = self._text.startswith(char, self._at)
        self._at += follows
        return follows

    def _fail(self, what: str) -> NoReturn:
        raise UnsupportedRegexError(what)
