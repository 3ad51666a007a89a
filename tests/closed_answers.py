"""Answers that are cut by a limit and closed, in tests that ask for the same answer twice."""

import pytest

from antiphon.run import closing


def cut_at_the_same_place(patch: pytest.MonkeyPatch) -> None:
    """Cut an answer at the same place each time.

    While the engine writes, more of it is passed on, and so cannot be cut any more, if the way out is known
    earlier. That depends on how quick the machine is; `tests/run/test_closing.py` has it at any time.
    """
    patch.setattr(closing, "MAX_PLACES", 10_000)
    patch.setattr(closing.ClosedGeneration, "_look_on", lambda _: None)
