"""How many interpreters there are, without any: `test_python.py` has real ones."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.core.errors import ToolError
from antiphon.core.limits import Limits
from antiphon.toolkits.code_interpreter.interpreter import Interpreter
from antiphon.toolkits.code_interpreter.whole_python import Interpreters

LIMITS = Limits(python_interpreters=2)


class Keeper:
    """Containers without files."""

    async def use(self, *_: object) -> None:
        await asyncio.sleep(0)

    async def files(self, *_: object) -> list[Any]:
        return []


class Fake:
    """An interpreter that takes a while to start."""

    def __init__(self) -> None:
        self.closed = False

    @classmethod
    async def begin(cls, _words: object) -> "Fake":
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return cls()

    async def close(self) -> None:
        self.closed = True


async def test_those_that_are_being_started_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interpreter, "begin", Fake.begin)
    sandbox: Any = SimpleNamespace(words=[])
    interpreters = Interpreters(sandbox, LIMITS, Keeper())  # type: ignore[arg-type]
    busy, running = asyncio.Event(), 0

    async def use(number: int) -> None:
        nonlocal running
        wanted: Any = SimpleNamespace(owner="a", id=f"cntr_{number}", create=())
        async with interpreters.working(wanted):
            running += 1
            await busy.wait()
            running -= 1

    tasks = [asyncio.create_task(use(number)) for number in range(5)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert running == LIMITS.python_interpreters
    busy.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(each, ToolError) for each in ended) == 3
    await use(9)  # in the place of one that is idle
    assert len(interpreters.containers) == LIMITS.python_interpreters
    await interpreters.close()
