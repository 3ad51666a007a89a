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
TOLD_BOUNDS: Mapping[tuple[str, int], Bound] = {
    ("shared prompt", 1): Bound(0.90, 0.10, 0.30),
    ("shared prompt", 4): Bound(0.90, 0.20, 0.90),
    ("shared prompt", 16): Bound(0.90, 0.13, 0.60),
    ("conversations", 1): Bound(0.69, 0.10, 0.80),
    ("conversations", 4): Bound(0.72, 0.10, 0.60),
    ("conversations", 16): Bound(0.72, 0.10, 0.85),
    ("agents", 1): Bound(0.83, 0.25, 1.60),
    ("agents", 4): Bound(0.83, 0.25, 2.00),
    ("agents", 16): Bound(0.80, 0.25, 2.50),
}
"""With events, and loads that servers share: several come near one."""
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


def measure(workload: str, fronts: int, delay: float | None, *, shares: bool) -> Figures:
    """The figures of a fleet without troubles, whose servers share loads or not.

    Events are up to `delay` seconds late, or there are none.
    """
    plan = Plan(
        MACHINES,
        fronts,
        workload,
        SECONDS,
        LOADS[workload],
        SPEED,
        delay=delay,
        settled=3_600.0,
        shares=shares,
    )
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


def table(
    workloads: Sequence[str], numbers: Sequence[int], delay: float | None, *, shares: bool
) -> Iterator[tuple[str, bool]]:
    """The lines of a table in Markdown, for `numbers` of servers, and whether each is within its bounds."""
    bounds = {(False, False): BOUNDS, (True, True): TOLD_BOUNDS}.get((delay is not None, shares), {})
    yield "| workload | servers | cached | first token: p50 | p99 |", True
    yield "|---|---|---|---|---|", True
    for workload in workloads:
        for fronts in numbers:
            figures = measure(workload, fronts, delay, shares=shares)
            times = f"{figures.p50:.2f} s | {figures.p99:.2f} s"
            bound = bounds.get((workload, fronts))
            kept = bound is None or figures.keep(bound)
            more = "" if kept else f" not within {bound}"
            yield f"| {workload} | {fronts} | {figures.cached:.0%} | {times} |{more}", kept
