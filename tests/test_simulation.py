"""The deterministic simulation: it repeats itself, it finds known faults, and no new ones."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation.faults import FAULTS, ROOT, SEEDS, environment, finding, plant, search
from tests.programs import Ended, Programs, programs_after

SOUND = 60
"""The number of seeds that are tried each time."""
NEW_SECONDS = 3
LIBRARIES = (
    "alembic.command",
    "cyclopts",
    "prometheus_client",
    "sqlalchemy.ext.asyncio",
    "structlog",
    "uvicorn",
)
"""Imports of a simulation, besides the simulated code, which may have a fault."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with programs_after(*LIBRARIES, folder=tmp_path_factory.mktemp("programs")) as runs:
        yield runs


async def simulate(python: Programs, *options: str, source: Path = ROOT / "src") -> Ended:
    return await python.ended("-m", "simulation", *options, **environment(source))


async def test_all_laws_hold(python: Programs) -> None:
    code, out, err = await simulate(python, "--seeds", str(SOUND))
    assert code == 0, out + err
    assert out.startswith(f"{SOUND} simulations")


async def test_all_laws_hold_for_seeds_that_nobody_has_tried(python: Programs) -> None:
    code, out, err = await simulate(python, "--new", "--seconds", str(NEW_SECONDS))
    assert code == 0, out + err


async def test_a_seed_is_the_same_simulation_every_time(python: Programs) -> None:
    first, again, other = [(await simulate(python, "--seed", seed))[1] for seed in ("7", "7", "8")]
    assert first == again != other


@pytest.mark.parametrize("name", FAULTS)
async def test_a_known_fault_is_found(python: Programs, name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    code, out, _ = await simulate(python, *search(fault), source=plant(fault, tmp_path))
    assert code == 1, out
    assert re.search(fault.found, finding(out)[1])


async def test_what_is_found_is_found_again(python: Programs, tmp_path: Path) -> None:
    source = plant(FAULTS["an event is dropped at a takeover"], tmp_path)
    _, out, _ = await simulate(python, "--new", "--seeds", str(SEEDS), source=source)
    seed, said = finding(out)
    _, _, err = await simulate(python, "--seed", str(seed), source=source)
    assert said in err
