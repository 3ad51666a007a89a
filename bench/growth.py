"""What reads and deletions of a store cost while it grows: `python bench/store.py --lists`.

The store is filled by `lists.py`, in three steps. After each, every list is read with every filter, at both
ends and in the midst, and every object is read that is found by its id. When it is full, objects are deleted,
also those that all rows belong to, and some of each kind are swept. Of what is done in several pieces, so
that others come in between, a piece counts. A figure is the best of a few calls, which other work on the
machine disturbed least; of what is done in many pieces, nineteen of twenty take no longer than that.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from antiphon.store.open import open_store
from antiphon.store.store import Store
from bench.lists import LATER, Call, deletions, fill, gets, large_deletions, listings
from bench.measure import percentile
from bench.report import Machine, Target

SIZES = (10_000, 100_000, 1_000_000)
QUICK = (1_000, 2_000, 4_000)
CALLS = 5
"""Calls of each kind, whose best counts."""
MOST_MS = 50.0
"""The longest piece of work that others may have to wait for."""
OFTEN = 95
"""Percent of the pieces that take no longer than the one that counts."""
STEP = 50_000
"""How many rows of each kind are written in one transaction."""
SWEPT = 1000
"""How many objects of each kind the sweep deletes."""


class Cost(Struct, frozen=True):
    """Milliseconds of a piece of a call, the number of pieces, and milliseconds of all of them."""

    piece: float
    pieces: int
    total: float


class Grown(Struct, frozen=True):
    """The cost of one kind of call at each size."""

    name: str
    costs: list[Cost]

    @property
    def growth(self) -> float:
        """A piece in the largest store, as a multiple of that in the smallest."""
        return round(self.costs[-1].piece / self.costs[0].piece, 2)


class Row(Struct, frozen=True):
    """One database.

    `filled` are the seconds that each step took. Deletions have one cost, that when it is full.
    """

    store: str
    sizes: list[int]
    filled: list[float]
    reads: list[Grown]
    deletions: list[Grown]


class Report(Struct, frozen=True):
    """Everything that was measured."""

    machine: Machine
    targets: list[Target]
    rows: list[Row]


class _Pieces:
    """How long each read and each transaction of a store takes."""

    def __init__(self, store: Any) -> None:
        self.seconds: list[float] = []
        database = store._database
        for name in ("read", "_commit"):
            setattr(database, name, partial(self._timed, getattr(database, name)))

    async def _timed(self, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        begun = perf_counter()
        try:
            return await call(*arguments)
        finally:
            self.seconds.append(perf_counter() - begun)

    async def cost(self, call: Call) -> Cost:
        """The cost of a call: the longest piece, or of many nearly the longest."""
        self.seconds.clear()
        begun = perf_counter()
        await call()
        total = perf_counter() - begun
        piece = percentile(self.seconds, OFTEN)
        return Cost(round(piece * 1e3, 2), len(self.seconds), round(total * 1e3, 2))


async def measure(url: str, sizes: Sequence[int]) -> Row:
    """One database, which is empty."""
    reads: dict[str, list[Cost]] = {}
    filled, first = [], 0
    async with _opened(url) as (store, pieces):
        for size in sizes:
            begun = perf_counter()
            while first < size:
                step = min(size, first + STEP)
                await _change(url, partial(fill, rows=step, first=first))
                first = step
            await _count_rows(url)
            filled.append(round(perf_counter() - begun, 1))
            for name, cost in [pair async for pair in _reads(store, pieces, size)]:
                reads.setdefault(name, []).append(cost)
        deleted = [Grown(name, [cost]) async for name, cost in _deletions(store, pieces, sizes[-1])]
    name = url.partition(":")[0]
    return Row(name, [*sizes], filled, [Grown(*pair) for pair in reads.items()], deleted)


async def _reads(store: Store, pieces: _Pieces, rows: int) -> AsyncIterator[tuple[str, Cost]]:
    """The cost of each list, of its dearest page, and of each object."""
    for listed in listings(store, rows):
        costs = [await _typical(pieces, partial(listed.read, paging)) for _, paging in listed.pages()]
        yield listed.name, max(costs, key=lambda cost: cost.piece)
    for name, call in gets(store, rows).items():
        yield name, await _typical(pieces, call)


async def _deletions(store: Any, pieces: _Pieces, rows: int) -> AsyncIterator[tuple[str, Cost]]:
    """The cost of each deletion, with that of the rows that belong to what is deleted, and of a sweep."""
    calls = [deletions(store, rows, nth) for nth in range(CALLS)]
    for name in calls[0]:
        costs = [await pieces.cost(each[name]) for each in calls]
        yield name, min(costs, key=lambda cost: cost.piece)
    for name, call in large_deletions(store).items():

        async def whole(call: Call = call) -> None:
            await call()
            await asyncio.gather(*store._database._working.values())  # until the rest is deleted

        yield name, await pieces.cost(whole)
    yield "sweep", await pieces.cost(lambda: store.sweep(LATER + SWEPT))


async def _typical(pieces: _Pieces, call: Call) -> Cost:
    """The best of several calls; of two, if they take long."""
    costs = [await pieces.cost(call)]
    while len(costs) < (CALLS if costs[0].pieces < CALLS else min(CALLS, 2)):
        costs.append(await pieces.cost(call))
    return min(costs, key=lambda cost: cost.piece)


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[tuple[Store, _Pieces]]:
    store = await open_store(url)
    try:
        yield store, _Pieces(store)
    finally:
        await store.close()


async def _change(url: str, work: Callable[[Connection], None]) -> None:
    """Change the database directly."""
    if url.startswith("sqlite"):
        engine = create_engine(url)
        with engine.begin() as connection:
            work(connection)
        engine.dispose()
        return
    import asyncpg  # noqa: PLC0415 - a test dependency

    server = create_async_engine("postgresql+asyncpg://", async_creator=partial(asyncpg.connect, url))
    async with server.begin() as asynchronous:
        await asynchronous.run_sync(work)
    await server.dispose()


async def _count_rows(url: str) -> None:
    """Have PostgreSQL count its rows now, and not while it is measured."""
    if url.startswith("postgresql"):
        import asyncpg  # noqa: PLC0415 - a test dependency

        connection = await asyncpg.connect(url)
        await connection.execute("VACUUM ANALYZE")
        await connection.close()


def build(rows: list[Row]) -> Report:
    """The report on the results."""
    return Report(Machine.here(), [target for row in rows for target in _targets(row)], rows)


def _targets(row: Row) -> Iterator[Target]:
    kinds: Mapping[str, Sequence[Grown]] = {"reads": row.reads, "deletions": row.deletions}
    for kind, grown in kinds.items():
        dearest = max(grown, key=lambda each: each.costs[-1].piece)
        name = f"{row.store}: ms of a piece of {kind}: {dearest.name}"
        yield Target(name, dearest.costs[-1].piece, MOST_MS)


def table(report: Report) -> Iterator[str]:
    """The lines for people."""
    machine = report.machine
    yield f"antiphon {machine.antiphon}, python {machine.python}, {machine.cores} cores, load {machine.load}"
    for row in report.rows:
        steps = ", ".join(
            f"{size:,} in {seconds} s" for size, seconds in zip(row.sizes, row.filled, strict=True)
        )
        yield from ("", f"{row.store}, filled to {steps}")
        sizes = "".join(f"{size:>11,}" for size in row.sizes)
        yield f"{'  ms of a piece, with so many rows':66}{sizes}{'growth':>8}{'pieces':>8}{'ms':>9}"
        for grown in (*row.reads, *row.deletions):
            figures = "".join(f"{cost.piece:11.2f}" for cost in grown.costs).rjust(11 * len(row.sizes))
            last = grown.costs[-1]
            yield f"  {grown.name:64}{figures}{grown.growth:8.2f}{last.pieces:8}{last.total:9.1f}"
    yield from ("", f"{'target':90}{'figure':>9}{'limit':>8}")
    for target in report.targets:
        met = "met" if target.met else "MISSED"
        yield f"{target.name:90}{target.value:9.2f}{target.limit:8g}  {met}"


def run(urls: Sequence[str], *, quick: bool) -> Report:
    """Measure empty databases."""
    rows = []
    for url in urls:
        rows.append(asyncio.run(measure(url, QUICK if quick else SIZES)))
        if len(urls) > 1:  # the next takes minutes
            print(*table(build(rows[-1:])), sep="\n", file=sys.stderr, flush=True)
    return build(rows)
