"""High counts as nested repetitions: `x{1000}` becomes `((x{32}){31}) x{8}`.

Engines write counts out, and refuse those that are too high. Nested, a count of a million takes a few
hundred parts. A reader cannot know which part the next text belongs to, but there are at most three for each
level, and the levels are few.
"""

from antiphon.constrain.grammar_ir import EMPTY, Expr, Repeat, repeat, sequence

MAX_WRITTEN = 500
"""The highest count that engines get. llama.cpp refuses 2,000."""

_MAX_PART = 64
"""The highest count of a part of a higher one."""


def nested(expr: Repeat) -> Expr:
    """The same texts, with no count above `MAX_WRITTEN`."""
    minimum, maximum = expr.minimum, expr.maximum
    if max(minimum, maximum or 0) <= MAX_WRITTEN:
        return expr
    if maximum is None:
        return sequence(_exactly(expr.expr, minimum), repeat(expr.expr))
    return sequence(_exactly(expr.expr, minimum), _up_to(expr.expr, maximum - minimum))


def _exactly(expr: Expr, count: int) -> Expr:
    if count <= _MAX_PART:
        return repeat(expr, count, count) if count else EMPTY
    part = _part_of(count)
    return sequence(_exactly(repeat(expr, part, part), count // part), _exactly(expr, count % part))


def _up_to(expr: Expr, count: int) -> Expr:
    """Any number of whole parts, and then fewer than two parts of single ones."""
    if count <= 2 * _MAX_PART:
        return repeat(expr, 0, count) if count else EMPTY
    part = _part_of(count)
    parts = (count + 1 - part) // part
    return sequence(_up_to(repeat(expr, part, part), parts), repeat(expr, 0, count - parts * part))


def _part_of(count: int) -> int:
    """The size of the parts, so that each level has about as many."""
    levels = 2
    while _MAX_PART**levels < count:
        levels += 1
    return next(size for size in range(2, _MAX_PART + 1) if size**levels >= count)
