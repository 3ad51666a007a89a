"""Calls back when an engine has been silent for some time, and while it stays so.

Each output of the engine postpones that. With a timer of the event loop, a new one for each step of the
engine, this would take as long as five tokens (7 % of a token of 64 streams: `bench/vllm.py`); a timer of
Linux is set again by one system call.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

_NANOSECONDS = 1_000_000_000


_NEVER = (ctypes.c_long * 4)()
# Of these calls none blocks, so they need not release the interpreter's lock.
_libc = ctypes.PyDLL(None, use_errno=True)


class SilenceTimer:
    """Calls `silent` `seconds` after the last `postpone`, and then each `again` seconds.

    Does nothing where the system has no such timers: see timerfd_create(2).
    """

    def __init__(self, seconds: float, again: float, silent: Callable[[], None]) -> None:
        self._silent = silent
        self._descriptor = -1
        self._loop: asyncio.AbstractEventLoop
        self._time = (ctypes.c_long * 4)(*_parts(again), *_parts(seconds))

    def open(self) -> None:
        """Begin, in a running event loop. Raises OSError if the system has no room for a timer."""
        if not hasattr(_libc, "timerfd_create"):  # macOS
            return
        self._descriptor = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._expired)

    def postpone(self) -> None:
        """Wait for `seconds` from now on."""
        self._set(self._time)

    def pause(self) -> None:
        """Call nothing until the next `postpone`."""
        self._set(_NEVER)

    def _set(self, time: "ctypes.Array[ctypes.c_long]") -> None:
        if self._descriptor >= 0:
            _libc.timerfd_settime(self._descriptor, 0, time, None)

    def _expired(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # postponed in the same turn of the event loop
            return
        self._silent()

    def close(self) -> None:
        """End; a timer that was not opened, or was closed, may be closed, too."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


def _parts(seconds: float) -> tuple[int, int]:
    """Whole seconds and nanoseconds."""
    return divmod(round(seconds * _NANOSECONDS), _NANOSECONDS)
