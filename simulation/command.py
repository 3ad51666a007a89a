"""The command of a kind of simulation: runs many seeds on all processors, and reports violated laws."""

import argparse
import math
import os
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any, NamedTuple

SHARE = 5
"""The number of seeds that a process gets at a time."""


class Kind(NamedTuple):
    """A kind of simulation: how one is run, what is in that of a seed, and what all of them did."""

    command: str
    simulate: Callable[[int], Any]
    fits: Callable[[Sequence[str], int], bool]
    summary: Callable[[Sequence[Any]], str]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say which seeds are run."""
    parser.add_argument("--seed", type=int, help="only this one, with a traceback")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--seeds", type=int, default=None, help="how many (1000, or as --seconds allows)")
    parser.add_argument("--seconds", type=float, default=None, help="begin no more after so long")
    parser.add_argument(
        "--with", nargs="+", default=[], dest="wanted", help="only seeds with these actions and troubles"
    )
    parser.add_argument("--new", action="store_true", help="begin with a seed by chance")
    parser.add_argument("--processes", type=int, default=os.cpu_count())


def run(kind: Kind, arguments: argparse.Namespace) -> int:
    """Run the seeds that the options name; 1 if a law was violated."""
    if arguments.seed is not None:
        print(kind.simulate(arguments.seed))
        return 0
    first = secrets.randbelow(2**40) if arguments.new else arguments.first
    most = arguments.seeds or (1000 if arguments.seconds is None else None)
    seeds = islice(filter(partial(kind.fits, arguments.wanted), count(first)), most)
    return _run(kind, seeds, arguments.seconds, arguments.processes)


def _run(kind: Kind, seeds: Iterator[int], seconds: float | None, processes: int) -> int:
    began, before = time.monotonic(), _used()
    late = math.inf if seconds is None else began + seconds
    reports: list[Any] = []
    for share in _shares(kind, seeds, late, processes):
        for result in share:
            if isinstance(result, str):
                print(result)
                return 1
            reports.append(result)
    used, number = _used() - before, max(1, len(reports))
    print(
        f"{len(reports)} simulations in {time.monotonic() - began:.1f} s"
        f" ({used / number * 1000:.0f} ms of processor each): {kind.summary(reports)}."
    )
    return 0


def _used() -> float:
    """Seconds of processors that this process used, and those that it has started."""
    each = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in each)


def _shares(kind: Kind, seeds: Iterator[int], late: float, processes: int) -> Iterator[list[Any]]:
    """The results of shares of the seeds, which are begun until `late`."""
    shares = iter(lambda: [] if time.monotonic() > late else [*islice(seeds, SHARE)], [])
    if processes == 1:
        yield from map(partial(_simulate_all, kind), shares)
        return
    running: set[Future[list[Any]]] = set()
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        while True:
            running |= {
                pool.submit(_simulate_all, kind, share) for share in islice(shares, processes - len(running))
            }
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _simulate_all(kind: Kind, seeds: list[int]) -> list[Any]:
    """The reports, up to the first violation of a law: then the message about that."""
    reports: list[Any] = []
    for seed in seeds:
        try:
            reports.append(kind.simulate(seed))
        except Exception as error:
            where = "".join(traceback.format_exception(error, limit=-4))
            again = f"to see it again: {kind.command} --seed {seed}"
            reports.append(f"{where}seed {seed}: {error}\n{again}")
            break
    return reports


def end(main: Callable[[], int]) -> None:
    """Run the command line, and end the process.

    A simulation that was broken off leaves coroutines that wait. The collector of CPython 3.11 crashes when
    it closes some of them at the end of the process: it has emptied the futures that they wait for.
    """
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
