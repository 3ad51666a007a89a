"""What routing is worth: cached shares, and times to first tokens, for workloads and numbers of servers.

Each figure is of one simulation, so it is the same every time: a change of it is one of the program. Bounds
leave some room for changes that are none for the worse.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from simulation.fleet.machine import Speed
from simulation.fleet.world import Plan, run

SPEED = Speed(prefill=4_000.0, slots=16, block=64, blocks=800)
"""Caches are scarce: all that is asked again fits into those of all replicas, but not often into several."""
LOADS = {"shared prompt": 3.0, "conversations": 3.0, "agents": 1.2}
"""Questions a second for each replica, so that a cache that is missed costs a queue."""
FRONTS = (1, 4, 16)
MACHINES, SECONDS = 16, 20.0
WARM = 1 / 3
"""The share of the time that is not counted."""
SEED = 40


class Bound(Struct, frozen=True):
    """The least share of tokens that are cached, and the most seconds to the first token."""

    cached: float
    p50: float
    p99: float


BOUNDS: Mapping[tuple[str, int], Bound] = {
    ("shared prompt", 1): Bound(0.90, 0.10, 0.30),
    ("shared prompt", 4): Bound(0.90, 0.15, 2.50),
    ("shared prompt", 16): Bound(0.90, 0.10, 0.30),
    ("conversations", 1): Bound(0.69, 0.10, 0.80),
    ("conversations", 4): Bound(0.42, 0.35, 1.10),
    ("conversations", 16): Bound(0.20, 0.60, 2.20),
    ("agents", 1): Bound(0.83, 0.25, 1.50),
    ("agents", 4): Bound(0.50, 1.60, 7.00),
    ("agents", 16): Bound(0.20, 5.00, 20.0),
}
"""Without events: each server knows only what it has sent itself, so several lose what one would have."""
LATE = 1.0
"""Seconds that events take at most, where there are some."""


class Figures(Struct, frozen=True):
    """What clients saw after the caches were warm. Times are in seconds, shares of the tokens of prompts."""

    cached: float
    p50: float
    p99: float

    def keep(self, bound: Bound) -> bool:
        """Whether they are within it."""
        return self.cached >= bound.cached and self.p50 <= bound.p50 and self.p99 <= bound.p99


def measure(workload: str, fronts: int, delay: float | None) -> Figures:
    """The figures of a fleet without troubles, with events up to `delay` seconds late, or without any."""
    plan = Plan(MACHINES, fronts, workload, SECONDS, LOADS[workload], SPEED, delay=delay, settled=3_600.0)
    answers = [
        answer
        for answer in run(SEED, plan).laws.answers.values()
        if answer.asked >= WARM * SECONDS and answer.first is not None
    ]
    times = sorted(answer.first - answer.asked for answer in answers if answer.first is not None)
    return Figures(
        sum(answer.cached for answer in answers) / sum(len(answer.question.ids) for answer in answers),
        times[len(times) // 2],
        times[len(times) * 99 // 100],
    )


def table(workloads: Sequence[str], delay: float | None) -> Iterator[tuple[str, bool]]:
    """The lines of a table in Markdown, and whether the figures of each are within their bounds."""
    yield "| workload | servers | cached | first token: p50 | p99 |", True
    yield "|---|---|---|---|---|", True
    for workload in workloads:
        for fronts in FRONTS:
            figures = measure(workload, fronts, delay)
            times = f"{figures.p50:.2f} s | {figures.p99:.2f} s"
            kept = delay is not None or figures.keep(BOUNDS[workload, fronts])
            more = "" if kept else f" not within {BOUNDS[workload, fronts]}"
            yield f"| {workload} | {fronts} | {figures.cached:.0%} | {times} |{more}", kept
