"""How much work one request's schemas, patterns and grammars may cost to compile.

Alternatives multiply, oneOf compares pairs, a pattern may need a large DFA: no
limit on one of these bounds their product, so all spend from one budget.
"""

MAX_WORK = 400_000
"""Units of work for one request; a unit takes some µs."""


class TooMuchWorkError(Exception):
    """The budget is used up."""


class WorkBudget:
    """The work that is left. Raises `TooMuchWorkError` when there is none."""

    def __init__(self, units: int = MAX_WORK) -> None:
        self._left = units

    def spend(self, units: int) -> None:
        """Count so many units as done."""
        self._left -= units
        if self._left < 0:
            raise TooMuchWorkError
