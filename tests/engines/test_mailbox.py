import asyncio
import threading

import pytest

from antiphon.engines.mailbox import Mailbox, Mailroom


async def test_what_piled_up_comes_as_one_batch():
    mailbox = Mailbox[int]()
    for value in range(3):
        mailbox.put(value)
    assert await mailbox.get() == [0, 1, 2]


async def test_many_puts_wake_the_reader_once():
    mailbox = Mailbox[int]()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)  # the reader sleeps now
    for value in range(100):
        mailbox.put(value)
    assert await reader == list(range(100))


async def test_a_failure_comes_after_what_waits_and_the_first_counts():
    mailbox = Mailbox[int]()
    mailbox.put(1)
    mailbox.fail(KeyError("first"))
    mailbox.fail(KeyError("second"))
    assert await mailbox.get() == [1]
    for _ in range(2):
        with pytest.raises(KeyError, match="first"):
            await mailbox.get()


async def test_a_failure_wakes_a_sleeping_reader():
    mailbox = Mailbox[int]()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.fail(KeyError("gone"))
    with pytest.raises(KeyError):
        await reader


async def test_a_cancelled_reader_loses_nothing():
    mailbox = Mailbox[int]()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.put(1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await mailbox.get() == [1]


class CountingLoop:
    """Stands for the event loop: counts how often it was woken, runs nothing by itself."""

    def __init__(self):
        self.woken = []

    def call_soon_threadsafe(self, callback):
        self.woken.append(callback)


def test_one_wake_up_carries_all_posts():
    loop, delivered = CountingLoop(), []
    mailroom = Mailroom(loop)
    for value in range(5):
        mailroom.post(lambda value=value: delivered.append(value))
    assert len(loop.woken) == 1
    loop.woken.pop()()
    assert delivered == list(range(5))
    mailroom.post(lambda: delivered.append("later"))
    loop.woken.pop()()
    assert delivered[-1] == "later"


async def test_posts_from_many_threads_all_arrive():
    mailbox = Mailbox[int]()
    mailroom = Mailroom(asyncio.get_running_loop())

    def work(start):
        for value in range(start, start + 1000):
            mailroom.post(lambda value=value: mailbox.put(value))

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    got = []
    while len(got) < 3000:
        got += await mailbox.get()
    assert sorted(got) == list(range(3000))
    for start in (0, 1000, 2000):  # each thread's own posts stay in order
        assert [value for value in got if start <= value < start + 1000] == list(range(start, start + 1000))
