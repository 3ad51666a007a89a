"""Accepts connections where several processes have one socket: the one with the least to do takes the next.

All processes wake when a client connects. The one with the least load accepts, in a loop for as long as it
has the least; the others look again up to five times, a millisecond apart, and then accept, too: so a process
that computes, and does not look, holds nobody up for long.
A process that is loading leaves all to those that are ready.

The load is the number of running answers. A connection counts for a moment, until its first request does.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from antiphon.processes.table import Share, State

TURNS = 5
"""How often a process that has more to do than another leaves a connection to it."""
TURN_SECONDS = 0.001
BEHIND_SECONDS = 0.05
"""After this time a process that is loading looks again whether another one is ready."""
FRESH_SECONDS = 0.1
"""How long a new connection counts as a request."""
PAUSE_SECONDS = 1.0
"""How long nothing is accepted after an error, such as of too many open files."""


class Acceptor:
    """Accepts connections of a listening socket, for the protocols that `make` makes."""

    def __init__(
        self,
        listener: socket.socket,
        share: Share,
        make: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._share = share
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        listener.setblocking(False)
        share.enter(State.LOADING)
        self._wait()

    def close(self) -> None:
        """Accept no more. The others go on with the same socket."""
        if self._closed:
            return
        self._closed = True
        self._share.enter(State.CLOSED)
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()

    async def wait_closed(self) -> None:
        """Wait for connections that are being made."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _wait(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._look)

    def _look(self) -> None:
        """There is a client."""
        self._loop.remove_reader(self._listener)
        self._take(TURNS)

    def _take(self, turns: int) -> None:
        """Accept what waits, as long as no other process has less to do; in the last turn, one connection."""
        if self._share.is_behind:
            self._timer = self._loop.call_later(BEHIND_SECONDS, self._wait)
            return
        last = not turns
        try:
            while last or self._share.is_least:
                self._accept()
                if last:
                    break
            else:
                self._timer = self._loop.call_later(TURN_SECONDS, self._take, turns - 1)
                return
        except BlockingIOError:  # another process has it
            pass
        except OSError:
            self._timer = self._loop.call_later(PAUSE_SECONDS, self._wait)
            return
        self._wait()

    def _accept(self) -> None:
        """Accept a connection. Raises OSError if there is none, or it cannot be."""
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._share.expect(1)
        self._loop.call_later(FRESH_SECONDS, self._share.expect, -1)
        task = self._loop.create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        with suppress(OSError):  # the client has left, or does not speak TLS
            await self._loop.connect_accepted_socket(self._make, connection, ssl=self._tls)


class CountedTasks(set[asyncio.Task[None]]):
    """The tasks of running requests, whose number is the load of the process."""

    def __init__(self, share: Share) -> None:
        super().__init__()
        self._share = share

    def add(self, task: asyncio.Task[None]) -> None:
        """Count a request."""
        super().add(task)
        self._share.run(1)

    def discard(self, task: object) -> None:
        """A request has ended."""
        if task in self:
            super().discard(task)
            self._share.run(-1)
