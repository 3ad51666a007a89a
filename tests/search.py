"""How widely tests search: as widely as they say, or with `CI=1` less, and the same each time."""

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

from hypothesis import settings

CI = bool(os.environ.get("CI"))
EXAMPLES_IN_CI = 10
CASES_IN_CI = 7
"""Of each test; `make test` tries all of its parameters."""

T = TypeVar("T")

settings.register_profile("search", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=EXAMPLES_IN_CI)
settings.load_profile("ci" if CI else "search")


def examples(wanted: int) -> int:
    """How many examples to try where a search is to be longer, or shorter, than others."""
    return min(wanted, EXAMPLES_IN_CI) if CI else wanted


def share(cases: Iterable[T], of: int = 2) -> list[T]:
    """Of many cases that take long, one in so many, in CI; `make test` tries all."""
    return [*cases][:: of if CI else 1]


def spread(cases: Sequence[T], count: int) -> list[T]:
    """So many of the cases, at equal distances."""
    if len(cases) <= count:
        return [*cases]
    return [cases[number * len(cases) // count] for number in range(count)]
