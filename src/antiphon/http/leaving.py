"""A client that leaves, under any ASGI server: also one that says so by cancelling the application's task.

The servers of some frameworks (Ray Serve's, and those that run an application in a cancel scope) cancel the
task of a request whose client has disconnected, some milliseconds after `http.disconnect`, or without it. An
answer has to end in its own way nevertheless: it stores its end, gives back its slot, and is observed. So the
application runs in a task of its own. When the server's task is cancelled, the application receives a
disconnect, what it sends is dropped, and the server's task waits until the application has ended.

Our own server does not cancel the requests of clients that leave, only those that are late when it stops:
there this module does nothing. A WebSocket (`socket.py`) ends its turns itself when it is cancelled, and
outlasts further cancellations meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.http.protocol import STREAM

T = TypeVar("T")

log = structlog.get_logger()

DEPARTURE = "antiphon.departure"
"""The key of the `Departure` in the scope of a request."""
MAX_SECONDS = 60.0
"""For so long an application may end by itself. Then it is cancelled, too."""

_DISCONNECT: Message = {"type": "http.disconnect"}


class LeavingMiddleware:
    """Lets an application end by itself when its task is cancelled. It has to be the outermost one."""

    def __init__(self, asgi: ASGIApp) -> None:
        self._asgi = asgi

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application, in a task of its own if the server may cancel this one."""
        if scope["type"] != "http" or STREAM in scope.get("extensions", {}):
            await self._asgi(scope, receive, send)
            return
        departure = Departure(receive, send)
        scope = {**scope, DEPARTURE: departure}
        await outlast(self._asgi(scope, departure.receive, departure.send), departure.leave)


class Departure:
    """The client of a request, who may leave. The application receives and sends by it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def disconnected(self) -> bool:
        """The client has left: the server's task was cancelled."""
        return self._left.done()

    async def receive(self) -> Message:
        """The next message, or a disconnect when the client has left.

        A server that fails to receive has lost the client: Ray's does when its proxy has dropped the request.
        """
        try:
            message: Message | None = await self._unless_left(self._receive)
        except Exception as error:
            log.debug("the client is lost", why=str(error) or repr(error))
            return _DISCONNECT
        return message or _DISCONNECT

    async def send(self, message: Message) -> None:
        """Send a message. What is sent to a client that has left is dropped, also while it is sent."""
        await self._unless_left(lambda: self._send(message))

    async def _unless_left(self, begin: Callable[[], Awaitable[T]]) -> T | None:
        """The result of a call of the server; None if the client has left, or leaves meanwhile."""
        call = asyncio.ensure_future(self._begun(begin))
        try:
            await asyncio.wait((call, self._left), return_when=asyncio.FIRST_COMPLETED)
            return call.result() if call.done() else None
        finally:
            call.cancel()

    async def _begun(self, begin: Callable[[], Awaitable[T]]) -> T | None:
        """A call of the server, which is not begun any more if the client has left since it was scheduled."""
        return None if self.disconnected else await begin()

    def leave(self) -> None:
        """The client leaves."""
        self._left.set_result(None)


async def outlast(running: Awaitable[Any], leave: Callable[[], None] | None = None) -> None:
    """Run something to its end, also if this task is cancelled meanwhile. Raises its errors.

    `leave` is called when this task is cancelled, once.
    """
    application = asyncio.ensure_future(running)
    cancelled = None
    while not application.done():
        try:
            await asyncio.wait((application,))
        except asyncio.CancelledError as error:  # a cancel scope cancels again and again
            if cancelled is None:
                if leave is not None:
                    leave()
                late = asyncio.get_running_loop().call_later(MAX_SECONDS, application.cancel)
                application.add_done_callback(lambda _, late=late: late.cancel())  # type: ignore[misc]
            cancelled = error
    if application.cancelled():  # the loop is closed, or it took too long
        raise cancelled or asyncio.CancelledError
    application.result()
    if cancelled is not None:
        raise cancelled
