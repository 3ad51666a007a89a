"""A table in shared memory: how much each process of a server has to do.

A process has a row of 64-bit numbers, which only it writes, and which all read. Nothing is locked: a number
is written whole, and a sum over rows is as old as a look into the memory of others. So two processes that
look at the same moment may both take what one of them could have: a bound is exceeded by a request in flight
for each process at most.

For each engine, a row also tells what its process has served each client, and who waits there: see
`core/shared_queue.py`. This is kept in a row more when a process has ended.

A row is what it is for a process of this place and time: a process that replaces another one has a row of its
own while both run. The supervisor clears the row of a process that has ended.

The bells are pipes, one for each row: a byte wakes the process whose row it is. It says why: a permit is free
(`FREE`), or something in the store has changed that is watched there. Topics of the store have the other 255
bytes, by their checksums; a row has a bit for each that is watched, so that nobody is woken for nothing.
"""

import asyncio
import mmap
import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import IntEnum
from itertools import repeat
from zlib import crc32

from antiphon.core.errors import AntiphonError
from antiphon.core.links import Link
from antiphon.core.shared_queue import Standing

WORD = 8
ROW = 8
"""Numbers at the beginning of a row: its `State`, its load, its engines, and four of bits of topics."""
ENGINES = 248
"""Engines whose slots are shared. Each has a part of a row: `HEAD` numbers, and eight for each client."""
HEAD = 8
"""The slots that are given, the requests that wait, how many clients there are, the floor, and how
often this was told. Three are free."""
CLIENTS = 128
"""How many clients a process tells of, for each engine."""
_GIVEN, _WAITING, _USED, _FLOOR, _TOLD = 0, 1, 2, 3, 4
_STANDING = 8
"""Numbers of a client: those of `Standing`, in 64 bytes."""
_ENGINE = HEAD + CLIENTS * _STANDING
_WORDS = ROW + ENGINES * _ENGINE
_STATE, _RUNNING, _EXPECTED, _ENGINES, _WATCHED = 0, 1, 2, 3, 4
FREE = b"\0"
"""What a bell says if a permit is free."""
EVEN = 8
"""Loads that differ by less than this part are even: in a burst, processes need not take turns."""
CROWDED = 1.25
"""A process has too much to do above this multiple of the mean."""
PATIENCE_SECONDS = 0.05
"""How long a slot is left to the process whose turn it is."""


class State(IntEnum):
    """What a process does with new connections."""

    CLOSED = 0
    """It accepts none."""
    LOADING = 1
    """It accepts those that no process in the next state is there for, to say that it is loading."""
    READY = 2
    """It accepts them, and answers."""


def create(rows: int) -> int:
    """A descriptor of memory for a table with so many rows, all of them clear.

    One row more is for what is left of processes that have ended. What is not used takes no memory.
    """
    with tempfile.TemporaryFile() as file:
        file.truncate((rows + 1) * _WORDS * WORD)
        return os.dup(file.fileno())


class Table:
    """The table in the memory of a descriptor. `bells` are the writing ends of the pipes, by row."""

    def __init__(self, descriptor: int, bells: Sequence[int] = ()) -> None:
        size = os.fstat(descriptor).st_size
        memory = memoryview(mmap.mmap(descriptor, size))
        self._cells = memory.cast("q")
        self._bits = memory.cast("Q")
        self._bells = bells
        self.rows = size // (_WORDS * WORD) - 1
        self._ended = self.rows

    def clear(self, row: int) -> None:
        """Forget a process that has ended, but not what it has served its clients. For the supervisor."""
        for engine in range(self._cells[row * _WORDS + _ENGINES]):
            self._inherit(row, engine)
            start = self._engine(row, engine)
            for cell in range(start, start + HEAD):
                self._cells[cell] = 0
        for cell in range(row * _WORDS, row * _WORDS + ROW):
            self._cells[cell] = 0

    def _inherit(self, row: int, engine: int) -> None:
        """Keep what a process has served the clients that are active, or were served more than others."""
        served: dict[int, int] = {}
        counters: dict[int, int] = {}
        active: set[int] = set()
        for other, standing in self.standings(engine):
            client, ended = standing.client, standing.counter - standing.begun
            counters[client] = counters.get(client, 0) + ended
            if other in (row, self._ended):
                served[client] = served.get(client, 0) + ended
            elif standing.waiting or standing.begun:
                active.add(client)
        floor = self.floor(engine)
        kept = [client for client in served if client in active or counters[client] > floor]
        for index, client in enumerate(kept[:CLIENTS]):
            self.set_standing(self._ended, engine, index, Standing(client, served[client], 0))
        self.set_used(self._ended, engine, min(len(kept), CLIENTS))
        self.raise_floor(self._ended, engine, floor)

    def ring(self, row: int, why: bytes = FREE) -> None:
        """Wake a process. One whose pipe is full wakes anyway, and looks at its permits and topics."""
        with suppress(OSError):
            os.write(self._bells[row], why)

    def watches(self, row: int, topic: int) -> bool:
        """Whether a process watches topics with this byte."""
        return bool(self._bits[row * _WORDS + _WATCHED + topic // 64] >> topic % 64 & 1)

    def set_watches(self, row: int, topic: int, watched: bool) -> None:
        """Set that."""
        cell, bit = row * _WORDS + _WATCHED + topic // 64, 1 << topic % 64
        self._bits[cell] = self._bits[cell] | bit if watched else self._bits[cell] & ~bit

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

    @staticmethod
    def _engine(row: int, engine: int) -> int:
        """The first number of an engine in a row."""
        return row * _WORDS + ROW + engine * _ENGINE

    def permits(self, row: int, engine: int) -> tuple[int, int]:
        """The slots of an engine that are given in a process, and how many requests wait there for one."""
        cell = self._engine(row, engine)
        return self._cells[cell + _GIVEN], self._cells[cell + _WAITING]

    def given(self, rows: Sequence[int], engine: int) -> int:
        """The sum of the slots that are given in these rows."""
        return self._sum(rows, engine, _GIVEN)

    def waiting(self, rows: Sequence[int], engine: int) -> int:
        """The sum of the requests that wait there."""
        return self._sum(rows, engine, _WAITING)

    def _sum(self, rows: Sequence[int], engine: int, number: int) -> int:
        first, cells = ROW + engine * _ENGINE + number, self._cells
        return sum([cells[row * _WORDS + first] for row in rows])

    def set_permits(self, row: int, engine: int, running: int, waiting: int) -> None:
        """Set both."""
        cell = self._engine(row, engine)
        self._cells[cell + _GIVEN], self._cells[cell + _WAITING] = running, waiting
        self._cells[cell + _TOLD] += 1

    def told(self, row: int, engine: int) -> int:
        """How often both were set."""
        return self._cells[self._engine(row, engine) + _TOLD]

    def add_engine(self, row: int, engine: int) -> None:
        """A row has this engine, too: they are numbered from 0."""
        self._cells[row * _WORDS + _ENGINES] = engine + 1

    def standings(self, engine: int) -> list[tuple[int, Standing]]:
        """How clients stand with an engine: the rows, and the standings there."""
        found: list[tuple[int, Standing]] = []
        for row in range(self.rows + 1):
            start = self._engine(row, engine)
            if used := self._cells[start + _USED]:
                numbers = self._cells[start + HEAD : start + HEAD + used * _STANDING].tolist()
                columns = (numbers[column::_STANDING] for column in range(len(Standing._fields)))
                found += zip(repeat(row), map(Standing._make, zip(*columns, strict=True)), strict=False)
        return found

    def total(self, engine: int, client: int) -> tuple[int, int]:
        """The sums of the first two numbers of a client's standings."""
        counter = begun = 0
        cells, start = self._cells, self._engine(0, engine)
        for _ in range(self.rows + 1):
            if used := cells[start + _USED]:
                first = start + HEAD
                clients = cells[first : first + used * _STANDING : _STANDING].tolist()
                if client in clients:
                    cell = first + clients.index(client) * _STANDING
                    counter += cells[cell + 1]
                    begun += cells[cell + 2]
            start += _WORDS
        return counter, begun

    def set_standing(self, row: int, engine: int, index: int, standing: Standing) -> None:
        """Set one of those in a row."""
        cell = self._engine(row, engine) + HEAD + index * _STANDING
        self._cells[cell : cell + len(standing)] = memoryview(array("q", standing))

    def set_used(self, row: int, engine: int, used: int) -> None:
        """Set how many a row has."""
        self._cells[self._engine(row, engine) + _USED] = used

    def floor(self, engine: int) -> int:
        """The largest floor of any row."""
        first, cells = ROW + engine * _ENGINE + _FLOOR, self._cells
        return max([cells[row * _WORDS + first] for row in range(self.rows + 1)])

    def raise_floor(self, row: int, engine: int, floor: int) -> None:
        """Raise the floor of a row, if it is less."""
        cell = self._engine(row, engine) + _FLOOR
        self._cells[cell] = max(self._cells[cell], floor)


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
    """The slots of one engine in the other processes of a server: see `core.shared_queue.SharedQueue`."""

    clients = CLIENTS

    def __init__(self, table: Table, row: int, engine: int) -> None:
        if engine >= ENGINES:
            raise AntiphonError(f"A server of several processes has at most {ENGINES} engines.")
        self.own = row
        self._table = table
        self._engine = engine
        self._others = [other for other in range(table.rows) if other != row]
        self._indices: dict[int, int] = {}  # of the standings here, by client
        self._standings: dict[int, Standing] = {}
        self.on_free: Callable[[], None] = lambda: None
        table.add_engine(row, engine)

    @property
    def running(self) -> int:
        return self._table.given(self._others, self._engine)

    @property
    def waiting(self) -> int:
        return self._table.waiting(self._others, self._engine)

    def tell(self, running: int, waiting: int) -> None:
        self._table.set_permits(self.own, self._engine, running, waiting)

    def told(self, process: int) -> int:
        return self._table.told(process, self._engine)

    def publish(self, standing: Standing) -> None:
        index = self._indices.setdefault(standing.client, len(self._indices))
        assert index < CLIENTS  # beyond is another engine
        self._standings[standing.client] = standing
        self._table.set_standing(self.own, self._engine, index, standing)
        self._table.set_used(self.own, self._engine, len(self._indices))

    def forget(self, client: int) -> None:
        gap, last = self._indices.pop(client), len(self._indices)
        if gap != last:  # the last one fills it
            moved = next(other for other, index in self._indices.items() if index == last)
            self._indices[moved] = gap
            self._table.set_standing(self.own, self._engine, gap, self._standings[moved])
        del self._standings[client]
        self._table.set_used(self.own, self._engine, last)

    def standings(self) -> Sequence[tuple[int, Standing]]:
        return self._table.standings(self._engine)

    def total(self, client: int) -> tuple[int, int]:
        return self._table.total(self._engine, client)

    @property
    def floor(self) -> int:
        return self._table.floor(self._engine)

    def raise_floor(self, floor: int) -> None:
        self._table.raise_floor(self.own, self._engine, floor)

    def ring(self, process: int) -> None:
        self._table.ring(process)

    def later(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(PATIENCE_SECONDS, call)


class OtherWatches:
    """The watches of the store in the other processes: see `store.watch.WatchesElsewhere`."""

    def __init__(self, table: Table, row: int) -> None:
        self._table = table
        self._row = row
        self._others = [other for other in range(table.rows) if other != row]
        self._topics: dict[int, set[str]] = {}  # that are watched here
        self.on_change: Callable[[Iterable[str]], None] = lambda _: None

    def begin(self, topic: str) -> None:
        byte = _byte_of(topic)
        self._topics.setdefault(byte, set()).add(topic)
        self._table.set_watches(self._row, byte, True)

    def end(self, topic: str) -> None:
        byte = _byte_of(topic)
        self._topics[byte].discard(topic)
        if not self._topics[byte]:
            del self._topics[byte]
            self._table.set_watches(self._row, byte, False)

    def tell(self, topics: Iterable[str]) -> None:
        changed = {_byte_of(topic) for topic in topics}
        for row in self._others:
            if watched := bytes(byte for byte in changed if self._table.watches(row, byte)):
                self._table.ring(row, watched)

    def rung(self, heard: Iterable[int]) -> None:
        """The bell of this process has said that topics with these bytes have changed."""
        self.on_change([topic for byte in heard for topic in self._topics.get(byte, ())])


def _byte_of(topic: str) -> int:
    """The byte of a topic: not `FREE`."""
    return 1 + crc32(topic.encode()) % 255


class Shares:
    """What a process shares with the others: its load, permits, watches of the store, links to engines."""

    def __init__(self, table: Table, row: int, links: Sequence[Link] = ()) -> None:
        self.load = Share(table, row)
        self.watches = OtherWatches(table, row)
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
        try:
            heard = {*os.read(bell, 4096)}
        except BlockingIOError:
            return
        if FREE[0] in heard:
            for engine in self._engines:
                engine.on_free()
        self.watches.rung(heard - {FREE[0]})
