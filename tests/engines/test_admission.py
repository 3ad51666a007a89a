from itertools import count

import pytest

from antiphon.core.errors import EngineBusyError
from antiphon.core.limits import CLIENT, Limits
from antiphon.core.permits import Permit
from antiphon.engines.admission import Admission


class Visitors:
    """Those who want a slot, numbered from 0; `inside` are the numbers of those who got one, in order."""

    def __init__(self, slots, **limits):
        self.admission = Admission(slots, Limits(**limits))
        self.inside = []
        self.permits = []
        self._numbers = count()

    def enter(self, *priorities):
        for priority in priorities:
            self.permits.append(self.admission.enter(self._starter(), priority))

    def _starter(self):
        number = next(self._numbers)
        return lambda: self.inside.append(number)

    def leave(self, number):
        self.permits[number].leave()

    @property
    def load(self):
        return self.admission.running, self.admission.waiting


def test_who_finds_a_slot_begins_at_once():
    visitors = Visitors(2)
    visitors.enter(0, 0)
    assert visitors.inside == [0, 1]
    assert visitors.load == (2, 0)


def test_first_come_first_served():
    visitors = Visitors(1)
    visitors.enter(0, 0, 0)
    assert (visitors.inside, visitors.load) == ([0], (1, 2))
    visitors.leave(0)
    assert (visitors.inside, visitors.load) == ([0, 1], (1, 1))
    visitors.leave(1)
    assert (visitors.inside, visitors.load) == ([0, 1, 2], (1, 0))
    visitors.leave(2)
    assert visitors.load == (0, 0)


def test_a_lower_priority_goes_first():
    visitors = Visitors(1)
    visitors.enter(0, 7, -2, 3, -2, 7)
    for _ in range(6):
        visitors.leave(visitors.inside[-1])
    assert visitors.inside == [0, 2, 4, 3, 1, 5]


def test_who_gave_up_the_place_is_passed_over():
    visitors = Visitors(1)
    visitors.enter(0, 0, 0)
    visitors.leave(1)
    assert visitors.load == (1, 1)
    visitors.leave(0)
    assert (visitors.inside, visitors.load) == ([0, 2], (1, 0))


def test_leaving_again_gives_up_nothing_more():
    visitors = Visitors(1)
    visitors.enter(0, 0, 0)
    for number in (0, 0, 2, 2):
        visitors.leave(number)
    assert (visitors.inside, visitors.load) == ([0, 1], (1, 0))


def test_many_who_gave_up_leave_room_for_others():
    visitors = Visitors(1, waiting=3)
    visitors.enter(0)
    for _ in range(100):
        visitors.enter(0)
        visitors.leave(-1)
    visitors.enter(0, 0, 0)
    assert visitors.load == (1, 3)
    for number in (0, -3, -2, -1):
        visitors.leave(number)
    assert (visitors.inside, visitors.load) == ([0, 101, 102, 103], (0, 0))


def test_too_many_waiting_are_refused():
    visitors = Visitors(1, waiting=1)
    visitors.enter(0, 0)
    with pytest.raises(EngineBusyError):
        visitors.enter(0)
    assert visitors.load == (1, 1)
    visitors.leave(0)
    visitors.enter(0)
    assert visitors.load == (1, 1)


def test_who_begins_may_enter_another():
    admission = Admission(1)
    inside = []

    def begin():
        inside.append("second")
        admission.enter(lambda: inside.append("third"))

    first = admission.enter(lambda: inside.append("first"))
    second = admission.enter(begin)
    first.leave()
    assert (inside, admission.running, admission.waiting) == (["first", "second"], 1, 1)
    second.leave()
    assert inside == ["first", "second", "third"]


def test_slots_are_shared_between_clients() -> None:
    admission, served = Admission(2), []

    def enter(client: str, number: int) -> Permit:
        token = CLIENT.set(client)
        permit = admission.enter(lambda: served.append(f"{client}{number}"))
        CLIENT.reset(token)
        return permit

    first = [enter("a", each) for each in range(5)]
    other = enter("b", 0)
    assert served == ["a0", "a1"]
    first[0].leave()
    assert served[2:] == ["b0"]  # who has none comes before who has one
    other.leave()
    first[1].leave()
    assert served[3:] == ["a2", "a3"]
    assert (admission.running, admission.waiting) == (2, 1)


def test_one_client_cannot_have_all_places() -> None:
    admission = Admission(1, Limits(waiting=5, client_waiting=3))
    admission.enter(lambda: None)
    for _ in range(3):
        admission.enter(lambda: None)
    with pytest.raises(EngineBusyError, match="this client"):
        admission.enter(lambda: None)
    token = CLIENT.set("other")
    admission.enter(lambda: None)
    CLIENT.reset(token)
