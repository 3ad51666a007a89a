"""Whose sandboxes they are, whenever who asks for one is cancelled: with a pool that does nothing else."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from antiphon.core.limits import DEFAULTS
from antiphon.toolkits.code_interpreter import processes
from antiphon.toolkits.code_interpreter.monty import CodeInterpreter
from antiphon.toolkits.code_interpreter.processes import Processes
from antiphon.toolkits.programs.tool import Programs
from antiphon.tools.tool import RequestedTool

TURNS = 3
"""After so many turns of the loop a pool, or a process, is there."""


class Pool:
    """A pool, in the place of `AsyncMonty`. It cancels whoever waits for a process, after so many turns."""

    def __init__(self, cancels_after: int = -1) -> None:
        self.cancels_after = cancels_after
        self.open = set[Any]()
        """The processes, and the pool, that are there."""
        self.asked = 0

    def __call__(self, **options: Any) -> "Pool":
        return self

    def checkout(self, **options: Any) -> "Session":
        return Session(self)

    def entered(self, what: Any) -> asyncio.Future[Any]:
        """Done in some turns, unless it is cancelled before; as the future of a thread, which nobody sees."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def finish() -> None:
            if not done.done():
                self.open.add(what)
                done.set_result(what)

        after_turns(TURNS, finish)
        return done

    def __aenter__(self) -> asyncio.Future[Any]:
        return self.entered(self)

    async def __aexit__(self, *exception: object) -> None:
        self.open.discard(self)


class Session:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __aenter__(self) -> asyncio.Future[Any]:
        self._pool.asked += 1
        task, after = asyncio.current_task(), self._pool.cancels_after
        assert task is not None
        entered = self._pool.entered(self)
        if after >= 0:
            after_turns(after, task.cancel)
            after_turns(after + 1, task.cancel)
        return entered

    async def __aexit__(self, *exception: object) -> None:
        self._pool.open.discard(self)
        await asyncio.sleep(0)

    def feed_run(self, code: str, **options: Any) -> asyncio.Future[Any]:
        """The program runs for ever."""
        return asyncio.get_running_loop().create_future()

    feed_start = feed_run


def after_turns(turns: int, call: Callable[[], object]) -> None:
    """Call `call` after so many turns of the loop."""
    loop = asyncio.get_running_loop()
    if turns:
        loop.call_soon(after_turns, turns - 1, call)
    else:
        loop.call_soon(call)


async def in_a_cell() -> None:
    session = CodeInterpreter().open(RequestedTool({}))
    try:
        await session.run("python", {"code": "1"})
    finally:
        await session.close()


async def in_a_program() -> None:
    program = Programs(DEFAULTS).begin("1", (), "", 0)
    try:
        await program.advance(())
    finally:
        await program.close()


@pytest.mark.parametrize("using", [in_a_cell, in_a_program])
@pytest.mark.parametrize("after", range(TURNS + 3))
async def test_who_is_cancelled_at_any_moment_holds_no_process(
    monkeypatch: pytest.MonkeyPatch, using: Callable[[], Awaitable[None]], after: int
) -> None:
    pool = Pool(after)
    monkeypatch.setattr(processes, "AsyncMonty", pool)
    using_it = asyncio.ensure_future(using())
    await asyncio.wait({using_it})

    assert using_it.cancelled()
    assert pool.asked
    assert pool.open == {pool}


@pytest.mark.parametrize("before", range(TURNS + 3))
async def test_a_pool_that_is_closed_while_it_opens_does_not_stay(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    pool, several = Pool(), Processes()
    monkeypatch.setattr(processes, "AsyncMonty", pool)
    opening = asyncio.create_task(several.begin(1.0, {}))
    for _ in range(before + 1):
        await asyncio.sleep(0)
    await several.close()
    await asyncio.wait({opening})

    assert pool not in pool.open
