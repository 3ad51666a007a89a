"""Sends an answer as it happens, or as a whole: two plain ASGI responses.

Both wait for the first of it before they say anything, so that an engine that
fails before its first token is an HTTP error. Both stop the engine when the
client goes away. A stream that has nothing to say for long says so with a
comment, for proxies and impatient clients.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from starlette.types import Receive, Scope, Send

from antiphon.core.errors import AntiphonError, EngineError
from antiphon.http.errors import log_failure

EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the stream otherwise
]
_COMMENT = b": keep-alive\n\n"

Source = AsyncGenerator[bytes, None]
"""Server-sent events, framed; what has piled up since the last time comes in one piece."""


class StreamResponse:
    """Server-sent events.

    `last_words` frames the end of a stream that fails. After `patience` seconds
    of silence a comment is sent. `headers` are sent with the others.
    """

    def __init__(
        self,
        source: Source,
        last_words: Callable[[AntiphonError], bytes],
        *,
        patience: float,
        headers: Mapping[bytes, bytes] = {},
    ) -> None:
        self._source = source
        self._last_words = last_words
        self._patience = patience
        self._headers = [*EVENT_STREAM, *headers.items()]
        self._started = False
        self._silent = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the end, an error, or the client's departure."""
        await while_connected(receive, self._send(send), lambda: self._keep_alive(send), self._patience)

    async def _send(self, send: Send) -> None:
        async with aclosing(self._source) as pieces:
            try:
                async for piece in pieces:
                    await self._write(send, piece)
            except Exception as error:
                if not self._started:
                    raise
                log_failure(error)
                told = error if isinstance(error, AntiphonError) else EngineError()
                await self._write(send, self._last_words(told))
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, body: bytes) -> None:
        if not body:
            return
        self._silent = False
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _keep_alive(self, send: Send) -> None:
        """Called every so often: say that there is nothing to say."""
        if self._silent:
            await self._write(send, _COMMENT)
        self._silent = True


class AnswerResponse:
    """A JSON body that takes its time."""

    def __init__(self, body: Coroutine[Any, Any, bytes], headers: Mapping[bytes, bytes] = {}) -> None:
        self._body = body
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, unless the client goes away first."""
        await while_connected(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        body = await self._body
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self._headers.items(),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def while_connected(
    receive: Receive,
    work: Coroutine[Any, Any, None],
    meanwhile: Callable[[], Awaitable[None]] | None = None,
    every: float | None = None,
) -> None:
    """Do `work`, and cancel it if the client goes away first. What it raises is raised.

    `meanwhile` is called after each `every` seconds.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_departure(receive, meanwhile, every))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        gone = not working.done() and working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
    if not gone:
        await working


async def _departure(
    receive: Receive, meanwhile: Callable[[], Awaitable[None]] | None, every: float | None
) -> None:
    """Wait until the client is gone. The request's body was read before."""
    while True:
        try:
            async with asyncio.timeout(every):
                message = await receive()
        except TimeoutError:
            assert meanwhile is not None
            await meanwhile()
        else:
            if message["type"] == "http.disconnect":
                return
