"""Reads what clients attach: images, sounds, films and files become media that the model takes, or text.

This happens before an answer begins, so that what is wrong with an attachment is an error that names it.
A model that does not take a kind of media refuses it, or is shown a note in its place: where the server or
the request says so, and in the results of tools, for nobody could know beforehand what a tool returns.
"""

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import Literal, Protocol
from urllib.parse import unquote_to_bytes

from msgspec.structs import replace

from antiphon.core.errors import RequestError, ToolError, missing_extra
from antiphon.core.items import (
    Attachment,
    FunctionOutput,
    Item,
    MediaKind,
    MediaPart,
    Message,
    Part,
    TextPart,
)
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.turn import Turn
from antiphon.run.bounded import BoundedPool
from antiphon.run.media import Format, format_of, has_pillow, header_of, open_image

Fallback = Literal["error", "note"]
"""What becomes of media that the model does not take."""

LARGE = 64 * 1024
"""Bytes from which on data are decoded and hashed beside the event loop."""

_NOTES = {
    MediaKind.IMAGE: "(An image, which this model cannot see.)",
    MediaKind.AUDIO: "(A sound, which this model cannot hear.)",
    MediaKind.VIDEO: "(A film, which this model cannot see.)",
}


class Downloader(Protocol):
    """Gets files of the web."""

    async def download(self, url: str, most: int) -> bytes:
        """What is at a URL, if that is at most so many bytes. Raises ToolError."""
        ...


class Stored(Protocol):
    """Gets files of the store."""

    async def content(self, owner: str, file_id: str, most: int) -> tuple[str, bytes]:
        """The name and the content of a file, if that is at most so many bytes. Raises RequestError."""
        ...


class AttachmentReader:
    """Reads the attachments of turns, within `limits`.

    `fallback` is that of requests that say nothing. Without a `downloader` nothing is fetched from the web.
    """

    def __init__(
        self, limits: Limits = DEFAULTS, fallback: Fallback = "error", downloader: Downloader | None = None
    ) -> None:
        self._limits = limits
        self._fallback = fallback
        self._downloader = downloader
        self._pool = BoundedPool(limits)

    async def read(self, turn: Turn, takes: frozenset[MediaKind]) -> Turn:
        """The turn with what its attachments hold, for a model that takes these media.

        Raises RequestError, which names the part.
        """
        count = sum(isinstance(part, Attachment) for item in turn.items for part in _parts(item))
        if not count:
            return turn
        self._limits.check("attachments", count, turn.parameter("messages"))
        reading = _Reading(self, turn, takes)
        return replace(turn, items=tuple([await reading.item(item) for item in turn.items]))

    async def bytes_of(self, given: Attachment, most: int) -> bytes:
        """The content of an attachment, of at most so many bytes. Raises RequestError."""
        if given.data is not None:
            return await _decoded(given.data, given.param)
        if given.url is None:
            raise RequestError("There are no stored files here. Send the file itself.", param=given.param)
        if given.url[:5].lower() == "data:":
            return await _from_data_url(given.url, given.param)
        if self._downloader is None:
            message = f"{missing_extra('Files of the web', 'media')} Or send a data URL."
            raise RequestError(message, param=given.param)
        try:
            return await self._downloader.download(given.url, most)
        except ToolError as error:
            raise RequestError(error.message, param=given.param) from error

    async def image(self, data: bytes, given: Attachment) -> MediaPart:
        """An image as a part. Raises RequestError."""
        param = given.param
        if has_pillow():
            image = await self._pool.run(param, open_image, data, given.low, self._limits, param)
        else:
            image = header_of(data, given.low, self._limits, param)
        digest = await _digest(image.data)
        return MediaPart(
            MediaKind.IMAGE, digest, image.media_type, image.data, image.width, image.height, param
        )

    @property
    def fallback(self) -> Fallback:
        """What becomes of media that a model does not take."""
        return self._fallback

    @property
    def limits(self) -> Limits:
        """What one turn may have."""
        return self._limits


class _Reading:
    """Reads the attachments of one turn: together they have at most `attachment_bytes`."""

    def __init__(self, reader: AttachmentReader, turn: Turn, takes: frozenset[MediaKind]) -> None:
        self._reader = reader
        self._takes = takes
        self._notes = (turn.media_fallback or reader.fallback) == "note"
        self._size = 0

    async def item(self, item: Item) -> Item:
        """An item without attachments."""
        if not isinstance(item, Message | FunctionOutput):
            return item
        notes = self._notes or isinstance(item, FunctionOutput)
        parts = [await self._part(part, notes=notes) for part in item.parts]
        return replace(item, parts=tuple(parts))

    async def _part(self, part: Part, *, notes: bool) -> Part:
        if not isinstance(part, Attachment):
            return part
        if part.kind is not MediaKind.FILE and part.kind not in self._takes:
            return _untaken(part.kind, part.param, notes=notes)
        data = await self._bytes(part)
        found = format_of(data)
        if part.kind is MediaKind.FILE and found.kind is MediaKind.FILE:
            return _document(data, found, part)
        if part.kind not in (MediaKind.FILE, found.kind):
            raise RequestError(f"This is no {part.kind} that can be read.", param=part.param)
        if found.kind not in self._takes:
            return _untaken(found.kind, part.param, notes=notes)
        if found.kind is MediaKind.IMAGE:
            return await self._reader.image(data, part)
        return MediaPart(found.kind, await _digest(data), found.media_type, data, param=part.param)

    async def _bytes(self, part: Attachment) -> bytes:
        limits = self._reader.limits
        data = await self._reader.bytes_of(part, limits.attachment_bytes - self._size)
        self._size += len(data)
        if self._size > limits.attachment_bytes:
            limits.refuse("attachment_bytes", part.param, f"The attachments have {self._size} bytes")
        return data


def _parts(item: Item) -> Iterable[Part]:
    return item.parts if isinstance(item, Message | FunctionOutput) else ()


def _untaken(kind: MediaKind, param: str, *, notes: bool) -> TextPart:
    """The note for media that the model does not take. Raises RequestError where there is to be none."""
    if notes:
        return TextPart(_NOTES[kind])
    message = f"This model takes no {kind}. Leave it out, or set 'media_fallback' to 'note'."
    raise RequestError(message, param=param, code="unsupported_media")


def _document(data: bytes, found: Format, part: Attachment) -> TextPart:
    """A file as text, under its name. Raises RequestError for one that is no text."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _no_text(part) from error
    if "\0" in text or found.media_type == "application/pdf":
        raise _no_text(part)
    return TextPart(f"{part.name}:\n{text}" if part.name else text)


def _no_text(part: Attachment) -> RequestError:
    return RequestError("Only text files can be read: send UTF-8 text.", param=part.param)


async def _decoded(data: str, param: str) -> bytes:
    """What base64 holds. Raises RequestError."""
    try:
        if len(data) < LARGE:
            return base64.b64decode(data, validate=True)
        return await asyncio.to_thread(base64.b64decode, data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError("This is no base64.", param=param) from error


async def _from_data_url(url: str, param: str) -> bytes:
    """What a data URL holds. Raises RequestError."""
    head, comma, data = url.partition(",")
    if not comma:
        raise RequestError("A data URL has a comma before its data.", param=param)
    if head.lower().endswith(";base64"):
        return await _decoded(data, param)
    return unquote_to_bytes(data)


async def _digest(data: bytes) -> str:
    if len(data) < LARGE:
        return hashlib.sha256(data).hexdigest()
    return (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
