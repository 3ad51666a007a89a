"""Clocks and random numbers of everything that runs here: those of the simulation."""

import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from random import Random
from typing import Any

from simulation.loop import simulated_monotonic, simulated_time


@lru_cache(1)
def _holders(_: int) -> list[tuple[Any, str, Any]]:
    """Modules that have imported clocks or random functions: the name, and the function.

    The number of modules is the cache key.
    """
    known = {
        "time": time.time,
        "monotonic": time.monotonic,
        "token_hex": secrets.token_hex,
        "urandom": os.urandom,
    }
    return [
        (module, name, value)
        for title, module in sys.modules.items()
        if title.startswith("antiphon.") or title in ("time", "secrets", "os")
        for name, value in known.items()
        if getattr(module, name, None) is value
    ]


@contextmanager
def simulated_clocks(rng: Random) -> Iterator[None]:
    """Clocks show the time of the simulation, and random numbers come from its seed."""
    instead = {
        "time": simulated_time,
        "monotonic": simulated_monotonic,
        "token_hex": lambda size=32: rng.randbytes(size).hex(),
        "urandom": rng.randbytes,
    }
    holders = _holders(len(sys.modules))
    for module, name, _ in holders:
        setattr(module, name, instead[name])
    try:
        yield
    finally:
        for module, name, value in holders:
            setattr(module, name, value)
