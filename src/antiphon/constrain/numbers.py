"""Grammars of numbers between bounds.

Numbers of one sign are compared digit by digit: a range is split where the digits of its bounds differ.
"""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from antiphon.constrain.grammar_ir import (
    EMPTY,
    NOTHING,
    Expr,
    Literal,
    alternation,
    char_class,
    optional,
    repeat,
    sequence,
)

MAX_DIGITS = 15
"""Digits of a number without bounds: more than that, JSON readers round."""

_DIGIT = char_class("0-9")
_FRACTION = sequence(".", repeat(_DIGIT, 1, MAX_DIGITS))
_NATURAL = alternation("0", sequence(char_class("1-9"), repeat(_DIGIT, 0, MAX_DIGITS - 1)))

INTEGER = sequence(optional("-"), _NATURAL)
NUMBER = sequence(
    INTEGER,
    optional(_FRACTION),
    optional(sequence(char_class("eE"), optional(char_class("+-")), repeat(_DIGIT, 1, 2))),
)


def integers(low: int | None, high: int | None) -> Expr:
    """Integers from `low` to `high`, both included; None: no bound."""
    if low is None and high is None:
        return INTEGER
    natural: Expr = NOTHING
    negative = _naturals(1 if high is None else max(1, -high), None if low is None else -low)
    if high is not None and high >= 0:
        natural = _naturals(max(0, low or 0), high)
    elif high is None:
        natural = _naturals(max(0, low or 0), None)
    return alternation(natural, sequence("-", negative))


def numbers(low: Decimal | None, high: Decimal | None, open_low: bool, open_high: bool) -> Expr:
    """Numbers between two bounds; an open bound is not among them. They have no exponents."""
    if low is None and high is None:
        return NUMBER
    zero = Decimal(0)
    up: Expr = NOTHING
    down: Expr = NOTHING
    if high is None or high > 0 or (high == 0 and not open_high):
        lowest = zero if low is None else max(low, zero)
        up = _decimals(lowest, high, open_low and low is not None and low >= 0, open_high)
    if low is None or low < 0:
        highest = None if low is None else -low
        lowest = zero if high is None else max(-high, zero)
        down = _decimals(lowest, highest, open_high or lowest == 0, open_low)
    return alternation(up, sequence("-", down))


def _naturals(low: int, high: int | None) -> Expr:
    """Integers from `low` to `high`, both non-negative."""
    if high is None:
        length = len(str(low))
        longer = sequence(char_class("1-9"), repeat(_DIGIT, length, max(MAX_DIGITS, length + 1)))
        return alternation(_of_length(str(low), "9" * length), longer)
    if low > high:
        return NOTHING
    options: list[Expr] = []
    for length in range(len(str(low)), len(str(high)) + 1):
        first = str(low) if length == len(str(low)) else "1" + "0" * (length - 1)
        last = str(high) if length == len(str(high)) else "9" * length
        options.append(_of_length(first, last))
    return alternation(*options)


def _of_length(first: str, last: str) -> Expr:
    """Digits from `first` to `last`, which have the same length."""
    if first == last:
        return Literal(first)
    same = next(at for at in range(len(first)) if first[at] != last[at])
    rest = len(first) - same - 1
    low, high = int(first[same]), int(last[same])
    options: list[Expr] = []
    if first[same + 1 :].strip("0"):
        options.append(sequence(first[same], _of_length(first[same + 1 :], "9" * rest)))
        low += 1
    upper: Expr = NOTHING
    if last[same + 1 :].strip("9"):
        upper = sequence(last[same], _of_length("0" * rest, last[same + 1 :]))
        high -= 1
    if low <= high:
        options.append(sequence(char_class(f"{low}-{high}"), repeat(_DIGIT, rest, rest)))
    return sequence(first[:same], alternation(*options, upper))


def _decimals(low: Decimal, high: Decimal | None, open_low: bool, open_high: bool) -> Expr:
    """Non-negative numbers."""
    if high is not None and (low > high or (low == high and (open_low or open_high))):
        return NOTHING
    whole, fraction = _split(low)
    if high is None:
        above = sequence(_naturals(whole + 1, None), optional(_FRACTION))
        return alternation(sequence(str(whole), _fractions(fraction, None, open_low, False)), above)
    top, top_fraction = _split(high)
    if whole == top:
        return sequence(str(whole), _fractions(fraction, top_fraction, open_low, open_high))
    between = sequence(_naturals(whole + 1, top - 1), optional(_FRACTION))
    return alternation(
        sequence(str(whole), _fractions(fraction, None, open_low, False)),
        between,
        sequence(str(top), _fractions("", top_fraction, False, open_high)),
    )


def _split(value: Decimal) -> tuple[int, str]:
    """The integer part, and the digits after the point without final zeros."""
    whole, _, fraction = f"{value:f}".partition(".")
    return int(whole), fraction.rstrip("0")


def _fractions(low: str, high: str | None, open_low: bool, open_high: bool) -> Expr:
    """`.` and digits between those of two bounds, or nothing, which means `.0`; `high` None is no bound."""
    bare = EMPTY if not low and not open_low and (high or not open_high) else NOTHING
    digits = _tail(low, high, open_low, open_high)
    return alternation(bare, sequence(".", digits))


def _tail(low: str, high: str | None, open_low: bool, open_high: bool) -> Expr:
    """At least one more digit: between two bounds that begin with the digits so far."""
    more = repeat(_DIGIT, 0, MAX_DIGITS)
    if high is None and not low and not open_low:
        return repeat(_DIGIT, 1, MAX_DIGITS)
    if high == "" and low == "":
        return NOTHING if open_high or open_low else repeat(char_class("0"), 1, MAX_DIGITS)
    bottom = int(low[:1] or 0)
    top = 9 if high is None else int(high[:1] or 0)
    options: list[Expr] = []
    on_low = low != "" or open_low
    for digit in range(bottom, top + 1):
        at_low, at_high = digit == bottom and on_low, high is not None and digit == top
        if not at_low and not at_high:
            options.append(sequence(str(digit), more))
            continue
        rest_low = low[1:] if at_low else ""
        rest_high = high[1:] if at_high and high is not None else None
        still_low, still_high = open_low and at_low, open_high and at_high
        options.append(sequence(str(digit), _ending(rest_low, rest_high, still_low, still_high)))
    return alternation(*options)


def _ending(low: str, high: str | None, open_low: bool, open_high: bool) -> Expr:
    """The end here, if the digits so far lie between the bounds, or more digits."""
    ends = not low and not open_low and not (high == "" and open_high)
    if low == "" and high is None:
        more = repeat(_DIGIT, 0, MAX_DIGITS)
        # After the digits of an open bound something must make it more.
        return sequence(repeat("0", 0, MAX_DIGITS), char_class("1-9"), more) if open_low else more
    if high == "" and low == "":
        return repeat("0", 0, MAX_DIGITS) if ends else NOTHING
    return alternation(EMPTY if ends else NOTHING, _tail(low, high, open_low, open_high))


def bound(
    schema: Mapping[str, Any], closed: str, opened: str, tighter: Any, report: Callable[[str], object]
) -> tuple[Decimal | None, bool]:
    """The tighter of two bounds, and whether it is excluded.

    `report` is called for a value that is no number.
    """
    limit, excluded = schema.get(closed), schema.get(opened)
    if excluded is True:  # as draft 4 wrote it
        return _decimal(limit, closed, report), True
    inclusive, exclusive = _decimal(limit, closed, report), _decimal(excluded, opened, report)
    if inclusive is None or exclusive is None:
        return (inclusive, False) if exclusive is None else (exclusive, True)
    return (exclusive, True) if tighter(inclusive, exclusive) == exclusive else (inclusive, False)


def _decimal(value: Any, keyword: str, report: Callable[[str], object]) -> Decimal | None:
    if value is None or value is False:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 10**300:
        report(f"{keyword}: it must be a number")
        return None
    return Decimal(repr(value))
