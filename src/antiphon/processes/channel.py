"""The messages between the supervisor of a server and its processes, over a Unix socket for each of them.

A process asks all processes of its server something: `Ask`. The supervisor calls each (`Call`), waits for
their `Answer`s, and returns them together (`Answers`). What is asked, and how answers are combined, only the
processes know (`app/siblings.py`): here it is bytes. The supervisor keeps the last metrics of each process.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.core.links import CoreFacts

METRICS = "metrics"
"""The name of the call whose answers are snapshots of metrics (`sums.py`)."""
_LENGTH = 4
"""Bytes before each message, which say how long it is."""


class Composed(Struct, tag=True):
    """A process has checked its options, and answers calls from now on."""


class Ready(Struct, tag=True):
    """A process has loaded its models. The lines are those that a server prints for its operator."""

    lines: list[str]


class Failed(Struct, tag=True):
    """A process cannot start, for this reason."""

    message: str


class Ended(Struct, tag=True):
    """A process has ended all of its answers: its last metrics."""

    metrics: bytes


class Ask(Struct, tag=True):
    """A process asks all, also itself, and waits for so many seconds."""

    number: int
    name: str
    body: bytes
    seconds: float


class Call(Struct, tag=True):
    """A process is asked."""

    number: int
    name: str
    body: bytes


class Refusal(Struct):
    """An error for the client."""

    status: int
    type: str
    message: str
    param: str | None
    code: str | None


class Answer(Struct, tag=True):
    """What a process answers to a call."""

    number: int
    body: bytes = b""
    refusal: Refusal | None = None


class Answers(Struct, tag=True):
    """The answers to what a process has asked: of those that have answered in time."""

    number: int
    answers: list[Answer]


class Started(Struct, tag=True):
    """The processes of an engine run, which is in a program of its own, and has not loaded yet."""

    core: CoreFacts


class Loaded(Struct, tag=True):
    """It has loaded."""


class Forget(Struct, tag=True):
    """The client of an engine with the link of this number has ended."""

    number: int


FromHost = Started | Loaded | Failed
FromProcess = Composed | Ready | Failed | Ended | Ask | Answer
ToProcess = Call | Answers


Message = FromProcess | ToProcess | FromHost | Forget


def encoded(message: Message) -> bytes:
    """The bytes of a message."""
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(_LENGTH) + data


class Channel:
    """One end of the connection, opened by `async with`. What comes is decoded as `received`."""

    def __init__(self, end: socket.socket, received: Any) -> None:
        self._end = end
        self._decoder = msgspec.msgpack.Decoder(received)
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> "Channel":
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._end)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def messages(self) -> AsyncIterator[Any]:
        """The messages of the other end, until it closes."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = int.from_bytes(await self._reader.readexactly(_LENGTH))
                yield self._decoder.decode(await self._reader.readexactly(length))

    def send(self, message: Message) -> None:
        """Send a message, unless the channel is closed."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encoded(message))

    async def close(self) -> None:
        """Close it, after what was sent."""
        if self._writer is not None:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()
