import asyncio
import threading

import pytest

from antiphon.engines.thread_bridge import ThreadBridge


class CountingLoop:
    """Stands for the event loop: counts how often it was woken, runs nothing by itself."""

    def __init__(self):
        self.woken = []

    def call_soon_threadsafe(self, callback):
        self.woken.append(callback)

    call_soon = call_soon_threadsafe


def fails():
    raise KeyError


def test_one_wake_up_carries_all_posts():
    loop, delivered = CountingLoop(), []
    bridge = ThreadBridge(loop)
    for value in range(5):
        bridge.post(lambda value=value: delivered.append(value))
    assert len(loop.woken) == 1
    loop.woken.pop()()
    assert delivered == list(range(5))
    bridge.post(lambda: delivered.append("later"))
    loop.woken.pop()()
    assert delivered[-1] == "later"


def test_what_is_posted_while_calls_run_is_carried_too():
    loop, delivered = CountingLoop(), []
    bridge = ThreadBridge(loop)
    bridge.post(lambda: bridge.post(lambda: delivered.append("inner")))
    while loop.woken:
        loop.woken.pop()()
    assert delivered == ["inner"]


def test_a_call_that_raises_holds_up_no_other():
    loop, delivered = CountingLoop(), []
    bridge = ThreadBridge(loop)
    bridge.post(fails)
    bridge.post(lambda: delivered.append("next"))
    with pytest.raises(KeyError):
        loop.woken.pop()()
    loop.woken.pop()()
    assert delivered == ["next"]
    bridge.post(fails)
    with pytest.raises(KeyError):
        loop.woken.pop()()
    assert loop.woken == []


async def test_posts_from_many_threads_all_arrive():
    got, everything = [], asyncio.Event()
    bridge = ThreadBridge(asyncio.get_running_loop())

    def receive(value):
        got.append(value)
        if len(got) == 3000:
            everything.set()

    def work(start):
        for value in range(start, start + 1000):
            bridge.post(lambda value=value: receive(value))

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    async with asyncio.timeout(30):
        await everything.wait()
    assert sorted(got) == list(range(3000))
    for start in (0, 1000, 2000):  # each thread's own posts stay in order
        assert [value for value in got if start <= value < start + 1000] == list(range(start, start + 1000))
