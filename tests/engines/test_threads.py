"""The number of threads: of what is free on the machine, as Linux's files say."""

import os
import re
from math import floor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from antiphon.engines import threads
from antiphon.engines.llama_cpp import LlamaCppEngine, Options
from antiphon.engines.threads import LEFT_OPEN, Machine, Threads, free_threads, quota, threads_of, watched

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
pytestmark = pytest.mark.skipif(not CPUS, reason="these are files of Linux")


@pytest.mark.parametrize(
    ("machine", "count"),
    [
        (Machine(8, 8), 8),
        (Machine(8, 8, 0.4), 8),
        (Machine(8, 8, 3.2), 5),
        (Machine(2, 2, 2.0), 1),
        (Machine(2, 2, 0.6), 1),
        (Machine(1, 1, 1.0), 1),
        (Machine(16, 8), 8),  # two cpus share a core
        (Machine(16, 8, 4.0), 6),
        (Machine(64, 32, 0.0, 2.0), 2),
        (Machine(64, 32, 0.0, 1.5), 1),
        (Machine(64, 32, 0.0, 0.5), 1),
        (Machine(4, 4, 3.0, 2.0), 1),
        (Machine(4, 4, 1.0, 100.0), 3),
    ],
)
def test_there_is_a_thread_for_each_free_core(machine: Machine, count: int) -> None:
    assert threads_of(machine).count == count


MACHINES = st.builds(
    lambda cores, siblings, share, quota: Machine(cores * siblings, cores, share * cores * siblings, quota),
    st.integers(1, 256),
    st.integers(1, 2),
    st.floats(0, 1),
    st.none() | st.floats(0.01, 300),
)


@given(MACHINES)
def test_there_is_one_at_least_and_none_without_a_core(machine: Machine) -> None:
    count = threads_of(machine).count
    assert 1 <= count <= machine.cores
    assert machine.quota is None or count <= max(1, floor(machine.quota))
    busier = Machine(machine.cpus, machine.cores, machine.cpus, machine.quota)
    assert threads_of(busier).count == 1


def files(root: Path, contents: dict[str, str]) -> Path:
    for path, text in contents.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("contents", "cpus"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (  # the least of a group and those around it
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/cpu.max": "400000 100000\n",
            },
            2.0,
        ),
        (  # a container that sees the names of the host
            {"proc/self/cgroup": "0::/host/name\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"},
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/m\n2:cpu,cpuacct:/docker/x\n1:cpuset:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "2:cpu,cpuacct:/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "what is this\n"}, None),
    ],
)
def test_the_quota_is_that_of_the_control_group(
    tmp_path: Path, contents: dict[str, str], cpus: float | None
) -> None:
    assert quota(files(tmp_path, contents)) == cpus


def test_cores_are_counted_once_and_others_by_what_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(threads.time, "process_time", lambda: 0.0)
    siblings = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 2},{cpu % 2 + 2}\n"
        for cpu in range(4)
    }
    tick = 1 / os.sysconf("SC_CLK_TCK")

    def stat(work: int) -> str:
        """Two cpus of ours work for this number of ticks, and one that is not ours."""
        lines = [
            f"cpu{cpu} {work if cpu in (0, 1, 9) else 5} 0 0 1000 0 0 0 0 77 0" for cpu in (*range(4), 9)
        ]
        return "\n".join(("cpu  1 2 3 4", *lines, "intr 7", ""))

    root = files(tmp_path, {"proc/stat": stat(0), **siblings})

    def sleep(_: float) -> None:
        files(tmp_path, {"proc/stat": stat(25)})

    monkeypatch.setattr(threads.time, "sleep", sleep)
    assert watched(25 * tick, root) == Machine(4, 2, pytest.approx(2.0))


def test_of_an_unknown_system_nothing_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    free_threads.cache_clear()
    monkeypatch.delattr(os, "sched_getaffinity")
    assert free_threads() is LEFT_OPEN
    free_threads.cache_clear()


@pytest.mark.parametrize("given", [None, 1])
async def test_a_start_says_how_many_threads_compute_and_why(shallow_model: Path, given: int | None) -> None:
    engine = LlamaCppEngine(shallow_model, Options(context=64, parallel=1, threads=given))
    with capture_logs() as lines:
        await engine.start()
        await engine.stop()
    [line] = [line for line in lines if line["event"] == "loading"]
    if given is None:
        expected = free_threads()
        assert 1 <= expected.count <= len(CPUS)
        assert re.fullmatch(r"\d+ cores, \d+\.\d of them busy(, a quota of .*)?", expected.why)
    else:
        expected = Threads(given, "--threads")
    assert (line["threads"], line["threads_why"]) == (expected.count, expected.why)
