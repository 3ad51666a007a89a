"""Slots go to who was served the fewest tokens; nobody saves up turns, and nobody is forgotten."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.limits import CLIENT
from antiphon.core.permits import Permits
from antiphon.engines.admission import GENERATED_WEIGHT, Admission, Slot

LONGEST = 1000
"""The most tokens of an answer here, and of a prompt."""


@contextmanager
def acting_as(owner: str) -> Iterator[None]:
    token = CLIENT.set(owner)
    yield
    CLIENT.reset(token)


class Clients:
    """Clients that wait all the time, each with two requests more than are answered."""

    def __init__(self, admission: Admission, sizes: dict[str, list[tuple[int, int]]]) -> None:
        self.admission = admission
        self.sizes = sizes
        self.running: list[tuple[Slot, int]] = []
        self.served = dict.fromkeys(sizes, 0.0)
        self.asked = dict.fromkeys(sizes, 0)
        for owner in sizes:
            self.come(owner)

    def come(self, owner: str) -> None:
        """A client comes, with as many requests as keep it waiting."""
        for _ in range(self.admission.capacity + 2):
            self.ask(owner)

    def ask(self, owner: str) -> None:
        """One more request."""
        sizes = self.sizes[owner]
        prompt, answer = sizes[self.asked[owner] % len(sizes)]
        self.asked[owner] += 1
        with acting_as(owner):
            slot = self.admission.enter(lambda: None, 0, (prompt, LONGEST))
        self.running.append((slot, answer))

    def end(self, which: int) -> None:
        """One of the answers that run ends, and its client asks again."""
        given = [entry for entry in self.running if entry[0].given]
        slot, answer = entry = given[which % len(given)]
        self.running.remove(entry)
        slot.generated = answer
        self.served[slot.owner] += slot.prompt_tokens + GENERATED_WEIGHT * answer
        self.ask(slot.owner)
        slot.leave()

    def check(self) -> None:
        """Those who wait were served the same, up to what the slots hold, and were not charged yet."""
        bound = 2 * (self.admission.capacity + 1) * (1 + GENERATED_WEIGHT) * LONGEST
        assert max(self.served.values()) - min(self.served.values()) <= bound


def served(admission: Admission, sizes: Any, ends: list[int]) -> Clients:
    clients = Clients(admission, sizes)
    for which in ends:
        clients.end(which)
        clients.check()
    return clients


SIZE = st.tuples(st.integers(1, LONGEST), st.integers(0, LONGEST))


@given(
    st.dictionaries(st.sampled_from("abc"), st.lists(SIZE, min_size=1, max_size=3), min_size=2, max_size=3),
    st.integers(1, 4),
    st.lists(st.integers(0, 9), max_size=200),
)
def test_those_who_wait_are_served_the_same_tokens(sizes: Any, slots: int, ends: list[int]) -> None:
    served(Admission(slots), sizes, ends)


LONG, SHORT = {"a": [(10, LONGEST)], "b": [(10, 10)]}, [0] * 400


def test_a_client_with_short_answers_gets_more_of_them() -> None:
    clients = served(Admission(1), LONG, SHORT)
    assert clients.asked["b"] > 30 * clients.asked["a"]


@contextmanager
def planted(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any) -> Iterator[None]:
    monkeypatch.setattr(Admission, name, wrong)
    with pytest.raises(AssertionError):
        yield


def test_the_law_finds_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    with planted(monkeypatch, "_share", Permits._share):  # the same number of answers
        served(Admission(1), LONG, SHORT)
    monkeypatch.undo()
    with planted(monkeypatch, "_settle", lambda *_: None):  # all answers are as long as the first guess
        served(Admission(1), LONG, SHORT)


def comes_late(admission: Admission) -> tuple[int, int]:
    """How many of the next 40 answers a client gets that comes after 1,000 of another, and how many that."""
    clients = Clients(admission, {"a": [(10, 10)]})
    for _ in range(1000):
        clients.end(0)
    clients.sizes["b"], clients.served["b"], clients.asked["b"] = [(10, 10)], 0.0, 0
    clients.come("b")
    before = clients.served["a"]
    for _ in range(40):
        clients.end(0)
    return int(clients.served["b"] / 30), int((clients.served["a"] - before) / 30)


def test_who_comes_late_has_not_saved_up_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    for slots in (1, 3):
        new, old = comes_late(Admission(slots))
        assert new + old == 40
        assert abs(new - old) <= 14  # its first answer counts as a longer one
    monkeypatch.setattr(Admission, "_lift", lambda self, owner: self._counters.setdefault(owner, 0.0))
    new, old = comes_late(Admission(1))
    assert new - old > 14


def test_nothing_is_kept_of_who_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.engines.admission.KEPT_CLIENTS", 20)
    admission = Admission(1)
    with acting_as("stays"):
        first = admission.enter(lambda: None)
    for number in range(1000):
        with acting_as(f"{number}"):
            admission.enter(lambda: None, 0, (0, 0)).leave()
    assert len(admission._counters) <= 22
    first.leave()
    assert not admission._counters
    assert not admission._guesses
