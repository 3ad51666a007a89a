"""No list looks at more rows because there are more: with every filter, on every database.

The work of a read is counted: on SQLite in steps of its virtual machine, on PostgreSQL in rows that the plan
really visits. Both are the same on every machine.
"""

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine

from antiphon.store import completions, pages
from antiphon.store.database import Database
from antiphon.store.open import open_store
from antiphon.store.records import Paging, StoreTuning, SweepResult
from antiphon.store.store import Store
from bench.lists import FEW as FOUND
from bench.lists import FIRST, LATER, Call, Listed, deletions, fill, gets, large_deletions, listings

FEW, MANY = 300, 1500
PIECE = 100
"""The rows that one read puts through a sieve."""
GROWTH = 1.5
"""How much more work may be done for five times as many rows."""
STEPS = 10
"""So many steps of SQLite's virtual machine are counted at once."""
EXPLAIN = "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) "

Work = dict[str, int]


class Tally:
    """The work of the read that did the most, since it was last asked."""

    def __init__(self) -> None:
        self.now = self._most = 0

    def begin(self) -> None:
        """Another read begins."""
        self._most, self.now = max(self._most, self.now), 0

    def taken(self) -> int:
        self.begin()
        most, self._most = self._most, 0
        return most

    def executes(self, connection: Connection, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        """A statement begins."""
        if connection.dialect.name == "sqlite":
            driver: Any = connection.connection.driver_connection
            driver.set_progress_handler(self._step, STEPS)
        elif statement.startswith(("SELECT", "WITH")):
            plan = connection.exec_driver_sql(EXPLAIN + statement, parameters).scalar_one()
            self.now += visited((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])

    def _step(self) -> None:
        self.now += 1


def visited(plan: dict[str, Any]) -> int:
    """The rows that the plan has returned or thrown away, in all of its nodes, and one for each."""
    removed = sum(int(value) for name, value in plan.items() if name.startswith("Rows Removed"))
    own = (1 + int(plan["Actual Rows"]) + removed) * int(plan["Actual Loops"])
    return own + sum(map(visited, plan.get("Plans", ())))


@pytest.fixture
def tally(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tally]:
    """Counts the work of every read."""
    tally, read, commit = Tally(), Database.read, Database._commit

    async def counted(self: Database, work: Any, *arguments: object) -> Any:
        tally.begin()
        return await read(self, work, *arguments)

    async def committed(self: Database, batch: Any) -> None:
        tally.begin()
        await commit(self, batch)

    monkeypatch.setattr(Database, "read", counted)
    monkeypatch.setattr(Database, "_commit", committed)
    for module in (pages, completions):
        monkeypatch.setattr(module, "LOOKED_AT", PIECE)
    event.listen(Engine, "before_cursor_execute", tally.executes)
    yield tally
    event.remove(Engine, "before_cursor_execute", tally.executes)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = await open_store(url, tuning=StoreTuning(entries=PIECE))
    yield store
    await store.close()


async def change(url: str, work: Callable[[Connection], object]) -> None:
    """Change the database directly."""
    if url.startswith("sqlite"):
        file = create_engine(url)
        with file.begin() as connection:
            work(connection)
        file.dispose()
        return
    engine = create_async_engine("postgresql+asyncpg://", async_creator=partial(asyncpg.connect, url))
    async with engine.begin() as asynchronous:
        await asynchronous.run_sync(work)
        await asynchronous.execute(text("ANALYZE"))
    await engine.dispose()


async def work_of(listed: Listed, tally: Tally) -> Work:
    """The work for each page of a list."""
    works = {}
    for name, paging in listed.pages():
        tally.taken()
        page = await listed.read(paging)
        works[name] = tally.taken()
        assert works[name], "nothing was counted"
        assert page.data or not page.has_more
    return works


async def measured(store: Store, tally: Tally, rows: int) -> dict[str, Work]:
    lists = {listed.name: await work_of(listed, tally) for listed in listings(store, rows)}
    return lists | await work_of_calls(gets(store, rows), tally)


async def work_of_calls(calls: Mapping[str, Call], tally: Tally) -> dict[str, Work]:
    """The work of the read, or the transaction, that does the most for each call."""
    works = {}
    for name, call in calls.items():
        tally.taken()
        assert await call() is not False, name
        works[name] = {"": tally.taken()}
    return works


def grown(before: dict[str, Work], after: dict[str, Work]) -> dict[str, tuple[int, int]]:
    """The pages that are more work than they were."""
    assert before.keys() == after.keys()
    return {
        f"{name} {page}": (work, after[name][page])
        for name, works in before.items()
        for page, work in works.items()
        if after[name][page] > GROWTH * work + PIECE / STEPS
    }


async def test_no_list_looks_at_more_rows_because_there_are_more(url: str, store: Store, tally: Tally):
    await change(url, lambda connection: fill(connection, FEW))
    before = await measured(store, tally, FEW)
    await change(url, lambda connection: fill(connection, MANY, FEW))
    after = await measured(store, tally, MANY)
    assert len(before) > 40
    assert grown(before, after) == {}


@pytest.mark.parametrize(
    ("index", "list_"),
    [
        ("responses_by_background", "responses.summaries(background=True)"),
        ("completion_pairs_by_owner", "completions.list(only=none=x)"),
        ("files_by_purpose", "files.list(purpose=rare)"),
    ],
)
async def test_an_index_that_is_gone_is_found(url: str, store: Store, tally: Tally, index: str, list_: str):
    found = [listed for listed in listings(store, FEW) if listed.name == list_]
    assert found, [listed.name for listed in listings(store, FEW)]
    await change(url, lambda connection: fill(connection, FEW))
    await change(url, lambda connection: connection.execute(text(f"DROP INDEX {index}")))
    before = {list_: await work_of(found[0], tally)}
    await change(url, lambda connection: fill(connection, MANY, FEW))
    assert grown(before, {list_: await work_of(found[0], tally)})


async def test_no_transaction_deletes_more_because_there_is_more(tmp_path: Path, tally: Tally):
    """Neither by calls nor by a sweep, which clears what calls have left."""
    works = []
    for rows in (FEW, MANY):
        url = f"sqlite:///{tmp_path}/{rows}.db"
        store = await open_store(url, tuning=StoreTuning(sweep=20))
        await change(url, lambda connection, rows=rows: fill(connection, rows))  # type: ignore[misc]
        swept = {"sweep": lambda store=store: store.sweep(LATER + FEW // 4)}  # type: ignore[misc]
        works.append(await work_of_calls(deletions(store, FEW) | large_deletions(store) | swept, tally))
        assert await store.sweep(LATER) == SweepResult(0, 0)
        await store.close()
        left = [*LEFT, "vector_store_files WHERE status <> 'deleted'"]
        with closing(sqlite3.connect(tmp_path / f"{rows}.db")) as file:
            counts = [file.execute(f"SELECT count(*) FROM {each}").fetchone()[0] for each in left]  # noqa: S608
        assert counts == [0] * len(left)
    assert grown(*works) == {}


LEFT = (
    "deletions",
    "log",
    "container_files",
    f"items WHERE parent IN ('conv_{FIRST}', 'chat_{FIRST}', 'resp_{FIRST}') OR id = 'same'",
    "items WHERE parent LIKE 'resp_%' AND parent NOT IN (SELECT id FROM responses)",
)
"""What belongs to what was deleted: nothing of it stays."""

EXPECTED = {
    "responses.summaries(background=True)": FOUND,
    "responses.summaries(background=False)": FEW - FOUND,
    "files.list(purpose=none)": 0,
    "containers.list(name=rare)": FOUND,
    "vector_stores.files(status=completed, batch_id=batch_few)": 0,
    "completions.list(only=m all=x third=odd)": FEW // 2 - 2,
    "completions.list(only=rare all=x rare=x)": FOUND,
    "completions.list(only=m all=x rare=x)": 0,
    "completions.list(only=half=even third=odd)": 0,
}


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_that_end_early_are_the_whole_list(
    tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch, order: Any
):
    url = f"sqlite:///{tmp_path}/store.db"
    store = await open_store(url)
    await change(url, lambda connection: fill(connection, FEW))
    lists, early = {listed.name: listed for listed in listings(store, FEW)}, 0
    wholes = {name: (await it.read(Paging(order, limit=FEW))).data for name, it in lists.items()}
    assert {name: len(wholes[name]) for name in EXPECTED} == EXPECTED
    monkeypatch.setattr(pages, "LOOKED_AT", 7)
    monkeypatch.setattr(pages, "PIECES", 2)
    for name, whole in wholes.items():
        found, after, more = list[Any](), None, True
        while more:
            page = await lists[name].read(Paging(order, after, limit=30))
            assert page.data or not page.has_more, "a client takes an empty page for the end"
            early += page.has_more and len(page.data) < 30
            found += page.data
            after, more = page.data[-1].id if page.data else None, page.has_more
        assert found == whole, name
    assert early
    await store.close()
