"""The timer that calls back when an engine is silent."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from antiphon.engines import silence
from antiphon.engines.silence import SilenceTimer
from tests.contracts.engine import until

SHORT = 0.02
LONG = 1.0


class Calls:
    """Counts what is called."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1


async def test_it_calls_once_for_each_silence():
    calls = Calls()
    timer = SilenceTimer(SHORT, LONG, calls)
    timer.open()
    for times in (1, 2):
        timer.postpone()
        await until(lambda: calls.count >= times)  # noqa: B023 - awaited in the loop
        await asyncio.sleep(3 * SHORT)
        assert calls.count == times
    timer.close()


async def test_it_calls_again_while_a_silence_goes_on():
    calls = Calls()
    timer = SilenceTimer(SHORT, 2 * SHORT, calls)
    timer.open()
    timer.postpone()
    await until(lambda: calls.count >= 4)
    timer.pause()
    count = calls.count
    await asyncio.sleep(5 * SHORT)
    assert calls.count == count
    timer.postpone()
    await until(lambda: calls.count > count + 1)
    timer.close()


async def test_it_waits_from_the_last_output_on():
    calls = Calls()
    timer = SilenceTimer(LONG, LONG, calls)
    timer.open()
    timer.postpone()
    await asyncio.sleep(0.6 * LONG)
    timer.postpone()
    await asyncio.sleep(0.6 * LONG)
    assert not calls.count
    await until(lambda: calls.count)
    timer.close()


async def test_a_closed_one_does_not_call():
    calls, before = Calls(), len(os.listdir("/proc/self/fd"))
    timer = SilenceTimer(SHORT, LONG, calls)
    timer.open()
    timer.postpone()
    timer.close()
    timer.close()
    timer.postpone()
    await asyncio.sleep(3 * SHORT)
    assert not calls.count
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_system_without_such_timers_has_none(monkeypatch):
    monkeypatch.setattr(silence, "_libc", SimpleNamespace())
    calls = Calls()
    timer = SilenceTimer(SHORT, LONG, calls)
    timer.open()
    timer.postpone()
    await asyncio.sleep(3 * SHORT)
    assert not calls.count
    timer.close()


async def test_a_system_that_has_no_room_for_it_says_so(monkeypatch):
    monkeypatch.setattr(silence, "_libc", SimpleNamespace(timerfd_create=lambda *_: -1))
    with pytest.raises(OSError, match="Errno"):
        SilenceTimer(SHORT, LONG, Calls()).open()
