"""Runs simulations, and says how a law was broken.

    python -m simulation                     # a thousand seeds from 0 on
    python -m simulation --from 5000 --seeds 200
    python -m simulation --new --seconds 60  # seeds that nobody has tried
    python -m simulation --seed 582          # one, exactly as it was

The same seed makes the same simulation, on any machine. Exits with 1 if a law was broken.
"""

import argparse
import logging
import secrets
import sys
import time
import traceback
from collections.abc import Iterator
from itertools import count

import structlog

from simulation.world import Report, simulate


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="only this one, with a traceback")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--seeds", type=int, default=None, help="how many (1000, or as --seconds allows)")
    parser.add_argument("--seconds", type=float, default=None, help="begin no more after so long")
    parser.add_argument("--new", action="store_true", help="begin with a seed by chance")
    arguments = parser.parse_args()
    _silence()
    if arguments.seed is not None:
        print(simulate(arguments.seed))
        return 0
    first = secrets.randbelow(2**40) if arguments.new else arguments.first
    most = arguments.seeds or (1000 if arguments.seconds is None else None)
    seeds = iter(range(first, first + most)) if most is not None else count(first)
    return _run(seeds, arguments.seconds)


def _run(seeds: Iterator[int], seconds: float | None) -> int:
    began, used = time.monotonic(), time.process_time()
    reports: list[Report] = []
    for seed in seeds:
        if seconds is not None and time.monotonic() - began > seconds:
            break
        try:
            reports.append(simulate(seed))
        except Exception as error:
            traceback.print_exc(limit=-4)
            print(f"seed {seed}: {error}\nto see it again: python -m simulation --seed {seed}")
            return 1
    seconds, used = time.monotonic() - began, time.process_time() - used
    number = len(reports)
    print(
        f"{number} simulations in {seconds:.1f} s ({used / max(1, number) * 1000:.0f} ms of processor each):"
        f" {sum(report.seconds for report in reports) / 3600:.1f} hours,"
        f" {sum(report.responses for report in reports)} responses,"
        f" {sum(report.events for report in reports)} events,"
        f" {sum(report.transactions for report in reports)} transactions."
    )
    return 0


def _silence() -> None:
    """What servers log while things go wrong is expected."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


if __name__ == "__main__":
    sys.exit(main())
