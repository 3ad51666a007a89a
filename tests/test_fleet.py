"""The simulation of fleets: its laws hold, its figures are as good as they were, and it finds known faults."""

import re

import pytest

from simulation.fleet.faults import FAULTS, SUITE
from simulation.fleet.measure import LOADS
from simulation.planting import SEEDS
from tests.programs import Run, simulation
from tests.search import CI, share

SOUND = 30 if CI else 60
"""The number of seeds that are tried each time."""
LARGE = 1
"""Of these, with a hundred replicas or two, and up to 16 servers."""

simulate = simulation("simulation.fleet")


@pytest.mark.parametrize(("seeds", "more"), [(SOUND, ()), (LARGE, ("--with", "large", "fronts"))])
async def test_all_laws_hold(simulate: Run, seeds: int, more: tuple[str, ...]) -> None:
    code, out, err = await simulate("--seeds", str(seeds), *more)
    assert code == 0, out + err
    assert out.startswith(f"{seeds} simulations")


async def test_all_laws_hold_for_seeds_that_nobody_has_tried(simulate: Run) -> None:
    code, out, err = await simulate("--new", "--seconds", "2")
    assert code == 0, out + err


async def test_a_seed_is_the_same_simulation_every_time(simulate: Run) -> None:
    first, again, other = [(await simulate("--seed", seed))[1] for seed in ("7", "7", "8")]
    assert first == again != other


@pytest.mark.parametrize("name", share(FAULTS, 3))
async def test_a_known_fault_is_found(simulate: Run, name: str) -> None:
    wanted = ("--with", *FAULTS[name].wanted) if FAULTS[name].wanted else ()
    begin = ("--from", str(SUITE.known_seeds().get(name, 0)), "--seeds", str(SEEDS), "--processes", "1")
    code, out, err = await simulate("--fault", name, *begin, *wanted)
    assert code == 1, out + err
    assert re.search(FAULTS[name].found, out)


@pytest.mark.parametrize("workload", share(LOADS, 3))
async def test_routing_is_as_good_as_it_was(simulate: Run, workload: str) -> None:
    code, out, err = await simulate("--measure", workload)
    assert code == 0, out + err


@pytest.mark.parametrize("workload", share(LOADS, 3))
async def test_servers_that_know_of_each_other_are_nearly_as_good_as_one(
    simulate: Run, workload: str
) -> None:
    numbers = ("4",) if CI else ("4", "16")
    told = ("--events", "--shared", "--servers", *numbers)
    code, out, err = await simulate("--measure", workload, *told)
    assert code == 0, out + err
