"""The two sockets of vLLM's engine core, read and written in the event loop, without a task for each step.

They take the place of what vLLM's client would use: `Messages` receives and passes on the outputs of a step
in the same call, `Steps` is the queue that they would wait in, and `Sender` sends what belongs together at
once. See decision 13.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import structlog

from antiphon.engines.vllm_imports import imported

log = structlog.get_logger()


class Steps(asyncio.Queue[Exception]):
    """The queue of outputs for vLLM's client: it passes on at once those that the client has read.

    It keeps failures. With a real queue another task would have to wake up for each step.
    """

    take: Callable[[Any], None]

    def put_nowait(self, item: Any) -> None:
        """Pass on outputs, keep a failure."""
        if isinstance(item, Exception):
            super().put_nowait(item)
        else:
            self.take(item)


class Messages:
    """Receives the messages of vLLM's core, and passes on the outputs of a step in the same call.

    vLLM's client has a task for that, which would have to be woken up for each step. It gets what is not
    outputs: results of calls, the end of the core, and everything if it also counts the outputs (with data
    parallelism).
    """

    take: Callable[[Any], None]

    def __init__(self, client: Any) -> None:
        self._zmq = imported("zmq")
        # The same socket, without zmq's own binding to asyncio.
        self._socket = self._zmq.Socket.shadow(client.resources.output_socket)
        self._decode = client.decoder.decode
        self._counted = hasattr(type(client), "process_engine_outputs")
        self._state, self._readable = int(self._zmq.EVENTS), int(self._zmq.POLLIN)
        self._others: asyncio.Queue[Any] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1

    async def recv_multipart(self, *, copy: bool) -> Any:
        """As that of the socket, for vLLM's task."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            # A separate one: vLLM may close the socket, and the other with it, at any time.
            self._descriptor = os.dup(self._socket.getsockopt(self._zmq.FD))
            self._loop.add_reader(self._descriptor, self._arrived)
            self._loop.call_soon(self._arrived)  # the descriptor tells nothing of what had come before
        message = await self._others.get()
        if isinstance(message, Exception):
            raise message
        return message

    def _arrived(self) -> None:
        """Receive all messages that have arrived: the descriptor is not readable again for them."""
        try:
            self._receive()
            # Asking is cheaper than the exception of an empty socket, for each step.
            while self._socket.get(self._state) & self._readable:
                self._receive()
        except self._zmq.Again:  # another message was received with the last one
            pass
        except self._zmq.ZMQError as error:
            self.leave()  # its descriptor stays readable
            self._others.put_nowait(error)

    def _receive(self) -> None:
        frames = [self._socket.recv(self._zmq.NOBLOCK, copy=False)]
        while frames[-1].more:
            frames.append(self._socket.recv(self._zmq.NOBLOCK, copy=False))
        if not self._counted:
            try:
                outputs = self._decode(frames)
            except Exception:  # the task finds out what it is, and tells
                log.debug("a message of vLLM's is not outputs", exc_info=True)
            else:
                if outputs.utility_output is None:
                    self.take(outputs)
                    return
        self._others.put_nowait(frames)

    def leave(self) -> None:
        """Remove it from the event loop. Nothing is received any more."""
        descriptor, self._descriptor = self._descriptor, -1
        if self._loop is not None and descriptor >= 0:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)


class _Sent:
    """The result of sending: there is nothing to wait for."""

    def __await__(self) -> Iterator[None]:
        return iter(())


class Sender:
    """Sends to a socket of vLLM's, at the end of a turn of the event loop all that was sent in the turn.

    Each message that is sent by itself wakes a thread of zmq's, which takes longer than all else that is done
    to send it; and requests come together. `failed` is called with an error.
    """

    def __init__(self, socket: Any, failed: Callable[[Exception], None]) -> None:
        self._zmq = imported("zmq")
        self._socket = self._zmq.Socket.shadow(socket)
        self._failed = failed
        self._unsent: list[Sequence[Any]] = []

    def send_multipart(self, parts: Sequence[Any], *, copy: bool) -> _Sent:
        """As that of the socket; it has no limit to what waits."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send_all, copy)
        self._unsent.append(parts)
        return _Sent()

    def _send_all(self, copy: bool) -> None:
        unsent, self._unsent = self._unsent, []
        try:
            for parts in unsent:
                self._socket.send_multipart(parts, self._zmq.NOBLOCK, copy=copy)
        except self._zmq.ZMQError as error:
            self._failed(error)

    def leave(self) -> None:
        """Forget what was not sent: another thread closes the socket next."""
        self._unsent = []
