"""Lanes of a WebSocket: each answers its turns one after the other, and those that follow by themselves.

A turn that was steered is followed by one with the same settings and the new input, before any message that
waits. If it has ended with calls of the client, the input waits for the request with their outputs instead.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import HTTPConnection

from antiphon.apis.responses.errors import encode_socket_error
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.steering import (
    NO_SUCCESSOR,
    TOO_MANY,
    FailedSteer,
    SteerAccepted,
    SteerInput,
    SteerPending,
    SteerReference,
    check_steerable,
    failed,
    joined,
    steering_error,
    successor,
)
from antiphon.app.ids import random_id
from antiphon.app.responses.create import Creation, Outcome, as_kept, begin, new_id, response_id
from antiphon.core.errors import AntiphonError, RequestError, public_error
from antiphon.core.observation import observed
from antiphon.http.observing import WEBSOCKET, observe, report
from antiphon.http.request import account_of, decode_body, owner_of
from antiphon.http.responses import events_of_waiting
from antiphon.http.socket_client import SocketClient
from antiphon.log import log_failure
from antiphon.run.endings import ClientLeftError
from antiphon.store.records import ResponseStatus

if TYPE_CHECKING:
    from antiphon.http.socket import Conversation

SWITCHED = 101
"""The status of a connection that became a WebSocket (RFC 9110)."""


class Steer(Struct, frozen=True):
    """Input that was accepted for a turn, and the bytes that it holds. `number` is that of its events."""

    reference: SteerReference
    input: SteerInput
    size: int
    number: int

    def lost(self, why: AntiphonError) -> bytes:
        """The event that returns it to the client."""
        steer = FailedSteer(self.input, self.reference.previous_response_id, self.reference.id)
        return failed(self.number, why, steer, NO_SUCCESSOR)


class RunningTurn:
    """A turn that is being answered, and the input that its client has sent meanwhile."""

    def __init__(self, wire: CreateResponse, creation: Creation, client: SocketClient) -> None:
        self.wire = wire
        self.creation = creation
        self.client = client
        self.driver = creation.driver(streamed=True)
        self.steers: list[Steer] = []
        self.next_id = new_id()
        """The id of the response that has this input."""
        self.outcome = Outcome(ResponseStatus.FAILED, [])
        """How it has ended, once it has."""

    async def take(self, given: SteerInput, size: int, limit: int) -> None:
        """Take input, and end the answer as soon as possible. Raises RequestError."""
        check_steerable(self.wire)
        if len(self.steers) >= limit:
            message = (
                f"More than {limit} inputs wait for this response to end, the limit 'pending_steers'. Wait."
            )
            raise steering_error(TOO_MANY, message, "previous_response_id")
        number = self.creation.last_number
        reference = SteerReference(random_id("steer_", 48), self.creation.id)
        self.steers.append(Steer(reference, given, size, number))
        self.client.tell([msgspec.json.encode(SteerAccepted(number, reference))])
        self.driver.steer()
        await self.creation.announce_successor(self.next_id)


class _Work(NamedTuple):
    """A turn to answer: `read` reads its request, which has this input of the turn before it.

    `id` is that of its response, if another has announced it.
    """

    read: Callable[[], Awaitable[Any]]
    steers: list[Steer]
    id: str | None = None


class Lane:
    """The turns of one lane, beginning with that of `message`. `type_` is that of its messages."""

    def __init__(
        self, conversation: "Conversation", stream_id: str | None, message: bytes, type_: type[CreateResponse]
    ) -> None:
        self._conversation = conversation
        self._stream_id = stream_id
        self._type = type_
        scope = conversation.socket.scope
        # Other names of parameters, for errors, are part of the state.
        self._connection = HTTPConnection({**scope, "state": {**scope["state"]}})
        self._client = SocketClient(conversation.output, stream_id)
        self._running: RunningTurn | None = None
        self.waiting = deque([message])
        """Messages that were not read yet."""
        self.task = asyncio.create_task(self._answer_all())

    def leave(self) -> None:
        """The client is gone: stop."""
        if self._running is None:
            self.task.cancel()
        else:
            self._running.driver.stop(ClientLeftError())

    async def _answer_all(self) -> None:
        """Answer one message after the other. Errors are sent, and the next may follow."""
        conversation = self._conversation
        while self.waiting and not conversation.left:
            message = self.waiting.popleft()
            work: _Work | None = _Work(partial(decode_body, self._connection, message, self._type), [])
            while work is not None and not conversation.left:
                work = await self._observed(work)
            conversation.hold(-len(message))
        del conversation.lanes[self._stream_id]

    async def _observed(self, work: _Work) -> _Work | None:
        """Answer a turn; returns the one that follows by itself."""
        app, scope = self._conversation.app, self._connection.scope
        observation = observe(app, scope, WEBSOCKET)
        observation.account = account_of(self._connection)
        following = None
        try:
            following = await self._turn(work)
        except Exception as error:
            observation.fail(error)
            log_failure(error)
            shown = public_error(error)
            scope["state"]["names"].restore(shown)
            self._client.tell([encode_socket_error(shown)])
            self._conversation.lose(work.steers, shown, self._client)
            error.__traceback__ = None  # its frames refer to it, and to prompts
        report(app, scope, SWITCHED, observation)
        return following

    async def _turn(self, work: _Work) -> _Work | None:
        """Answer one turn. If it continues another, and fails, the connection drops that one."""
        conversation = self._conversation
        wire = await work.read()
        account = observed().account
        await account.secure(requests=1)
        account.admit()
        _refuse(wire)
        work.steers.extend(conversation.steers_of(wire.previous_response_id))
        if work.steers:
            wire = replace(wire, input=joined([steer.input for steer in work.steers], wire.input))
        wire = as_kept(conversation.app, wire, conversation.remembered)
        previous = wire.previous_response_id or ""
        try:
            creation = await begin(
                conversation.app,
                wire,
                owner_of(self._connection),
                work.id or response_id(wire),
                conversation.remembered,
            )
            turn = RunningTurn(wire, creation, self._client)
            await self._drive(turn, work)
        except Exception:
            conversation.drop(previous)
            raise
        conversation.release(work.steers)
        if turn.outcome.status == ResponseStatus.FAILED:
            conversation.drop(previous)
        elif not creation.stored or previous in conversation.remembered:
            conversation.remember(creation)
        return self._following(turn)

    async def _drive(self, turn: RunningTurn, work: _Work) -> None:
        conversation = self._conversation
        self._running = conversation.running[turn.creation.id] = turn
        keeping = asyncio.create_task(self._keep_alive(turn))
        if not conversation.app.settings.keep_alive_events:  # the protocol has pings
            keeping.cancel()
        try:
            await turn.driver.run(self._client)
            self._running = None
            turn.outcome = await turn.creation.outcome()
            await conversation.output.flushed()
        except Exception:
            work.steers.extend(turn.steers)  # they are lost with it
            raise
        finally:
            self._running = None
            self._client.detach()
            keeping.cancel()
            conversation.end(turn)

    async def _keep_alive(self, turn: RunningTurn) -> None:
        """Send an event where there has been none for some time."""
        while True:
            written = self._client.written
            await asyncio.sleep(self._conversation.app.settings.keep_alive)
            if self._client.written == written and not turn.driver.paused:
                self._client.write(events_of_waiting(turn.driver, turn.creation.projection))

    def _following(self, turn: RunningTurn) -> _Work | None:
        """The turn that has the input for one that has ended, if it can be made by itself."""
        steers, outcome = turn.steers, turn.outcome
        if not steers:
            return None
        if outcome.status not in (ResponseStatus.COMPLETED, ResponseStatus.INCOMPLETE):
            message = f"The response is {outcome.status}, so none follows it. Send the input again."
            self._conversation.lose(steers, steering_error(NO_SUCCESSOR, message), self._client)
            return None
        if not outcome.required:
            wire = successor(turn.wire, turn.creation.id, ())
            return _Work(partial(_given, wire), steers, turn.next_id)
        number = turn.creation.last_number
        events = [SteerPending(number, outcome.required, steer.reference) for steer in steers]
        self._client.tell([msgspec.json.encode(event) for event in events])
        self._conversation.keep_steers(turn.creation.id, steers, self._client)
        return None


async def _given(wire: CreateResponse) -> CreateResponse:
    return wire


def _refuse(wire: CreateResponse) -> None:
    """Refuse parameters that this mode does not support. Raises RequestError."""
    if wire.background:
        raise RequestError(
            "A WebSocket has no background responses. Use POST /v1/responses.", param="background"
        )
