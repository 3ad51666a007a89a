"""Runs simulations of fleets, and reports violated laws.

    python -m simulation.fleet                     # a thousand seeds from 0 on, on all processors
    python -m simulation.fleet --new --seconds 60  # new seeds
    python -m simulation.fleet --seed 582          # one, exactly as before
    python -m simulation.fleet --measure           # the table of cached shares and times to first tokens

The same seed makes the same simulation, on any machine. Exits with 1 if a law was violated.
"""

import argparse

from simulation.command import Kind, add_options, end, run
from simulation.fleet.world import fits, simulate, summary
from simulation.world import silence


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    arguments = parser.parse_args()
    silence()
    return run(Kind("python -m simulation.fleet", simulate, fits, summary), arguments)


if __name__ == "__main__":
    end(main)
