"""What routing is worth: cached shares, and times to first tokens, for workloads and numbers of servers.

Each figure is of one simulation, so it is the same every time: a change of it is one of the program.
"""

from collections.abc import Iterator

from msgspec import Struct

from simulation.fleet.machine import Speed
from simulation.fleet.world import Plan, run

SPEED = Speed(prefill=4_000.0, slots=16, block=64, blocks=800)
"""Caches are scarce: all that is asked again fits into those of all replicas, but not often into several."""
LOADS = {"shared prompt": 3.0, "conversations": 3.0, "agents": 1.2}
"""Questions a second for each replica, so that a cache that is missed costs a queue."""
FRONTS = (1, 4, 16)
SEED = 40


class Figures(Struct, frozen=True):
    """What clients saw after the caches were warm. Times are in seconds, shares of the tokens of prompts."""

    cached: float
    predicted: float
    p50: float
    p99: float


def measure(workload: str, fronts: int, *, machines: int = 24, seconds: float = 40.0) -> Figures:
    """The figures of a fleet without troubles."""
    plan = Plan(machines, fronts, workload, seconds, LOADS[workload], SPEED, settled=3_600.0)
    world = run(SEED, plan)
    warm = seconds / 3
    answers = [answer for answer in world.laws.answers.values() if answer.asked >= warm]
    prompts = sum(len(answer.question.ids) for answer in answers)
    times = sorted(answer.first - answer.asked for answer in answers if answer.first is not None)
    return Figures(
        sum(answer.cached for answer in answers) / prompts,
        sum(answer.predicted for answer in answers) / prompts,
        times[len(times) // 2],
        times[len(times) * 99 // 100],
    )


def table() -> Iterator[str]:
    """The lines of the table of all figures, in Markdown."""
    yield "| workload | servers | cached | first token: p50 | p99 |"
    yield "|---|---|---|---|---|"
    for workload in LOADS:
        for fronts in FRONTS:
            figures = measure(workload, fronts)
            times = f"{figures.p50:.2f} s | {figures.p99:.2f} s"
            yield f"| {workload} | {fronts} | {figures.cached:.0%} | {times} |"
