"""What processes share in memory: their loads, and who watches what in the store."""

import asyncio
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.processes.table import (
    FREE,
    OtherWatches,
    Share,
    Shares,
    State,
    Table,
    create,
)
from antiphon.store.watch import Notifier, Signal


@contextmanager
def table(rows: int) -> Iterator[Table]:
    descriptor = create(rows)
    try:
        yield Table(descriptor)
    finally:
        os.close(descriptor)


class Bells:
    """The bells of processes that are rung, and not heard yet."""

    def __init__(self, shared: Table) -> None:
        self.rung: deque[int] = deque()
        shared.ring = lambda row, why=FREE: self.rung.append(row)  # type: ignore[method-assign]


# Watches of the store


@contextmanager
def watching(rows: int, kind: type[OtherWatches] = OtherWatches) -> Iterator[tuple[list[Notifier], Bells]]:
    """The watches of as many processes."""
    with table(rows) as shared:
        notifiers, watches = [Notifier() for _ in range(rows)], [kind(shared, row) for row in range(rows)]
        for notifier, own in zip(notifiers, watches, strict=True):
            notifier.share(own)
        bells = Bells(shared)

        def ring(row: int, why: bytes = FREE) -> None:
            bells.rung.append(row)
            watches[row].rung(why)

        shared.ring = ring  # type: ignore[method-assign]
        yield notifiers, bells


def is_woken(signal: Signal) -> bool:
    return signal._event.is_set()


watch_acts = st.tuples(
    st.sampled_from(["begin", "end", "tell"]), st.integers(0, 2), st.lists(st.integers(0, 400), min_size=1)
)


def watch_play(turns: list[tuple[str, int, list[int]]], kind: type[OtherWatches] = OtherWatches) -> None:
    """Who watches a topic is woken by all that change it; processes that watch nothing are left alone."""
    with watching(3, kind) as (notifiers, bells), ExitStack() as all_:
        held: list[list[tuple[str, Signal, ExitStack]]] = [[], [], []]
        for act, row, numbers in turns:
            topics = [f"topic {number}" for number in numbers]
            if act == "begin":
                stack = all_.enter_context(ExitStack())
                signal = stack.enter_context(notifiers[row].watch(topics[0]))
                held[row].append((topics[0], signal, stack))
            elif act == "end" and held[row]:
                held[row].pop(numbers[0] % len(held[row]))[2].close()
            elif act == "tell":
                for _, signal, _ in chain(*held):
                    signal._event.clear()
                bells.rung.clear()
                notifiers[row].tell(topics)
                assert all(is_woken(signal) for topic, signal, _ in chain(*held) if topic in topics)
                assert row not in bells.rung
                assert not any(row in bells.rung for row in range(3) if not held[row])


@given(st.lists(watch_acts, max_size=40))
def test_a_change_wakes_who_watches_it_in_any_process(turns: list[tuple[str, int, list[int]]]) -> None:
    watch_play(turns)


class Deaf(OtherWatches):
    """A fault: it tells only one process."""

    def tell(self, topics: Iterable[str]) -> None:
        self._others = self._others[:1]
        super().tell(topics)


class Loud(OtherWatches):
    """A fault: it does not note that nobody watches any more."""

    def end(self, topic: str) -> None:
        pass


class Hasty(OtherWatches):
    """A fault: the end of one watch ends those of topics with the same byte."""

    def end(self, topic: str) -> None:
        self._topics.clear()
        for byte in range(1, 256):
            self._table.set_watches(self._row, byte, False)


@pytest.mark.parametrize(
    ("fault", "turns"),
    [
        (Deaf, [("begin", 2, [1]), ("tell", 0, [1])]),
        (Loud, [("begin", 1, [1]), ("end", 1, [0]), ("tell", 0, [1])]),
        (Hasty, [("begin", 1, [1]), ("begin", 1, [2]), ("end", 1, [0]), ("tell", 0, [2])]),
    ],
)
def test_the_law_of_watches_finds_each_fault(fault: type[OtherWatches], turns: Any) -> None:
    watch_play(turns)
    with pytest.raises(AssertionError):
        watch_play(turns, fault)


def test_a_topic_rings_only_those_who_watch_one_like_it() -> None:
    with watching(2) as (notifiers, bells), notifiers[1].watch("one") as signal:
        notifiers[0].tell(["another"])
        assert not bells.rung
        assert not is_woken(signal)


def test_each_byte_has_its_bit() -> None:
    with table(2) as shared:
        for byte in range(1, 256):
            shared.set_watches(1, byte, True)
            assert [other for other in range(256) if shared.watches(1, other)] == [byte]
            shared.set_watches(1, byte, False)
        assert shared.load(1) == 0
        assert shared.permits(1, 0) == (0, 0)
        assert not any(shared.watches(0, byte) for byte in range(256))


async def test_bells_say_why_they_ring() -> None:
    with table(2) as shared:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        shared._bells = [-1, writing]
        here, there = Shares(shared, 0), Shares(shared, 1)
        heard: list[str] = []
        there.permits().on_free = lambda: heard.append("free")
        notifier = Notifier()
        notifier.share(there.watches)
        there.listen(reading)
        with notifier.watch("topic") as signal:
            here.watches.tell(["topic"])
            assert await signal.changed(10)
            assert not heard
            shared.ring(1)
            assert not await signal.changed(0.05)
            assert heard == ["free"]
            shared.ring(1, FREE * 70_000)  # more than fits
            here.watches.tell(["topic"])
            here.watches.tell(["topic"])
            while not heard[1:]:
                await asyncio.sleep(0.01)
        asyncio.get_running_loop().remove_reader(reading)
        os.close(reading)
        os.close(writing)


# Connections


def shares(shared: Table, loads: list[int], state: State = State.READY) -> list[Share]:
    made = [Share(shared, row) for row in range(len(loads))]
    for share, load in zip(made, loads, strict=True):
        share.enter(state)
        share.run(load)
    return made


@pytest.mark.parametrize(
    ("loads", "least", "crowded"),
    [
        ([0, 0], [True, True], [False, False]),
        ([1, 0], [False, True], [False, False]),  # to move would change nothing
        ([2, 0], [False, True], [True, False]),
        ([10, 9, 8], [False, True, True], [False, False, False]),  # nearly even
        ([12, 8, 8], [False, True, True], [True, False, False]),
    ],
)
def test_who_has_the_least_accepts_and_who_has_too_much_closes(
    loads: list[int], least: list[bool], crowded: list[bool]
) -> None:
    with table(4) as shared:
        made = shares(shared, loads)
        assert [share.is_least for share in made] == least
        assert [share.is_crowded for share in made] == crowded
        assert shared.running == sum(loads)


def test_expected_requests_count_as_load_only() -> None:
    with table(2) as shared:
        one, other = shares(shared, [0, 0])
        one.expect(1)
        assert not one.is_least
        assert other.is_least
        assert shared.running == 0


def test_who_loads_leaves_clients_to_those_who_are_ready() -> None:
    with table(2) as shared:
        one, other = shares(shared, [0, 0], State.LOADING)
        assert not one.is_behind
        assert not one.is_crowded
        other.enter(State.READY)
        assert one.is_behind
        assert one.is_crowded
        assert not other.is_behind
        other.enter(State.CLOSED)
        assert not one.is_behind
