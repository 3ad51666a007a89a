"""What the programs of a server are started with. The supervisor writes it to their standard input."""

import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, TypeVar

from msgspec import Struct

from antiphon.core.links import Link

_PROGRAM = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from {module} import main; sys.exit(main(sys.stdin.buffer))"
)
"""It finds modules where the supervisor does."""


class Start(Struct, frozen=True):
    """The options, and what the process inherits: the descriptors of its socket, channel, table and bells.

    It has the number `place` among `count` processes, from 0, and the row `row` in the table. One that
    replaces another has its number. `server` is the id of the server. The bells are pipes: it reads from
    `bell`, and writes to any of `bells`, by row.
    """

    settings: Any
    place: int
    count: int
    row: int
    server: str
    listener: int
    channel: int
    table: int
    bell: int
    bells: Sequence[int]
    links: Sequence[Link] = ()
    streams: int | None = None
    """Its end of the socket by which streams are passed on, if they outlive a process."""

    @property
    def descriptors(self) -> Sequence[int]:
        """All of them."""
        linked = (end for link in self.links for end in link.descriptors)
        streams = () if self.streams is None else (self.streams,)
        return (self.listener, self.channel, self.table, self.bell, *self.bells, *linked, *streams)


class Logging(Struct, frozen=True):
    """What is logged, and how."""

    level: str
    format: str


class HostStart(Struct, frozen=True):
    """The options of an engine that runs in a program of its own, and the links to it: see `hosts.py`.

    `link` is its own one; `inputs` and `outputs` are the addresses of all. `life` is the pipe while whose
    other end is held it runs.
    """

    options: Any
    link: Link
    inputs: Sequence[str]
    outputs: Sequence[str]
    channel: int
    life: int
    logging: Logging

    @property
    def descriptors(self) -> Sequence[int]:
        """What it inherits: not the other end of its own pipe."""
        own = (self.link.input_socket, self.link.output_socket, self.link.memory)
        return (self.channel, self.life, *own)


S = TypeVar("S", bound=Start | HostStart)


def spawn(module: str, start: Start | HostStart) -> subprocess.Popen[bytes]:
    """A program that runs `main` of a module, in a session of its own: it gets no signals from a terminal."""
    process = subprocess.Popen(  # noqa: S603 - nothing of it comes from outside
        (sys.executable, "-c", _PROGRAM.format(module=module)),
        stdin=subprocess.PIPE,
        pass_fds=start.descriptors,
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:  # it may be dead already: that its channel tells
        pipe.write(pickle.dumps(sys.path) + pickle.dumps(start))
    return process


def read(pipe: IO[bytes], kind: type[S]) -> S:
    """What this program is started with."""
    start = pickle.load(pipe)  # noqa: S301 - written by `spawn`
    assert isinstance(start, kind)
    return start
