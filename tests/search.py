"""How hypothesis searches: as long as a test asks for, or shorter and the same each time, with `CI=1`."""

import os

from hypothesis import settings

CI = bool(os.environ.get("CI"))
EXAMPLES_IN_CI = 20

settings.register_profile("search", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=EXAMPLES_IN_CI)
settings.load_profile("ci" if CI else "search")


def examples(wanted: int) -> int:
    """How many examples to try where a search is to be longer, or shorter, than others."""
    return min(wanted, EXAMPLES_IN_CI) if CI else wanted
