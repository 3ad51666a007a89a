"""Runs simulations, and reports violated laws.

    python -m simulation                     # a thousand seeds from 0 on, on all processors
    python -m simulation --from 5000 --seeds 200
    python -m simulation --new --seconds 60  # new seeds
    python -m simulation --seed 582          # one, exactly as before

The same seed makes the same simulation, on any machine. Exits with 1 if a law was violated.
"""

import argparse
import math
import os
import secrets
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from simulation.faults import FAULTS, plant
from simulation.world import Report, fits, silence, simulate

SHARE = 5
"""The number of seeds that a process gets at a time."""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="only this one, with a traceback")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--seeds", type=int, default=None, help="how many (1000, or as --seconds allows)")
    parser.add_argument("--seconds", type=float, default=None, help="begin no more after so long")
    parser.add_argument(
        "--with", nargs="+", default=[], dest="wanted", help="only seeds with these actions and troubles"
    )
    parser.add_argument("--new", action="store_true", help="begin with a seed by chance")
    parser.add_argument("--fault", choices=FAULTS, help="with this fault in the source, see faults.py")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    silence()
    if arguments.fault is not None:
        plant(FAULTS[arguments.fault])
    if arguments.seed is not None:
        print(simulate(arguments.seed))
        return 0
    first = secrets.randbelow(2**40) if arguments.new else arguments.first
    most = arguments.seeds or (1000 if arguments.seconds is None else None)
    seeds = islice(filter(partial(fits, arguments.wanted), count(first)), most)
    return _run(seeds, arguments.seconds, arguments.processes)


def _run(seeds: Iterator[int], seconds: float | None, processes: int) -> int:
    began, before = time.monotonic(), _used()
    late = math.inf if seconds is None else began + seconds
    reports: list[Report] = []
    for share in _shares(seeds, late, processes):
        for result in share:
            if isinstance(result, str):
                print(result)
                return 1
            reports.append(result)
    used, number = _used() - before, max(1, len(reports))
    print(
        f"{len(reports)} simulations in {time.monotonic() - began:.1f} s"
        f" ({used / number * 1000:.0f} ms of processor each):"
        f" {sum(report.seconds for report in reports) / 3600:.1f} hours,"
        f" {sum(report.responses for report in reports)} responses,"
        f" {sum(report.events for report in reports)} events,"
        f" {sum(report.transactions for report in reports)} transactions."
    )
    return 0


def _used() -> float:
    """Seconds of processors that this process used, and those that it has started."""
    each = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in each)


def _shares(seeds: Iterator[int], late: float, processes: int) -> Iterator[list[Report | str]]:
    """The results of shares of the seeds, which are begun until `late`."""
    shares = iter(lambda: [] if time.monotonic() > late else [*islice(seeds, SHARE)], [])
    if processes == 1:
        yield from map(_simulate_all, shares)
        return
    running: set[Future[list[Report | str]]] = set()
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        while True:
            running |= {
                pool.submit(_simulate_all, share) for share in islice(shares, processes - len(running))
            }
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _simulate_all(seeds: list[int]) -> list[Report | str]:
    """The reports, up to the first violation of a law: then the message about that."""
    reports: list[Report | str] = []
    for seed in seeds:
        try:
            reports.append(simulate(seed))
        except Exception as error:
            where = "".join(traceback.format_exception(error, limit=-4))
            again = f"to see it again: python -m simulation --seed {seed}"
            reports.append(f"{where}seed {seed}: {error}\n{again}")
            break
    return reports


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # A simulation that was broken off leaves coroutines that wait. The collector of CPython 3.11 crashes when
    # it closes some of them at the end of the process: it has emptied the futures that they wait for.
    os._exit(code)
