"""The ways out of a grammar: texts that end an answer, and are little longer than the shortest.

A string that is open is closed, and what is optional is left out; but a value that is required is the
model's: one of an enum, true or false, some digits. Where a rule refers to itself, only its shortest way is
left. So there are finitely many texts, and the longest is known.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Sequence_

from antiphon.constrain.ambiguity import recursive_rules
from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.grammar_ir import (
    EMPTY,
    Alternation,
    CharClass,
    Dfa,
    Expr,
    GrammarIR,
    Literal,
    Repeat,
    RuleReference,
    Sequence,
    Until,
    alternation,
    char_class,
    repeat,
    sequence,
)
from antiphon.constrain.shortest import Shortest, bytes_in

MAX_LONGER = 32
"""Bytes by which an alternative may be longer than the shortest one."""
MAX_DIGITS = 3
"""Digits of a number after those that have to be there."""

_DIGITS = char_class("0-9")


class WaysOut:
    """The ways out of grammars with these rules."""

    def __init__(self, rules: Mapping[str, Expr], shortest: Shortest) -> None:
        self._rules = rules
        self._shortest = shortest
        self._recursive = frozenset(recursive_rules(rules, WorkBudget()))
        self._narrow: dict[str, Expr] = {}
        self._longest: dict[str, int] = {}

    def of(self, expr: Expr) -> tuple[GrammarIR, int]:
        """The ways out of an expression, and how many bytes the longest has. There must be one."""
        options = expr.options if isinstance(expr, Alternation) else (expr,)
        ways = [self._narrowed(option, free=True) for option in self._near(options, free=True)]
        narrow = alternation(*(way for way in ways if not _only_begins(way, ways)))
        return GrammarIR(narrow, self._narrow), self._bytes(narrow)

    def _narrowed(self, expr: Expr, free: bool) -> Expr:  # noqa: PLR0911  # one for each type
        """The ways out; the model has a choice of them if it is `free`."""
        match expr:
            case Sequence(parts):
                return sequence(*(self._narrowed(part, free) for part in parts))
            case Alternation(options):
                return alternation(*(self._narrowed(option, free) for option in self._near(options, free)))
            case Repeat(inner, minimum, maximum):
                return self._repeated(inner, minimum, maximum, free)
            case RuleReference(name):
                self._narrow_rule(name)
                return expr
            case Until() if expr.open:
                return EMPTY
            case Until() | Dfa():
                text = self._shortest.way(expr)
                return sequence(*(self._narrowed(part, free) for part in text))
            case _:
                return expr

    def _near(self, options: tuple[Expr, ...], free: bool) -> list[Expr]:
        """The alternatives that are little longer than the shortest."""
        size = self._shortest.size
        shortest = min(options, key=size)
        if not free:
            return [shortest]
        return [option for option in options if size(option) <= size(shortest) + MAX_LONGER]

    def _repeated(self, inner: Expr, minimum: int, maximum: int | None, free: bool) -> Expr:
        if minimum == 0 and inner != _DIGITS:
            return EMPTY
        most = minimum
        if inner == _DIGITS and free:
            most = minimum + MAX_DIGITS if maximum is None else min(maximum, minimum + MAX_DIGITS)
        return repeat(self._narrowed(inner, free), minimum, most)

    def _narrow_rule(self, name: str) -> None:
        if name not in self._narrow:
            self._narrow[name] = EMPTY
            self._narrow[name] = self._narrowed(self._rules[name], free=name not in self._recursive)

    def _bytes(self, expr: Expr) -> int:
        """The bytes of the longest text."""
        match expr:
            case Literal(text):
                return bytes_in(text)
            case CharClass(ranges):
                return bytes_in(chr(ranges[-1][1]))
            case Sequence(parts):
                return sum(map(self._bytes, parts))
            case Alternation(options):
                return max(map(self._bytes, options), default=0)
            case Repeat(inner, _, maximum):
                return self._bytes(inner) * (maximum or 0)
            case RuleReference(name):
                if name not in self._longest:
                    self._longest[name] = self._bytes(self._narrow[name])
                return self._longest[name]
        raise AssertionError(expr)


def _only_begins(way: Expr, ways: Sequence_[Expr]) -> bool:
    """Whether a way is another one with more before it, as one more character of a string is."""
    return any(_ends_with(_parts(way), _parts(other)) for other in ways)


def _ends_with(parts: tuple[Expr, ...], last: tuple[Expr, ...]) -> bool:
    return len(parts) > len(last) and parts[len(parts) - len(last) :] == last


def _parts(expr: Expr) -> tuple[Expr, ...]:
    return expr.parts if isinstance(expr, Sequence) else () if expr == EMPTY else (expr,)
