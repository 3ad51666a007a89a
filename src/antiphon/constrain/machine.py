"""Forms → machines: one way to read a text, where the form itself has many.

Strategy: a state is the set of all that may still follow (partial derivatives).
Of what differs in a count alone, the counts are joined, so that the states stay
few where it does not matter how often something was repeated.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

from antiphon.constrain.form import (
    EMPTY,
    Chars,
    Choice,
    Form,
    Literal,
    Machine,
    Repeat,
    Sequence,
    repeat,
    sequence,
    united,
)
from antiphon.constrain.language import nullable

MAX_STATES = 1000
"""States of one machine."""
MAX_TAILS = 100
"""Forms of what may still follow, in one state."""

Tails = frozenset[Form]
Range = tuple[int, int]


def machine_of(form: Form) -> Machine | None:
    """The machine that reads the same texts. None if it would be too large; the form refers to no rules."""
    numbers: dict[Tails, int] = {frozenset({form}): 0}
    ways: list[tuple[tuple[Form, int], ...]] = []
    todo = list(numbers)
    for tails in todo:
        if len(tails) > MAX_TAILS or len(numbers) > MAX_STATES:
            return None
        found = _ways(tails)
        for after in found:
            if after not in numbers:
                numbers[after] = len(numbers)
                todo.append(after)
        ways.append(tuple((Chars(united(ranges)), numbers[after]) for after, ranges in found.items()))
    return Machine(tuple(ways), frozenset(number for tails, number in numbers.items() if _may_end(tails)))


def _may_end(tails: Tails) -> bool:
    return any(_empty(tail) for tail in tails)


def _ways(tails: Tails) -> dict[Tails, list[Range]]:
    """What may still follow after each character, and after which characters it does."""
    steps = [step for tail in tails for step in _steps(tail)]
    edges = sorted({edge for chars, _ in steps for low, high in chars.ranges for edge in (low, high + 1)})
    found: dict[Tails, list[Range]] = {}
    for low, end in pairwise(edges):
        after = [tail for chars, tail in steps if any(a <= low <= b for a, b in chars.ranges)]
        if after:
            found.setdefault(frozenset(_joined(after)), []).append((low, end - 1))
    return found


@lru_cache(4096)
def _steps(form: Form) -> tuple[tuple[Chars, Form], ...]:
    """What the form may begin with, and what follows each."""
    match form:
        case Literal(text):
            return ((Chars(((ord(text[0]), ord(text[0])),)), Literal(text[1:])),) if text else ()
        case Chars():
            return ((form, EMPTY),)
        case Choice(options):
            return tuple(step for option in options for step in _steps(option))
        case Sequence((first, *others)):
            rest = sequence(*others)
            steps = tuple((chars, sequence(tail, rest)) for chars, tail in _steps(first))
            return steps + _steps(rest) if _empty(first) else steps
        case Repeat(inner, least, most):
            fewer = 0 if _empty(inner) else max(0, least - 1)
            rest = repeat(inner, fewer, None if most is None else most - 1)
            return tuple((chars, sequence(tail, rest)) for chars, tail in _steps(inner))
    raise AssertionError(form)


def _empty(form: Form) -> bool:
    return nullable(form, lambda _: False)


def _joined(tails: Iterable[Form]) -> Iterator[Form]:
    """The same forms, those that differ only in how often their last part is repeated as one."""
    counts: dict[tuple[Form, Form], list[tuple[int, int | None]]] = {}
    for tail in tails:
        parts = tail.parts if isinstance(tail, Sequence) else (tail,)
        if isinstance(last := parts[-1], Repeat):
            counts.setdefault((sequence(*parts[:-1]), last.form), []).append((last.least, last.most))
        else:
            yield tail
    for (before, inner), ranges in counts.items():
        yield from (sequence(before, repeat(inner, least, most)) for least, most in _spans(ranges))


def _spans(counts: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """Counts that touch or overlap joined."""
    out: list[tuple[int, int | None]] = []
    for least, most in sorted(counts, key=lambda count: count[0]):
        if out and ((last := out[-1][1]) is None or least <= last + 1):
            out[-1] = (out[-1][0], None if last is None or most is None else max(last, most))
        else:
            out.append((least, most))
    return out
