"""Upper bounds of the sizes of results, computed before an operation runs.

Most operations of a template return at most a few times the size of their operands,
and counting the result afterwards is enough. The exceptions are here, by the name
of the operator, string method or filter: those whose result grows with the
*product* of their operands (`"a" * n`, `replace`, `center`), and those that split
one string into many small objects (`split`, `list`).

A bound is a number of bytes; infinity forbids the operation. It may be too high or
too low by a small constant factor.
"""

import re
from collections.abc import Callable, Mapping
from math import inf, prod
from typing import Any

from antiphon.render.meter import OBJECT_SIZE, Meter

MAX_INT_BITS = 4096
"""Integers beyond this are not multiplied or divided: the time for that grows with the square."""

MAX_FIELD = 9999
"""The widest field or longest fraction that a format string may ask for, in characters."""

Bound = Callable[..., float]
"""`bound(meter, subject, *args, **kwargs)`, called with the arguments of the operation."""

_DIGITS = rf"\d{{{len(str(MAX_FIELD)) + 1},}}"
# A `*` takes the width from the arguments, and so does a nested field: both are forbidden.
_WIDE_PERCENT = re.compile(rf"(?<!\d){_DIGITS}+(?:\.\d*+)?[a-zA-Z%]|%[^a-zA-Z%]*\*")
_WIDE_BRACES = re.compile(rf"\{{[^{{}}]*({_DIGITS}|\{{)")


def size(value: Any) -> int:
    """The factor that `value` is in a product: a number itself, anything else its length."""
    if isinstance(value, int | float):
        return int(min(abs(value), 2**62))
    return len(value) if hasattr(type(value), "__len__") else 1


def product(_: Meter, *args: Any, **kwargs: Any) -> float:
    """At most as long as all operands multiplied."""
    return prod(max(1, size(value)) for value in (*args, *kwargs.values()))


def pieces(_: Meter, subject: Any, *__: Any, **___: Any) -> float:
    """At most one object for each character or part."""
    return OBJECT_SIZE * size(subject)


def split(_: Meter, subject: Any, sep: Any = None, *__: Any, **___: Any) -> float:
    """One string for each separator, and a copy of the text."""
    count = subject.count(sep) if sep else len(subject)
    return len(subject) + OBJECT_SIZE * (1 + float(count))


def replace(_: Meter, subject: Any, old: Any, new: Any = "", *__: Any, **___: Any) -> float:
    """The new text at every place where the old one may match."""
    return size(subject) + (size(subject) // max(1, size(old)) + 1.0) * size(new)


def joined(meter: Meter, separator: Any, parts: Any) -> float:
    """`separator.join(parts)`: all parts, and a separator for each."""
    return meter.weigh(parts) + float(size(parts)) * size(separator)


def join(meter: Meter, parts: Any, separator: Any = "", *_: Any, **__: Any) -> float:
    """The filter: its subject are the parts."""
    return joined(meter, separator, parts)


def percent(meter: Meter, subject: Any, *args: Any, **kwargs: Any) -> float:
    """Every field of a `%` format may print all arguments."""
    return _fields(meter, str(subject), "%", _WIDE_PERCENT, [*args, *kwargs.values()])


def braces(meter: Meter, subject: Any, *args: Any, **kwargs: Any) -> float:
    """Every field of a `{}` format may print all arguments."""
    return _fields(meter, str(subject).replace("{{", ""), "{", _WIDE_BRACES, [*args, *kwargs.values()])


def _fields(meter: Meter, text: str, mark: str, wide: re.Pattern[str], arguments: list[Any]) -> float:
    if wide.search(text):
        return inf
    return len(text) + text.count(mark) * float(sum(map(meter.weigh, arguments)) + MAX_FIELD)


def times(_: Meter, left: Any, right: Any) -> float:
    """A sequence, repeated. Two numbers only add their lengths."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        return _arithmetic(left, right)
    slots = OBJECT_SIZE if isinstance(left, list | tuple) or isinstance(right, list | tuple) else 1
    return slots * float(size(left)) * size(right)


def power(_: Meter, left: Any, right: Any) -> float:
    """The bits of the base times the exponent."""
    if isinstance(left, int) and isinstance(right, int):
        return 0 if left.bit_length() * abs(right) <= MAX_INT_BITS else inf
    return 0


def divide(_: Meter, left: Any, right: Any) -> float:
    """The result is small, but large operands take long."""
    return _arithmetic(left, right)


def modulo(meter: Meter, left: Any, right: Any) -> float:
    """A format or a remainder."""
    return percent(meter, left, right) if isinstance(left, str | bytes) else _arithmetic(left, right)


def _arithmetic(left: Any, right: Any) -> float:
    huge = any(isinstance(value, int) and value.bit_length() > MAX_INT_BITS for value in (left, right))
    return inf if huge else 0


def rounding(_: Meter, __: Any, precision: Any = 0, *___: Any, **____: Any) -> float:
    """Rounding works with ten to the power of `precision`."""
    return size(precision)


def total(_: Meter, __: Any, attribute: Any = None, start: Any = 0) -> float:
    """Numbers only: a sum of lists copies the elements once for each list."""
    return 0 if isinstance(start, int | float) else inf


OPERATORS: Mapping[str, Bound] = {"*": times, "**": power, "%": modulo, "/": divide, "//": divide}

METHODS: Mapping[str, Bound] = {
    "center": product,
    "expandtabs": product,
    "format": braces,
    "format_map": braces,
    "join": joined,
    "ljust": product,
    "replace": replace,
    "rjust": product,
    "rsplit": split,
    "split": split,
    "splitlines": pieces,
    "zfill": product,
}
"""Methods of strings."""

FILTERS: Mapping[str, Bound] = {
    "batch": product,
    "center": product,
    "format": percent,
    "groupby": pieces,
    "indent": product,
    "join": join,
    "list": pieces,
    "replace": replace,
    "round": rounding,
    "slice": product,
    "sort": pieces,
    "sum": total,
    "unique": pieces,
}
