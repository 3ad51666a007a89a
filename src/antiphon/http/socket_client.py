"""The clients of drivers on a WebSocket: one for each lane, and the queue of events that they share.

A lane is a sequence of turns, which a client names by a `stream_id`: its events have that field. All lanes
are paused while the client does not read, and stopped if it does not read for too long.
"""

import asyncio
from collections.abc import Callable

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from antiphon.http.delivery import MAX_UNSENT
from antiphon.run.drive import CLIENT, Client, Driver
from antiphon.run.endings import ClientStalledError


class SocketOutput:
    """Sends queued events, in a task. A client that does not read for `stall` seconds is given up."""

    def __init__(self, socket: WebSocket, stall: float) -> None:
        self._socket = socket
        self._stall = stall
        self._unsent: list[bytes] = []
        self._size = 0
        self.given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the client has not read for too long."""
        self._drivers: set[Driver] = set()
        self._paused: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sending = asyncio.create_task(self._send_all())

    @property
    def stalled(self) -> bool:
        """The client has not read for too long."""
        return self.given_up.done()

    def attach(self, driver: Driver) -> None:
        """From now on, pause this driver while the client does not read."""
        self._drivers.add(driver)
        if self._paused is not None:
            driver.pause(CLIENT)

    def detach(self, driver: Driver) -> None:
        """The driver is done."""
        self._drivers.discard(driver)

    def write(self, lines: list[bytes]) -> None:
        """Queue events."""
        if self.stalled:
            return
        self._unsent += lines
        self._size += sum(map(len, lines))
        self._idle.clear()
        self._wake.set()
        if self._size > MAX_UNSENT and self._paused is None and self._drivers:
            self._paused = asyncio.get_running_loop().call_later(self._stall, self._give_up)
            for driver in self._drivers:
                driver.pause(CLIENT)

    async def flushed(self) -> None:
        """Wait until all is sent."""
        await self._idle.wait()

    async def _send_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            unsent, self._unsent, self._size = self._unsent, [], 0
            try:
                for line in unsent:
                    await self._socket.send_text(line.decode())
            except (WebSocketDisconnect, RuntimeError):  # Starlette's errors for a closed socket
                self._unsent.clear()
            if not self._unsent:
                self._idle.set()
                self._resume()

    def _resume(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
            for driver in [*self._drivers]:
                driver.resume(CLIENT)

    def _give_up(self) -> None:
        """The client did not read for too long."""
        self.given_up.set_result(None)
        for driver in self._drivers:
            driver.stop(ClientStalledError())
        self._sending.cancel()
        self._idle.set()

    def close(self) -> None:
        """Nothing to do."""
        self._sending.cancel()
        if self._paused is not None:
            self._paused.cancel()


class SocketClient(Client):
    """The client of one lane. See `run.drive.Client`."""

    def __init__(self, output: SocketOutput, stream_id: str | None) -> None:
        self._output = output
        self._tail = b"" if stream_id is None else b',"stream_id":' + msgspec.json.encode(stream_id) + b"}"
        self._driver: Driver | None = None
        self.written = 0
        """The number of events until now."""
        self.started = False

    def attach(self, driver: Driver) -> None:
        self._driver = driver
        self.started = False
        self._output.attach(driver)

    def detach(self) -> None:
        """The driver is done."""
        if self._driver is not None:
            self._output.detach(self._driver)
            self._driver = None

    def write(self, lines: list[bytes]) -> None:
        self.started = True
        self.tell(lines)

    def tell(self, lines: list[bytes]) -> None:
        """Send events that are not events of the answer."""
        self.written += len(lines)
        tail = self._tail
        self._output.write([line[:-1] + tail for line in lines] if tail else lines)

    def end(self, lines: list[bytes], body: Callable[[], bytes]) -> None:
        self.write(lines)
