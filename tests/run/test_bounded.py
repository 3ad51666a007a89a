"""Work in separate processes: it ends in any case, and no client has all of them."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from antiphon.core.errors import ClientBusyError, RequestError
from antiphon.core.limits import CLIENT, LIMIT_EXCEEDED, Limits
from antiphon.run.bounded import BoundedPool, LargeBytes, warm
from tests.endless import echo, endless, greedy, nested, process, refused, terminated, wordy


@contextmanager
def acting_as(client: str) -> Iterator[None]:
    token = CLIENT.set(client)
    yield
    CLIENT.reset(token)


async def test_what_is_returned_and_raised_comes_back() -> None:
    pool = BoundedPool()
    assert await pool.run("a", echo, {"b": (1,)}) == {"b": (1,)}
    assert await pool.run("a", process) != os.getpid()
    with pytest.raises(RequestError, match="No") as error:
        await pool.run("a", refused)
    assert error.value.param == "theirs"
    with pytest.raises(ZeroDivisionError):
        await pool.run("a", divmod, 1, 0)


@pytest.mark.parametrize(
    ("call", "limits"),
    [
        (endless, Limits(work_seconds=1)),
        (greedy, Limits(work_bytes=2**29)),
        (wordy, Limits(work_result_bytes=1000)),
        (nested, Limits()),
    ],
)
async def test_what_is_over_a_limit_is_refused_by_its_name(call: object, limits: Limits) -> None:
    pool = BoundedPool(limits)
    with pytest.raises(
        RequestError, match=r"limit '(work_seconds|work_bytes|work_result_bytes|depth)'"
    ) as error:
        await pool.run("format", call)  # type: ignore[arg-type]
    assert (error.value.param, error.value.code, error.value.status) == ("format", LIMIT_EXCEEDED, 400)
    assert await pool.run("format", echo, 1) == 1


async def test_many_bytes_arrive_as_they_are() -> None:
    pool, large = BoundedPool(), bytearray(b"ab" * 2_000_000)
    for content in (large, bytes(large), b""):
        sent: Any = LargeBytes(content)
        assert await pool.run("x", bytes.count, sent, b"a") == len(content) // 2
    assert await pool.run("x", bytes.join, b" ", [sent, LargeBytes(b"a"), LargeBytes(b"b")]) == b" a b"


async def test_a_process_that_is_warm_is_the_one_that_works() -> None:
    warm()
    pool = BoundedPool()
    first = await pool.run("a", process)
    warm()
    assert await pool.run("a", process) == first


async def test_a_process_that_somebody_has_ended_is_replaced() -> None:
    pool = BoundedPool()
    ended = await pool.run("a", process)
    os.kill(ended, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    assert await pool.run("a", process) != ended


async def test_a_signal_to_all_processes_of_a_server_ends_no_work() -> None:
    """A supervisor sends SIGTERM to all of them: what is computed is no less valid for that."""
    pool = BoundedPool()
    assert await pool.run("a", terminated) == os.getpid()


async def test_functions_that_have_no_name_are_left_behind() -> None:
    pool = BoundedPool()
    left = await pool.run("a", echo, {"a": lambda: 1, "b": echo})
    assert left["b"] is echo
    with pytest.raises(NotImplementedError, match="lambda"):
        left["a"]()


async def test_who_leaves_gives_the_process_back() -> None:
    pool = BoundedPool(Limits(work_processes=1, work_seconds=600))
    gone = asyncio.create_task(pool.run("a", endless))
    waits = asyncio.create_task(pool.run("a", echo, 1))
    leaves = asyncio.create_task(pool.run("a", echo, 2))
    await asyncio.sleep(0.1)
    leaves.cancel()
    gone.cancel()
    assert await waits == 1
    assert await pool.run("a", echo, 3) == 3


async def test_a_client_never_has_all_processes_nor_the_whole_queue() -> None:
    pool = BoundedPool(Limits(work_processes=2, work_waiting=2, work_seconds=600))
    with acting_as("greedy"):
        tasks = [asyncio.create_task(pool.run("a", endless)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ClientBusyError):
            await pool.run("a", echo, 1)
    with acting_as("other"):
        assert await pool.run("a", echo, 1) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_clients_take_turns() -> None:
    pool, served = BoundedPool(Limits(work_processes=1)), []

    async def ask(client: str, number: int) -> None:
        with acting_as(client):
            await pool.run("a", echo, number)
        served.append(f"{client}{number}")

    await asyncio.gather(*(ask("a", each) for each in range(4)), *(ask("b", each) for each in range(2)))
    assert served.index("b1") < served.index("a3")


class HeldPool(BoundedPool):
    """A pool whose work lasts for ever."""

    async def _run(self, job: Any) -> tuple[bool, Any]:
        await asyncio.Event().wait()
        raise NotImplementedError


async def test_who_leaves_when_another_does_leaves_no_process_behind() -> None:
    """The process of one is handed to the other in the turn in which that is cancelled, too: see `core/permits.py`."""
    pool = HeldPool(Limits(work_processes=3))
    tasks = [asyncio.create_task(pool.run("a", echo, 1)) for _ in range(3)]
    await asyncio.sleep(0)
    assert (pool.permits.running, pool.permits.waiting) == (2, 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (pool.permits.running, pool.permits.waiting) == (0, 0)
