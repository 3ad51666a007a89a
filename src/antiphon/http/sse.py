"""Sends a turn as it happens, or as a whole: two plain ASGI responses over the same batches.

Both wait for the first batch before they answer anything, so that an engine
that fails before its first token is an HTTP error. Both stop the engine when
the client goes away.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from antiphon.core.errors import AntiphonError, EngineError
from antiphon.core.events import Event
from antiphon.http.errors import encode_error, log_failure
from antiphon.run.choices import Batch
from antiphon.run.loop import Run

_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the stream otherwise
]


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


class StreamResponse:
    """Server-sent events. What has piled up since the last write goes out in one."""

    def __init__(self, run: Run, stream: Stream) -> None:
        self._run = run
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the end, an error, or the client's departure."""
        await while_connected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async with aclosing(self._run.batches) as batches:
            first = await anext(batches)
            await send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})
            await _send_body(send, self._project(first))
            try:
                async for batch in batches:
                    await _send_body(send, self._project(batch))
                last = frame(self._stream.finish())
            except Exception as error:
                log_failure(error)
                told = error if isinstance(error, AntiphonError) else EngineError()
                last = frame([encode_error(told), b"[DONE]"])
            await send({"type": "http.response.body", "body": last})

    def _project(self, batch: Batch) -> bytes:
        payloads: list[bytes] = []
        for choice, events in batch:
            payloads += self._stream.push(choice, events)
        return frame(payloads)


class AnswerResponse:
    """The whole answer as one JSON body."""

    def __init__(self, run: Run, answer: Answer) -> None:
        self._run = run
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, unless the client goes away first."""
        await while_connected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async with aclosing(self._run.batches) as batches:
            async for batch in batches:
                for choice, events in batch:
                    self._answer.push(choice, events)
        body = self._answer.body()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`, and cancel it if the client goes away first. What it raises is raised."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_departure(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        gone = not working.done() and working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    if not gone:
        await working


async def _departure(receive: Receive) -> None:
    """Wait until the client is gone. The request's body was read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


def frame(payloads: list[bytes]) -> bytes:
    """Payloads as server-sent events."""
    return b"data: " + b"\n\ndata: ".join(payloads) + b"\n\n" if payloads else b""


async def _send_body(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
