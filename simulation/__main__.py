"""Runs simulations, and reports violated laws.

    python -m simulation                     # a thousand seeds from 0 on, on all processors
    python -m simulation --from 5000 --seeds 200
    python -m simulation --new --seconds 60  # new seeds
    python -m simulation --seed 582          # one, exactly as before

The same seed makes the same simulation, on any machine. Exits with 1 if a law was violated.
`python -m simulation.fleet` simulates hundreds of replicas.
"""

import argparse
from collections.abc import Sequence

from simulation.command import Kind, add_options, end, run
from simulation.faults import FAULTS
from simulation.planting import plant
from simulation.world import Report, fits, silence, simulate


def _summary(reports: Sequence[Report]) -> str:
    return (
        f"{sum(report.seconds for report in reports) / 3600:.1f} hours,"
        f" {sum(report.responses for report in reports)} responses,"
        f" {sum(report.events for report in reports)} events,"
        f" {sum(report.transactions for report in reports)} transactions"
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--fault", choices=FAULTS, help="with this fault in the source, see faults.py")
    arguments = parser.parse_args()
    silence()
    if arguments.fault is not None:
        plant(FAULTS[arguments.fault])
    return run(Kind("python -m simulation", simulate, fits, _summary), arguments)


if __name__ == "__main__":
    end(main)
