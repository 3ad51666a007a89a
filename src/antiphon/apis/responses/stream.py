"""A turn's events → the wire events of a response, and the response object: one object makes both.

The response is the fold of its own stream: the items in it are the bytes that
`response.output_item.done` told. Nothing here looks at a clock or at dice, so
events that are pushed again, in the same order and any batches, give the same
bytes.
"""

import msgspec
from msgspec import UNSET

from antiphon.apis.responses import events as wire
from antiphon.apis.responses.accept import Accepted
from antiphon.apis.responses.given import Object
from antiphon.apis.responses.output.thoughts import Seal
from antiphon.apis.responses.output.writer import Writer
from antiphon.apis.responses.resource import IncompleteDetails, Response, ResponseError
from antiphon.apis.responses.stored import StoredItem
from antiphon.apis.responses.usage import Tally
from antiphon.core.chunks import FinishReason
from antiphon.core.errors import AntiphonError, EngineBusyError, EngineError, RequestError
from antiphon.core.events import Event, Finished, Usage


class Responder:
    """Answers a request that was accepted.

    Each method gives the payloads that it adds to the stream. First comes
    `queue`, for a response that has to wait, then `start`, or `start` alone;
    then `push`, for as many generations as it takes; then one of `finish`,
    `fail` and `cancel`. `created_at` is in seconds since the epoch. `seal`
    makes thoughts unreadable for the client, if it asked for them so.
    """

    def __init__(self, accepted: Accepted, created_at: int, seal: Seal | None = None) -> None:
        self._id = accepted.id
        self._settings = msgspec.structs.asdict(accepted.settings)
        self._writer = Writer(
            accepted.id, accepted.tools, accepted.shown, seal if accepted.shown.sealed else None
        )
        self._created_at = created_at
        self._completed_at: int | None = None
        self._error: ResponseError | None = None
        self._incomplete: IncompleteDetails | None = None
        self._tally = Tally()
        self._end: Finished | None = None
        self._unmet: tuple[str, ...] = ()
        self.status = ""
        """One of the statuses of a response, empty before there is one."""

    @property
    def items(self) -> list[StoredItem]:
        """The output, for the store."""
        return self._writer.items

    @property
    def resource(self) -> bytes:
        """The response object as it is now."""
        return msgspec.json.encode(self._response())

    def queue(self) -> list[bytes]:
        """It waits for a worker."""
        self.status = "queued"
        return [self._tell(wire.Created), self._tell(wire.Queued)]

    def start(self) -> list[bytes]:
        """The model gets to work."""
        waited, self.status = self.status, "in_progress"
        created = [] if waited else [self._tell(wire.Created)]
        return [*created, self._tell(wire.InProgress)]

    def count_prompt(self, tokens: int) -> None:
        """A generation begins, with so many tokens of prompt."""
        self._tally.prompt_tokens += tokens

    def count(self, usage: Usage) -> None:
        """A generation is over of which nothing is shown."""
        self._tally.add(usage)

    def push(self, events: list[Event]) -> list[bytes]:
        """The next events of the generation. Another generation may follow its end."""
        payloads = self._writer.push(events)
        if events and isinstance(end := events[-1], Finished):
            self._end = end
            self._tally.add(end.usage)
            self._unmet += end.unmet
        return payloads

    def add(self, type_: str, fields: Object) -> list[bytes]:
        """An item that the server made itself, such as a compaction, whole."""
        return self._writer.add(type_, fields)

    def finish(self, now: int) -> list[bytes]:
        """The last generation is over; `now` is in seconds since the epoch."""
        reason = self._end.reason if self._end else FinishReason.STOP
        if reason is FinishReason.ERROR:
            assert self._end is not None
            return self.fail(EngineError(self._end.error))
        if reason is FinishReason.LENGTH:
            self._incomplete = IncompleteDetails("max_output_tokens")
            return self._close("incomplete", wire.Incomplete)
        self._completed_at = now
        return self._close("completed", wire.Completed)

    def fail(self, error: AntiphonError) -> list[bytes]:
        """It cannot be finished."""
        self._error = ResponseError(_code(error), error.message)
        abandoned = self._writer.abandon()
        payload = wire.ErrorPayload(error.type, error.code, error.message, error.param)
        told = self._writer.numbers.encode(wire.ErrorEvent, error.code, error.message, error.param, payload)
        return [*abandoned, told, *self._close("failed", wire.Failed)]

    def cancel(self) -> list[bytes]:
        """It is not wanted any more.

        Neither specification has an event for it, and clients stop at one that they do not know;
        of those they know, `response.incomplete` fits. The status says what happened.
        """
        return self._close("cancelled", wire.Incomplete)

    def _close(self, status: str, event: type[wire.ResponseEvent]) -> list[bytes]:
        abandoned = self._writer.abandon()
        self.status = status
        return [*abandoned, self._tell(event)]

    def _tell(self, event: type[wire.ResponseEvent]) -> bytes:
        return self._writer.numbers.encode(event, self._response())

    def _response(self) -> Response:
        return Response(
            **self._settings,
            id=self._id,
            created_at=self._created_at,
            status=self.status,
            completed_at=self._completed_at,
            error=self._error,
            incomplete_details=self._incomplete,
            output=self._writer.snapshot(),
            usage=self._tally.usage,
            unmet=self._unmet or UNSET,
        )


def _code(error: AntiphonError) -> str:
    """The error's code, of those that OpenAI's document knows for a response."""
    match error:
        case EngineBusyError():
            return "rate_limit_exceeded"
        case RequestError():
            return "invalid_prompt"
    return "server_error"
