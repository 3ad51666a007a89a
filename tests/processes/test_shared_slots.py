"""Slots of several processes: never given twice, none free while somebody waits, to whom was served the least."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import AntiphonError
from antiphon.core.limits import CLIENT
from antiphon.core.shared_queue import Standing, checksum
from antiphon.engines.admission import GENERATED_WEIGHT, Slot
from antiphon.engines.shared_admission import SharedAdmission
from antiphon.processes.table import CLIENTS, ENGINES, OtherProcesses, Table, create

ROWS = 3
LONGEST = 1000
"""The most tokens of an answer here, and of a prompt."""
RINGS = 200
"""So many rings without an end are a circle."""

Size = tuple[int, int]


@contextmanager
def acting_as(owner: str) -> Iterator[None]:
    token = CLIENT.set(owner)
    yield
    CLIENT.reset(token)


class World:
    """Processes that share the slots of an engine. Bells and timers come when they are let."""

    def __init__(
        self,
        shared: Table,
        capacity: int,
        kind: type[SharedAdmission] = SharedAdmission,
        queue: type[OtherProcesses] = OtherProcesses,
    ) -> None:
        self.shared = shared
        self.capacity = capacity
        self.rung: deque[int] = deque()
        self.timers: deque[tuple[int, Callable[[], None]]] = deque()
        self.kind, self.queue = kind, queue
        shared.ring = lambda row, why=b"": self.rung.append(row)  # type: ignore[method-assign]
        self.processes = [self.start(row) for row in range(shared.rows)]
        self.stopped: dict[int, list[Callable[[], None]]] = {}
        """Processes that hear nothing, and what they will hear."""

    def start(self, row: int) -> SharedAdmission:
        """A process in a row, which has been cleared."""
        queue = self.queue(self.shared, row, 0)
        queue.later = lambda call: self.timers.append((row, call))  # type: ignore[method-assign]
        return self.kind(self.capacity, queue)

    def hear(self, most: int = RINGS) -> None:
        """Deliver the bells, or the first of them."""
        for _ in range(most):
            if not self.rung:
                return
            row = self.rung.popleft()
            self.come(row, self.processes[row]._shared.on_free)
        assert most < RINGS, "they ring each other in a circle"

    def come(self, row: int, call: Callable[[], None]) -> None:
        if row in self.stopped:
            self.stopped[row].append(call)
        else:
            call()

    def go_on(self, row: int) -> None:
        """A process that was stopped hears all."""
        for call in self.stopped.pop(row, []):
            call()

    def wait(self) -> None:
        """Let time pass, until nothing happens any more."""
        for _ in range(RINGS):
            self.hear()
            if not self.timers:
                return
            self.come(*self.timers.popleft())
        raise AssertionError("they wait for each other in a circle")

    def kill(self, row: int) -> None:
        """A process dies, and is replaced."""
        self.shared.clear(row)
        self.timers = deque(timer for timer in self.timers if timer[0] != row)
        self.processes[row] = self.start(row)
        self.rung.extend(range(self.shared.rows))  # as the supervisor does
        self.stopped.pop(row, None)

    def enter(self, row: int, owner: str = "", size: Size = (10, LONGEST), priority: int = 0) -> Slot:
        with acting_as(owner):
            return self.processes[row].enter(lambda: None, priority, size)

    def check(self) -> None:
        """What is told is so; slots are not given twice, and none stays free."""
        given = [self.shared.permits(row, 0) for row in range(ROWS)]
        assert given == [(own.running, own.waiting) for own in self.processes]
        running = sum(number for number, _ in given)
        assert running <= self.capacity
        waits = any(own.waiting for row, own in enumerate(self.processes) if row not in self.stopped)
        if not self.rung and not self.timers and waits:
            assert running == self.capacity, "a slot stays free"
        for row, own in enumerate(self.processes):
            standings = [standing for other, standing in self.shared.standings(0) if other == row]
            assert {standing.client: standing.waiting for standing in standings} == {
                checksum(owner): own._waiting.get(owner, 0) for owner in own._counters
            }
            assert all(standing.begun >= 0 for standing in standings)


@contextmanager
def world(capacity: int, **kinds: Any) -> Iterator[World]:
    descriptor = create(ROWS)
    try:
        yield World(Table(descriptor), capacity, **kinds)
    finally:
        os.close(descriptor)


# Slots

acts = st.tuples(
    st.sampled_from(["enter", "enter", "leave", "hear", "wait", "kill", "stop", "go on"]),
    st.integers(0, ROWS - 1),
    st.integers(0, 20),
)


def do(processes: World, held: list[list[Slot]], act: str, row: int, which: int) -> None:
    """Do one of the acts. A process that is stopped does nothing."""
    match act:
        case "kill":
            processes.kill(row)
            held[row] = []
        case "go on":
            processes.go_on(row)
        case "hear":
            processes.hear(1)
        case "wait":
            processes.wait()
        case _ if row in processes.stopped:
            pass
        case "stop":
            processes.stopped[row] = []
        case "enter":
            held[row].append(processes.enter(row, "abc"[which % 3], priority=which % 2))
        case "leave" if held[row]:
            held[row].pop(which % len(held[row])).leave()


def play(turns: list[tuple[str, int, int]], capacity: int, **kinds: Any) -> None:
    """Play the acts, and check the laws after each."""
    with world(capacity, **kinds) as processes:
        held: list[list[Slot]] = [[] for _ in range(ROWS)]
        for act, row, which in turns:
            do(processes, held, act, row, which)
            processes.check()
        processes.wait()
        processes.check()
        for row in range(ROWS):
            processes.go_on(row)
        processes.wait()
        processes.check()


@given(st.lists(acts, max_size=40), st.integers(1, 3))
def test_slots_are_shared_and_none_is_left_free(turns: list[tuple[str, int, int]], capacity: int) -> None:
    play(turns, capacity)


class Silent(OtherProcesses):
    """A fault: it rings nobody."""

    def ring(self, process: int) -> None:
        pass


class Blind(OtherProcesses):
    """A fault: it does not see what others have."""

    running = property(lambda _: 0)


class Circling(SharedAdmission):
    """A fault: each thinks that others go first."""

    def _turns(self) -> Any:
        turns = super()._turns()
        return [turn for turn in turns if turn[3] != self._shared.own] or turns


@pytest.mark.parametrize(
    ("fault", "turns"),
    [
        ({"queue": Silent}, [("enter", 0, 0), ("enter", 1, 0), ("leave", 0, 0)]),
        ({"queue": Blind}, [("enter", 0, 0), ("enter", 1, 0)]),
        (
            {"kind": Circling},
            [("enter", 0, 0), ("enter", 1, 0), ("enter", 2, 0), ("leave", 0, 0)],
        ),
    ],
)
def test_the_laws_find_each_fault(fault: Any, turns: Any) -> None:
    play(turns, 1)
    with pytest.raises(AssertionError):
        play(turns, 1, **fault)


def test_an_offer_to_a_process_whose_client_has_left_goes_on() -> None:
    with world(1) as processes:
        running = processes.enter(0)
        left, waiting = processes.enter(1), processes.enter(2)
        running.leave()
        left.leave()
        processes.hear()
        assert waiting.given


def test_who_comes_does_not_take_what_is_meant_for_others() -> None:
    with world(1) as processes:
        running, waiting = processes.enter(0, "a"), processes.enter(1, "b")
        running.leave()
        late = processes.enter(2, "c", priority=1)
        assert not late.given
        processes.hear()
        assert waiting.given


def test_a_process_that_hears_nothing_holds_slots_up_once() -> None:
    with world(1) as processes:
        processes.stopped[1] = []
        running = processes.enter(0)
        first, second, third = processes.enter(1), processes.enter(2), processes.enter(2)
        running.leave()
        processes.hear()
        assert not second.given
        processes.wait()
        assert second.given
        second.leave()
        assert third.given  # at once
        waiting = processes.enter(2)
        processes.go_on(1)
        third.leave()
        processes.hear()
        assert first.given
        assert not waiting.given


def test_an_engine_that_is_started_again_has_clients_of_its_own() -> None:
    with world(1) as processes:
        queue = processes.processes[0]._shared
        for number in range(CLIENTS - 1):
            processes.enter(0, f"{number}").leave()
        again = SharedAdmission(1, queue)
        assert not queue.standings()
        for number in range(2 * CLIENTS):
            with acting_as(f"new {number}"):
                again.enter(lambda: None).leave()
        assert len(queue.standings()) < CLIENTS


def test_priority_goes_before_tokens_and_a_tie_to_who_came_first() -> None:
    with world(1) as processes:
        running = processes.enter(0, "x")
        late, urgent = processes.enter(0, "a", priority=1), processes.enter(1, "b", (LONGEST, 0))
        same = [processes.enter(row, "c", priority=2) for row in (2, 0, 1)]
        for slot, following in zip((running, urgent, late, *same), (urgent, late, *same), strict=False):
            slot.leave()
            processes.hear()
            assert following.given


def test_a_priority_of_any_size_can_be_told() -> None:
    with world(1) as processes:
        running = processes.enter(0)
        waiting = processes.enter(1, priority=10**30)
        running.leave()
        processes.hear()
        assert waiting.given


def test_engines_have_slots_of_their_own() -> None:
    with world(1) as processes:
        assert processes.enter(0).given
        shared = processes.shared
        assert SharedAdmission(1, OtherProcesses(shared, 0, 1)).enter(lambda: None).given
        with pytest.raises(AntiphonError, match="at most"):
            OtherProcesses(shared, 0, ENGINES)


# Shares


class Clients:
    """Clients that wait all the time, with the processes where they do."""

    def __init__(self, processes: World, clients: dict[str, tuple[list[Size], list[int]]]) -> None:
        self.world = processes
        self.clients = clients
        self.running: list[tuple[Slot, int, int]] = []
        self.served = dict.fromkeys(clients, 0.0)
        self.asked = dict.fromkeys(clients, 0)
        for owner in clients:
            self.come(owner)

    def come(self, owner: str) -> None:
        for row in self.clients[owner][1]:
            for _ in range(self.world.capacity + 2):
                self.ask(owner, row)

    def ask(self, owner: str, row: int) -> None:
        sizes, _ = self.clients[owner]
        prompt, answer = sizes[self.asked[owner] % len(sizes)]
        self.asked[owner] += 1
        self.running.append((self.world.enter(row, owner, (prompt, LONGEST)), row, answer))

    def end(self, which: int) -> None:
        """One of the answers that run ends, and its client asks again."""
        given = [entry for entry in self.running if entry[0].given]
        if not given:
            return
        slot, row, answer = entry = given[which % len(given)]
        self.running.remove(entry)
        slot.generated = answer
        self.served[slot.owner] += slot.prompt_tokens + GENERATED_WEIGHT * answer
        self.ask(slot.owner, row)
        slot.leave()

    def kill(self, row: int) -> None:
        """A process dies; its clients ask the next one again."""
        lost = [entry for entry in self.running if entry[1] == row]
        self.running = [entry for entry in self.running if entry[1] != row]
        self.world.kill(row)
        for slot, _, _ in lost:
            self.ask(slot.owner, row)

    def check(self, more: int = 0) -> None:
        """They were served the same, up to an answer for each slot and for each process."""
        answer = max(
            prompt + GENERATED_WEIGHT * answer
            for sizes, _ in self.clients.values()
            for prompt, answer in sizes
        )
        most = (self.world.capacity + ROWS + more) * answer
        assert max(self.served.values()) - min(self.served.values()) <= most


SIZE = st.tuples(st.integers(1, LONGEST), st.integers(0, LONGEST))
PLACES = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True)


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.tuples(st.lists(SIZE, min_size=1, max_size=3), PLACES),
        min_size=2,
        max_size=3,
    ),
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["end"] * 8 + ["late", "kill"]), st.integers(0, 9)), max_size=120),
)
def test_those_who_wait_are_served_the_same_tokens(clients: Any, slots: int, turns: Any) -> None:
    with world(slots) as processes:
        waiting, deaths = Clients(processes, clients), 0
        processes.wait()
        for act, which in turns:
            if act == "kill":
                waiting.kill(which % ROWS)
                deaths += 1
            else:
                waiting.end(which)
            if act != "late":
                processes.wait()
            processes.check()
            waiting.check(deaths * slots)


def shares(clients: Any, ends: int, slots: int = 2, **kinds: Any) -> Clients:
    with world(slots, **kinds) as processes:
        waiting = Clients(processes, clients)
        for number in range(ends):
            waiting.end(number)
            processes.wait()
            waiting.check()
    return waiting


EVERYWHERE = {
    "everywhere": ([(10, 500)], [0, 1, 2]),
    "here": ([(10, 500)], [0]),
    "there": ([(100, 20)], [1]),
}


class Own(OtherProcesses):
    """A fault: it counts only what it has served itself."""

    def standings(self) -> Any:
        return [
            (row, standing if row == self.own else standing._replace(counter=0, begun=0))
            for row, standing in super().standings()
        ]

    def total(self, client: int) -> tuple[int, int]:
        own = [standing for _, standing in self.standings() if standing.client == client]
        return sum(standing.counter for standing in own), sum(standing.begun for standing in own)


class Fewest(SharedAdmission):
    """A fault: a slot goes to the process that has the fewest, as it did."""

    def _turns(self) -> Any:
        given = [self._shared._table.permits(row, 0)[0] for row in range(ROWS)]  # type: ignore[attr-defined]
        return [
            (priority, given[process], process, process, *others)
            for priority, _, _, process, *others in super()._turns()
        ]


class Unsettled(SharedAdmission):
    """A fault: the others are not told how long an answer has become."""

    def _settle(self, slot: Slot) -> None:
        pass


@pytest.mark.parametrize("fault", [{"queue": Own}, {"kind": Fewest}, {"kind": Unsettled}])
def test_the_law_of_shares_finds_each_fault(fault: Any) -> None:
    served = shares(EVERYWHERE, 300)
    assert served.asked["there"] > 5 * served.asked["here"]
    with pytest.raises(AssertionError):
        shares(EVERYWHERE, 300, **fault)


def comes_late(**kinds: Any) -> tuple[int, int]:
    """How many of the next 40 answers a client gets that comes after 500 of another, and how many that."""
    with world(2, **kinds) as processes:
        clients = Clients(processes, {"old": ([(10, 10)], [0, 1])})
        for number in range(500):
            clients.end(number)
            processes.wait()
        clients.clients["new"], clients.served["new"], clients.asked["new"] = ([(10, 10)], [2]), 0.0, 0
        clients.come("new")
        before = clients.served["old"]
        for number in range(40):
            clients.end(number)
            processes.wait()
        return int(clients.served["new"] / 30), int((clients.served["old"] - before) / 30)


class Unlifted(SharedAdmission):
    """A fault: who comes late has saved up turns."""

    def _lift(self, owner: str) -> None:
        self._counters.setdefault(owner, 0.0)
        self._publish(owner)


def test_who_comes_late_has_not_saved_up_turns() -> None:
    new, old = comes_late()
    assert new + old == 40
    assert abs(new - old) <= 14  # its first answer counts as a longer one
    new, old = comes_late(kind=Unlifted)
    assert new - old > 14


def after_nobody_has_waited() -> list[str]:
    """Who is next, after one client alone was served in two processes and nobody has waited."""
    with world(1) as processes:
        for number in range(200):
            slot = processes.enter(number % 2, "old")
            slot.generated = 100
            slot.leave()
        running = processes.enter(2, "other")
        new = [processes.enter(2, "new") for _ in range(6)]
        old = [processes.enter(0, "old") for _ in range(6)]
        order: list[str] = []
        slots = [running, *new, *old]
        while running_ones := [slot for slot in slots if slot.given and not slot.left]:
            slot = running_ones[0]
            order.append(slot.owner)
            slot.generated = 100
            slot.leave()
            processes.wait()
        return order[1:]


def test_what_was_served_while_nobody_waited_is_not_held_against_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert after_nobody_has_waited()[:6].count("old") >= 2
    monkeypatch.setattr(OtherProcesses, "raise_floor", lambda *_: None)
    assert after_nobody_has_waited()[:6].count("old") < 2


def test_what_a_process_has_served_counts_when_it_has_died() -> None:
    """Its clients do not begin anew before those of other processes."""

    def next_ones(forgetful: bool) -> list[str]:
        with world(1) as processes:
            clients = Clients(processes, {"a": ([(10, 400)], [0]), "b": ([(10, 400)], [1])})
            for number in range(100):
                clients.end(number)
                processes.wait()
            if forgetful:
                processes.shared._inherit = lambda *_: None  # type: ignore[method-assign]
            clients.clients["a"] = ([(10, 400)], [2])  # they all ask another one
            clients.come("a")
            clients.running = [entry for entry in clients.running if entry[1] != 0]
            processes.kill(0)
            processes.wait()
            before = dict(clients.served)
            for number in range(20):
                clients.end(number)
                processes.wait()
            return [
                owner for owner in "ab" for _ in range(int((clients.served[owner] - before[owner]) / 810))
            ]

    assert 7 <= next_ones(forgetful=False).count("a") <= 13
    assert next_ones(forgetful=True).count("a") == 20


def test_further_clients_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OtherProcesses, "clients", 4)
    names = [f"{number}" for number in range(6)]
    with world(1) as processes:
        clients = Clients(processes, {name: ([(10, 100)], [0, 1]) for name in names})
        clients.served |= {slot.owner: 0.0 for slot, _, _ in clients.running}
        clients.clients |= {owner: ([(10, 100)], [0, 1]) for owner in clients.served}
        clients.asked |= dict.fromkeys(clients.served.keys() - clients.asked.keys(), 0)
        for number in range(200):
            clients.end(number)
            processes.wait()
            processes.check()
        [others] = clients.served.keys() - {*names}
        own = [clients.served[name] for name in names[:3]]
        assert 0.8 < clients.served[others] / own[0] < 1.2
        assert not any(clients.served[name] for name in names[3:])


@given(st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, 12), st.booleans()), max_size=80))
def test_clients_that_have_left_make_room(turns: list[tuple[int, int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch, world(2) as processes:
        patch.setattr(OtherProcesses, "clients", 5)
        held: list[Slot] = []
        for row, number, leaves in turns:
            if leaves and held:
                held.pop(number % len(held)).leave()
            else:
                held.append(processes.enter(row, f"{number}"))
            processes.check()
            assert all(len(own._counters) <= 5 for own in processes.processes)
            assert all(own._counters.keys() == own._checksums.keys() for own in processes.processes)
        for slot in held:
            slot.leave()
        processes.wait()
        processes.check()
        assert processes.enter(0, "new").owner == "new"


def test_what_is_left_of_the_dead_is_bounded() -> None:
    with world(1) as processes:
        shared = processes.shared
        for death in range(3):
            shared.add_engine(0, 0)
            for index in range(CLIENTS):
                shared.set_standing(0, 0, index, Standing(1000 * death + index, 10, 0))
            shared.set_used(0, 0, CLIENTS)
            shared.clear(0)
        assert len(shared.standings(0)) == CLIENTS
        shared.raise_floor(1, 0, 10)
        shared.add_engine(0, 0)
        shared.set_standing(0, 0, 0, Standing(1, 10, 0))
        shared.set_used(0, 0, 1)
        shared.clear(0)
        assert not shared.standings(0)
        assert shared.floor(0) == 10
        shared.clear(1)
        assert shared.floor(0) == 10
