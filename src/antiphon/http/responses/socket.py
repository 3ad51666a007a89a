"""The WebSocket mode of /v1/responses: one turn after the other on one connection.

A client sends `response.create` with the fields of a request, and gets the
events of the response, one JSON text each, without server-sent framing. A turn
that is not stored can be gone on with on the same socket: the connection
remembers it. A turn that fails forgets what it went on from.
"""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Literal

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.wire import decode
from antiphon.core.errors import AntiphonError, EngineError, RequestError
from antiphon.decode.ids import random_id
from antiphon.http.auth import owner_of
from antiphon.http.context import Context, context_of
from antiphon.http.errors import log_failure
from antiphon.http.responses.answering import Answering
from antiphon.http.responses.asking import Asked, ask

MAX_REMEMBERED = 16
"""Turns that a connection remembers without storing them; the oldest is forgotten first."""


class Create(CreateResponse, kw_only=True):
    """What a client sends."""

    type: Literal["response.create"]


async def converse(socket: WebSocket) -> None:
    """Answer turns until the client leaves."""
    await socket.accept()
    conversation = _Conversation(context_of(socket), socket)
    try:
        while True:
            await conversation.answer(await socket.receive_text())
    except WebSocketDisconnect:
        return


class _Conversation:
    """One connection, and the turns that only it knows."""

    def __init__(self, context: Context, socket: WebSocket) -> None:
        self._context = context
        self._socket = socket
        self._remembered: dict[str, Sequence[bytes]] = {}

    async def answer(self, message: str) -> None:
        """One turn. What is wrong with it is told, and the next may follow."""
        try:
            await self._turn(decode(message.encode(), Create))
        except WebSocketDisconnect:
            raise
        except Exception as error:
            log_failure(error)
            await self._tell(error if isinstance(error, AntiphonError) else EngineError())

    async def _turn(self, wire: Create) -> None:
        if wire.background:
            raise RequestError("A socket has no background. Use POST /v1/responses.", param="background")
        previous = wire.previous_response_id
        try:
            response_id = random_id("resp_", 48)
            asked = await ask(self._context, wire, owner_of(self._socket), response_id, self._remembered)
            answering = Answering(self._context, wire, asked)
            await self._send(answering, stored=asked.accepted.settings.store)
        except Exception:
            if previous is not None:
                self._remembered.pop(previous, None)
            raise
        self._remember(asked, answering)

    async def _send(self, answering: Answering, *, stored: bool) -> None:
        payloads = answering.recorded() if stored else answering.forgotten()
        try:
            async with aclosing(payloads):
                async for lines in payloads:
                    await self._write(lines)
        except AntiphonError as error:
            if not answering.projection.responder.status:
                raise  # nothing of it was told yet
            log_failure(error)
            await self._write(answering.projection.fail(error))

    async def _write(self, lines: list[bytes]) -> None:
        for line in lines:
            await self._socket.send_text(line.decode())

    def _remember(self, asked: Asked, answering: Answering) -> None:
        """Keep the turn, so that the next can go on from it."""
        if asked.accepted.settings.store:
            return
        said = [item.payload for item in (*answering.input, *answering.projection.output())]
        self._remembered[answering.id] = [*asked.history, *said]
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    async def _tell(self, error: AntiphonError) -> None:
        told = {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
        event = {"type": "error", "status": error.status, "error": told}
        await self._socket.send_text(msgspec.json.encode(event).decode())
