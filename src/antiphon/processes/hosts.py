"""Programs that run an engine for all processes of a server: the supervisor's side of them.

Such a program, `antiphon.host`, is started before the processes, and ends after them. The engine connects to
sockets that are made here: to two for each process, and for each that may take the place of one that has
died. When all are used up, the engine has to be started anew. It runs for as long as anybody holds the
writing end of a pipe: if the supervisor is killed, the processes do. Nobody is left then who removes the
folder of the sockets: the next server does.
"""

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from antiphon.core.errors import AntiphonError
from antiphon.core.links import CoreFacts, Link, memory_size
from antiphon.processes.channel import Channel, Failed, Forget, FromHost, Loaded, Started
from antiphon.processes.start import HostStart, Logging, spawn

SPARES = 32
"""Links for processes that take the places of others."""
CLOSE_SECONDS = 15.0
"""How long an engine may take to end before it is killed."""
REFRESH_SECONDS = 600.0
"""How often connections to sockets that nobody uses are dropped: engines make two a minute."""
PREFIX = "antiphon-engine-"
"""How the names of the folders of sockets begin."""
_MEMORY = "memory"
_BACKLOG = 128
_REAP_SECONDS = 0.01


class EngineHost:
    """One of the programs. `ended` is called with the reason when it ends by itself, or its engine does."""

    def __init__(self, options: Any, processes: int, logging: Logging, ended: Callable[[str], None]) -> None:
        self._options = options
        self._processes = processes
        self._logging = logging
        self._ended = ended
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._count = processes + SPARES + 1
        self._sockets = [(self._listen("in", n), self._listen("out", n)) for n in range(self._count)]
        self._next = 0
        self._used: set[int] = set()
        self._memory = _create_memory(self._folder, memory_size(self._count))
        self._life, self._hold = os.pipe()
        self._core: asyncio.Future[CoreFacts] = asyncio.get_running_loop().create_future()
        self.dead = self._loaded = self._closing = False
        self._why = "An engine has ended unexpectedly: see its log."
        self._program: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def _path(self, kind: str, number: int) -> str:
        return str(self._folder / f"{kind}{number}")

    def _address(self, kind: str, number: int) -> str:
        return f"ipc://{self._path(kind, number)}"

    def _listen(self, kind: str, number: int) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        listener.bind(self._path(kind, number))
        listener.listen(_BACKLOG)
        return listener

    async def start(self) -> None:
        """Start the program, and wait until the processes of its engine run. Raises AntiphonError."""
        ours, theirs = socket.socketpair()
        with theirs:
            start = HostStart(
                options=self._options,
                link=self._link(place=-1, core=CoreFacts()),
                inputs=[self._address("in", number) for number in range(self._count)],
                outputs=[self._address("out", number) for number in range(self._count)],
                channel=theirs.fileno(),
                life=self._life,
                logging=self._logging,
            )
            self._program = spawn("antiphon.host", start)
        os.close(self._life)
        self._channel = Channel(ours, FromHost)
        self._tasks = [asyncio.create_task(work) for work in (self._watch(self._channel), self._refresh())]
        await self._core

    def _link(self, place: int, core: CoreFacts) -> Link:
        number, self._next = self._next, self._next + 1
        self._used.add(number)
        inputs, outputs = self._sockets[number]
        return Link(
            number=number,
            place=place,
            clients=self._processes,
            input=self._address("in", number),
            output=self._address("out", number),
            input_socket=inputs.fileno(),
            output_socket=outputs.fileno(),
            memory=self._memory,
            life=self._hold,
            core=core,
        )

    def link(self, place: int) -> Link:
        """The link of a new process."""
        return self._link(place, self._core.result())

    def used_up(self) -> bool:
        """No links are left."""
        return self._next == self._count

    def forget(self, link: Link) -> None:
        """End the requests of a process that has ended, if its link was to this engine."""
        if link.input == self._address("in", link.number) and self._channel is not None:
            self._used.discard(link.number)
            self._channel.send(Forget(link.number))

    async def _watch(self, channel: Channel) -> None:
        """Read what the program says, until it ends."""
        async with channel:
            async for message in channel.messages():
                match message:
                    case Started(core):
                        self._core.set_result(core)
                    case Loaded():
                        self._loaded = True
                    case Failed(why):
                        self._why = why
        self.dead = True
        if not self._core.done():
            self._core.set_exception(AntiphonError(self._why))
        elif not self._closing:
            self._ended(self._why)

    async def _refresh(self) -> None:
        """Drop what has come to sockets that nobody uses, before queues are full: engines connect again."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            for number in {*range(self._count)} - self._used:
                for listener in self._sockets[number]:
                    with suppress(OSError):
                        while True:
                            listener.accept()[0].close()

    async def close(self) -> None:
        """End the program, and its engine. No process uses it any more."""
        self._closing = True
        os.close(self._hold)
        if self._program is not None:
            await self._end(self._program)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listeners in self._sockets:
            for listener in listeners:
                listener.close()
        os.close(self._memory)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _end(self, program: subprocess.Popen[bytes]) -> None:
        for _ in range(round(CLOSE_SECONDS / _REAP_SECONDS) if self._loaded else 0):
            if program.poll() is not None:
                return
            await asyncio.sleep(_REAP_SECONDS)
        for process in (
            self._core.result().processes if self._core.done() and not self._core.exception() else ()
        ):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        program.kill()
        await asyncio.to_thread(program.wait)


class Hosts:
    """The programs of all engines that have one: see `EngineHost`."""

    def __init__(
        self, options: Sequence[Any], processes: int, logging: Logging, ended: Callable[[str], None]
    ) -> None:
        self._options = options
        self._processes = processes
        self._logging = logging
        self._ended = ended
        self._hosts: list[EngineHost] = []

    async def start(self) -> None:
        """Start them all. Raises AntiphonError."""
        if self._options:
            remove_abandoned(Path(tempfile.gettempdir()))
        for options in self._options:
            host = EngineHost(options, self._processes, self._logging, self._ended)
            self._hosts.append(host)
            await host.start()

    async def replace(self, which: Callable[[EngineHost], bool]) -> None:
        """Start anew those that have to be. Raises AntiphonError."""
        for place, (host, options) in enumerate(zip([*self._hosts], self._options, strict=True)):
            if which(host):
                await host.close()
                self._hosts[place] = EngineHost(options, self._processes, self._logging, self._ended)
                await self._hosts[place].start()

    def links(self, place: int) -> list[Link]:
        """The links of a new process."""
        return [host.link(place) for host in self._hosts]

    @property
    def used_up(self) -> bool:
        """No process can be started any more."""
        return any(map(EngineHost.used_up, self._hosts))

    def forget(self, links: Sequence[Link]) -> None:
        """A process with these links has ended."""
        for host, link in zip(self._hosts, links, strict=False):
            host.forget(link)

    async def close(self) -> None:
        """End them all."""
        hosts, self._hosts = self._hosts, []
        for host in hosts:
            await host.close()


def _create_memory(folder: Path, size: int) -> int:
    """The memory that all share who use an engine: as long as one of them has it open, it is locked."""
    new = folder / "new"
    memory = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.truncate(memory, size)
    fcntl.flock(memory, fcntl.LOCK_EX)
    new.rename(folder / _MEMORY)  # so nobody sees it before it is locked
    return memory


def remove_abandoned(parent: Path) -> None:
    """Remove the folders here of our servers that were killed, once none of their processes is left."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid == os.getuid():
                _remove_unlocked(folder)


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder whose memory is not locked. Raises OSError if it is, or is not there."""
    memory = os.open(folder / _MEMORY, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(memory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(memory)
