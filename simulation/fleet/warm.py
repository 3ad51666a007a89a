"""Makes what all simulations of fleets share, when it is imported: for processes forked afterwards."""

import simulation.fleet.__main__  # noqa: F401 - and what that imports
from simulation.fleet.world import simulate
from simulation.world import silence

silence()
simulate(0)
