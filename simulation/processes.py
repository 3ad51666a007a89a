"""What servers hold on to: permits, and the processes that do bounded work, without real processes.

A piece of bounded work takes as long as threads do, see `SimulatedLoop.run_in_executor`, and is done here.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from antiphon.app import indexing
from antiphon.core.permits import Permits
from antiphon.run import bounded
from simulation.laws import law
from simulation.loop import PROCESS


class VirtualProcess:
    """A process that does work. See `bounded._Process`."""

    def __init__(self) -> None:
        self.alive = True

    def run(self, job: Any) -> tuple[bool, Any]:
        """Whether a piece of work succeeded, and its result or exception."""
        law(self.alive, "work is given to a process that was ended")
        call, args, kwargs, _ = job
        try:
            return True, call(*map(_received, args), **kwargs)
        except Exception as error:
            return False, error

    def kill(self) -> None:
        """End it."""
        self.alive = False


def _received(argument: Any) -> Any:
    return argument.content if isinstance(argument, bounded.LargeBytes) else argument


@contextmanager
def virtual_processes() -> Iterator[None]:
    """Bounded work is done by virtual processes, and each process knows the permits of its server."""
    make, begin = bounded._Process, Permits.__init__

    def noted(permits: Permits, *args: Any, **kwargs: Any) -> None:
        begin(permits, *args, **kwargs)
        if (process := PROCESS.get()) is not None:
            process.permits.append((sys._getframe(1).f_code.co_qualname, permits))

    idle, bounded._idle[:] = [*bounded._idle], []
    written, indexing._WRITTEN = indexing._WRITTEN, 1  # so that also short files take several writes
    bounded._Process, Permits.__init__ = VirtualProcess, noted  # type: ignore[assignment, misc, method-assign]
    try:
        yield
    finally:
        bounded._Process, Permits.__init__ = make, begin  # type: ignore[misc, method-assign]
        bounded._idle[:], indexing._WRITTEN = idle, written
