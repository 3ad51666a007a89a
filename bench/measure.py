"""Measures CPU time, in rounds, each figure together with its floor.

The machine is shared and its speed changes, so results of different runs cannot be compared. Within a run
the subjects alternate; each keeps its best round (the least disturbed one) and its median.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import clock_gettime, process_time
from typing import TypeVar

from msgspec import Struct

Key = TypeVar("Key")

_SCHEDULED = 2
"""The kind of a clock of CPU time: what the scheduler has counted."""


class Figure(Struct, frozen=True):
    """Microseconds of CPU for each unit of work."""

    best: float
    median: float


def figure(samples: Sequence[float]) -> Figure:
    """The figure of several rounds."""
    return Figure(round(min(samples), 4), round(median(samples), 4))


def take_turns(
    subjects: Mapping[Key, tuple[Callable[[], object], int]], rounds: int, units: int
) -> dict[Key, Figure]:
    """CPU per unit of work for each subject: the function to call, and the units of work of one call.

    One sample is as many calls as make at least `units` units.
    """
    samples: dict[Key, list[float]] = {key: [] for key in subjects}
    for _ in range(rounds):
        for key, (call, size) in subjects.items():
            times = -(-units // size)
            gc.collect()  # no subject pays for the garbage of another
            begun = process_time()
            for _ in range(times):
                call()
            samples[key].append((process_time() - begun) * 1e6 / (times * size))
    return {key: figure(values) for key, values in samples.items()}


def cpu_seconds(pid: int) -> float:
    """CPU that a process used so far, all of its threads, in user and kernel."""
    # The clock that clock_getcpuclockid(3) returns, which Python does not offer. It counts nanoseconds, where
    # /proc/PID/stat has steps of 10 ms.
    return clock_gettime((~pid << 3) | _SCHEDULED)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that is not below `percent` % of all."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]
