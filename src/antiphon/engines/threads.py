"""How many threads compute on a machine where other work runs, too.

The threads of llama.cpp wait for each other many times per token. If there are more of them than free cores,
all wait for the one that has none, for as long as the system lets the other work run: with two busy processes
on two cores, two threads took 20 s for a prompt of 361 tokens and 7 to 14 s for the next seven tokens, one
thread 11 s and half a second. So there is one thread for each core that is free when the server starts: of
the cores that this process may use, less those that others keep busy, and not more than the quota of its
control group. What comes later is not known: `--threads` sets another number.

The files that are read are Linux's; elsewhere llama.cpp chooses.
"""

import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

SAMPLE_SECONDS = 0.25
"""How long it is watched what keeps the cores busy."""

_ROOT = Path("/")
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""Of a line of /proc/stat: user, nice, system, irq, softirq, steal; not idle, iowait, and parts of others."""


class Machine(Struct, frozen=True):
    """The cpus that this process may use, of which some share a core, and what others take of them.

    `busy` is the sum of the shares of the cpus that are in use. `quota` is the number of cpus whose time the
    control group may take, None if there is no bound.
    """

    cpus: int
    cores: int
    busy: float = 0.0
    quota: float | None = None


class Threads(Struct, frozen=True):
    """A number of threads, and why it is this one, for the log."""

    count: int
    why: str


LEFT_OPEN = Threads(-1, "llama.cpp's default")
"""For a machine of which nothing is known."""


def threads_of(machine: Machine) -> Threads:
    """One for each free core, and at least one."""
    busy = machine.busy * machine.cores / machine.cpus
    free = max(1, round(machine.cores - busy))
    why = f"{machine.cores} cores, {busy:.1f} of them busy"
    if machine.quota is not None and machine.quota < free:
        return Threads(max(1, int(machine.quota)), f"{why}, a quota of {machine.quota:g}")
    return Threads(free, why)


@cache
def free_threads() -> Threads:
    """The number for this machine. It is found out once, before this process computes, in a moment."""
    try:
        return threads_of(watched())
    except (OSError, ValueError, AttributeError):
        return LEFT_OPEN


def watched(seconds: float = SAMPLE_SECONDS, root: Path = _ROOT) -> Machine:
    """The machine, watched for this time. Raises OSError, ValueError or AttributeError if it is not Linux."""
    cpus = os.sched_getaffinity(0)
    before, own = _busy_ticks(root, cpus), time.process_time()
    time.sleep(seconds)
    ticks = _busy_ticks(root, cpus) - before
    others = ticks / os.sysconf("SC_CLK_TCK") - (time.process_time() - own)
    busy = min(max(others / seconds, 0.0), float(len(cpus)))
    return Machine(len(cpus), _cores(root, cpus), busy, quota(root))


def _busy_ticks(root: Path, cpus: set[int]) -> int:
    """The time that these cpus have worked so far."""
    ticks = 0
    for line in (root / "proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.removeprefix("cpu").isdecimal() and int(name.removeprefix("cpu")) in cpus:
            ticks += sum(int(fields[place]) for place in _BUSY_FIELDS)
    return ticks


def _cores(root: Path, cpus: set[int]) -> int:
    """The number of cores that these cpus belong to; each is one, if the system does not say."""
    siblings = (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in cpus)
    return len({file.read_text() if file.exists() else str(file) for file in siblings})


def quota(root: Path = _ROOT) -> float | None:
    """The least number of cpus that the control groups of this process may take; None without a bound."""
    return min((cpus for folder in _groups(root) if (cpus := _group_quota(folder)) is not None), default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the control groups of this process, and of those around them, in both versions.

    In a container the names may be those of the host, which do not exist there: its group is the outermost.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            mounts = ("unified", "") if not controllers else ("cpu", controllers)
            for mount in mounts:
                outermost = root / "sys/fs/cgroup" / mount
                group = outermost / path.lstrip("/")
                yield from (group, *(parent for parent in group.parents if parent.is_relative_to(outermost)))


def _group_quota(folder: Path) -> float | None:
    try:
        if (both := folder / "cpu.max").exists():  # version 2
            most, period = both.read_text().split()
        else:
            most = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        bounded = most != "max" and int(most) > 0
        return int(most) / int(period) if bounded else None
    except (OSError, ValueError):
        return None
