"""Numbers between bounds, as forms: digit by digit.

Strategy: numbers of one sign are compared like words of one length, so a range
is split where its digits part: a common beginning, then less than, equal to
or more than the digit of a bound.
"""

from decimal import Decimal

from antiphon.constrain.form import (
    EMPTY,
    NOTHING,
    Form,
    Literal,
    chars,
    choice,
    optional,
    repeat,
    sequence,
)

MAX_DIGITS = 15
"""Digits of a number without bounds: more than that, JSON readers round."""

_DIGIT = chars("0-9")
_FRACTION = sequence(".", repeat(_DIGIT, 1, MAX_DIGITS))
_NATURAL = choice("0", sequence(chars("1-9"), repeat(_DIGIT, 0, MAX_DIGITS - 1)))

INTEGER = sequence(optional("-"), _NATURAL)
NUMBER = sequence(
    INTEGER, optional(_FRACTION), optional(sequence(chars("eE"), optional(chars("+-")), repeat(_DIGIT, 1, 2)))
)


def integers(low: int | None, high: int | None) -> Form:
    """Integers from `low` to `high`, both included; None: no bound."""
    if low is None and high is None:
        return INTEGER
    natural: Form = NOTHING
    negative = _naturals(1 if high is None else max(1, -high), None if low is None else -low)
    if high is not None and high >= 0:
        natural = _naturals(max(0, low or 0), high)
    elif high is None:
        natural = _naturals(max(0, low or 0), None)
    return choice(natural, sequence("-", negative))


def numbers(low: Decimal | None, high: Decimal | None, open_low: bool, open_high: bool) -> Form:
    """Numbers between two bounds; an open bound is not among them. They have no exponents."""
    if low is None and high is None:
        return NUMBER
    zero = Decimal(0)
    up: Form = NOTHING
    down: Form = NOTHING
    if high is None or high > 0 or (high == 0 and not open_high):
        lowest = zero if low is None else max(low, zero)
        up = _decimals(lowest, high, open_low and low is not None and low >= 0, open_high)
    if low is None or low < 0:
        highest = None if low is None else -low
        lowest = zero if high is None else max(-high, zero)
        down = _decimals(lowest, highest, open_high or lowest == 0, open_low)
    return choice(up, sequence("-", down))


def _naturals(low: int, high: int | None) -> Form:
    """Integers from `low` to `high`, neither of which is negative."""
    if high is None:
        length = len(str(low))
        longer = sequence(chars("1-9"), repeat(_DIGIT, length, max(MAX_DIGITS, length + 1)))
        return choice(_of_length(str(low), "9" * length), longer)
    if low > high:
        return NOTHING
    options: list[Form] = []
    for length in range(len(str(low)), len(str(high)) + 1):
        first = str(low) if length == len(str(low)) else "1" + "0" * (length - 1)
        last = str(high) if length == len(str(high)) else "9" * length
        options.append(_of_length(first, last))
    return choice(*options)


def _of_length(first: str, last: str) -> Form:
    """Digits from `first` to `last`, which are of one length."""
    if first == last:
        return Literal(first)
    same = next(at for at in range(len(first)) if first[at] != last[at])
    rest = len(first) - same - 1
    low, high = int(first[same]), int(last[same])
    options: list[Form] = []
    if first[same + 1 :].strip("0"):
        options.append(sequence(first[same], _of_length(first[same + 1 :], "9" * rest)))
        low += 1
    upper: Form = NOTHING
    if last[same + 1 :].strip("9"):
        upper = sequence(last[same], _of_length("0" * rest, last[same + 1 :]))
        high -= 1
    if low <= high:
        options.append(sequence(chars(f"{low}-{high}"), repeat(_DIGIT, rest, rest)))
    return sequence(first[:same], choice(*options, upper))


def _decimals(low: Decimal, high: Decimal | None, open_low: bool, open_high: bool) -> Form:
    """Numbers of which none is negative."""
    if high is not None and (low > high or (low == high and (open_low or open_high))):
        return NOTHING
    whole, fraction = _split(low)
    if high is None:
        above = sequence(_naturals(whole + 1, None), optional(_FRACTION))
        return choice(sequence(str(whole), _fractions(fraction, None, open_low, False)), above)
    top, top_fraction = _split(high)
    if whole == top:
        return sequence(str(whole), _fractions(fraction, top_fraction, open_low, open_high))
    between = sequence(_naturals(whole + 1, top - 1), optional(_FRACTION))
    return choice(
        sequence(str(whole), _fractions(fraction, None, open_low, False)),
        between,
        sequence(str(top), _fractions("", top_fraction, False, open_high)),
    )


def _split(value: Decimal) -> tuple[int, str]:
    """The whole part, and the digits behind the point without zeros at the end."""
    whole, _, fraction = f"{value:f}".partition(".")
    return int(whole), fraction.rstrip("0")


def _fractions(low: str, high: str | None, open_low: bool, open_high: bool) -> Form:
    """`.` and digits between those of two bounds, or nothing, which is `.0`; `high` None is no bound."""
    bare = EMPTY if not low and not open_low and (high or not open_high) else NOTHING
    digits = _tail(low, high, open_low, open_high)
    return choice(bare, sequence(".", digits))


def _tail(low: str, high: str | None, open_low: bool, open_high: bool) -> Form:
    """At least one digit more: between two bounds, of which what is read so far is the beginning."""
    more = repeat(_DIGIT, 0, MAX_DIGITS)
    if high is None and not low and not open_low:
        return repeat(_DIGIT, 1, MAX_DIGITS)
    if high == "" and low == "":
        return NOTHING if open_high or open_low else repeat(chars("0"), 1, MAX_DIGITS)
    bottom = int(low[:1] or 0)
    top = 9 if high is None else int(high[:1] or 0)
    options: list[Form] = []
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
    return choice(*options)


def _ending(low: str, high: str | None, open_low: bool, open_high: bool) -> Form:
    """The end here, if the digits so far lie between the bounds, or more digits."""
    ends = not low and not open_low and not (high == "" and open_high)
    if low == "" and high is None:
        more = repeat(_DIGIT, 0, MAX_DIGITS)
        # After the digits of an open bound something must make it more.
        return sequence(repeat("0", 0, MAX_DIGITS), chars("1-9"), more) if open_low else more
    if high == "" and low == "":
        return repeat("0", 0, MAX_DIGITS) if ends else NOTHING
    return choice(EMPTY if ends else NOTHING, _tail(low, high, open_low, open_high))
