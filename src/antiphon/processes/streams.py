"""What outlives the process that writes a stream: its connection, and a file in memory.

A process that begins a stream sends the supervisor duplicates of the descriptors of both, once. When it has
died, the supervisor sends them to another process. The connection tells how many bytes the system has got of
the dead process, by `handed_over`; the file has what is not certain to be among them, and the record that
goes on from there.

The file (`StreamFile`) has a part that is written once, then the last bytes of the stream, and behind them
the entries of the record, which grow. Entries and bytes are taken over together: two slots say how much there
is of each, and one byte says which slot holds. So a process may be killed at any moment.
"""

import array
import asyncio
import fcntl
import mmap
import os
import resource
import secrets
import socket
import struct
import termios
from collections.abc import Callable, Iterator, Mapping

import structlog
from msgspec import Struct

HALF = 128 * 1024
"""Bytes of a stream that are kept: more than may wait for a client that does not read."""
MAX_ENTRIES = 16 * 1024 * 1024
"""Bytes of the entries of one stream."""
FIRST_ENTRIES = 64 * 1024
"""Bytes of the entries that a file begins with: pages that are not used take no memory."""
ID_BYTES = 8
RETRY_SECONDS = 0.01
_SLOTS = (64, 128)
_SLOT = struct.Struct("<QQQQQQ")  # state, half, bytes before it, bytes in it, entries, bytes of entries
_pack = _SLOT.pack_into
_FIXED = 256
_LENGTH = struct.Struct("<I")
_INFO_BYTES = 128
_ACKED = struct.Struct("<Q")
_ACKED_AT = 120
"""Where `struct tcp_info` has the bytes that the client has acknowledged."""
_BEGIN, _END = b"+", b"-"

log = structlog.get_logger()


def handed_over(connection: socket.socket) -> int:
    """The bytes that the system has got for a TCP connection, plus a constant of that connection.

    They are what the client has acknowledged, and what is queued. Raises OSError for another kind of socket.
    """
    before = _acknowledged(connection)
    while True:
        queued = array.array("i", [0])
        fcntl.ioctl(connection, termios.TIOCOUTQ, queued)
        after = _acknowledged(connection)
        if after == before:  # nothing went from one to the other meanwhile
            return after + queued[0]
        before = after


def _acknowledged(connection: socket.socket) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    (acked,) = _ACKED.unpack_from(info, _ACKED_AT)
    return int(acked)


class Kept(Struct):
    """What a file says. `sent` bytes of the stream are before `last`, its last bytes."""

    head: bytes
    count: int
    """How many entries there are."""
    entries: bytes
    state: int
    sent: int
    last: bytes

    def after(self, count: int) -> bytes | None:
        """The bytes after so many of the stream; None if they are not all there."""
        start = count - self.sent
        return self.last[start:] if 0 <= start <= len(self.last) else None


class StreamFile:
    """A file in memory, for one stream. See above for what it has."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0)
        self._active = self._map[0]
        slot = _SLOT.unpack_from(self._map, _SLOTS[self._active])
        self.state, self._half, self._before, self._size, self._count, self._entries = slot
        (length,) = _LENGTH.unpack_from(self._map, _FIXED)
        self._head = _FIXED + _LENGTH.size, _FIXED + _LENGTH.size + length
        self._halves = self._head[1]
        self._start = self._halves + self._half * HALF
        self._log = self._halves + 2 * HALF
        self._room = len(self._map) - self._log

    @classmethod
    def create(cls, head: bytes) -> "StreamFile":
        """A new file with this head, the part that is written once. Raises OSError."""
        descriptor = os.memfd_create("antiphon-stream")
        try:
            os.ftruncate(descriptor, _FIXED + _LENGTH.size + len(head) + 2 * HALF + FIRST_ENTRIES)
            os.pwrite(descriptor, _LENGTH.pack(len(head)) + head, _FIXED)
            return cls(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Close it."""
        self._map.close()
        os.close(self.descriptor)

    def read(self) -> Kept:
        """What it says."""
        held, log = self._map, self._log
        last = held[self._start : self._start + self._size]
        entries = held[log : log + self._entries]
        return Kept(held[slice(*self._head)], self._count, entries, self.state, self._before, last)

    def append(self, data: bytes, count: int, entries: bytes, state: int, unsent: Callable[[], int]) -> bool:
        """Take over bytes of the stream, so many entries, and the state, together.

        `unsent` tells how many of the bytes before these are not written yet. Returns False if there is no
        room: then the file says what it said before.
        """
        if self._size + len(data) > HALF and not self._turn(len(data), unsent()):
            return False
        size, end = self._size + len(data), self._entries + len(entries)
        if end > self._room and not self._enlarge(end):
            return False
        held, log, start, other = self._map, self._log, self._start, 1 - self._active
        held[log + self._entries : log + end] = entries
        held[start + self._size : start + size] = data
        count += self._count
        _pack(held, _SLOTS[other], state, self._half, self._before, size, count, end)
        held[0] = self._active = other
        self.state, self._size, self._count, self._entries = state, size, count, end
        return True

    def _turn(self, more: int, waiting: int) -> bool:
        """Go on in the other half, with the bytes that wait; whether there is room for more."""
        if waiting > self._size or waiting + more > HALF:
            return False
        end = self._start + self._size
        last = self._map[end - waiting : end]
        before = self._before + self._size - waiting
        self._half = 1 - self._half
        self._start = self._halves + self._half * HALF
        self._map[self._start : self._start + waiting] = last
        self._hold(self.state, before, waiting, self._count, self._entries)
        return True

    def _enlarge(self, size: int) -> bool:
        """Make room for so many bytes of entries; whether that is allowed."""
        if size > MAX_ENTRIES:
            return False
        self._map.resize(self._log + 2 * size)
        self._room = 2 * size
        return True

    def mark(self, state: int) -> None:
        """Change the state only."""
        self._hold(state, self._before, self._size, self._count, self._entries)

    def _hold(self, state: int, before: int, size: int, count: int, entries: int) -> None:
        other = 1 - self._active
        _pack(self._map, _SLOTS[other], state, self._half, before, size, count, entries)
        self._map[0] = self._active = other
        self.state, self._before, self._size, self._count, self._entries = state, before, size, count, entries


Descriptors = tuple[int, int]
"""Those of a connection, and of its file."""


class Passage:
    """One end of the socket by which descriptors are passed on."""

    def __init__(
        self,
        end: socket.socket,
        on_begin: Callable[[bytes, Descriptors], None],
        on_end: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        end.setblocking(False)
        self._end = end
        self._on_begin = on_begin
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(end, self._receive)

    def close(self) -> None:
        """Close it, after what was sent."""
        self._loop.remove_reader(self._end)
        self._receive()
        self._end.close()

    def begin(self, stream: bytes, descriptors: Descriptors) -> bool:
        """Pass a stream on; whether that could be done."""
        try:
            socket.send_fds(self._end, [_BEGIN + stream], descriptors)
        except OSError:
            return False
        return True

    def end(self, stream: bytes) -> None:
        """Say that a stream has ended: now, or when the other end reads."""
        try:
            self._end.send(_END + stream)
        except BlockingIOError:
            self._loop.call_later(RETRY_SECONDS, self.end, stream)
        except OSError:  # there is no supervisor any more
            pass

    def _receive(self) -> None:
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._end, 1 + ID_BYTES, 2)
            except BlockingIOError:
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                self._loop.remove_reader(self._end)
                return
            if message[:1] == _END:
                self._on_end(message[1:])
            elif len(descriptors) == len(("connection", "file")):
                self._on_begin(message[1:], (descriptors[0], descriptors[1]))
            else:  # too many files are open
                for descriptor in descriptors:
                    os.close(descriptor)


def new_id() -> bytes:
    """The id of a new stream."""
    return secrets.token_bytes(ID_BYTES)


class StreamKeeper:
    """The streams of all processes, by the row of the process that writes them. The supervisor has it."""

    def __init__(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # two files for each stream
        self._passages: dict[int, Passage] = {}
        self._streams: dict[int, dict[bytes, Descriptors]] = {}
        self._orphans: dict[bytes, Descriptors] = {}

    def open(self, row: int, end: socket.socket) -> None:
        """A process begins."""
        streams: dict[bytes, Descriptors] = {}
        self._streams[row] = streams

        def ended(stream: bytes) -> None:
            _close(streams.pop(stream, ()))

        self._passages[row] = Passage(end, streams.__setitem__, ended)

    def close(self, row: int) -> None:
        """A process has ended: its streams wait for another one."""
        self._passages.pop(row).close()
        self._orphans.update(self._streams.pop(row))

    def give(self, rows: Mapping[int, int]) -> None:
        """Give the streams that wait to these processes: to that first which has the least to do."""
        loads = dict(rows)
        while loads and self._orphans:
            row = min(loads, key=loads.__getitem__)
            stream, descriptors = next(iter(self._orphans.items()))
            if not self._passages[row].begin(stream, descriptors):
                del loads[row]
                continue
            loads[row] += 1
            self._streams[row][stream] = self._orphans.pop(stream)

    def drop(self) -> None:
        """Break off the streams that wait: no process will write on."""
        for stream in [*self._orphans]:
            _close(self._orphans.pop(stream))

    def __iter__(self) -> Iterator[bytes]:
        """The streams that wait."""
        return iter(self._orphans)


def _close(descriptors: Descriptors | tuple[()]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
