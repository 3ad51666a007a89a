"""A probe that many share."""

import asyncio

import pytest

from antiphon.core.errors import EngineNotReadyError
from antiphon.run.probe import SharedProbe


class Part:
    """What is probed. It hangs, or fails, if that is set."""

    def __init__(self) -> None:
        self.probes = 0
        self.failure: Exception | None = None
        self.hangs = False

    async def check(self) -> None:
        self.probes += 1
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize("failure", [EngineNotReadyError(), OSError(28, "full"), ZeroDivisionError()])
async def test_any_failure_is_the_result_and_the_next_probe_tells_when_it_is_over(failure: Exception) -> None:
    part = Part()
    probe = SharedProbe(part.check, fresh=0, timeout=10)
    part.failure = failure
    assert await probe.result(10) is failure
    part.failure = None
    assert await probe.result(10) is None
    await probe.close()


async def test_who_asks_at_once_shares_a_probe_and_one_that_leaves_does_not_end_it() -> None:
    part = Part()
    part.hangs = True
    probe = SharedProbe(part.check, fresh=60, timeout=0.05)
    leaves = asyncio.create_task(probe.result(10))
    others = [asyncio.create_task(probe.result(10)) for _ in range(20)]
    await asyncio.sleep(0)
    leaves.cancel()
    results = await asyncio.gather(*others)
    assert {type(result) for result in results} == {TimeoutError}
    assert part.probes == 1
    assert isinstance(await probe.result(10), TimeoutError)  # it is fresh
    assert part.probes == 1
    await probe.close()


async def test_nobody_waits_for_longer_than_they_want() -> None:
    part = Part()
    part.hangs = True
    probe = SharedProbe(part.check, fresh=0, timeout=60)
    assert await probe.result(0.001) is None  # of no probe yet
    await probe.close()
