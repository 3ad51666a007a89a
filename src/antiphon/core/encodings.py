"""Bodies of clients and of the web that are compressed (`Content-Encoding`), decoded piece by piece.

No call of a decoder returns more than about `PIECE` bytes, so whoever counts them stops a body that grows
without end before it is in memory. A body is one frame, or several (gzip calls them members), up to
`MOST_FRAMES`. A library is imported for the first body that needs it; those of zstd and Brotli are an extra.

Servers of models and of tools are asked not to compress (`IDENTITY`), and refused if they do.

To add a reader of what another server sends: bytes are bounded after decoding, in pieces, or the encoding is
refused; what is told of its errors goes through `engines/redact.py`; a reader in `tests/test_outside.py`.
"""

import asyncio
import sys
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from msgspec import Struct

from antiphon.core.errors import ContentEncodingError, RequestError, missing_extra

PIECE = 64 * 1024
"""Bytes that are decoded at once."""
MOST_ENCODINGS = 3
"""Encodings of one body, each of what the one before has made."""
MOST_FRAMES = 1000
"""Members or frames of one body: empty ones would take much time."""
WINDOW_LOG = 23
"""The logarithm of the largest window of zstd, whose size is in memory: 8 MiB, as RFC 9659 has it."""

IDENTITY = "identity"
"""The encoding of a body that is not encoded."""

Count = Callable[[bytes], bytes]
"""Returns the part of a body that it gets, or raises an error when the parts are too many bytes."""


class Frame(Protocol):
    """Decodes one frame, in the form of Python's newer decompressors."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """The next part of what this data, and the data before, decode to. Raises `Encoding.error`."""
        ...

    @property
    def needs_input(self) -> bool:
        """All that has come is decoded."""
        ...

    @property
    def eof(self) -> bool:
        """The frame has ended."""
        ...

    @property
    def unused_data(self) -> bytes:
        """What has come after its end."""
        ...


class _Deflate:
    """zlib's formats, `bits` says which."""

    def __init__(self, bits: int) -> None:
        self._decompressor = zlib.decompressobj(bits)
        self._full = False

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._decompressor.decompress(self._decompressor.unconsumed_tail + data, max_length)
        self._full = len(piece) == max_length
        return piece

    @property
    def needs_input(self) -> bool:
        return not (self._full or self._decompressor.unconsumed_tail)

    @property
    def eof(self) -> bool:
        return self._decompressor.eof

    @property
    def unused_data(self) -> bytes:
        return self._decompressor.unused_data


class _Brotli:
    """Nothing may come after its end."""

    unused_data = b""

    def __init__(self, decompressor: Any) -> None:
        self._decompressor = decompressor
        self._full = False

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece: bytes = self._decompressor.process(data, output_buffer_limit=max_length)
        self._full = len(piece) >= max_length
        return piece

    @property
    def needs_input(self) -> bool:
        return not self._full and self._decompressor.can_accept_more_data()

    @property
    def eof(self) -> bool:
        finished: bool = self._decompressor.is_finished()
        return finished


class Encoding(Struct, frozen=True):
    """How bodies of an encoding are read.

    `frame` makes, of the `library`, what decodes a frame that begins with these bytes. `error` is what the
    library raises for one that is corrupt.
    """

    library: str
    error: str
    frame: Callable[[Any, bytes], Frame]


def _gzip(_library: Any, _data: bytes) -> Frame:
    return _Deflate(zlib.MAX_WBITS | 16)


def _deflate(_library: Any, data: bytes) -> Frame:
    """In zlib's format, whose first byte says `DEFLATED` (RFC 1950); some clients leave its head out."""
    return _Deflate(zlib.MAX_WBITS if data[0] & 15 == zlib.DEFLATED else -zlib.MAX_WBITS)


def _zstd(zstd: Any, _data: bytes) -> Frame:
    frame: Frame = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})
    return frame


def _brotli(brotli: Any, _data: bytes) -> Frame:
    return _Brotli(brotli.Decompressor())


ENCODINGS: Mapping[str, Encoding] = {
    "gzip": Encoding("zlib", "error", _gzip),
    "x-gzip": Encoding("zlib", "error", _gzip),
    "deflate": Encoding("zlib", "error", _deflate),
    "zstd": Encoding(
        "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd", "ZstdError", _zstd
    ),
    "br": Encoding("brotli", "error", _brotli),
}


@cache
def _library(encoding: str) -> Any:
    """What decodes it; None if it is not installed."""
    try:
        return import_module(ENCODINGS[encoding].library)
    except ImportError:
        return None


def supported() -> list[str]:
    """The encodings that can be read, without other names."""
    return [name for name in ENCODINGS if not name.startswith("x-") and _library(name) is not None]


class Decoder:
    """Decodes one encoding of a body."""

    def __init__(self, encoding: str) -> None:
        self._encoding = ENCODINGS[encoding]
        self._name = encoding
        self._library = _library(encoding)
        self._corrupt: type[Exception] = getattr(self._library, self._encoding.error)
        self._frame: Frame | None = None
        self._frames = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        """What the data decode to, as far as it can be said yet. Raises RequestError."""
        while data or self._frame is not None:
            if self._frame is None:
                self._frame = self._encoding.frame(self._library, data)
                self._frames += 1
            try:
                piece, data = self._frame.decompress(data, PIECE), b""
            except self._corrupt as error:
                raise self._error() from error
            if piece:
                yield piece
            if self._frame.eof:
                data, self._frame = self._frame.unused_data, None
                if self._frames == MOST_FRAMES and data:
                    raise self._error()
            elif self._frame.needs_input:
                return

    def end(self) -> None:
        """Raise RequestError if the body was cut."""
        if self._frame is not None:
            raise self._error()

    def _error(self) -> RequestError:
        what = f"The body is not valid {self._name}, as its Content-Encoding says, or was cut."
        return RequestError(f"{what} Compress it anew, or send it as it is, without Content-Encoding.")


def applied_encodings(fields: Sequence[bytes]) -> list[str]:
    """The encodings that the fields `Content-Encoding` of a body name, in the order of their application."""
    names = [name.strip().lower() for name in b",".join(fields).decode("latin-1").split(",")]
    return [name for name in names if name not in ("", IDENTITY)]


def decoded_parts(
    parts: AsyncGenerator[bytes, None], fields: Sequence[bytes], counter: Callable[[], Count]
) -> AsyncGenerator[bytes, None]:
    """What the parts of a body with these fields `Content-Encoding` decode to.

    What each encoding decodes to is counted by a `counter` of its own. Raises ContentEncodingError, and
    RequestError while it is read.
    """
    for decoder in decoders(fields):
        parts = _decoded(parts, decoder, counter())
    return parts


async def _decoded(
    parts: AsyncGenerator[bytes, None], decoder: Decoder, count: Count
) -> AsyncGenerator[bytes, None]:
    async for part in parts:
        for piece in decoder.decode(part):
            yield count(piece)
            await asyncio.sleep(0)  # a small part may decode to many pieces
    decoder.end()


def decoders(fields: Sequence[bytes]) -> list[Decoder]:
    """What decodes a body with these fields `Content-Encoding`, in order. Raises ContentEncodingError."""
    applied = applied_encodings(fields)
    if len(applied) > MOST_ENCODINGS:
        raise _unsupported(f"The body has more than {MOST_ENCODINGS} encodings.")
    for name in applied:
        if name not in ENCODINGS:
            raise _unsupported(f"Bodies that are encoded as '{name[:40]}' are not supported.")
        if _library(name) is None:
            raise _unsupported(missing_extra(f"The encoding '{name}'", "encodings"))
    return [Decoder(name) for name in reversed(applied)]


def _unsupported(why: str) -> ContentEncodingError:
    return ContentEncodingError(f"{why} Use {', '.join(supported())}, or none.")
