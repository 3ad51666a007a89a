"""The bounds of numbers that a schema sets."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from antiphon.constrain.merging import Schema

Miss = Callable[[str], None]


def bound(schema: Schema, closed: str, opened: str, tighter: Any, miss: Miss) -> tuple[Decimal | None, bool]:
    """The tighter of two bounds, and whether it is itself excluded. `miss` is told of what is no number."""
    limit, excluded = schema.get(closed), schema.get(opened)
    if excluded is True:  # as draft 4 wrote it
        return _decimal(limit, closed, miss), True
    here, there = _decimal(limit, closed, miss), _decimal(excluded, opened, miss)
    if here is None or there is None:
        return (here, False) if there is None else (there, True)
    return (there, True) if tighter(here, there) == there else (here, False)


def _decimal(value: Any, keyword: str, miss: Miss) -> Decimal | None:
    if value is None or value is False:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 10**300:
        miss(f"{keyword}: it must be a number")
        return None
    return Decimal(repr(value))


def up(limit: Decimal, excluded: bool) -> int:
    """The smallest integer above a bound."""
    whole = int(limit.to_integral_value(rounding="ROUND_CEILING"))
    return whole + 1 if excluded and whole == limit else whole


def down(limit: Decimal, excluded: bool) -> int:
    """The largest integer below a bound."""
    whole = int(limit.to_integral_value(rounding="ROUND_FLOOR"))
    return whole - 1 if excluded and whole == limit else whole
