"""The WebSocket mode of /v1/responses: turns in lanes, and input for turns that are being answered.

A client sends `response.create` with the fields of a request, and gets the events of the response, one JSON
text each, without server-sent framing. Turns of one lane (`stream_id`) are answered one after the other: the
messages that arrive meanwhile wait. Those of different lanes are answered at the same time. `response.steer`
does not wait: the turn that it names ends early, and the next one of that lane has its input.

A turn that is not stored can be continued on the same socket: the connection keeps it. A turn that fails
drops the one that it continued. When the client disconnects, its current turns stop.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.websockets import WebSocket, WebSocketState

from antiphon.apis.responses.errors import encode_socket_error
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.steering import (
    COMPLETED,
    NOT_ACTIVE,
    NOT_FOUND,
    FailedSteer,
    SteerMessage,
    check_input,
    failed,
    steering_error,
)
from antiphon.apis.wire import decode
from antiphon.app.app import App
from antiphon.app.journal import as_records
from antiphon.app.responses.create import Creation
from antiphon.core.errors import AntiphonError, RequestError
from antiphon.core.limits import CLIENT as CLIENT_NAME
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.core.surrogates import with_whole_characters
from antiphon.http.auth import POLICY_VIOLATION
from antiphon.http.lanes import Lane, RunningTurn, Steer
from antiphon.http.leaving import outlast
from antiphon.http.request import app_of, decoded
from antiphon.http.socket_client import SocketClient, SocketOutput
from antiphon.store.records import ResponseStatus

ENDED = 256
"""The number of the last turns that are told apart from unknown ones."""

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

StreamId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.\-]{1,256}\Z")]
"""The name of a lane."""


class Create(CreateResponse, kw_only=True):
    """A message of a client: a turn, in the lane of this `stream_id`."""

    type: Literal["response.create"]
    stream_id: StreamId | None = None


class _Address(Struct):
    """What says where a message goes. The rest of it is read later."""

    type: Any = None
    stream_id: Any = None


async def converse(socket: WebSocket) -> None:
    """Answer turns until the client disconnects."""
    await socket.accept()
    conversation = Conversation(app_of(socket), socket)
    receiving = asyncio.create_task(conversation.receive())
    try:
        await asyncio.wait((receiving, conversation.output.given_up), return_when=asyncio.FIRST_COMPLETED)
    finally:
        receiving.cancel()
        try:
            await outlast(asyncio.gather(receiving, *conversation.leave(), return_exceptions=True))
        finally:  # a server that stops may cancel this wait, too
            conversation.output.close()
            conversation.forget()
    connected = socket.client_state is socket.application_state is WebSocketState.CONNECTED
    if connected and not conversation.output.stalled:
        await socket.close(POLICY_VIOLATION, conversation.refusal)


class Conversation:
    """One connection, and the turns that only it keeps."""

    def __init__(self, app: App, socket: WebSocket) -> None:
        self.app = app
        self.socket = socket
        self.limits = app.limits
        self.output = SocketOutput(socket, app.settings.stall_seconds)
        self.lanes: dict[str | None, Lane] = {}
        """Those that have something to answer."""
        self.running: dict[str, RunningTurn] = {}
        """The turns that are being answered, by the ids of their responses."""
        self.remembered: dict[str, Sequence[bytes]] = {}
        """The payloads of the items of turns that are not stored."""
        self._sharing = Counter[bytes]()  # payload → how many of these turns have it
        self._payloads: dict[bytes, bytes] = {}  # itself: a history that is read again is another copy
        self._steers: dict[str, list[Steer]] = {}  # id of a response that waits for outputs → its input
        self._ended: dict[str, ResponseStatus] = {}
        self.left = False
        """The client has disconnected, or does not read."""
        self._holder = CLIENT_NAME.get()
        self._held = 0
        self.refusal = ""
        """Why no more is taken."""

    async def receive(self) -> None:
        """Receive messages, until the client disconnects or sends too much."""
        while True:
            message = await self.socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if sum(len(lane.waiting) for lane in self.lanes.values()) >= self.limits.socket_messages:
                limit = self.limits.socket_messages
                self.refusal = f"More than {limit} messages wait, the limit 'socket_messages'."
                return
            text = message.get("text")
            received = message["bytes"] if text is None else text.encode()
            if self.hold(len(received)) > self.limits.socket_bytes:
                self.refusal = "Too much waits on your connections: the limit 'socket_bytes'."
                return
            await self._pass_on(received)

    async def _pass_on(self, message: bytes) -> None:
        """Have a message answered: input for a turn now, all else in its lane."""
        address = await decoded(self.app, message, partial(_address, message))
        if address.type == "response.steer":
            await self._steer(message)
            return
        stream_id = _lane(address)
        lane = self.lanes.get(stream_id)
        if lane is None and len(self.lanes) >= self.limits.socket_lanes:
            self.hold(-len(message))
            limit = f"More than {self.limits.socket_lanes} lanes are answered, the limit 'socket_lanes'"
            error = RequestError(f"{limit}. Wait.", param="stream_id", code=LIMIT_EXCEEDED)
            SocketClient(self.output, stream_id).tell([encode_socket_error(error)])
        elif lane is None:
            self.lanes[stream_id] = Lane(self, stream_id, message, Create)
        else:
            lane.waiting.append(message)

    def leave(self) -> list[asyncio.Task[None]]:
        """The client is gone: stop its turns, and begin no others; returns the tasks that end now."""
        self.left = True
        for lane in self.lanes.values():
            lane.leave()
        return [lane.task for lane in self.lanes.values()]

    # What is kept

    def hold(self, size: int) -> int:
        """Count bytes that are held, or released; returns the total of all connections of this client."""
        held = self.app.socket_bytes
        held[self._holder] += size
        self._held += size
        return held[self._holder]

    def forget(self) -> None:
        """Release everything."""
        self.remembered, self._steers, self._sharing, self._payloads = {}, {}, Counter(), {}
        if not self.hold(-self._held):
            del self.app.socket_bytes[self._holder]

    def remember(self, creation: Creation) -> None:
        """Keep the turn, so that the next can continue it; the oldest is dropped first."""
        new = [item.payload for item in (*creation.input, *as_records(creation.projection.items))]
        turn = [*creation.history, *new]
        first = set(turn) - self._payloads.keys()  # turns share their history
        turn = [self._payloads.setdefault(payload, payload) for payload in turn]
        self.remembered[creation.id] = turn
        self._sharing.update(turn)
        held, limit = self.hold(sum(map(len, first))), self.limits.socket_bytes // 2  # messages need room
        while self.remembered and (held > limit or len(self.remembered) > self.limits.socket_turns):
            held = self.drop(next(iter(self.remembered)))

    def drop(self, turn_id: str) -> int:
        """Drop a turn; returns the bytes that are still held."""
        turn = self.remembered.pop(turn_id, ())
        self._sharing.subtract(turn)
        last = [payload for payload in set(turn) if not self._sharing[payload]]
        for payload in last:
            del self._sharing[payload], self._payloads[payload]
        return self.hold(-sum(map(len, last)))

    # Steering

    async def _steer(self, message: bytes) -> None:
        """Take input for a turn that is being answered, or say why not."""
        given = await decoded(self.app, message, partial(_members, message))
        target = given.get("previous_response_id")
        running = self.running.get(target) if isinstance(target, str) else None
        client = SocketClient(self.output, None) if running is None else running.client
        try:
            wire = await decoded(self.app, message, partial(decode, message, SteerMessage, self.limits))
            check_input(wire.input)
            if running is None:
                raise self._not_running(wire.previous_response_id)
            await running.take(wire.input, len(message), self.limits.pending_steers)
        except AntiphonError as error:
            self.hold(-len(message))
            steer = FailedSteer(given.get("input"), target if isinstance(target, str) else "")
            number = 0 if running is None else running.creation.last_number
            client.tell([failed(number, error, steer)])

    def _not_running(self, response_id: str) -> RequestError:
        """Why a response that is not being answered here cannot be steered."""
        param = "previous_response_id"
        status = self._ended.get(response_id)
        if status is None:
            message = "This connection answers no response with this id. Name one that it is answering."
            return steering_error(NOT_FOUND, message, param)
        message = f"The response has ended, and is {status}. Send the input with 'response.create'."
        return steering_error(COMPLETED if status == "completed" else NOT_ACTIVE, message, param)

    def end(self, turn: RunningTurn) -> None:
        """A turn is not answered any more."""
        del self.running[turn.creation.id]
        self._ended[turn.creation.id] = turn.outcome.status
        if len(self._ended) > ENDED:
            del self._ended[next(iter(self._ended))]

    def keep_steers(self, response_id: str, steers: list[Steer], client: SocketClient) -> None:
        """Keep input until the client has sent what has to come before it."""
        self._steers[response_id] = steers
        if len(self._steers) > self.limits.socket_turns:
            oldest = next(iter(self._steers))
            why = (
                f"More responses wait for outputs than {self.limits.socket_turns}, the limit 'socket_turns'."
            )
            self.lose(self._steers.pop(oldest), steering_error(NOT_ACTIVE, why), client)

    def steers_of(self, response_id: str | None) -> list[Steer]:
        """The input that waited for a request that continues this response."""
        return self._steers.pop(response_id or "", [])

    def lose(self, steers: Sequence[Steer], why: AntiphonError, client: SocketClient) -> None:
        """Return accepted input to the client: no response will have it."""
        self.release(steers)
        client.tell([steer.lost(why) for steer in steers])

    def release(self, steers: Sequence[Steer]) -> None:
        """Hold these no longer: a response has them, or the client."""
        self.hold(-sum(steer.size for steer in steers))


def _address(message: bytes) -> _Address:
    """Where a message goes; if that cannot be read, its lane says what is wrong with it."""
    try:
        return msgspec.json.decode(with_whole_characters(message), type=_Address)
    except _UNREADABLE:
        return _Address()


def _members(message: bytes) -> dict[str, Any]:
    """What a message has; nothing if there is something in it that its address does not show to be wrong."""
    try:
        given: dict[str, Any] = msgspec.json.decode(with_whole_characters(message))
    except _UNREADABLE:
        return {}
    return given


def _lane(address: _Address) -> str | None:
    """The lane of a message; if its name is invalid, the lane without one refuses it."""
    try:
        return msgspec.convert(address.stream_id, StreamId | None)
    except msgspec.ValidationError:
        return None
