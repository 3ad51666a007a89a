"""Requests, projections and events for the tests of the Responses API."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.apis.fields import ParameterNames
from antiphon.apis.responses.accept import AcceptedResponse, ResponseContext, accept
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.stream import ResponseProjection
from antiphon.apis.responses.tools import ALWAYS_SENT, requested_tools
from antiphon.apis.sealing import Sealer
from antiphon.apis.wire import decode_request
from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import FinishReason
from antiphon.core.errors import AntiphonError
from antiphon.core.events import (
    CallEnded,
    CallStarted,
    Event,
    Finished,
    ReasoningEnded,
    ReasoningStarted,
    TextEnded,
    TextStarted,
    Usage,
)
from antiphon.toolkits.registry import built_in
from antiphon.tools.discovery import NO_FUNCTIONS
from tests.acting import Offers, hosts_for

ID = "resp_1"
OWNER = "someone"
SEALER = Sealer(["a secret for tests"])
CREATED, ENDED = 1_700_000_000, 1_700_000_009
ABANDONED = Usage(completion_tokens=3)
"""The usage of an answer that fails or is cancelled."""

_ENDS: dict[type[Event], Event] = {
    TextStarted: TextEnded(),
    ReasoningStarted: ReasoningEnded(),
    CallStarted: CallEnded(complete=False),
}


class PromptOfSeven(Struct, frozen=True):
    """A prompt of seven tokens."""

    ids: tuple[int, ...] = (1,) * 7


class Answering:
    """A projection that is fed as sources feed it: events go through an accumulator, and what is open is ended."""

    def __init__(self, accepted: AcceptedResponse, *, queued: bool = False) -> None:
        self.projection = ResponseProjection(
            accepted, CREATED, lambda: ENDED + 0.5, lambda text: SEALER.seal(OWNER, text), queued=queued
        )
        self.begin = self.projection.begin
        self.queue = self.projection.queue
        self.finish = self.projection.finish
        self.body = self.projection.body
        self._accumulator = Accumulator()
        self._ends: Event | None = None
        self._finished = False

    @property
    def items(self) -> Any:
        return self.projection.items

    @property
    def status(self) -> str:
        return self.projection.status

    def push(self, events: Sequence[Event]) -> list[bytes]:
        for event in events:
            if type(event) in _ENDS:
                self._ends = _ENDS[type(event)]
            elif type(event) in map(type, _ENDS.values()):
                self._ends = None
            self._finished |= isinstance(event, Finished)
        return self.projection.push(0, self._accumulator.extend(events))

    def fail(self, error: AntiphonError) -> list[bytes]:
        return self._abandon() + self.projection.fail(error)

    def cancel(self) -> list[bytes]:
        return self._abandon() + self.projection.cancel()

    def _abandon(self) -> list[bytes]:
        if self._finished:
            return []
        ends = [] if self._ends is None else [self._ends]
        return self.push([*ends, Finished(FinishReason.ERROR, ABANDONED)])


def request(**fields: Any) -> CreateResponse:
    return decode_request(
        json.dumps({"model": "m", "input": "Hello"} | fields).encode(), CreateResponse, ParameterNames()
    )


def unseal(sealed: str) -> str | None:
    return SEALER.unseal(OWNER, sealed)


def accepted(
    context: Mapping[str, Any] | None = None, *, offers: Offers = NO_FUNCTIONS, **fields: Any
) -> AcceptedResponse:
    """A request to a server with tools that offer these functions."""
    wanted = request(**fields)
    hosts = hosts_for(offers, requested_tools(wanted.tools), optional=ALWAYS_SENT)
    more = {"presenters": built_in().presenters, **(context or {})}
    return accept(wanted, ResponseContext(ID, OWNER, unseal=unseal, hosts=hosts, **more))


def answering_to(context: Mapping[str, Any] | None = None, **fields: Any) -> Answering:
    return Answering(accepted(context, **fields), queued=bool(fields.get("background")))


def batches(events: Sequence[Event], size: int) -> Iterable[list[Event]]:
    for start in range(0, len(events), size):
        yield list(events[start : start + size])


def streamed(answering: Answering, events: Sequence[Event], *, size: int = 10_000) -> list[bytes]:
    """The whole stream of an answer."""
    answering.projection.set_prompts([PromptOfSeven()])
    payloads = answering.begin()
    for batch in batches(events, size):
        payloads += answering.push(batch)
    return payloads + answering.finish()


def types(payloads: Iterable[bytes]) -> list[str]:
    return [json.loads(payload)["type"].removeprefix("response.") for payload in payloads]
