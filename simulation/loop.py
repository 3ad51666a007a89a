"""An event loop whose time is virtual, and whose order is chosen from a seed.

Time passes only by decision of the simulation: a little for each round of callbacks, and at once up to the
next timer when nothing is left to do. So an hour takes milliseconds, and nothing depends on the machine.
Callbacks run in the order that asyncio guarantees; tasks that can continue at the same time do so in any
order. Each callback belongs to a process, which its context names. A process can be killed: nothing of it
runs again, not even a `finally`. It can be paused: then it does not notice the time that passes.
"""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

EPOCH = 1_700_000_000.0
"""When a simulation begins."""
ROUND = 0.0004
"""The most seconds of a round of callbacks."""
HOP = 0.003
"""The most seconds of work in a thread of a machine that is not busy."""
PAUSE = 0.05
"""The most seconds of a round in which a callback takes long: then the timers of all this time are late."""
ROUNDS = 200_000
"""Enough rounds for any schedule: a simulation with more is in an endless loop."""

_real_time, _real_monotonic = time.time, time.monotonic


class Process:
    """The code on one machine. `skew` is the error of its clock, in seconds."""

    def __init__(self, name: str, skew: float = 0.0) -> None:
        self.name = name
        self.skew = skew
        self.alive = True
        self.held_until = 0.0
        self.waiting: list[_Handle] = []
        """Callbacks to run after a pause, or that would run if it had not been killed."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """Those that have not ended, in the order of their beginning."""
        self.permits: list[tuple[str, Any]] = []
        """All that its code has made, and by whom: see `processes.py`."""

    def is_held(self, now: float) -> bool:
        """It is paused, or has not done yet what came during a pause."""
        return self.held_until > now or bool(self.waiting)

    def clock(self, now: float) -> float:
        """The time on its clock."""
        return EPOCH + now + self.skew

    def context(self) -> Context:
        """A context in which everything belongs to this process."""
        context = Context()
        context.run(PROCESS.set, self)
        return context


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Turns(dict[Process | None, Any]):
    """The turns of `antiphon.run.drive`, in which a loop is a process: here processes share one."""

    def setdefault(self, loop: object, default: Any = None) -> Any:
        return super().setdefault(PROCESS.get(), default)


class StuckError(AssertionError):
    """A task waits forever."""


class _Handle(asyncio.TimerHandle):
    """A callback that waits for its turn. Simulations make thousands: it does no more than it must."""

    __slots__ = ()

    def __init__(self, when: float, callback: Any, args: Any, context: Context | None) -> None:
        self._when, self._callback, self._args, self._cancelled = when, callback, args, False
        self._context = copy_context() if context is None else context

    def cancel(self) -> None:
        self._cancelled = True


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs callbacks in an order that depends on `rng` alone."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._now = 0.0
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._made = 0
        self.hop = HOP
        """The most seconds of work in a thread."""
        self.pauses = 0.0
        """The share of rounds that take up to `PAUSE`."""
        self.rounds = 0
        self.most_rounds = ROUNDS
        self.failures: list[dict[str, Any]] = []
        """Exceptions that were not caught."""
        self.hosts: dict[str, Callable[[Callable[[], Any]], Awaitable[tuple[Any, Any]]]] = {}
        """Other machines, by name, and how they accept a connection for a protocol."""

    def time(self) -> float:
        return self._now

    # The interface of asyncio

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = _Handle(self._now, callback, args, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Handle(when, callback, args, context)
        self._wait(when, handle)
        return handle

    def _wait(self, when: float, handle: _Handle) -> None:
        self._made += 1  # callbacks for the same time keep their order
        heapq.heappush(self._timers, (when, self._made, handle))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        process = context.get(PROCESS) if context is not None else PROCESS.get()
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """Run it here, a moment later."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(self._rng.random() * self.hop, work)
        return future

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[Any, Any]:
        return await self.hosts[host](protocol_factory)

    def get_task_factory(self) -> None:
        """Tasks are made here."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    default_exception_handler = call_exception_handler

    # Running

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """The result of `main`."""
        asyncio.events._set_running_loop(self)
        try:
            task = self.create_task(main)
            while not task.done():
                self._round()
            return task.result()
        finally:
            asyncio.events._set_running_loop(None)

    def _round(self) -> None:
        self.rounds += 1
        if self.rounds > self.most_rounds:
            raise StuckError(f"more than {self.most_rounds} rounds")
        if self._ready:
            longest = PAUSE if self.pauses and self._rng.random() < self.pauses else ROUND
            self._now += self._rng.random() * longest
        else:
            self._skip()
        while self._timers and self._timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(self._timers)[2])
        batch, self._ready = self._ready, deque()
        for handle in self._shuffled(batch) if len(batch) > 1 else batch:
            self._run(handle)
        if self.failures:
            failure = self.failures[0]
            raise failure.get("exception") or AssertionError(failure["message"])

    def _skip(self) -> None:
        """Nothing is left to do now: advance the clock."""
        while self._timers and self._timers[0][2]._cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            raise StuckError("everybody waits for somebody else")
        self._now = max(self._now, self._timers[0][0])

    def _shuffled(self, batch: deque[_Handle]) -> list[_Handle]:
        """The same callbacks, with the tasks among them in any order."""
        handles = [*batch]
        places = [place for place, handle in enumerate(handles) if _is_task(handle)]
        if len(places) > 1:
            order = places[:]
            self._rng.shuffle(order)
            tasks = [handles[place] for place in order]
            for place, handle in zip(places, tasks, strict=True):
                handles[place] = handle
        return handles

    def _run(self, handle: _Handle) -> None:
        if handle._cancelled:
            return
        process: Process | None = handle._context.get(PROCESS)
        if process is not None:
            if not process.alive:
                process.waiting.append(handle)
                return
            if process.is_held(self._now):
                self._hold(process, handle)
                return
        try:
            handle._context.run(handle._callback, *handle._args)
        except Exception as error:
            self.failures.append({"message": "a callback failed", "exception": error})

    def _hold(self, process: Process, handle: _Handle) -> None:
        """Keep the callbacks of a process, in order, until it continues."""
        process.waiting.append(handle)
        if len(process.waiting) == 1:
            self.call_at(process.held_until, self._go_on, process, context=Context())

    def end_leftovers(self, process: Process) -> None:
        """Let the leftovers of a killed process run, so that it can be ended."""
        process.alive, process.held_until = True, 0.0
        self._ready.extend(process.waiting)
        process.waiting.clear()

    def _go_on(self, process: Process) -> None:
        if not process.alive:
            return
        if process.held_until > self._now:
            self.call_at(process.held_until, self._go_on, process, context=Context())
        else:
            self._ready.extendleft(reversed(process.waiting))
            process.waiting.clear()


def _is_task(handle: _Handle) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


def simulated_time() -> float:
    """The time on a clock: that of the calling process, if there is a simulation."""
    loop = asyncio.events._get_running_loop()
    if not isinstance(loop, SimulatedLoop):
        return _real_time()
    process = PROCESS.get()
    return process.clock(loop.time()) if process else EPOCH + loop.time()


def simulated_monotonic() -> float:
    """The time on a clock that is never set, if there is a simulation."""
    loop = asyncio.events._get_running_loop()
    return loop.time() if isinstance(loop, SimulatedLoop) else _real_monotonic()
