"""Expressions → DFAs, by partial derivatives: a state is the set of all possible rests.

Rests that differ only in a count are merged if their counts are adjacent.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

from antiphon.constrain.analysis import nullable
from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.grammar_ir import (
    EMPTY,
    Alternation,
    CharClass,
    Dfa,
    Expr,
    Literal,
    Repeat,
    Sequence,
    children,
    merged_ranges,
    repeat,
    sequence,
)

MAX_STATES = 1000
"""The most states of one DFA."""
MAX_TAILS = 100
"""The most rests in one state."""

Tails = frozenset[Expr]
Range = tuple[int, int]


def dfa_of(expr: Expr, budget: WorkBudget) -> Dfa | None:
    """The equivalent DFA. None if it would be too large; the expression must not refer to rules."""
    numbers: dict[Tails, int] = {frozenset({expr}): 0}
    ways: list[tuple[tuple[Expr, int], ...]] = []
    todo = list(numbers)
    for tails in todo:
        if len(tails) > MAX_TAILS or len(numbers) > MAX_STATES:
            return None
        successors = _ways(tails)
        budget.spend(4 * (1 + len(tails) + len(successors)))
        for after in successors:
            if after not in numbers:
                numbers[after] = len(numbers)
                todo.append(after)
        ways.append(
            tuple((CharClass(merged_ranges(ranges)), numbers[after]) for after, ranges in successors.items())
        )
    return Dfa(tuple(ways), frozenset(number for tails, number in numbers.items() if _may_end(tails)))


def with_length(expr: Expr, minimum: int, maximum: int | None, budget: WorkBudget) -> Dfa | None:
    """The texts of `expr` that have `minimum` to `maximum` characters; None if the DFA would be too large."""
    dfa = expr if isinstance(expr, Dfa) else None if _has_dfa(expr) else dfa_of(expr, budget)
    if dfa is None or minimum > MAX_STATES:
        return None
    numbers = {(dfa.start, 0): 0}
    todo = [*numbers]
    ways: list[list[tuple[Expr, int]]] = []
    for state, count in todo:
        if len(numbers) > MAX_STATES:
            return None
        budget.spend(4)
        after = min(count + 1, minimum) if maximum is None else count + 1
        further = dfa.transitions[state] if maximum is None or count < maximum else ()
        ways.append([])
        for read, to in further:
            if (to, after) not in numbers:
                numbers[to, after] = len(numbers)
                todo.append((to, after))
            ways[-1].append((read, numbers[to, after]))
    return _trimmed(ways, {numbers[key] for key in numbers if key[0] in dfa.ends and key[1] >= minimum})


def _has_dfa(expr: Expr) -> bool:
    return isinstance(expr, Dfa) or any(map(_has_dfa, children(expr)))


def _trimmed(ways: list[list[tuple[Expr, int]]], ends: set[int]) -> Dfa:
    """The automaton without the states from which no end is reached; it begins in the first one."""
    before: dict[int, list[int]] = {}
    for state, transitions in enumerate(ways):
        for _, to in transitions:
            before.setdefault(to, []).append(state)
    alive, todo = set(ends), [*ends]
    while todo:
        new = set(before.get(todo.pop(), ())) - alive
        alive |= new
        todo += new
    numbers = {state: number for number, state in enumerate(sorted(alive | {0}))}
    return Dfa(
        tuple(tuple((read, numbers[to]) for read, to in ways[state] if to in alive) for state in numbers),
        frozenset(numbers[state] for state in ends),
    )


def _may_end(tails: Tails) -> bool:
    return any(_empty(tail) for tail in tails)


def _ways(tails: Tails) -> dict[Tails, list[Range]]:
    """The possible rests after each character."""
    steps = [step for tail in tails for step in _steps(tail)]
    edges = sorted(
        {edge for char_class, _ in steps for low, high in char_class.ranges for edge in (low, high + 1)}
    )
    successors: dict[Tails, list[Range]] = {}
    for low, end in pairwise(edges):
        after = [tail for char_class, tail in steps if any(a <= low <= b for a, b in char_class.ranges)]
        if after:
            successors.setdefault(frozenset(_joined(after)), []).append((low, end - 1))
    return successors


@lru_cache(4096)
def _steps(expr: Expr) -> tuple[tuple[CharClass, Expr], ...]:
    """The first characters of the expression, and the rest after each."""
    match expr:
        case Literal(text):
            return ((CharClass(((ord(text[0]), ord(text[0])),)), Literal(text[1:])),) if text else ()
        case CharClass():
            return ((expr, EMPTY),)
        case Alternation(options):
            return tuple(step for option in options for step in _steps(option))
        case Sequence((first, *others)):
            rest = sequence(*others)
            steps = tuple((char_class, sequence(tail, rest)) for char_class, tail in _steps(first))
            return steps + _steps(rest) if _empty(first) else steps
        case Repeat(inner, minimum, maximum):
            # If it may be empty, it can replace all remaining ones.
            fewer = 0 if _empty(inner) else max(0, minimum - 1)
            rest = repeat(inner, fewer, None if maximum is None else maximum - 1)
            return tuple((char_class, sequence(tail, rest)) for char_class, tail in _steps(inner))
    raise AssertionError(expr)


def _empty(expr: Expr) -> bool:
    return nullable(expr, lambda _: False)


def _joined(tails: Iterable[Expr]) -> Iterator[Expr]:
    """The same expressions; those that differ only in the count of their last part are merged."""
    counts: dict[tuple[Expr, Expr], list[tuple[int, int | None]]] = {}
    for tail in tails:
        parts = tail.parts if isinstance(tail, Sequence) else (tail,)
        if isinstance(last := parts[-1], Repeat):
            counts.setdefault((sequence(*parts[:-1]), last.expr), []).append((last.minimum, last.maximum))
        else:
            yield tail
    for (before, inner), ranges in counts.items():
        yield from (sequence(before, repeat(inner, minimum, maximum)) for minimum, maximum in _spans(ranges))


def _spans(counts: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """Counts that touch or overlap joined."""
    out: list[tuple[int, int | None]] = []
    for minimum, maximum in sorted(counts, key=lambda count: count[0]):
        if out and ((last := out[-1][1]) is None or minimum <= last + 1):
            out[-1] = (out[-1][0], None if last is None or maximum is None else max(last, maximum))
        else:
            out.append((minimum, maximum))
    return out
