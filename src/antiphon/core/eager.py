"""Runs coroutines that seldom wait, without a task for each: a task costs more than most of them."""

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any


def eager_task(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run a coroutine at once until it first waits, and the rest in a task; None if it did not wait.

    It must not need the current task before it waits, as `asyncio.timeout` does. Python has eager tasks
    itself from 3.12 on, but makes a task in any case.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return None
    rest = _finish(coroutine, awaited)
    rest.send(None)  # a task that is cancelled before it has begun would not begin at all
    return asyncio.create_task(rest)


async def _finish(coroutine: Coroutine[Any, Any, None], awaited: object) -> None:
    await _Rest(coroutine, awaited)


class _Rest:
    """The rest of a coroutine that waits for `awaited`."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], awaited: object) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        # As `yield from` (PEP 380), which could not begin in the middle.
        awaited: object = None
        step = partial(getattr, self, "_awaited")  # when the task begins
        while True:
            try:
                yield awaited
            except BaseException as error:
                step = partial(self._coroutine.throw, error)
            try:
                awaited = step()
            except StopIteration:
                return
            step = partial(self._coroutine.send, None)
