"""A table in shared memory: how much each process of a server has to do.

A process has a row of 64-bit numbers, which only it writes, and which all read. Nothing is locked: a number
is written whole, and a sum over rows is as old as a look into the memory of others. So two processes that
look at the same moment may both take what one of them could have: a bound is exceeded by a request in flight
for each process at most.

A row is what it is for a process of this place and time: a process that replaces another one has a row of its
own while both run. The supervisor clears the row of a process that has ended.

The bells are pipes, one for each row: a byte wakes the process whose row it is, because a permit is free.
"""

import asyncio
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum

from antiphon.core.errors import AntiphonError
from antiphon.core.links import Link

WORD = 8
ROW = 8
"""Numbers at the beginning of a row: its `State`, its load, and room for more."""
ENGINES = 248
"""Engines whose permits are shared. Each has two numbers in a row: those that are given, and that wait."""
_WORDS = ROW + 2 * ENGINES
_STATE, _RUNNING, _EXPECTED = 0, 1, 2
EVEN = 8
"""Loads that differ by less than this part are even: in a burst, processes need not take turns."""
CROWDED = 1.25
"""A process has too much to do above this multiple of the mean."""


class State(IntEnum):
    """What a process does with new connections."""

    CLOSED = 0
    """It accepts none."""
    LOADING = 1
    """It accepts those that no process in the next state is there for, to say that it is loading."""
    READY = 2
    """It accepts them, and answers."""


def create(rows: int) -> int:
    """A descriptor of memory for a table with so many rows, all of them clear."""
    with tempfile.TemporaryFile() as file:
        file.truncate(rows * _WORDS * WORD)
        return os.dup(file.fileno())


class Table:
    """The table in the memory of a descriptor. `bells` are the writing ends of the pipes, by row."""

    def __init__(self, descriptor: int, bells: Sequence[int] = ()) -> None:
        size = os.fstat(descriptor).st_size
        self._cells = memoryview(mmap.mmap(descriptor, size)).cast("q")
        self._bells = bells
        self.rows = size // (_WORDS * WORD)

    def clear(self, row: int) -> None:
        """Forget a process that has ended."""
        for cell in range(row * _WORDS, (row + 1) * _WORDS):
            self._cells[cell] = 0

    def ring(self, row: int) -> None:
        """Tell a process that a permit is free. One whose pipe is full knows."""
        with suppress(OSError):
            os.write(self._bells[row], b"!")

    def in_state(self, state: State) -> list[int]:
        """The rows of the processes in this state."""
        return [row for row in range(self.rows) if self._cells[row * _WORDS + _STATE] == state]

    def set_state(self, row: int, state: State) -> None:
        """Set the state of a process."""
        self._cells[row * _WORDS + _STATE] = state

    def load(self, row: int) -> int:
        """The requests that a process answers, and those that are expected on its new connections."""
        cell = row * _WORDS
        return self._cells[cell + _RUNNING] + self._cells[cell + _EXPECTED]

    def set_load(self, row: int, running: int, expected: int) -> None:
        """Set both."""
        cell = row * _WORDS
        self._cells[cell + _RUNNING], self._cells[cell + _EXPECTED] = running, expected

    @property
    def running(self) -> int:
        """The requests that all processes answer."""
        return sum(self._cells[row * _WORDS + _RUNNING] for row in range(self.rows))

    def permits(self, row: int, engine: int) -> tuple[int, int]:
        """The permits of an engine that are given in a process, and how many wait there for one."""
        cell = row * _WORDS + ROW + 2 * engine
        return self._cells[cell], self._cells[cell + 1]

    def set_permits(self, row: int, engine: int, running: int, waiting: int) -> None:
        """Set both."""
        cell = row * _WORDS + ROW + 2 * engine
        self._cells[cell], self._cells[cell + 1] = running, waiting


class Share:
    """The part of one process in the load of its server."""

    def __init__(self, table: Table, row: int) -> None:
        self._table = table
        self._row = row
        self._running = self._expected = 0
        self._state = State.CLOSED

    def enter(self, state: State) -> None:
        """Say what this process does with new connections."""
        self._state = state
        self._table.set_state(self._row, state)

    def run(self, more: int) -> None:
        """So many more requests are answered by this process."""
        self._running += more
        self._table.set_load(self._row, self._running, self._expected)

    def expect(self, more: int) -> None:
        """So many more are expected."""
        self._expected += more
        self._table.set_load(self._row, self._running, self._expected)

    @property
    def _load(self) -> int:
        return self._running + self._expected

    @property
    def is_behind(self) -> bool:
        """Whether this process is loading, and another one is ready."""
        return self._state is not State.READY and bool(self._table.in_state(State.READY))

    @property
    def is_least(self) -> bool:
        """Whether no process in the same state has less to do, give or take an eighth: see `EVEN`."""
        load = self._load - self._load // EVEN
        return all(self._table.load(row) >= load for row in self._table.in_state(self._state))

    @property
    def is_crowded(self) -> bool:
        """Whether a client of this process would be served sooner by another one."""
        loads = [self._table.load(row) for row in self._table.in_state(State.READY)]
        if self._state is not State.READY:
            return bool(loads)
        # With a difference of one, a connection that moves makes no difference.
        return self._load > CROWDED * sum(loads) / len(loads) and self._load > min(loads) + 1


class OtherProcesses:
    """The permits of one engine in the other processes of a server: see `core.permits.Elsewhere`."""

    def __init__(self, table: Table, row: int, engine: int) -> None:
        if engine >= ENGINES:
            raise AntiphonError(f"A server of several processes has at most {ENGINES} engines.")
        self._table = table
        self._row = row
        self._engine = engine
        self._others = [other for other in range(table.rows) if other != row]
        self.on_free: Callable[[], None] = lambda: None
        """Called when the bell of this process has said that a permit is free."""

    @property
    def running(self) -> int:
        return sum(self._table.permits(row, self._engine)[0] for row in self._others)

    @property
    def waiting(self) -> int:
        return sum(self._table.permits(row, self._engine)[1] for row in self._others)

    def tell(self, running: int, waiting: int) -> None:
        self._table.set_permits(self._row, self._engine, running, waiting)

    def offer(self, running: int) -> bool:
        queues = [(self._table.permits(row, self._engine), row) for row in self._others]
        poorest = min(((given, row) for (given, waiting), row in queues if waiting), default=None)
        if poorest is None or poorest[0] >= running:
            return False
        self._table.ring(poorest[1])
        return True


class Shares:
    """What a process shares with the others: its load, the permits of its engines, and links to some."""

    def __init__(self, table: Table, row: int, links: Sequence[Link] = ()) -> None:
        self.load = Share(table, row)
        self._links = iter(links)
        self._table = table
        self._row = row
        self._engines: list[OtherProcesses] = []

    def permits(self) -> OtherProcesses:
        """The permits of the next engine. All processes ask for those of the same engines, in one order."""
        others = OtherProcesses(self._table, self._row, len(self._engines))
        self._engines.append(others)
        return others

    def link(self) -> Link:
        """The link to the next engine that has some, in the same order."""
        return next(self._links)

    def listen(self, bell: int) -> None:
        """Listen to the bell of this process in the running loop."""
        os.set_blocking(bell, False)
        asyncio.get_running_loop().add_reader(bell, self._rung, bell)

    def _rung(self, bell: int) -> None:
        with suppress(BlockingIOError):
            os.read(bell, 4096)
        for engine in self._engines:
            engine.on_free()
