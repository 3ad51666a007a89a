"""`keep_alive`: when a model is to be unloaded after a request."""

import pytest

from antiphon.apis.ollama.accept import unloads
from antiphon.core.errors import RequestError


@pytest.mark.parametrize("given", [0, 0.0, "0", "0s", "-0", "+0.0h", "0h0m0.0s"])
def test_nothing_keeps_a_model(given: float | str) -> None:
    assert unloads(given)


@pytest.mark.parametrize(
    "given", [None, -1, 300, "-1", "5m", "1.5h", ".5s", "1.s", "1h30m5.5s", "10µs", "0h1ns"]
)
def test_a_time_keeps_it(given: float | str | None) -> None:
    assert not unloads(given)


@pytest.mark.parametrize("given", ["", "s", ".", "5x", "5m 3s", "1..2s", "5m3", "1.2.3", "1" * 100_000 + "x"])
def test_other_texts_are_no_durations(given: str) -> None:
    with pytest.raises(RequestError, match="is not a duration"):
        unloads(given)
