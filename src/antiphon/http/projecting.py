"""A run → the bytes of its answer: as server-sent events, or as one body.

Whether it is one or the other is the last thing that is decided about an answer.
"""

from collections.abc import Mapping
from contextlib import aclosing
from time import time
from typing import Protocol

from starlette.requests import Request

from antiphon.apis.envelope import Envelope, PromptView
from antiphon.core.errors import AntiphonError, RequestError
from antiphon.core.events import Event
from antiphon.decode.ids import random_id
from antiphon.http.context import Context
from antiphon.http.errors import encode_error
from antiphon.http.sse import Source
from antiphon.run.loop import Run

REQUEST_ID = "x-request-id"
MAX_REQUEST_ID = 128
"""Characters in the id that a client gives to its request."""


class Stream(Protocol):
    """Projects events to the payloads of server-sent events."""

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """The payloads for the next events of a choice."""
        ...

    def finish(self) -> list[bytes]:
        """The payloads after the last event."""
        ...


class Answer(Protocol):
    """Folds events to a body."""

    def push(self, choice: int, events: list[Event]) -> None:
        """Take the next events of a choice."""
        ...

    def body(self) -> bytes:
        """The JSON body, once all choices are finished."""
        ...


async def streamed(run: Run, stream: Stream) -> Source:
    """The answer as it comes."""
    async with aclosing(run.batches) as batches:
        async for batch in batches:
            payloads: list[bytes] = []
            for choice, events in batch:
                payloads += stream.push(choice, events)
            yield frame(payloads)
    yield frame(stream.finish())


async def answered(run: Run, answer: Answer) -> bytes:
    """The answer when it is whole."""
    async with aclosing(run.batches) as batches:
        async for batch in batches:
            for choice, events in batch:
                answer.push(choice, events)
    return answer.body()


def frame(payloads: list[bytes]) -> bytes:
    """Payloads as server-sent events."""
    return b"data: " + b"\n\ndata: ".join(payloads) + b"\n\n" if payloads else b""


def last_words(error: AntiphonError) -> bytes:
    """The end of a stream that failed."""
    return frame([encode_error(error), b"[DONE]"])


def envelope_of(run: Run, answer_id: str, model: str) -> Envelope:
    """The envelope of a run's answer."""
    prompts = tuple(PromptView(prompt.text, prompt.ids) for prompt in run.prompts)
    return Envelope(answer_id, model, int(time()), run.prompt_tokens, prompts)


def answer_id(prefix: str, request: Request, given: str | None) -> str:
    """The id of an answer: of the request's own, if the client gave it one. Raises RequestError."""
    own = given or request.headers.get(REQUEST_ID)
    if not own:
        return random_id(prefix, 24)
    if len(own) > MAX_REQUEST_ID or not (own.isascii() and own.isprintable()):
        message = f"Use at most {MAX_REQUEST_ID} printable ASCII characters."
        raise RequestError(message, param="request_id" if given else REQUEST_ID)
    return prefix + own


def headers_of(request: Request, answer: str) -> Mapping[bytes, bytes]:
    """What says which request an answer belongs to."""
    own = request.headers.get(REQUEST_ID, answer)
    return {REQUEST_ID.encode(): own.encode("latin-1")}


def refuse_foreign_template(context: Context, template: str | None) -> None:
    """Raise RequestError for a client's template, unless the server trusts its clients."""
    if template is not None and not context.options.trust_templates:
        message = "This server takes no chat templates from clients. Leave it out."
        raise RequestError(message, param="chat_template")
