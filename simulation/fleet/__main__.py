"""Runs simulations of fleets, and reports violated laws.

    python -m simulation.fleet                     # a thousand seeds from 0 on, on all processors
    python -m simulation.fleet --new --seconds 60  # new seeds
    python -m simulation.fleet --seed 582          # one, exactly as before
    python -m simulation.fleet --measure           # cached shares and times to first tokens, and their bounds
    python -m simulation.fleet --measure --events --shared   # where servers know what others do

The same seed makes the same simulation, on any machine. Exits with 1 if a law was violated.
"""

import argparse
from collections.abc import Sequence

from simulation.command import Kind, add_options, end, run
from simulation.fleet.faults import FAULTS
from simulation.fleet.measure import FRONTS, LATE, LOADS, table
from simulation.fleet.world import fits, simulate, summary
from simulation.planting import plant
from simulation.world import silence


def _measure(workloads: Sequence[str], numbers: Sequence[int], delay: float | None, *, shares: bool) -> int:
    """Print the table; 1 if figures are not within their bounds."""
    all_kept = True
    for line, kept in table(workloads, numbers, delay, shares=shares):
        print(line, flush=True)
        all_kept = all_kept and kept
    return 0 if all_kept else 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--fault", choices=FAULTS, help="with this fault in the source, see faults.py")
    parser.add_argument(
        "--measure", nargs="*", choices=LOADS, help="print figures of these workloads, or all"
    )
    parser.add_argument("--events", action="store_true", help="measure with events of caches, a second late")
    parser.add_argument("--shared", action="store_true", help="measure with servers that share their loads")
    parser.add_argument(
        "--servers", nargs="+", type=int, default=FRONTS, help="measure with these numbers of servers"
    )
    arguments = parser.parse_args()
    silence()
    if arguments.fault is not None:
        plant(FAULTS[arguments.fault])
    if arguments.measure is not None:
        delay = LATE if arguments.events else None
        workloads = arguments.measure or [*LOADS]
        return _measure(workloads, arguments.servers, delay, shares=arguments.shared)
    return run(Kind("python -m simulation.fleet", simulate, fits, summary), arguments)


if __name__ == "__main__":
    end(main)
