"""The deterministic simulation: it repeats itself, it finds known faults, and no new ones."""

import re
from pathlib import Path

import pytest

from simulation.faults import FAULTS, SEEDS, finding, look, plant, simulate

SOUND = 60
"""So many seeds are tried each time."""
NEW_SECONDS = 3


def test_all_laws_hold() -> None:
    done = simulate("--seeds", str(SOUND))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{SOUND} simulations")


def test_all_laws_hold_for_seeds_that_nobody_has_tried() -> None:
    done = simulate("--new", "--seconds", str(NEW_SECONDS))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_the_same_simulation_every_time() -> None:
    assert simulate("--seed", "7").stdout == simulate("--seed", "7").stdout != simulate("--seed", "8").stdout


@pytest.mark.no_cover
@pytest.mark.parametrize("name", FAULTS)
def test_a_known_fault_is_found(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    source = plant(fault, tmp_path)
    done = look(source, fault)
    assert done.returncode == 1, done.stdout
    assert re.search(fault.found, finding(done.stdout)[1])


@pytest.mark.no_cover
def test_what_is_found_is_found_again(tmp_path: Path) -> None:
    source = plant(FAULTS["an event is dropped at a takeover"], tmp_path)
    seed, said = finding(simulate("--new", "--seeds", str(SEEDS), source=source).stdout)
    assert said in simulate("--seed", str(seed), source=source).stderr
