"""`python bench/frontend.py`: Antiphon's own cost, without a model, compared with its targets.

Targets 1 to 5, each as figures of one run on one machine, and as multiples of their limits. README.md
explains them.
"""

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec
from msgspec import Struct

from antiphon.log import configure
from bench import calls, in_process, over_http
from bench.calls import Row as Calls
from bench.in_process import Result as InProcess
from bench.over_http import Result as OverHttp
from bench.report import Machine, Target, target_table

IN_PROCESS, OVER_HTTP, CALLS = PARTS = ("in-process", "over-http", "calls")
"""The parts that can be run alone."""


class Report(Struct, frozen=True, omit_defaults=True):
    """Everything that was measured."""

    machine: Machine
    targets: list[Target]
    in_process: InProcess | None = None
    over_http: OverHttp | None = None
    calls: list[Calls] | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the figures for machines")
    parser.add_argument("--quick", action="store_true", help="a smoke run of 20 s: rough figures")
    parser.add_argument("--only", choices=PARTS, help="run one part")
    options = parser.parse_args(arguments)
    configure("warning")  # only the report is printed
    # A plain kill must end the servers too: let `finally` run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parts = {options.only or part for part in PARTS}
    counted = calls.measure() if CALLS in parts else None
    inside = outside = None
    if IN_PROCESS in parts:
        inside = in_process.measure(rounds=2) if options.quick else in_process.measure()
    if OVER_HTTP in parts:
        outside = over_http.measure(over_http.QUICK) if options.quick else over_http.measure()
    report = build(inside, outside, counted)
    print(msgspec.json.encode(report).decode() if options.json else "\n".join(table(report)))
    return 0


def build(
    inside: InProcess | None = None, outside: OverHttp | None = None, counted: list[Calls] | None = None
) -> Report:
    """The report on the results."""
    targets = [
        *(_inside(inside) if inside else ()),
        *(_outside(outside) if outside else ()),
        *(calls.targets(counted) if counted else ()),
    ]
    return Report(Machine.here(), targets, inside, outside, counted)


def _inside(result: InProcess) -> Iterator[Target]:
    def worst(*, calls: bool) -> float:
        # The cost of a shorter answer is mostly that of its request: see target 3.
        shortest = min(1024, max(row.tokens for row in result.rows))
        rows = [row for row in result.rows if row.tokens >= shortest]
        return max(row.stream.best for row in rows if ("reasoning" in row.case) == calls)

    yield Target("1: µs per token in process, plain", worst(calls=False), 4)
    yield Target("1: µs per token in process, reasoning and calls", worst(calls=True), 6)
    yield Target("1: growth from 1k to 16k tokens", max(growth.stream for growth in result.growth), 1.1)


def _outside(result: OverHttp) -> Iterator[Target]:
    for row in result.throughput:
        limit = 1.6 if row.streams > 1 else 1.8
        yield Target(f"2: times the floor, streams: {row.streams}", row.ratio, limit)
    yield Target("3: µs per full answer, with its one token", result.non_streaming.antiphon.median, 150)
    for wait in result.first_token:
        if wait.arrival == "spread":
            name = f"4: ms added to the first token at {wait.streams} streams"
            yield Target(f"{name}, p50", wait.added.p50, 5)
            yield Target(f"{name}, p99", wait.added.p99, 25)


def table(report: Report) -> Iterator[str]:
    """The lines for people."""
    machine = report.machine
    yield f"antiphon {machine.antiphon}, python {machine.python}, {machine.cores} cores, load {machine.load}"
    if report.in_process:
        yield from _table_in_process(report.in_process)
    if report.over_http:
        yield from _table_over_http(report.over_http)
    if report.calls:
        yield from calls.table(report.calls)
    yield from target_table(report.targets)


def _table_in_process(result: InProcess) -> Iterator[str]:
    ratios = f"{'stream/floor':>15}{'fold/floor':>13}{'messages/stream':>17}"
    columns = f"{'stream':>9}{'fold':>9}{'floor':>9}{ratios}"
    yield from ("", f"{'in process: µs of CPU per token':33}{'tokens':>7}{columns}")
    for row in result.rows:
        figures = f"{row.stream.best:9.2f}{row.fold.best:9.2f}{row.floor.best:9.3f}"
        ratios = f"{row.stream_to_floor:15.1f}{row.fold_to_floor:13.1f}{row.messages_to_stream:17.2f}"
        yield f"{row.case:33}{row.tokens:7}{figures}{ratios}"
    for growth in result.growth:
        name = f"growth, {growth.case}"
        yield f"{name:40}{growth.stream:9.2f}{growth.fold:9.2f}"


def _table_over_http(result: OverHttp) -> Iterator[str]:
    yield from ("", f"{'over HTTP':40}{'antiphon':>9}{'floor':>9}{'ratio':>9}")
    for row in result.throughput:
        name = f"µs of server CPU per token, {row.streams} streams"
        yield f"{name:40}{row.antiphon.median:9.2f}{row.floor.median:9.2f}{row.ratio:9.2f}"
        yield f"{'  tokens per second':40}{row.antiphon_per_second:9}{row.floor_per_second:9}"
        alone = f"{row.libraries.median:9.2f}{row.floor.median:9.2f}{row.least:9.2f}"
        yield f"{'  the libraries alone':40}{alone}"
    short = result.non_streaming
    yield from ("", f"{'':40}{'antiphon':>9}{'floor':>9}{'added':>9}")
    name = "µs of server CPU per full answer"
    yield f"{name:40}{short.antiphon.median:9.1f}{short.floor.median:9.1f}{short.added:9.1f}"
    yield f"{'  uvicorn, JSON':40}{short.asgi.median:9.1f}"
    yield f"{'  uvicorn, JSON, jinja2, structlog':40}{short.libraries.median:9.1f}"
    for wait in result.first_token:
        name = f"ms to first token, {wait.streams} streams, {wait.arrival}"
        for what in ("p50", "p99"):
            figures = "".join(f"{getattr(of, what):9.1f}" for of in (wait.antiphon, wait.floor, wait.added))
            yield f"{name + ', ' + what:40}{figures}"


if __name__ == "__main__":
    sys.exit(main())
