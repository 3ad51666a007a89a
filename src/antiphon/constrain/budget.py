"""Limits of compiling one request's schemas, patterns and grammars.

Alternatives multiply, oneOf compares pairs, a pattern may need a large DFA: limits on each of these do not
bound their product, so all share one budget. It also knows how long an answer can be: a count that no answer
reaches needs no counting.
"""

MAX_WORK = 400_000
"""Units of work for one request; a unit takes some µs."""

LONGEST_ANSWER = 1 << 30
"""Characters; no model has a context for more."""

_DIGITS = 12
"""Of a number with more than these, the rest does not matter: it is out of reach."""


class TooMuchWorkError(Exception):
    """The budget is used up."""


class WorkBudget:
    """The rest of the budget. Raises `TooMuchWorkError` when it is used up.

    No answer has more than `longest` characters.
    """

    def __init__(self, units: int = MAX_WORK, longest: int = LONGEST_ANSWER) -> None:
        self._remaining = units
        self._longest = longest

    def spend(self, units: int) -> None:
        """Count work."""
        self._remaining -= units
        if self._remaining < 0:
            raise TooMuchWorkError

    def within_reach(self, minimum: int, maximum: int | None) -> tuple[int, int | None]:
        """The counts of parts with at least a character, cut to those that an answer can reach."""
        reached = None if maximum is None or maximum >= self._longest else maximum
        return min(minimum, self._longest), reached


def number(digits: str) -> int:
    """The number with these digits; if that is out of reach, another one that is, too."""
    return int(digits.lstrip("0")[:_DIGITS] or "0")
