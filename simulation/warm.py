"""Makes what all simulations share, when it is imported: for processes that are forked afterwards."""

import simulation.__main__  # noqa: F401 - and what that imports
from simulation.world import silence, simulate

silence()
simulate(0)
