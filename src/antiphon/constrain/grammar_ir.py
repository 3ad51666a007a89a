"""The intermediate representation of grammars, independent of any engine's notation.

Frozen structs, built by the functions below, which normalize: nested sequences are flattened, and an
expression that matches no text is `NOTHING`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

MAX_CHAR = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]
"""Code points from … to …, both included; in order and apart."""


class Literal(Struct, frozen=True):
    """This text, which may be empty."""

    text: str


class CharClass(Struct, frozen=True):
    """One character in one of the ranges. Without ranges nothing matches."""

    ranges: Ranges


class Sequence(Struct, frozen=True):
    """One after another."""

    parts: tuple["Expr", ...]


class Alternation(Struct, frozen=True):
    """One of these."""

    options: tuple["Expr", ...]


class Repeat(Struct, frozen=True):
    """The expression `minimum` to `maximum` times; None: any number."""

    expr: "Expr"
    minimum: int = 0
    maximum: int | None = None


class RuleReference(Struct, frozen=True):
    """A reference to the rule of that name."""

    name: str


class Until(Struct, frozen=True):
    """Any text up to the first of some markers, and what follows that marker.

    `on` maps each marker to what follows it, None for a marker that must not occur. If `open`, the text may
    also end without a marker. `prefix` is text that is read already, and may be the beginning of a marker.
    """

    on: tuple[tuple[str, "Expr | None"], ...]
    open: bool = False
    prefix: str = ""


class Dfa(Struct, frozen=True):
    """A deterministic automaton: for each state, the possible next expressions with their states.

    It begins in the state `start`, and may end in those of `ends`. The expressions of a state have no common
    beginning, so that there is one way to read a text.
    """

    transitions: tuple[tuple[tuple["Expr", int], ...], ...]
    ends: frozenset[int]
    start: int = 0


Expr = Literal | CharClass | Sequence | Alternation | Repeat | RuleReference | Until | Dfa

EMPTY = Literal("")
NOTHING = Alternation(())
"""An expression that matches no text."""


class GrammarIR(Struct, frozen=True):
    """An expression, and the rules that it and they refer to."""

    start: Expr
    rules: Mapping[str, Expr] = {}


def sequence(*parts: Expr | str) -> Expr:
    """One after another; neighbouring literals are joined."""
    flat: list[Expr] = []
    for part in map(_expr, parts):
        for piece in part.parts if isinstance(part, Sequence) else (part,):
            if piece == NOTHING:
                return NOTHING
            if isinstance(piece, Literal) and flat and isinstance(flat[-1], Literal):
                flat[-1] = Literal(flat[-1].text + piece.text)
            elif piece != EMPTY:
                flat.append(piece)
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat)) if flat else EMPTY


def alternation(*options: Expr | str) -> Expr:
    """One of these, without duplicates and those that match nothing."""
    flat: dict[Expr, None] = {}
    for option in map(_expr, options):
        flat.update(dict.fromkeys(option.options if isinstance(option, Alternation) else (option,)))
    return next(iter(flat)) if len(flat) == 1 else Alternation(tuple(flat))


def optional(expr: Expr | str) -> Expr:
    """The expression, or the empty text."""
    return repeat(expr, 0, 1)


def repeat(expr: Expr | str, minimum: int = 0, maximum: int | None = None) -> Expr:
    """The expression repeated.

    Nested counts become one count. If the expression may be empty, its count begins at 0 instead.
    """
    expr = _expr(expr)
    if expr == NOTHING:
        return EMPTY if minimum == 0 else NOTHING
    if maximum == 0 or expr == EMPTY:
        return EMPTY
    if isinstance(expr, Alternation) and EMPTY in expr.options:
        return repeat(alternation(*(option for option in expr.options if option != EMPTY)), 0, maximum)
    if isinstance(expr, Repeat) and expr.minimum <= 1:
        high = None if maximum is None or expr.maximum is None else maximum * expr.maximum
        return repeat(expr.expr, minimum * expr.minimum, high)
    return expr if minimum == maximum == 1 else Repeat(expr, minimum, maximum)


def char_class(text: str) -> CharClass:
    """One of the characters, where `a-z` is a range."""
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(text):
        last = at + 2 if text[at + 1 : at + 2] == "-" and at + 2 < len(text) else at
        ranges.append((ord(text[at]), ord(text[last])))
        at = last + 1
    return CharClass(merged_ranges(ranges))


def without(some: CharClass, others: CharClass | str) -> CharClass:
    """The characters of `some` that are not among the others."""
    excluded = merged_ranges((ord(c), ord(c)) for c in others) if isinstance(others, str) else others.ranges
    return CharClass(_common(some.ranges, complement(excluded)))


def merged_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in order, those that touch or overlap joined."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    """All other code points."""
    out, next_free = [], 0
    for low, high in ranges:
        if low > next_free:
            out.append((next_free, low - 1))
        next_free = high + 1
    if next_free <= MAX_CHAR:
        out.append((next_free, MAX_CHAR))
    return tuple(out)


def contains(some: CharClass, char: str) -> bool:
    """Whether the character is one of these."""
    return any(low <= ord(char) <= high for low, high in some.ranges)


def _common(some: Ranges, others: Ranges) -> Ranges:
    pairs = ((max(a, c), min(b, d)) for a, b in some for c, d in others)
    return merged_ranges((low, high) for low, high in pairs if low <= high)


def _expr(part: "Expr | str") -> Expr:
    return Literal(part) if isinstance(part, str) else part


ANY_CHAR = CharClass(((0, 0xD7FF), (0xE000, MAX_CHAR)))
"""Any character except surrogates."""


def rule(rules: dict[str, Expr], name: str, make: Callable[[], Expr]) -> RuleReference:
    """A reference to the rule of that name, which is made if it is missing; it may refer to itself."""
    if name not in rules:
        rules[name] = NOTHING
        rules[name] = make()
    return RuleReference(name)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that an expression is made of."""
    if isinstance(expr, Sequence):
        return expr.parts
    if isinstance(expr, Alternation):
        return expr.options
    if isinstance(expr, Repeat):
        return (expr.expr,)
    if isinstance(expr, Until):
        return tuple(then for _, then in expr.on if then is not None)
    if isinstance(expr, Dfa):
        return tuple(read for ways in expr.transitions for read, _ in ways)
    return ()


def map_characters(expr: Expr, change: Any) -> Expr:
    """The expression with its literals and characters changed."""
    if isinstance(expr, Literal | CharClass):
        changed: Expr = change(expr)
        return changed
    if isinstance(expr, Sequence):
        return sequence(*(map_characters(part, change) for part in expr.parts))
    if isinstance(expr, Alternation):
        return alternation(*(map_characters(option, change) for option in expr.options))
    if isinstance(expr, Dfa):
        ways = (((map_characters(read, change), to) for read, to in ways) for ways in expr.transitions)
        return Dfa(tuple(map(tuple, ways)), expr.ends, expr.start)
    assert isinstance(expr, Repeat)
    return repeat(map_characters(expr.expr, change), expr.minimum, expr.maximum)
