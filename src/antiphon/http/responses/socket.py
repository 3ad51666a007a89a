"""The WebSocket mode of /v1/responses: one turn after the other on one connection.

A client sends `response.create` with the fields of a request, and gets the
events of the response, one JSON text each, without server-sent framing. What it
sends meanwhile waits. A turn that is not stored can be gone on with on the same
socket: the connection remembers it. A turn that fails forgets what it went on
from. A client that leaves stops the turn that it was in.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from antiphon.apis.responses.events import ErrorPayload, SocketError
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.wire import decode
from antiphon.core.errors import AntiphonError, EngineError, RequestError
from antiphon.decode.ids import random_id
from antiphon.http.auth import ANYONE, POLICY_VIOLATION, owner_of
from antiphon.http.context import Context, context_of
from antiphon.http.errors import log_failure
from antiphon.http.responses.answering import Answering
from antiphon.http.responses.asking import Asked, ask
from antiphon.http.sse import while_connected
from antiphon.store.records import ResponseStatus

MAX_REMEMBERED = 16
"""Turns that a connection remembers without storing them; the oldest is forgotten first."""
MAX_WAITING = 8
"""Messages that may wait for the turn before them. Who sends more is sent away."""


class Create(CreateResponse, kw_only=True):
    """What a client sends."""

    type: Literal["response.create"]
    generate: bool | None = None
    stream_id: Any = None


async def converse(socket: WebSocket) -> None:
    """Answer turns until the client leaves."""
    if _is_foreign(socket):
        await socket.close(POLICY_VIOLATION)
        return
    await socket.accept()
    conversation = _Conversation(context_of(socket), socket)
    await while_connected(conversation.departure, conversation.answer())
    if socket.client_state is socket.application_state is WebSocketState.CONNECTED:
        await socket.close(POLICY_VIOLATION, f"More than {MAX_WAITING} messages wait.")


def _is_foreign(socket: WebSocket) -> bool:
    """Whether a web page from elsewhere asks a server without keys: a browser would let it."""
    origin = socket.headers.get("origin")
    if origin is None or owner_of(socket) != ANYONE:
        return False
    return origin.partition("://")[2] != socket.headers.get("host")


class _Conversation:
    """One connection, and the turns that only it knows."""

    def __init__(self, context: Context, socket: WebSocket) -> None:
        self._context = context
        self._socket = socket
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self._remembered: dict[str, Sequence[bytes]] = {}

    async def departure(self) -> Message:
        """Take what the client sends, until it leaves or sends too much: as `while_connected` hears of it."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect" or self._waiting.full():
                return {"type": "http.disconnect"}
            text = message.get("text")
            self._waiting.put_nowait(message["bytes"] if text is None else text.encode())

    async def answer(self) -> None:
        """Answer one message after the other. What is wrong with one is told, and the next may follow."""
        while True:
            message = await self._waiting.get()
            try:
                await self._turn(decode(message, Create))
            except WebSocketDisconnect:
                return
            except Exception as error:
                log_failure(error)
                await self._tell(_told(error))

    async def _turn(self, wire: Create) -> None:
        """One turn. One that goes on from another, and fails, makes the connection forget the other."""
        _refuse(wire)
        previous = wire.previous_response_id or ""
        try:
            response_id = random_id("resp_", 48)
            asked = await ask(self._context, wire, owner_of(self._socket), response_id, self._remembered)
            answering = Answering(self._context, wire, asked)
            await self._send(answering, stored=asked.accepted.settings.store)
        except Exception:
            self._remembered.pop(previous, None)
            raise
        if answering.projection.status is ResponseStatus.FAILED:
            self._remembered.pop(previous, None)
        elif not asked.accepted.settings.store or previous in self._remembered:
            self._remember(asked, answering)

    async def _send(self, answering: Answering, *, stored: bool) -> None:
        payloads = answering.recorded() if stored else answering.forgotten()
        try:
            async with aclosing(payloads):
                async for lines in payloads:
                    await self._write(lines)
        except WebSocketDisconnect:
            raise
        except Exception as error:
            if not answering.projection.responder.status:
                raise  # nothing of it was told yet
            log_failure(error)
            await self._write(answering.projection.fail(error))

    async def _write(self, lines: list[bytes]) -> None:
        for line in lines:
            await self._socket.send_text(line.decode())

    def _remember(self, asked: Asked, answering: Answering) -> None:
        """Keep the turn, so that the next can go on from it."""
        said = [item.payload for item in (*answering.input, *answering.projection.output())]
        self._remembered[answering.id] = [*asked.history, *said]
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    async def _tell(self, error: AntiphonError) -> None:
        # Both specifications in one; on a socket, Open Responses wants a code in any case.
        code = error.code or error.type
        payload = ErrorPayload(error.type, code, error.message, error.param)
        event = SocketError(0, code, error.message, error.param, payload, error.status)
        await self._socket.send_text(msgspec.json.encode(event).decode())


def _refuse(wire: Create) -> None:
    """Say no to what would have to be done in another way than it is. Raises RequestError."""
    if wire.background:
        raise RequestError("A socket has no background. Use POST /v1/responses.", param="background")
    if wire.generate is False:
        message = "Nothing is prepared ahead here. Send the turn when there is something to answer."
        raise RequestError(message, param="generate")
    if wire.stream_id is not None:
        message = "One turn is answered after the other here. Use a connection for each stream."
        raise RequestError(message, param="stream_id")


def _told(error: Exception) -> AntiphonError:
    return error if isinstance(error, AntiphonError) else EngineError()
