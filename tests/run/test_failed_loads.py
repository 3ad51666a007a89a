"""How often a model that cannot be loaded is tried, whoever asks for it."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import ModelNotLoadedError
from antiphon.run import failed_loads
from antiphon.run.failed_loads import MAX_RETRY_AFTER, MAX_RETRY_SECONDS, FailedLoads


class Clock:
    """The loop's clock."""

    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True, scope="module")
def _timed(clock: Clock) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failed_loads, "_now", clock.time)
        yield


def tries(failed: FailedLoads, clock: Clock, waits: list[float], load: Callable[[], bool]) -> list[float]:
    """When a model is tried, that is wanted after each of these waits."""
    times, afters = [], []
    for wait in waits:
        clock.now += wait
        try:
            failed.check("m", 0)
        except ModelNotLoadedError as error:
            afters.append(error.retry_after or 0)
            continue
        times.append(clock.now)
        if load():
            failed.forget("m")
        else:
            failed.add("m", 0)
    assert all(0 < after <= MAX_RETRY_AFTER for after in afters)
    return times


@given(st.lists(st.floats(0, 100), max_size=300))
def test_a_broken_model_is_tried_at_growing_intervals(clock: Clock, waits: list[float]) -> None:
    times = tries(FailedLoads(30), clock, waits, lambda: False)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    for number, gap in enumerate(gaps):
        assert gap >= min(30 * 2.0**number, MAX_RETRY_SECONDS) - 1e-6


def test_requests_all_day_cost_others_their_place_some_thirty_times(clock: Clock) -> None:
    times = tries(FailedLoads(30), clock, [1.0] * 24 * 3600, lambda: False)
    assert len(times) <= 24 + 8


def test_a_success_begins_anew(clock: Clock) -> None:
    failed, results = FailedLoads(30), iter((False, False, True, False))
    times = tries(failed, clock, [0, 30, 60, 1], lambda: next(results))
    assert len(times) == 4
    clock.now += 30
    failed.check("m", 0)


def test_a_model_whose_files_have_changed_is_due(clock: Clock) -> None:
    failed = FailedLoads(30)
    failed.add("m", "old")
    failed.check("m", "new")
    failed.check("other", "old")
    with pytest.raises(ModelNotLoadedError, match="'m' could not be loaded"):
        failed.check("m", "old")
    failed.add("m", "new")  # it counts from the beginning
    clock.now += 30
    failed.check("m", "new")
