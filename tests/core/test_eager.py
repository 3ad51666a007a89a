"""A coroutine does the same as in a task of its own, but begins at once."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.eager import eager_task

Step = Callable[[list[str]], Awaitable[None]]


class WrongError(Exception):
    """A failure of a step."""


async def writes(done: list[str]) -> None:
    done.append("writes")


async def yields(done: list[str]) -> None:
    await asyncio.sleep(0)
    done.append("yields")


async def waits(done: list[str]) -> None:
    async with asyncio.timeout(10):
        await asyncio.sleep(0.001)
    done.append("waits")


async def fails(done: list[str]) -> None:
    done.append("fails")
    await asyncio.sleep(0)
    raise WrongError


async def recovers(done: list[str]) -> None:
    with pytest.raises(WrongError):
        await fails(done)
    done.append("recovers")


STEPS = [writes, yields, fails, recovers]


async def all_of(steps: list[Step], done: list[str]) -> None:
    for step in steps:
        await step(done)


async def ended(task: asyncio.Task[None] | None) -> BaseException | None:
    if task is None:
        return None
    await asyncio.wait((task,))
    return task.exception()


@given(st.lists(st.sampled_from(STEPS), max_size=5), st.booleans())
def test_a_coroutine_does_what_it_does_in_a_task(steps: list[Step], waiting: bool) -> None:
    steps = [*steps, waits] if waiting and steps and steps[0] is not writes else steps

    async def compared() -> None:
        eagerly: list[str] = []
        usually: list[str] = []
        error = await ended(eager_task(all_of(steps, eagerly)))
        usual = await ended(asyncio.create_task(all_of(steps, usually)))
        assert (eagerly, type(error)) == (usually, type(usual))

    asyncio.run(compared())


async def test_it_begins_at_once_and_needs_no_task_if_it_does_not_wait() -> None:
    done: list[str] = []
    assert eager_task(all_of([writes, writes], done)) is None
    assert done == ["writes", "writes"]
    task = eager_task(all_of([writes, yields], done))
    assert done == ["writes"] * 3
    assert await ended(task) is None
    assert done[3:] == ["yields"]


async def test_it_raises_at_once_what_it_raises_before_it_waits() -> None:
    async def wrong() -> None:
        raise WrongError

    with pytest.raises(WrongError):
        eager_task(wrong())


@pytest.mark.parametrize("begun", [False, True])
async def test_it_can_be_cancelled_wherever_it_waits(begun: bool) -> None:
    left: list[str] = []

    async def waiting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            left.append("left")

    task = eager_task(waiting())
    assert task is not None
    if begun:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert left == ["left"]


async def test_a_result_that_has_come_before_its_task_runs_is_received() -> None:
    result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    received: list[str] = []

    async def receive() -> None:
        received.append(await result)

    task = eager_task(receive())
    result.set_result("here")
    assert await ended(task) is None
    assert received == ["here"]
