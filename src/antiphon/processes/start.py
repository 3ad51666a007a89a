"""What a process of a server is started with. The supervisor writes it to the process's standard input."""

import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from msgspec import Struct

_PROGRAM = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from antiphon.http.process import main; sys.exit(main(sys.stdin.buffer))"
)
"""It finds modules where the supervisor does."""


class Start(Struct, frozen=True):
    """The options, and what the process inherits: the descriptors of its socket, channel, table and bells.

    It has the number `place` among `count` processes, from 0, and the row `row` in the table. One that
    replaces another has its number. The bells are pipes: it reads from `bell`, and writes to any of `bells`,
    by row.
    """

    settings: Any
    place: int
    count: int
    row: int
    listener: int
    channel: int
    table: int
    bell: int
    bells: Sequence[int]
    streams: int | None = None
    """Its end of the socket by which streams are passed on, if they outlive a process."""

    @property
    def descriptors(self) -> Sequence[int]:
        """All of them."""
        streams = () if self.streams is None else (self.streams,)
        return (self.listener, self.channel, self.table, self.bell, *self.bells, *streams)


def spawn(start: Start) -> subprocess.Popen[bytes]:
    """A process, in a session of its own: it gets no signals from a terminal."""
    process = subprocess.Popen(  # noqa: S603 - nothing of it comes from outside
        (sys.executable, "-c", _PROGRAM),
        stdin=subprocess.PIPE,
        pass_fds=start.descriptors,
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:  # it may be dead already: that its channel tells
        pipe.write(pickle.dumps(sys.path) + pickle.dumps(start))
    return process


def read(pipe: IO[bytes]) -> Start:
    """What this process is started with."""
    start = pickle.load(pipe)  # noqa: S301 - written by `spawn`
    assert isinstance(start, Start)
    return start
