"""Carries calls from other threads into the event loop, with one wake-up for all that wait.

An engine with threads of its own posts what each step yields; the loop is woken
once per step, however many generations the step reached.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class ThreadBridge:
    """Runs on the event loop what other threads post."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._scheduled = False

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` in the event loop soon. For any thread."""
        self._calls.append(call)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # Reset first: a post that comes while the queue is emptied is either seen
        # below or schedules again. Both are right; losing it would not be.
        self._scheduled = False
        try:
            while self._calls:
                self._calls.popleft()()
        finally:
            if self._calls:  # one has raised, which the event loop logs: the others come next
                self._scheduled = True
                self._loop.call_soon(self._run)
