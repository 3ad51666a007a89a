"""Requests, responders and events for the tests of the Responses API."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from antiphon.apis.responses.accept import Accepted, Context, accept
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.sealing import Sealer
from antiphon.apis.responses.stream import Responder
from antiphon.apis.wire import decode
from antiphon.core.events import Event

ID = "resp_1"
OWNER = "someone"
SEALER = Sealer(["a secret for tests"])
CREATED, ENDED = 1_700_000_000, 1_700_000_009


def request(**fields: Any) -> CreateResponse:
    return decode(json.dumps({"model": "m", "input": "Hello"} | fields).encode(), CreateResponse)


def unseal(sealed: str) -> str | None:
    return SEALER.unseal(OWNER, sealed)


def accepted(context: dict[str, Any] | None = None, **fields: Any) -> Accepted:
    return accept(request(**fields), Context(ID, OWNER, unseal=unseal, **(context or {})))


def responder(context: dict[str, Any] | None = None, **fields: Any) -> Responder:
    return Responder(accepted(context, **fields), CREATED, lambda text: SEALER.seal(OWNER, text))


def batches(events: Sequence[Event], size: int) -> Iterable[list[Event]]:
    for start in range(0, len(events), size):
        yield list(events[start : start + size])


def streamed(answering: Responder, events: Sequence[Event], *, size: int = 10_000) -> list[bytes]:
    """The whole stream of one generation."""
    payloads = answering.start()
    answering.count_prompt(7)
    for batch in batches(events, size):
        payloads += answering.push(batch)
    return payloads + answering.finish(ENDED)


def types(payloads: Iterable[bytes]) -> list[str]:
    return [json.loads(payload)["type"].removeprefix("response.") for payload in payloads]
