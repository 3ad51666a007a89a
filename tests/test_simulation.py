"""The deterministic simulation: it repeats itself, it finds known faults, and no new ones."""

import re

import pytest

from simulation.faults import FAULTS, SUITE
from simulation.planting import SEEDS
from tests.programs import Run, simulation
from tests.search import CI

SOUND = 30 if CI else 60
"""The number of seeds that are tried each time."""
NEW_SECONDS = 3
PLANTED = [*FAULTS][:: 3 if CI else 1]
"""Faults that have to be found each time. `python -m simulation.faults` looks for all of them."""

simulate = simulation("simulation")


def finding(said: str) -> tuple[int, str]:
    """The seed of the violation, and its message; -1 if there is none."""
    found = re.search(r"^seed (\d+): (.*)$", said, re.MULTILINE)
    return (int(found[1]), found[2]) if found else (-1, said)


async def test_all_laws_hold(simulate: Run) -> None:
    code, out, err = await simulate("--seeds", str(SOUND))
    assert code == 0, out + err
    assert out.startswith(f"{SOUND} simulations")


async def test_all_laws_hold_for_seeds_that_nobody_has_tried(simulate: Run) -> None:
    code, out, err = await simulate("--new", "--seconds", str(NEW_SECONDS))
    assert code == 0, out + err


async def test_a_seed_is_the_same_simulation_every_time(simulate: Run) -> None:
    first, again, other = [(await simulate("--seed", seed))[1] for seed in ("7", "7", "8")]
    assert first == again != other


@pytest.mark.parametrize("name", PLANTED)
async def test_a_known_fault_is_found(simulate: Run, name: str) -> None:
    wanted = ("--with", *FAULTS[name].wanted) if FAULTS[name].wanted else ()
    begin = ("--from", str(SUITE.known_seeds().get(name, 0)), "--seeds", str(SEEDS), "--processes", "1")
    code, out, err = await simulate("--fault", name, *begin, *wanted)
    assert code == 1, out + err
    assert re.search(FAULTS[name].found, finding(out)[1])


async def test_what_is_found_is_found_again(simulate: Run) -> None:
    fault = ("--fault", "an event is dropped at a takeover")
    _, out, _ = await simulate(*fault, "--new", "--seeds", str(SEEDS))
    seed, said = finding(out)
    _, _, err = await simulate(*fault, "--seed", str(seed))
    assert said in err
