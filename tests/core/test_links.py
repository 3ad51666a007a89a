"""The memory that the clients of one engine share: what each has noted is read by all."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.links import FIGURES, NOTES, Notes, memory_size
from antiphon.engines.vllm_figures import SharedStatistics

CLIENTS = 3


@contextmanager
def clients(kind: type[Notes] = Notes) -> Iterator[list[Notes]]:
    with tempfile.TemporaryFile() as file:
        file.truncate(memory_size(CLIENTS))
        yield [kind(file.fileno(), number) for number in range(CLIENTS)]


turns = st.lists(st.tuples(st.integers(0, CLIENTS - 1), st.booleans(), st.integers(1, 12)), max_size=60)


def check_notes(kind: type[Notes], turns: Any) -> None:
    """What a client runs is what it has noted, whoever asks."""
    running: list[set[int]] = [set() for _ in range(CLIENTS)]
    with clients(kind) as notes:
        for client, begins, request in turns:
            if begins and request not in running[client]:
                notes[client].add(request)
                running[client].add(request)
            else:
                notes[client].remove(request)
                running[client].discard(request)
            for asked in range(CLIENTS):
                assert sorted(notes[0].of(asked)) == sorted(running[asked])


@given(turns)
def test_what_runs_is_noted(turns: Any) -> None:
    check_notes(Notes, turns)


class _Keeps(Notes):
    def remove(self, request: int) -> None:
        cell = self._noted.pop(request, None)
        if cell is not None:
            self._free.append(cell)


class _Overwrites(Notes):
    def add(self, request: int) -> None:
        self._noted[request] = cell = self._free[-1]
        self._cells[cell] = request


@pytest.mark.parametrize("fault", [_Keeps, _Overwrites])
def test_the_law_finds_each_fault(fault: type[Notes]) -> None:
    with pytest.raises(AssertionError):
        check_notes(fault, [(0, True, 1), (0, True, 2), (0, False, 1)])


def test_a_client_may_run_more_than_it_can_note() -> None:
    with clients() as notes:
        for request in range(1, NOTES + 3):
            notes[1].add(request)
        assert len([*notes[0].of(1)]) == NOTES
        for request in range(1, NOTES + 3):
            notes[1].remove(request)
        assert [*notes[0].of(1)] == []
        assert [*notes[0].of(0)] == [*notes[0].of(2)] == []


def step(usage: float, queries: int, hits: int) -> Any:
    prefix = SimpleNamespace(queries=queries, hits=hits)
    figures = SimpleNamespace(kv_cache_usage=usage, prefix_cache_stats=prefix)
    return SimpleNamespace(engine_index=0, scheduler_stats=figures)


steps = st.lists(
    st.tuples(st.integers(0, CLIENTS - 1), st.integers(0, 1000), st.integers(0, 99)), max_size=30
)


@given(steps)
def test_figures_are_those_of_all_clients(steps: Any) -> None:
    with clients() as notes:
        assert len(next(notes[0].figures())) == FIGURES
        statistics = [SharedStatistics(one) for one in notes]
        for client, usage, tokens in steps:
            statistics[client].add(step(usage / 1000, tokens, tokens // 2))
            expected = usage / 1000
            for one in statistics:
                assert one.total[0] == pytest.approx(expected)
        queries = sum(tokens for _, _, tokens in steps)
        hits = sum(tokens // 2 for _, _, tokens in steps)
        assert {one.total[1:] for one in statistics} == {(queries, hits)}
