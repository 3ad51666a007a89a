"""Reads run in fair shares by client: on a backend whose reads end when a test says so."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any, NamedTuple

import pytest

from antiphon.core.errors import StoreError
from antiphon.core.limits import CLIENT, DEFAULTS
from antiphon.store.database import Database
from antiphon.store.pages import filled
from antiphon.store.records import Page, StoreTuning

READERS = 4


class Slow:
    """A backend whose reads end one after the other, when they are told to."""

    def __init__(self) -> None:
        self.begun: deque[tuple[str, asyncio.Future[Any]]] = deque()
        self.order: list[str] = []

    async def open(self, _notifier: object) -> None:
        pass

    def read(self, work: Any) -> asyncio.Future[Any]:
        reading = asyncio.get_running_loop().create_future()
        self.begun.append((work(None), reading))
        self.order.append(work(None))
        assert len(self.begun) <= READERS
        return reading

    async def end(self) -> None:
        """End the first read that runs."""
        name, reading = self.begun.popleft()
        reading.set_result(name)
        for _ in range(5):
            await asyncio.sleep(0)

    async def close(self) -> None:
        pass


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
async def database(slow: Slow) -> Database:
    database = Database(slow, DEFAULTS, StoreTuning(readers=READERS))  # type: ignore[arg-type]
    await database.open()
    return database


def reading(database: Database, client: str) -> asyncio.Task[Any]:
    context = copy_context()
    context.run(CLIENT.set, client)
    return asyncio.create_task(database.read(lambda _: client), context=context)


async def begun(database: Database, *clients: str) -> list[asyncio.Task[Any]]:
    tasks = [reading(database, client) for client in clients]
    await asyncio.sleep(0)
    return tasks


async def test_nobody_waits_for_the_many_reads_of_another(slow: Slow, database: Database):
    await begun(database, *["greedy"] * 16)
    assert slow.order == ["greedy"] * (READERS - 1)  # one client never has all
    (modest,) = await begun(database, "modest")
    assert slow.order[-1] == "modest"
    others = await begun(database, "modest", "third")
    await slow.end()
    assert slow.order[-1] == "third"  # it has none, the modest one has one
    for _ in range(18):
        await slow.end()
    assert await asyncio.gather(modest, *others) == ["modest", "modest", "third"]


async def test_who_has_as_many_takes_turns(slow: Slow, database: Database):
    await begun(database, *"aaaaaaaa", *"bbbb", *"cccc", *"dddd")
    assert slow.order == [*"aaab"]
    for _ in range(20):
        await slow.end()
    turns = "".join(slow.order[READERS:])
    assert sorted(turns[:2]) == [*"cd"]
    assert sorted(turns[2:6]) == [*"abcd"]


async def test_a_read_keeps_its_place_until_it_has_ended(slow: Slow, database: Database):
    """Who leaves does not free the thread that reads for it: `Slow.read` counts."""
    for client in "ab":
        for task in await begun(database, *[client] * READERS):
            task.cancel()
        await asyncio.sleep(0)
    (stays,) = await begun(database, "stays")
    assert slow.order == [*"aaab"]
    for _ in range(READERS + 1):
        await slow.end()
    assert await stays == "stays"
    assert slow.order == [*"aaab", "stays"]  # those that left while they waited did not begin


async def test_it_closes_when_the_reads_have_ended(slow: Slow, database: Database):
    tasks = await begun(database, *"abcdef")
    closing = asyncio.create_task(database.close())
    for _ in range(READERS):
        assert not closing.done()
        await slow.end()
    await closing
    assert await asyncio.gather(*tasks[:READERS]) == [*"abcd"]
    for task in tasks[READERS:]:
        with pytest.raises(StoreError, match="closed"):
            await task


class Row(NamedTuple):
    id: str


@pytest.mark.parametrize("follows", [True, False])
async def test_a_page_whose_rows_are_all_deleted_meanwhile_is_read_again(follows: bool) -> None:
    """Clients take an empty page for the end of a list."""
    there = ["a", "b", "c"]

    async def read() -> Page[Any]:
        return Page([Row(each) for each in there[:1]], has_more=follows and len(there) > 1)

    async def find(ids: Sequence[str]) -> list[str]:
        if "b" in there:  # another transaction, twice
            del there[0]
        return [each for each in ids if each in there]

    page = await filled(read, find)
    assert page == (Page(["c"], has_more=False) if follows else Page([], has_more=False))
