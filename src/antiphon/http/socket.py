"""The WebSocket mode of /v1/responses: one turn after the other on one connection.

A client sends `response.create` with the fields of a request, and gets the events of the response, one JSON
text each, without server-sent framing. Messages that arrive meanwhile wait. A turn that is not stored can be
continued on the same socket: the connection keeps it. A turn that fails drops the one that it continued.
When the client disconnects, its current turn stops.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from antiphon.apis.responses.errors import encode_socket_error
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.stream import ResponseProjection
from antiphon.app.app import App
from antiphon.app.journal import as_records
from antiphon.app.responses.create import Creation, as_kept, begin, response_id
from antiphon.core.errors import RequestError, public_error
from antiphon.core.limits import CLIENT as CLIENT_NAME
from antiphon.core.observation import observed
from antiphon.http.auth import POLICY_VIOLATION
from antiphon.http.delivery import MAX_UNSENT
from antiphon.http.observing import WEBSOCKET, observe, report
from antiphon.http.request import account_of, app_of, decode_body, owner_of
from antiphon.http.responses import events_of_waiting
from antiphon.log import log_failure
from antiphon.run.drive import CLIENT, Client, Driver
from antiphon.run.endings import ClientLeftError, ClientStalledError
from antiphon.store.records import ResponseStatus

SWITCHED = 101
"""The status of a connection that became a WebSocket (RFC 9110)."""


class Create(CreateResponse, kw_only=True):
    """A message of a client."""

    type: Literal["response.create"]
    stream_id: Any = None


async def converse(socket: WebSocket) -> None:
    """Answer turns until the client disconnects."""
    await socket.accept()
    conversation = _Conversation(app_of(socket), socket)
    receiving, answering = map(asyncio.create_task, (conversation.receive(), conversation.answer()))
    try:
        # Answering ends by itself for a client that does not read.
        await asyncio.wait((receiving, answering), return_when=asyncio.FIRST_COMPLETED)
    finally:
        receiving.cancel()
        conversation.leave(answering)
        try:
            await asyncio.gather(receiving, answering, return_exceptions=True)
        finally:  # a server that stops cancels this wait, too
            conversation.client.close()
            conversation.forget()
    connected = socket.client_state is socket.application_state is WebSocketState.CONNECTED
    if connected and not conversation.client.stalled:
        await socket.close(POLICY_VIOLATION, conversation.refusal)


class SocketClient(Client):
    """A client on a WebSocket: a task sends it the queued events. See `run.drive.Client`."""

    def __init__(self, socket: WebSocket, stall: float) -> None:
        self._socket = socket
        self._stall = stall
        self._unsent: list[bytes] = []
        self._size = 0
        self.stalled = False
        self.written = 0  # the number of events until now
        self._driver: Driver | None = None
        self._paused: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sending = asyncio.create_task(self._send_all())
        self.started = False

    def attach(self, driver: Driver) -> None:
        self._driver = driver
        self.started = False

    def write(self, lines: list[bytes]) -> None:
        self.started = True
        self.written += len(lines)
        self._unsent += lines
        self._size += sum(map(len, lines))
        self._idle.clear()
        self._wake.set()
        if self._size > MAX_UNSENT and self._paused is None and self._driver is not None:
            self._paused = asyncio.get_running_loop().call_later(self._stall, self._give_up)
            self._driver.pause(CLIENT)

    def end(self, lines: list[bytes], body: Callable[[], bytes]) -> None:
        self.write(lines)

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
            assert self._driver is not None
            self._driver.resume(CLIENT)

    def _give_up(self) -> None:
        """The client did not read for too long."""
        assert self._driver is not None
        self.stalled = True
        self._driver.stop(ClientStalledError())
        self._sending.cancel()
        self._idle.set()

    def close(self) -> None:
        """Nothing to do."""
        self._sending.cancel()
        if self._paused is not None:
            self._paused.cancel()


class _Conversation:
    """One connection, and the turns that only it keeps."""

    def __init__(self, app: App, socket: WebSocket) -> None:
        self._app = app
        self._socket = socket
        self.limits = app.limits
        self.client = SocketClient(socket, app.settings.stall_seconds)
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(self.limits.socket_messages)
        self._remembered: dict[str, Sequence[bytes]] = {}
        self._driver: Driver | None = None  # of the current turn
        self._left = False
        self._holder = CLIENT_NAME.get()
        self._held = 0
        self.refusal = ""
        """Why no more is taken."""

    async def receive(self) -> None:
        """Receive messages, until the client disconnects or sends too much."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if self._waiting.full():
                limit = self.limits.socket_messages
                self.refusal = f"More than {limit} messages wait, the limit 'socket_messages'."
                return
            text = message.get("text")
            received = message["bytes"] if text is None else text.encode()
            if self._hold(len(received)) > self.limits.socket_bytes:
                self.refusal = "Too much waits on your connections: the limit 'socket_bytes'."
                return
            self._waiting.put_nowait(received)

    def _hold(self, size: int) -> int:
        """Count bytes that are held, or released; returns the total of all connections of this client."""
        held = self._app.socket_bytes
        held[self._holder] += size
        self._held += size
        return held[self._holder]

    def forget(self) -> None:
        """Release everything."""
        self._remembered = {}
        while not self._waiting.empty():
            self._waiting.get_nowait()
        if not self._hold(-self._held):
            del self._app.socket_bytes[self._holder]

    def leave(self, answering: asyncio.Task[None]) -> None:
        """The client has disconnected: stop its turn, and begin no other."""
        self._left = True
        if self._driver is None:
            answering.cancel()
        else:
            self._driver.stop(ClientLeftError())

    async def answer(self) -> None:
        """Answer one message after the other. Errors are sent, and the next may follow."""
        while not (self._left or self.client.stalled):
            message = await self._waiting.get()
            observation = observe(self._app, self._socket.scope, WEBSOCKET)
            observation.account = account_of(self._socket)
            try:
                await self._turn(await decode_body(self._socket, message, Create))
            except Exception as error:
                observation.fail(error)
                log_failure(error)
                shown = public_error(error)
                self._socket.scope["state"]["names"].restore(shown)
                self.client.write([encode_socket_error(shown)])
                error.__traceback__ = None  # its frames refer to it, and to prompts
            self._hold(-len(message))
            report(self._app, self._socket.scope, SWITCHED, observation)

    async def _turn(self, wire: Create) -> None:
        """Answer one turn. If it continues another, and fails, the connection drops that one."""
        observed().account.admit()
        _refuse(wire)
        wire = as_kept(self._app, wire, self._remembered)
        previous = wire.previous_response_id or ""
        try:
            creation = await begin(
                self._app, wire, owner_of(self._socket), response_id(wire), self._remembered
            )
            await self._drive(creation)
        except Exception:
            self._drop(previous)
            raise
        if creation.projection.status == ResponseStatus.FAILED:
            self._drop(previous)
        elif not creation.stored or previous in self._remembered:
            self._remember(creation)

    async def _drive(self, creation: Creation) -> None:
        self._driver = driver = creation.driver(streamed=True)
        keeping = asyncio.create_task(self._keep_alive(driver, creation.projection))
        try:
            await driver.run(self.client)
        finally:
            self._driver = None
            keeping.cancel()
        await self.client.flushed()

    async def _keep_alive(self, driver: Driver, projection: ResponseProjection) -> None:
        """Send an event where there has been none for some time."""
        while True:
            written = self.client.written
            await asyncio.sleep(self._app.settings.keep_alive)
            if self.client.written == written and not driver.paused:
                self.client.write(events_of_waiting(driver, projection))

    def _remember(self, creation: Creation) -> None:
        """Keep the turn, so that the next can continue it; the oldest is dropped first."""
        new = [item.payload for item in (*creation.input, *as_records(creation.projection.items))]
        self._remembered[creation.id] = turn = [*creation.history, *new]
        held, limit = self._hold(sum(map(len, turn))), self.limits.socket_bytes // 2  # messages need room
        while self._remembered and (held > limit or len(self._remembered) > self.limits.socket_turns):
            held = self._drop(next(iter(self._remembered)))

    def _drop(self, turn_id: str) -> int:
        """Drop a turn; returns the bytes that are still held."""
        return self._hold(-sum(map(len, self._remembered.pop(turn_id, ()))))


def _refuse(wire: Create) -> None:
    """Refuse parameters that this mode does not support. Raises RequestError."""
    if wire.background:
        raise RequestError(
            "A WebSocket has no background responses. Use POST /v1/responses.", param="background"
        )
    if wire.stream_id is not None:
        message = "stream_id is not supported: turns are answered one by one. Use a connection for each."
        raise RequestError(message, param="stream_id")
