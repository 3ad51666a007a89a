"""Permits come back whatever is cancelled when, nobody is forgotten, and owners take turns."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.core.errors import ClientBusyError
from antiphon.core.limits import CLIENT
from antiphon.core.permits import FIRST, GIVE_BACK, LAST, PRIORITY, Permit, Permits


@contextmanager
def acting_as(owner: str) -> Iterator[None]:
    token = CLIENT.set(owner)
    yield
    CLIENT.reset(token)


def nothing() -> None:
    """Begins no work."""


class Stage:
    """Tasks that hold permits, and the laws of what they see."""

    def __init__(self, permits: Permits, owner_capacity: int) -> None:
        self.permits = permits
        self.owner_capacity = owner_capacity
        self.tasks: list[asyncio.Task[None]] = []
        self.owners: list[str] = []
        self.timeouts: dict[int, asyncio.Timeout] = {}
        self.inside: dict[int, asyncio.Event] = {}

    async def _visit(self, number: int, priority: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as self.timeouts[number], self.permits.hold(priority):
                end = self.inside[number] = asyncio.Event()
                try:
                    await end.wait()
                finally:
                    del self.inside[number]

    def act(self, kind: str, which: int, owner: str, priority: int) -> None:
        if kind == "start":
            with acting_as(owner):
                self.tasks.append(asyncio.create_task(self._visit(len(self.tasks), priority)))
            self.owners.append(owner)
        elif kind == "cancel" and self.tasks:
            self.tasks[which % len(self.tasks)].cancel()
        elif kind == "expire" and self.timeouts:
            number = [*self.timeouts][which % len(self.timeouts)]
            if not (self.tasks[number].done() or self.timeouts[number].expired()):
                self.timeouts[number].reschedule(0)
        elif kind == "end" and self.inside:
            self.inside[[*self.inside][which % len(self.inside)]].set()

    async def settle(self) -> None:
        """Let everything happen that was begun."""
        for _ in range(6):
            await asyncio.sleep(0)

    def check(self) -> None:
        """The laws at any moment at which nothing is under way."""
        running = Counter(self.owners[number] for number in self.inside)
        undone = [number for number, task in enumerate(self.tasks) if not task.done()]
        waiting = [self.owners[number] for number in undone if number not in self.inside]
        assert self.permits.running == running.total() <= self.permits.capacity, "more than there are"
        assert self.permits.waiting == len(waiting)
        assert not running or max(running.values()) <= self.owner_capacity, "more than an owner may have"
        free = running.total() < self.permits.capacity
        assert not free or all(running[each] >= self.owner_capacity for each in waiting), (
            "who waits is forgotten"
        )


async def played(permits: Permits, turns: Any, owner_capacity: int) -> None:
    """Play acts, several in each turn of the loop, and hold the laws."""
    stage = Stage(permits, owner_capacity)
    for turn in turns:
        for act in turn:
            stage.act(*act)
        await asyncio.sleep(0)
        assert len(stage.inside) <= permits.capacity
        if not turn:
            await stage.settle()
            stage.check()
    await stage.settle()
    stage.check()
    while stage.inside:
        for end in stage.inside.values():
            end.set()
        await stage.settle()
    assert all(task.done() for task in stage.tasks), "who waits is forgotten"
    assert (permits.running, permits.waiting) == (0, 0)
    assert not any((permits._lines, permits._running, permits._waiting)), "owners are kept"
    free = [await asyncio.wait_for(permits.acquire(), 1) for _ in range(owner_capacity)]
    for permit in free:
        permit.leave()
    await asyncio.gather(*stage.tasks, return_exceptions=True)


def start(owner: str = "a", priority: int = 0) -> tuple[str, int, str, int]:
    return "start", 0, owner, priority


def on(kind: str, which: int) -> tuple[str, int, str, int]:
    return kind, which, "", 0


HANDED_TO_WHO_LEAVES = [[start()] * 3, [], [on("cancel", 0), on("cancel", 2)]]
HANDED_TO_WHO_IS_LATE = [[start()] * 3, [], [on("end", 0), on("expire", 2)]]
LEAVES_WHILE_WAITING = [[start()] * 4, [], [on("cancel", 3)], [on("end", 0)], []]

acts = st.tuples(
    st.sampled_from(("start", "start", "cancel", "expire", "end")),
    st.integers(0, 9),
    st.sampled_from("abc"),
    st.integers(0, 1),
)


@example(HANDED_TO_WHO_LEAVES, 2, 2)
@example(HANDED_TO_WHO_IS_LATE, 2, 2)
@example(LEAVES_WHILE_WAITING, 3, 2)
@given(st.lists(st.lists(acts, max_size=5), max_size=8), st.integers(1, 3), st.integers(1, 3))
async def test_the_laws_hold_whatever_is_cancelled_in_a_turn(
    turns: Any, capacity: int, owner_capacity: int
) -> None:
    owner_capacity = min(capacity, owner_capacity)
    await played(Permits(capacity, owner_capacity=owner_capacity), turns, owner_capacity)


class GivesFutures(Permits):
    """A permit is the result of a future, which may have been cancelled."""

    async def acquire(self, priority: int = 0) -> Permit:
        given = asyncio.get_running_loop().create_future()
        permit = self.enter(lambda: given.set_result(None), priority)
        if permit.given:
            return permit
        try:
            await given
        except asyncio.CancelledError:
            if not permit.given:
                permit.leave()
            raise
        return permit

    def _give(self, permit: Permit) -> None:
        start, permit.start = permit.start, nothing
        super()._give(permit)
        assert start is not None
        start()


class LosesWhatWasJustGiven(Permits):
    """Who is cancelled while waiting believes to have no permit."""

    async def acquire(self, priority: int = 0) -> Permit:
        given = asyncio.Event()
        permit = self.enter(given.set, priority)
        try:
            await given.wait()
        except asyncio.CancelledError:
            if not permit.given:
                permit.leave()
            raise
        return permit


class ForgetsWhoWaits(Permits):
    """A permit that comes back is not handed on."""

    def _first(self) -> Permit | None:
        return None


class ForgetsWhoLeaves(Permits):
    """Who leaves the queue stays in it."""

    def leave(self, permit: Permit) -> None:
        if permit.given:
            super().leave(permit)


class GivesTooMuch(Permits):
    """An owner may have all permits."""

    def _may_run(self, owner: str) -> bool:
        return True


@pytest.mark.parametrize(
    ("fault", "turns"),
    [
        (GivesFutures, HANDED_TO_WHO_LEAVES),
        (GivesFutures, HANDED_TO_WHO_IS_LATE),
        (LosesWhatWasJustGiven, HANDED_TO_WHO_LEAVES),
        (LosesWhatWasJustGiven, HANDED_TO_WHO_IS_LATE),
        (ForgetsWhoWaits, [[start()] * 3, [], [on("end", 0)]]),
        (ForgetsWhoLeaves, LEAVES_WHILE_WAITING),
        (GivesTooMuch, [[start()] * 3, []]),
    ],
)
async def test_the_laws_find_each_fault(fault: type[Permits], turns: Any) -> None:
    with pytest.raises(AssertionError):
        await played(fault(3, owner_capacity=2), turns, 2)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def entered(permits: Permits, owner: str, start: Callable[[], object] = nothing, priority: int = 0) -> Permit:
    with acting_as(owner):
        return permits.enter(start, priority)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from("abc"), st.integers(0, 1)), max_size=40
    ),
    st.integers(1, 3),
)
def test_a_free_permit_goes_to_the_fewest_and_then_to_who_was_served_the_longest_ago(
    acts: Any, capacity: int
) -> None:
    """Against a list of those who wait, which is searched."""
    permits, holds, waits = Permits(capacity), list[Permit](), list[Permit]()
    turn_of: dict[tuple[int, str], int] = {}  # of a line: when it was served last, or began
    for now, (enters, which, owner, priority) in enumerate(acts):
        if enters:
            permit = entered(permits, owner, priority=priority)
            (holds if permit.given else waits).append(permit)
            if not permit.given:
                turn_of.setdefault((priority, owner), now)
        elif holds:
            running = Counter(each.owner for each in holds)
            left = holds.pop(which % len(holds))
            running[left.owner] -= 1
            left.leave()
            if waits:
                first = min(
                    waits,
                    key=lambda it: (it.priority, running[it.owner], turn_of[it.priority, it.owner]),
                )
                assert [each for each in waits if each.given] == [first]
                waits.remove(first)
                holds.append(first)
                turn_of[first.priority, first.owner] = now
        lines = {(each.priority, each.owner) for each in waits}
        turn_of = {line: turn for line, turn in turn_of.items() if line in lines}
        assert (permits.running, permits.waiting) == (len(holds), len(waits))


def test_who_comes_again_and_again_does_not_keep_a_queue_from_its_turn() -> None:
    """Two owners have one request at a time, and come back at once; a third has a queue."""
    permits, served = Permits(1), list[str]()
    present = [entered(permits, owner) for owner in (*["queue"] * 4, "one", "two")]
    for _ in range(10):
        running = next(each for each in present if each.given)
        served.append(running.owner)
        present.remove(running)
        if running.owner != "queue":
            present.append(entered(permits, running.owner))
        running.leave()
    assert Counter(served[1:]) == {"queue": 3, "one": 3, "two": 3}


def test_too_many_who_wait_are_refused() -> None:
    permits = Permits(1, queue=3, owner_queue=2)
    holds = entered(permits, "a")
    waits = [entered(permits, "a"), entered(permits, "a")]
    with pytest.raises(ClientBusyError):
        entered(permits, "a")
    entered(permits, "b")
    with pytest.raises(ClientBusyError):
        entered(permits, "c")
    waits[0].leave()
    entered(permits, "c")
    holds.leave()
    holds.leave()
    assert (permits.running, permits.waiting) == (1, 2)


def test_a_start_that_fails_costs_no_permit() -> None:
    permits = Permits(1)
    with pytest.raises(ZeroDivisionError):
        permits.enter(lambda: divmod(1, 0))
    holds = permits.enter(nothing)
    permits.enter(lambda: divmod(1, 0))
    last = permits.enter(nothing)
    with pytest.raises(ZeroDivisionError):
        holds.leave()
    assert (permits.running, permits.waiting, last.given) == (1, 0, True)


async def test_work_that_cannot_be_cancelled_keeps_its_permit_until_it_ends() -> None:
    permits, working = Permits(1), [asyncio.get_running_loop().create_future() for _ in range(3)]
    tasks = [asyncio.create_task(permits.run(lambda work=work: work)) for work in working]  # type: ignore[misc]
    await asyncio.sleep(0)
    for leaves in tasks[:2]:
        leaves.cancel()
    await asyncio.gather(*tasks[:2], return_exceptions=True)
    assert (permits.running, permits.waiting) == (1, 1)
    working[0].set_exception(ZeroDivisionError())  # nobody is told
    working[2].set_result("last")
    assert await tasks[2] == "last"
    await asyncio.sleep(0)
    assert (permits.running, working[1].done()) == (0, False)
    with pytest.raises(ZeroDivisionError):
        await permits.run(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert permits.running == 0


@contextmanager
def working_as(owner: str, priority: int, give_back: Callable[[], object] | None = None) -> Iterator[None]:
    tokens = CLIENT.set(owner), PRIORITY.set(priority), GIVE_BACK.set(give_back)
    yield
    CLIENT.reset(tokens[0])
    PRIORITY.reset(tokens[1])
    GIVE_BACK.reset(tokens[2])


def test_work_that_nobody_waits_for_is_last_whatever_it_asks_for() -> None:
    permits, begun = Permits(1), list[str]()
    first = permits.enter(nothing)
    with working_as("batch", LAST):
        permits.enter(lambda: begun.append("batch"), -5)
    with acting_as("person"):
        second = permits.enter(lambda: begun.append("person"), 1_000_000)
    first.leave()
    assert begun == ["person"]
    second.leave()
    assert begun == ["person", "batch"]


def test_the_newest_permit_is_asked_back_once_for_each_who_waits() -> None:
    permits, asked = Permits(3), list[int]()

    def enter(number: int) -> Permit:
        with working_as("batch", LAST, lambda: asked.append(number)):
            return permits.enter(nothing)

    held = [enter(number) for number in range(3)]
    waits = enter(3)  # whose priority is the same
    assert asked == []
    with acting_as("person"):
        person = permits.enter(nothing)
        assert asked == [2]
        held[1].leave()
        assert person.given
        permits.enter(nothing)
        assert asked == [2, 0]  # the second was left
        permits.enter(nothing)
        assert asked == [2, 0]  # all were asked
    assert not waits.given


def test_a_permit_is_not_asked_back_while_there_is_room() -> None:
    permits, asked = Permits(2), list[int]()
    with working_as("batch", LAST, lambda: asked.append(0)):
        permits.enter(nothing)
    with acting_as("person"):
        assert permits.enter(nothing).given
    assert asked == []


def test_work_that_nobody_waits_for_takes_no_place_from_others() -> None:
    permits = Permits(1, queue=2)
    permits.enter(nothing)
    with working_as("batch", LAST):
        places = [permits.enter(nothing) for _ in range(2)]
        with pytest.raises(ClientBusyError):
            permits.enter(nothing)
    with acting_as("person"):
        places += [permits.enter(nothing) for _ in range(2)]
        with pytest.raises(ClientBusyError):
            permits.enter(nothing)
        places[0].leave()
        with pytest.raises(ClientBusyError):
            permits.enter(nothing)
        places[2].leave()
        permits.enter(nothing)


def test_an_answer_that_goes_on_waits_first_and_is_refused_nothing() -> None:
    permits = Permits(1, queue=1, owner_queue=1)
    running, waiting = entered(permits, "a"), entered(permits, "a", priority=-(2**63))
    with pytest.raises(ClientBusyError):
        entered(permits, "b", priority=-(2**63))  # that a client may ask for
    with working_as("a", FIRST):
        first = permits.enter(nothing)
    running.leave()
    assert first.given
    assert not waiting.given
    first.leave()
    assert waiting.given
    waiting.leave()
