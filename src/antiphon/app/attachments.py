"""Reads what clients attach: images, sounds, films and files become media that the model takes, or text.

This happens before an answer begins, so that what is wrong with an attachment is an error that names it.
A model that does not take a kind of media refuses it, or is shown a note in its place: where the server or
the request says so, and in the results of tools, for nobody could know beforehand what a tool returns.
"""

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable
from typing import Literal, Protocol
from urllib.parse import unquote_to_bytes

from msgspec.structs import replace

from antiphon.core.errors import NotFoundError, RequestError, ToolError
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
from antiphon.run.documents import UNSUPPORTED, read_document
from antiphon.run.media import format_of, has_pillow, header_of, open_image
from antiphon.store.store import Store

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

    async def close(self) -> None:
        """Close all connections."""
        ...


class AttachmentReader:
    """Reads the attachments of turns, within `limits`.

    `fallback` is that of requests that say nothing. Without a `downloader` nothing is fetched from the web.
    """

    def __init__(
        self, limits: Limits = DEFAULTS, fallback: Fallback = "error", downloader: Downloader | None = None
    ) -> None:
        self.limits = limits
        self.fallback = fallback
        self._downloader = downloader
        self.pool = BoundedPool(limits)

    async def read(self, turn: Turn, takes: frozenset[MediaKind], store: Callable[[], Store]) -> Turn:
        """The turn with what its attachments hold, for a model that takes these media. `store` has files.

        Raises RequestError, which names the part.
        """
        count = sum(isinstance(part, Attachment) for item in turn.items for part in _parts(item))
        if not count:
            return turn
        conversation = turn.parameter("messages")
        self.limits.check("attachments", count, conversation)
        reading = _Reading(self, turn, takes, store)
        try:
            async with asyncio.timeout(self.limits.attachment_seconds):
                return replace(turn, items=tuple([await reading.item(item) for item in turn.items]))
        except TimeoutError:
            self.limits.refuse("attachment_seconds", conversation, "The attachments take too many seconds")

    async def download(self, url: str, most: int, param: str) -> bytes:
        """What is at a URL of the web, of at most so many bytes. Raises RequestError."""
        if self._downloader is None:
            message = "This server fetches nothing from the web. Send a data URL."
            raise RequestError(message, param=param)
        try:
            return await self._downloader.download(url, most)
        except ToolError as error:
            raise RequestError(error.message, param=param) from error

    async def close(self) -> None:
        """Close what fetches."""
        if self._downloader is not None:
            await self._downloader.close()

    async def image(self, data: bytes, given: Attachment) -> MediaPart:
        """An image as a part. Raises RequestError."""
        param = given.param
        if has_pillow():
            image = await self.pool.run(param, open_image, data, given.low, self.limits, param)
        else:
            image = header_of(data, given.low, self.limits, param)
        digest = await _digest(image.data)
        return MediaPart(
            MediaKind.IMAGE, digest, image.media_type, image.data, image.width, image.height, param
        )


class _Reading:
    """Reads the attachments of one turn: together they have at most `attachment_bytes`."""

    def __init__(
        self,
        reader: AttachmentReader,
        turn: Turn,
        takes: frozenset[MediaKind],
        store: Callable[[], Store],
    ) -> None:
        self._reader = reader
        self._takes = takes
        self._owner = turn.owner
        self._store = store
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
        part, data = await self._content(part)
        found = format_of(data)
        if part.kind is MediaKind.FILE and found.kind is MediaKind.FILE:
            return await self._document(data, part)
        if part.kind not in (MediaKind.FILE, found.kind):
            raise RequestError(f"This is no {part.kind} that can be read.", param=part.param)
        if found.kind not in self._takes:
            return _untaken(found.kind, part.param, notes=notes)
        if found.kind is MediaKind.IMAGE:
            return await self._reader.image(data, part)
        return MediaPart(found.kind, await _digest(data), found.media_type, data, param=part.param)

    async def _content(self, part: Attachment) -> tuple[Attachment, bytes]:
        """The attachment, with the name of a stored file, and its bytes. Raises RequestError."""
        left = self._reader.limits.attachment_bytes - self._size
        if part.data is not None:
            data = await _decoded(part.data, part.param)
        elif part.url is None:
            part, data = await self._stored(part, left)
        elif part.url[:5].lower() == "data:":
            data = await _from_data_url(part.url, part.param)
        else:
            data = await self._reader.download(part.url, left, part.param)
        self._count(len(data), part.param)
        return part, data

    async def _stored(self, part: Attachment, left: int) -> tuple[Attachment, bytes]:
        """A file of this owner. Raises NotFoundError."""
        store, file_id = self._store(), part.file_id or ""
        record = await store.files.get(self._owner, file_id)
        if record is None:
            raise NotFoundError(f"There is no file '{file_id}'. Upload it first.", param=part.param)
        if record.size > left:
            self._count(record.size, part.param)
        pieces = [piece async for piece in store.blobs.read(self._owner, record.digest)]
        return replace(part, name=part.name or record.filename), b"".join(pieces)

    def _count(self, size: int, param: str) -> None:
        self._size += size
        if self._size > self._reader.limits.attachment_bytes:
            what = f"The attachments have {self._size} bytes"
            self._reader.limits.refuse("attachment_bytes", param, what)

    async def _document(self, data: bytes, part: Attachment) -> TextPart:
        """A file as text, under its name. Raises RequestError for one that has none."""
        text = (await read_document(self._reader.pool, data, part.param)).text
        if not text.strip() and data:
            message = "This file has no text: its pages are pictures. Send them as images."
            raise RequestError(message, param=part.param, code=UNSUPPORTED)
        return TextPart(f"{part.name}:\n{text}" if part.name else text)


def _parts(item: Item) -> Iterable[Part]:
    return item.parts if isinstance(item, Message | FunctionOutput) else ()


def _untaken(kind: MediaKind, param: str, *, notes: bool) -> TextPart:
    """The note for media that the model does not take. Raises RequestError where there is to be none."""
    if notes:
        return TextPart(_NOTES[kind])
    message = f"This model takes no {kind}. Leave it out, or set 'media_fallback' to 'note'."
    raise RequestError(message, param=param, code="unsupported_media")


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
