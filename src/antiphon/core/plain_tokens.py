"""The way of a plain token, from the engine's chunk to the transport: all of it is here.

Most of an answer is plain text: chunks of one token, inside an open item and without a marker, of which each
differs from the one before in its text only. For these nothing is decoded, no event is made, and no part is
asked that would say the same as for the token before. What they need is made once, when an item begins:

- the texts that are plain in the state of the decoder (`AnswerDecoder.plain`),
- the bytes around a text in its wire event (`TextFrame`, `NumberedFrame`), by the projection of the API,
- the way to the client (`DeltaWriter`), by the client of the driver.

    chunk ──PlainTokens──► text ──DeltaEncoder──► wire event ──DeltaWriter──► transport

It is no second way to answer. `Driver.push` defines an answer; a `DeltaWriter` has the same effect for one
kind of event, and each part may decline: a projection that does more for a delta, a journal that needs
events, a generation that is checked or recorded, a client that does not read. Then events are made. The law
is in `tests/apis/test_deltas.py`: both ways give the same bytes. A token of a chat takes 23 % longer if all
are made into events (a row of `bench/compare.py`). Decision 28 tells how it came about.
"""

import secrets
from asyncio import WriteTransport
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import Chunk, Token

DeltaEncoder = Callable[[str, tuple[Token, ...]], bytes]
"""Text of a delta and its tokens → the wire event."""
DeltaWriter = Callable[[str, tuple[Token, ...]], None]
"""Writes the text of a delta of an item, and its tokens."""

_encode = msgspec.json.Encoder().encode


# From the chunk to the text


class PlainTokens:
    """Takes the plain tokens of one generation.

    `pieces` gets their texts, which belong to the open item; `count_plain` those that were taken, later and
    several at once. `record`, if it is there, gets their chunks before they are written.
    """

    def __init__(
        self,
        pieces: list[str],
        count_plain: Callable[[Sequence[str]], None],
        record: Callable[[list[Chunk]], object] | None = None,
    ) -> None:
        self.texts: Mapping[str, bool] = {}
        """Text → whether it is plain now."""
        self.write: DeltaWriter | None = None
        """Writes the deltas of the open item; None if they need events."""
        self._pieces = pieces
        self._record = record
        self._count_plain = count_plain
        self._counted = 0  # of the pieces: the others were taken since

    def take(self, chunks: list[Chunk]) -> bool:
        """Write these chunks, if they are one plain token. Otherwise, have those counted that came before."""
        if self.write is None:
            return False
        chunk = chunks[0]
        text = chunk.text
        if len(chunks) == len(chunk.tokens) == 1 and chunk.finish is None and self.texts[text]:
            self._pieces.append(text)
            if self._record is not None:
                self._record(chunks)
            self.write(text, chunk.tokens)
            return True
        self.count()
        return False

    def begin(self, write: DeltaWriter | None) -> None:
        """From now on, write deltas so."""
        self.write = write
        self._counted = len(self._pieces)

    def add(self, text: str) -> None:
        """A delta was decoded: it is counted already."""
        self._pieces.append(text)
        self._counted += 1

    def count(self) -> None:
        """Have the tokens counted that were taken."""
        if self.write is not None:
            self._count_plain(self._pieces[self._counted :])
            self._counted = len(self._pieces)

    def end(self) -> None:
        """Take no more."""
        self.count()
        self.write = None


# From the text to the wire event

MARK = secrets.token_hex(16)
"""Stands for the text while the bytes around it are made: in no name that a client or a model may choose."""
_ENCODED_MARK = _encode(MARK)


def parts_around(event: Callable[[str], bytes]) -> tuple[bytes, ...]:
    """The bytes before and after the text, as JSON, in the event of a text, and between two of them."""
    return (*event(MARK).split(_ENCODED_MARK),)


class TextFrame:
    """Encodes deltas that differ in their texts only. See `DeltaEncoder`."""

    def __init__(self, event: Callable[[str], bytes]) -> None:
        self._event = event

    @cached_property
    def parts(self) -> tuple[bytes, ...]:
        """They are made for the first text: many answers have, say, no reasoning."""
        return parts_around(self._event)

    def __call__(self, text: str, tokens: tuple[Token, ...] = ()) -> bytes:
        """The event of this text."""
        return _encode(text).join(self.parts)


class NumberedFrame(NamedTuple):
    """The bytes before the number, between number and text, and after the text of a numbered delta."""

    head: bytes
    middle: bytes
    tail: bytes


class SequenceNumbers:
    """The numbers of the events of one answer, counted from 0 without gaps."""

    def __init__(self) -> None:
        self.next = 0

    def encode(self, event: Callable[..., Struct], *fields: object) -> bytes:
        """The next event of the stream, with these fields."""
        payload = _encode(event(self.next, *fields))
        self.next += 1
        return payload

    def delta(self, frame: NumberedFrame, text: str) -> bytes:
        """The next event of the stream, a delta with this text."""
        head, middle, tail = frame
        payload = b"".join((head, _encode(self.next), middle, _encode(text), tail))
        self.next += 1
        return payload


class NumberedDeltas(Struct, frozen=True):
    """Encodes the deltas of one item that are numbered. See `DeltaEncoder`.

    `written` gets the tokens of each, and `texts`, if it is there, its text.
    """

    numbers: SequenceNumbers
    frame: NumberedFrame
    written: list[tuple[Token, ...]]
    texts: list[str] | None = None

    def between(self, before: bytes, after: bytes) -> "NumberedDeltas":
        """The same deltas, between these bytes."""
        head, middle, tail = self.frame
        return replace(self, frame=NumberedFrame(before + head, middle, tail + after))

    def __call__(self, text: str, tokens: tuple[Token, ...]) -> bytes:
        """The event of this text, the next one."""
        self.written.append(tokens)
        if self.texts is not None:
            self.texts.append(text)
        return self.numbers.delta(self.frame, text)


# From the wire event to the transport

_CHUNK_END = b"\r\n"
COPIED = 4096
"""Parts of a body with fewer bytes are copied once more, because one write is less work than three."""


SIZE_LINES = [b"%x\r\n" % size for size in range(COPIED)]
"""The first lines of chunks of these sizes: to format them takes 3 % of a token of a chat."""


def chunk_of(body: bytes) -> tuple[bytes, bytes, bytes]:
    """The chunk of a part of a body."""
    return b"%x\r\n" % len(body), body, _CHUNK_END


class ChunkedBody:
    """Writes parts of a body as chunks of HTTP/1.1."""

    def __init__(self, transport: WriteTransport) -> None:
        self._transport = transport

    def write(self, body: bytes) -> None:
        """Write a part."""
        chunk = chunk_of(body)
        if len(body) < COPIED:
            self._transport.write(b"".join(chunk))
        else:
            self._transport.writelines(chunk)


class Outlet:
    """Where the bytes of a stream go, which changes when its response begins, and when its client leaves.

    `write` takes events; `transport`, if it is known, takes chunks of the body. `silent`: nothing was written
    since somebody looked.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write
        self.transport: WriteTransport | None = None
        self.silent = True

    def lead(self, write: Callable[[bytes], object], transport: WriteTransport | None = None) -> None:
        """From now on, bytes go there."""
        self.write, self.transport = write, transport

    def delta_writer(self, encode: DeltaEncoder) -> DeltaWriter:
        """Writes what `encode` makes of the deltas of one item."""
        if isinstance(encode, TextFrame):
            return _TextWriter(self, encode).write
        return _Writer(self, encode).write


class _Writer:
    """Writes deltas of any kind."""

    def __init__(self, outlet: Outlet, encode: DeltaEncoder) -> None:
        self._outlet = outlet
        self._encode = encode

    def write(self, text: str, tokens: tuple[Token, ...]) -> None:
        self._outlet.silent = False
        self._outlet.write(self._encode(text, tokens))


class _TextWriter(_Writer):
    """Writes texts in one step with the bytes of their events and of their chunks.

    A token of a chat takes 4 % longer if a `_Writer` writes it (a row of `bench/compare.py`).
    """

    def __init__(self, outlet: Outlet, encode: TextFrame) -> None:
        super().__init__(outlet, encode)
        *begin, end = encode.parts
        self._parts = (*begin, end + _CHUNK_END)

    def write(self, text: str, tokens: tuple[Token, ...]) -> None:
        outlet = self._outlet
        outlet.silent = False
        event = _encode(text).join(self._parts)
        size = len(event) - len(_CHUNK_END)
        if outlet.transport is not None and size < COPIED:
            outlet.transport.write(SIZE_LINES[size] + event)
        else:
            outlet.write(event[:size])
