"""Limits the work of compiling one request's schemas, patterns and grammars.

Alternatives multiply, oneOf compares pairs, a pattern may need a large DFA: limits on each of these do not
bound their product, so all share one budget.
"""

MAX_WORK = 400_000
"""Units of work for one request; a unit takes some µs."""


class TooMuchWorkError(Exception):
    """The budget is used up."""


class WorkBudget:
    """The rest of the budget. Raises `TooMuchWorkError` when it is used up."""

    def __init__(self, units: int = MAX_WORK) -> None:
        self._left = units

    def spend(self, units: int) -> None:
        """Count work."""
        self._left -= units
        if self._left < 0:
            raise TooMuchWorkError
