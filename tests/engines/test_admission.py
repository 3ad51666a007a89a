import asyncio

import pytest

from antiphon.core.errors import EngineBusyError
from antiphon.engines.admission import Admission


class Visitor:
    """Takes a slot and keeps it until told to leave."""

    def __init__(self, admission, priority=0):
        self.inside = asyncio.Event()
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._visit(admission, priority))

    async def _visit(self, admission, priority):
        async with admission.slot(priority):
            self.inside.set()
            await self.leave.wait()


async def settle():
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_first_come_first_served():
    admission = Admission(1)
    first, second, third = (Visitor(admission) for _ in range(3))
    await settle()
    assert [v.inside.is_set() for v in (first, second, third)] == [True, False, False]
    assert admission.waiting == 2
    first.leave.set()
    await settle()
    assert [v.inside.is_set() for v in (first, second, third)] == [True, True, False]
    for visitor in (second, third):
        visitor.leave.set()
    await asyncio.gather(first.task, second.task, third.task)
    assert admission.waiting == 0


async def test_a_lower_priority_goes_first():
    admission = Admission(1)
    priorities = [0, 7, -2, 3, -2, 7]
    first, *visitors = [Visitor(admission, priority) for priority in priorities]
    await settle()
    served = []
    first.leave.set()
    for _ in visitors:
        await settle()
        inside = next(v for v in visitors if v.inside.is_set() and v not in served)
        served.append(inside)
        inside.leave.set()
    await asyncio.gather(first.task, *(visitor.task for visitor in visitors))
    places = [visitors.index(visitor) + 1 for visitor in served]
    assert places == [2, 4, 3, 1, 5]


async def test_whoever_was_cancelled_is_passed_over():
    admission = Admission(1)
    first, second, third = (Visitor(admission) for _ in range(3))
    await settle()
    first.leave.set()
    second.task.cancel()  # its place is still in the queue when `first` goes
    await settle()
    assert third.inside.is_set()
    third.leave.set()
    await asyncio.gather(first.task, third.task)
    async with asyncio.timeout(1), admission.slot():
        assert admission.waiting == 0


async def test_cancelling_while_queued_leaks_no_slot():
    admission = Admission(1)
    first, second, third = (Visitor(admission) for _ in range(3))
    await settle()
    second.task.cancel()
    await settle()
    assert admission.waiting == 1
    first.leave.set()
    await settle()
    assert third.inside.is_set()
    third.leave.set()
    await third.task
    async with asyncio.timeout(1), admission.slot():
        pass


async def test_cancelling_in_the_moment_of_being_admitted_leaks_no_slot():
    admission = Admission(1)
    first, second = Visitor(admission), Visitor(admission)
    await settle()
    first.leave.set()
    await first.task  # its slot is on the way to `second`, which has not run yet
    second.task.cancel()
    await asyncio.gather(second.task, return_exceptions=True)
    async with asyncio.timeout(1), admission.slot():
        pass


async def test_a_failure_inside_gives_the_slot_back():
    admission = Admission(1)
    with pytest.raises(KeyError):
        async with admission.slot():
            raise KeyError
    async with asyncio.timeout(1), admission.slot():
        pass


async def test_too_many_waiting_are_refused():
    admission = Admission(1, max_waiting=1)
    first, second = Visitor(admission), Visitor(admission)
    await settle()
    with pytest.raises(EngineBusyError):
        async with admission.slot():
            pass
    for visitor in (first, second):
        visitor.leave.set()
    await asyncio.gather(first.task, second.task)
