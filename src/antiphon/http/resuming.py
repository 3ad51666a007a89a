"""Streams that outlive the process that writes them: how they are recorded, and how they are resumed.

`Recording` is the outermost part of the application of one of several processes. It gives each request a
`StreamRecord`. When the response begins as a stream, a file in shared memory gets the request, and from then
on each write to the connection its bytes, with the chunks that they were made from. The supervisor has a
duplicate of the connection and of the file (`processes/streams.py`).

`Resumer` gets both when the process has died. It writes the bytes that the system has not got, and serves the
request again on the same connection: the chunks are replayed without a word, and the answer goes on.
"""

import asyncio
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from msgspec import Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.core.observation import observed
from antiphon.core.permits import FIRST, PRIORITY
from antiphon.core.plain_tokens import chunk_of
from antiphon.core.stream_record import STREAM_RECORD, Entry, StreamRecord, StreamState
from antiphon.http.protocol import STREAM, Cycle, StreamProtocol
from antiphon.processes.streams import Descriptors, Passage, StreamFile, handed_over, new_id

log = structlog.get_logger()

_encode = msgspec.msgpack.Encoder().encode
_entries = msgspec.msgpack.Decoder(list[Entry])
_ARRAY = struct.Struct(">BI")
"""The head of a list in MessagePack."""
_LEFT_OUT = frozenset(
    (b"content-length", b"transfer-encoding", b"connection", b"expect", b"upgrade", b"keep-alive")
)
"""Headers that are about the connection: the request is sent again in one piece."""


class StreamRequest(Struct, frozen=True):
    """A request, and what its answer is made with. `base` is `handed_over` before the response."""

    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    seed: bytes
    created: float
    base: int
    reserved: int

    @property
    def request(self) -> bytes:
        """The request, as it is read again."""
        lines = [b"POST %s HTTP/1.1" % self.target]
        lines += [b"%s: %s" % header for header in self.headers if header[0] not in _LEFT_OUT]
        lines.append(b"content-length: %d" % len(self.body))
        lines.append(b"connection: close")  # what else it has sent died with the process
        return b"\r\n".join((*lines, b"", self.body))


class _RecordingTransport:
    """A transport that has what it writes recorded, before."""

    def __init__(self, transport: Any, record: StreamRecord, file: StreamFile) -> None:
        self._transport = transport
        self._record = record
        self._file = file
        self._append = file.append
        self._write = transport.write
        self._unsent = transport.get_write_buffer_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        record = self._record
        pending = record.pending
        if record.goes_on and len(pending) == 1 and not record.events:  # as of most tokens
            count, entries = 1, _encode(pending.pop())
        else:
            pending = record.take()
            count, entries = len(pending), b"".join(map(_encode, pending))
        if not self._append(data, count, entries, record.state, self._unsent):
            record.give_up()
            self._file.mark(record.state)
        self._write(data)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))


class _Request:
    """A request whose stream may be kept. `resumed` is the file and the id of one that another has begun."""

    def __init__(
        self,
        protocol: StreamProtocol,
        scope: Scope,
        record: StreamRecord,
        resumed: tuple[bytes, StreamFile] | None,
        passage: Passage,
    ) -> None:
        self._protocol = protocol
        self._scope = scope
        self._record = record
        self._passage = passage
        self._stream = resumed
        self._body: list[bytes] = []
        if resumed is not None:
            self._record.keep = self._note

    def read(self, message: Message) -> None:
        """A part of the request has come."""
        self._body.append(message.get("body", b""))

    def keep(self) -> None:
        """The response begins: keep it, if it can be resumed."""
        protocol, record = self._protocol, self._record
        if not record.logged or record.state is StreamState.LOST or protocol.flow.write_paused:
            return
        if self._stream is None:
            self._stream = self._begin(protocol.transport)
            if self._stream is not None:
                record.keep = self._note
                for entry in record.early:
                    self._note(entry)
        if self._stream is not None:
            protocol.transport = protocol.running.transport = _RecordingTransport(  # type: ignore[assignment,union-attr]
                protocol.transport, record, self._stream[1]
            )
        self._body = []

    def _note(self, entry: Entry) -> None:
        """Keep an entry at once."""
        assert self._stream is not None
        _, file = self._stream
        if not file.append(b"", 1, _encode(entry), file.state, _nothing):
            self._record.give_up()
            file.mark(self._record.state)

    def _begin(self, transport: Any) -> tuple[bytes, StreamFile] | None:
        """The id and the file of the stream, which the supervisor has got."""
        scope, record, query = self._scope, self._record, self._scope["query_string"]
        connection = transport.get_extra_info("socket")
        try:
            base = handed_over(connection) + transport.get_write_buffer_size()
            target = scope["raw_path"] + (b"?" + query if query else b"")
            body = b"".join(self._body)
            asked = StreamRequest(
                target, scope["headers"], body, record.seed, record.created, base, observed().reserved
            )
            stream, file = new_id(), StreamFile.create(_encode(asked))
        except OSError:
            return None
        if not self._passage.begin(stream, (connection.fileno(), file.descriptor)):
            file.close()
            return None
        return stream, file

    def end(self) -> None:
        """The response has ended, or the connection."""
        protocol = self._protocol
        if isinstance(protocol.transport, _RecordingTransport):
            protocol.transport = protocol.transport._transport
        if self._stream is not None:
            stream, file = self._stream
            file.close()
            self._passage.end(stream)


class Recording:
    """Gives requests a record of their streams. `passage` leads to the supervisor."""

    def __init__(self, asgi: ASGIApp) -> None:
        self._asgi = asgi
        self.passage: Passage | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        protocol = scope.get("extensions", {}).get(STREAM)
        passage = self.passage
        streams = protocol is not None and scope["method"] == "POST" and scope["http_version"] == "1.1"
        if not streams or passage is None:
            await self._asgi(scope, receive, send)
            return
        resumed = getattr(protocol, "resumed", None)
        priority = PRIORITY.get() if resumed is None else FIRST
        if resumed is None:
            record = StreamRecord(secrets.token_bytes(16), time.time())
            request = _Request(protocol, scope, record, None, passage)
        else:
            stream, file, record = resumed
            request = _Request(protocol, scope, record, (stream, file), passage)
        token, before = STREAM_RECORD.set(record), PRIORITY.set(priority)

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                request.read(message)
            return message

        protocol.keep = request.keep
        try:
            await self._asgi(scope, receiving, send)
        finally:
            del protocol.keep  # the next request may be of another kind
            request.end()
            STREAM_RECORD.reset(token)
            PRIORITY.reset(before)


def _nothing() -> int:
    """How much waits behind no bytes."""
    return 0


class _ResumedCycle(Cycle):
    """A response whose head was sent."""

    async def send(self, message: Any) -> None:
        """See ASGI. Another response than the stream is no use for the client: the connection breaks off."""
        if message["type"] == "http.response.start" and "first" not in message:
            log.warning("a stream breaks off: it cannot be answered again", status=message["status"])
            self.disconnected = True
            self.transport.abort()
            return
        await super().send(message)

    def _begin(self, message: Any, first: bytes) -> None:
        self.chunked_encoding = True
        if first:
            self.transport.write(b"".join(chunk_of(first)))


class Resumer:
    """Writes on the streams of processes that have died."""

    def __init__(self, make: Callable[[], Any], end: socket.socket) -> None:
        self._make = make
        self._tasks: set[asyncio.Task[None]] = set()
        self.passage = Passage(end, self._begin)

    def _begin(self, stream: bytes, descriptors: Descriptors) -> None:
        task = asyncio.create_task(self._resume(stream, descriptors))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resume(self, stream: bytes, descriptors: Descriptors) -> None:
        connection, file = socket.socket(fileno=descriptors[0]), StreamFile(descriptors[1])
        connection.setblocking(False)
        kept = file.read()
        asked = msgspec.msgpack.decode(kept.head, type=StreamRequest)
        rest = kept.after(handed_over(connection) - asked.base)
        if rest is None or kept.state in (StreamState.LOST, StreamState.ANNOUNCED):
            log.warning("a stream breaks off with its process", path=os.fsdecode(asked.target))
            self._close(stream, file, connection)
            return
        if kept.state == StreamState.COMPLETE:
            with suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(connection, rest)
            self._close(stream, file, connection)
            return
        recorded = _entries.decode(_ARRAY.pack(0xDD, kept.count) + kept.entries)
        log.info("a stream is resumed", path=os.fsdecode(asked.target))
        record = StreamRecord(asked.seed, asked.created, recorded)
        record.reserved = asked.reserved
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_accepted_socket(self._make, connection)
        protocol.kind, protocol.resumed = _ResumedCycle, (stream, file, record)
        if rest:
            transport.write(rest)
        protocol.data_received(asked.request)

    def _close(self, stream: bytes, file: StreamFile, connection: socket.socket) -> None:
        connection.close()
        file.close()
        self.passage.end(stream)
