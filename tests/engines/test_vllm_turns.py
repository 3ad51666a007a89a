import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.vllm_turns import ScoreKind, Turns

LIKELIEST, NAMED = ScoreKind


@given(
    st.lists(
        st.tuples(st.sampled_from(ScoreKind), st.integers(0, 4), st.integers(0, 3), st.booleans()),
        max_size=12,
    )
)
def test_one_kind_runs_at_a_time_and_all_have_their_turn(works):
    running, over = [], []

    async def work(turns, place, kind, begin, length):
        for _ in range(begin):
            await asyncio.sleep(0)
        async with turns.hold(kind):
            running.append(kind)
            try:
                assert len({*running}) == 1
                for _ in range(length):
                    await asyncio.sleep(0)
            finally:
                running.remove(kind)
        over.append(place)

    async def play():
        turns = Turns(apart=True)
        tasks = []
        for place, (kind, begin, length, cancelled) in enumerate(works):
            task = asyncio.create_task(work(turns, place, kind, begin, length))
            tasks.append(task)
            if cancelled:
                asyncio.get_running_loop().call_later(0, task.cancel)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert not any(isinstance(result, AssertionError) for result in results)
        async with turns.hold(LIKELIEST):
            pass
        async with asyncio.timeout(1), turns.hold(NAMED):
            pass

    asyncio.run(play())
    assert {*over} >= {place for place, work in enumerate(works) if not work[-1]}


@pytest.mark.asyncio
async def test_who_waits_is_not_overtaken_by_the_kind_that_runs():
    turns, order = Turns(apart=True), []

    async def work(name, kind):
        async with turns.hold(kind):
            order.append(name)
            await asyncio.sleep(0)

    await asyncio.gather(work("a", LIKELIEST), work("b", NAMED), work("c", LIKELIEST), work("d", NAMED))
    assert order == ["a", "b", "d", "c"]


@pytest.mark.asyncio
async def test_a_runner_that_keeps_scores_apart_itself_lets_none_wait():
    turns = Turns(apart=False)
    async with turns.hold(LIKELIEST), asyncio.timeout(1), turns.hold(NAMED):
        pass
