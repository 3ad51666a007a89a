"""What other servers have told of their work counts until it is too old, and never longer."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.shared_loads import LEASE_SECONDS, OtherLoads, ToldLoads, shared_name

SECONDS = st.floats(0, 4)
LOADS = st.dictionaries(st.sampled_from("xyz"), st.integers(1, 9), max_size=3)


@given(st.lists(st.tuples(st.lists(st.tuples(SECONDS, LOADS), max_size=4), SECONDS), max_size=5), SECONDS)
def test_nothing_counts_longer_than_its_lease(
    answers: list[tuple[list[tuple[float, dict[str, int]]], float]], late: float
) -> None:
    others, now = OtherLoads(), 0.0
    last: list[tuple[float, dict[str, int]]] = []
    for told, seconds in answers:
        others.hear([ToldLoads(f"{n}", age, loads) for n, (age, loads) in enumerate(told)], now)
        last = [(now - age, loads) for age, loads in told]
        now += seconds
    now += late
    counted = Counter[str]()
    for at, loads in last:
        if at + LEASE_SECONDS > now:
            counted.update(loads)
    assert others.sums(now) == counted
    assert others.until is None or now < others.until <= now + LEASE_SECONDS


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("http://gpu-1:8000", "http://gpu-1:8000"),
        ("HTTP://GPU-1:8000/", "http://gpu-1:8000"),
        ("http://user:word@gpu-1", "http://gpu-1:80"),
        ("https://10.0.0.7/v1", "https://10.0.0.7:443/v1"),
        ("http://gpu:99999", None),
        ("http://127.0.0.1:8001", "http://127.0.0.1:8001 here"),
        ("http://[::1]:8001", "http://[::1]:8001 here"),
        ("http://localhost", "http://localhost:80 here"),
        ("model.gguf", None),
        ("org/model", None),
        ("http://", None),
        ("http://[broken", None),
        ("", None),
    ],
)
def test_only_servers_are_shared_and_loopback_is_of_one_machine(name: str, shared: str | None) -> None:
    assert shared_name(name, "here") == shared
