"""Reads attachments of clients: images, audio, video and files become media that the model takes, or text.

This happens before an answer begins, so that a bad attachment is an error that names it. If a model does not
take a kind of media, the attachment is refused, or the model is shown a note in its place. There are notes
if the server or the request says so, and in the results of tools, because nobody can know beforehand what a
tool returns.

Stored items refer to their media (`apis/media.py`): these are blobs of their sender, by their digest. So the
same image is stored once, counted once, and deleted with the last response or conversation that has it; and
later turns use the same content of a URL as the first.

    contents = Contents(reader, owner, store)              # of one request
    turn = await reader.read(turn, able, contents)         # for the model
    items = await contents.keep(items, response_id)        # for the store
    payload = await shown(store, owner, payload)           # for clients that read stored items
"""

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain, groupby
from time import time
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec.structs import replace

from antiphon.apis.media import (
    MediaReference,
    is_web,
    may_have_media,
    reference_in,
    references_in,
    sources_in,
    with_sources,
)
from antiphon.apis.responses.stored import StoredItem
from antiphon.core.errors import NotFoundError, RequestError, ToolError, missing_extra
from antiphon.core.items import (
    WITH_PARTS,
    Attachment,
    FunctionOutput,
    Item,
    MediaKind,
    MediaPart,
    Message,
    Part,
    TextPart,
)
from antiphon.core.limits import DEFAULTS, LIMIT_EXCEEDED, Limits
from antiphon.core.turn import Turn
from antiphon.engines.engine import Capabilities
from antiphon.run.bounded import BoundedPool
from antiphon.run.documents import PDF, UNSUPPORTED, Document, read_document
from antiphon.run.media import (
    NOTES,
    digest_of,
    draw_page,
    draws_pages,
    format_of,
    in_thread_if_large,
    part_of,
    read_media,
)
from antiphon.store.blobs import UNFINISHED_SECONDS
from antiphon.store.records import ItemRecord, NewBlob, Page
from antiphon.store.store import Store

T = TypeVar("T")

Fallback = Literal["error", "note"]
"""What to do with media that the model does not take."""

_UNREAD = "This page has no text."


class Downloader(Protocol):
    """Gets files of the web."""

    async def download(self, url: str, max_bytes: int) -> bytes:
        """The content at a URL, up to this number of bytes. Raises ToolError."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def count_attachments(turn: Turn) -> int:
    """The number of attachments in a turn."""
    count = 0
    for item in turn.items:
        if isinstance(item, WITH_PARTS):
            for part in item.parts:
                count += type(part) is Attachment
    return count


class AttachmentReader:
    """Reads the attachments of turns, within `limits`.

    `fallback` is the default for requests. Without a `downloader` nothing is fetched from the web.
    """

    def __init__(
        self, limits: Limits = DEFAULTS, fallback: Fallback = "error", downloader: Downloader | None = None
    ) -> None:
        self.limits = limits
        self.fallback = fallback
        self._downloader = downloader
        self.pool = BoundedPool(limits)

    async def read(self, turn: Turn, able: Capabilities, contents: "Contents") -> Turn:
        """The turn with the media or text of its attachments, for an engine with these capabilities.

        Raises RequestError, which names the part.
        """
        conversation = turn.parameter("messages")
        self.limits.check("attachments", count_attachments(turn), conversation)
        reading = _Reading(self, turn, able, contents)
        async with self.in_time(conversation):
            return replace(turn, items=tuple([await reading.item(item) for item in turn.items]))

    async def documents(
        self, files: Sequence[Attachment], contents: "Contents", param: str
    ) -> list[Document]:
        """The texts of files, which `param` has. Raises RequestError, which names the part."""
        self.limits.check("attachments", len(files), param)
        async with self.in_time(param):
            return [
                await read_document(self.pool, (await contents.of(file))[1], file.param) for file in files
            ]

    @asynccontextmanager
    async def in_time(self, param: str) -> AsyncIterator[None]:
        """Limit the time of the block to `attachment_seconds`. Raises RequestError."""
        try:
            async with asyncio.timeout(self.limits.attachment_seconds):
                yield
        except TimeoutError:
            self.limits.refuse("attachment_seconds", param, "The attachments take too many seconds")

    @property
    def fetches(self) -> bool:
        """Whether it gets anything from the web."""
        return self._downloader is not None

    async def download(self, url: str, max_bytes: int, param: str) -> bytes:
        """The content at a URL of the web, up to this number of bytes. Raises RequestError."""
        if self._downloader is None:
            message = "This server does not fetch from the web. Send a data URL."
            raise RequestError(message, param=param)
        try:
            return await self._downloader.download(url, max_bytes)
        except ToolError as error:
            if error.code == LIMIT_EXCEEDED:
                self.limits.refuse("attachment_bytes", param, "The attachments have too many bytes")
            message = f"{error.message.rstrip('.')}. Or send a data URL."
            raise RequestError(message, param=param) from error

    async def close(self) -> None:
        """Close the downloader."""
        if self._downloader is not None:
            await self._downloader.close()

    async def page(self, data: bytes, number: int, param: str) -> MediaPart:
        """A page of a PDF as an image. Raises RequestError."""
        return await part_of(await self.pool.run(param, draw_page, data, number, param), param)


class Contents:
    """The contents of the attachments of one request: together they have at most `attachment_bytes`."""

    def __init__(self, reader: AttachmentReader, owner: str, store: Callable[[], Store]) -> None:
        self._reader = reader
        self._owner = owner
        self._store = store
        self._fetched: dict[str, bytes] = {}
        self._references: dict[str, str] = {}
        self._size = 0

    async def of(self, part: Attachment) -> tuple[Attachment, bytes]:
        """The attachment, with the name of a stored file, and its bytes. Raises RequestError."""
        source = part.url if part.data is None else part.data
        if source is None:
            part, data = await self._file(part)
        else:
            data = await self._content(source, part.param)
        self.count(len(data), part.param)
        return part, data

    async def _content(self, source: str, param: str) -> bytes:
        reference = reference_in(source)
        if reference is not None:
            return await _blob(self._store(), self._owner, reference.digest, param)
        if not is_web(source):
            return await _decoded(source, param)
        if source not in self._fetched:
            left = self._reader.limits.attachment_bytes - self._size
            self._fetched[source] = await self._reader.download(source, left, param)
        return self._fetched[source]

    async def _file(self, part: Attachment) -> tuple[Attachment, bytes]:
        """A file of this owner. Raises NotFoundError."""
        store, file_id = self._store(), part.file_id or ""
        record = await store.files.get(self._owner, file_id)
        if record is None:
            raise NotFoundError(f"There is no file '{file_id}'. Upload it first.", param=part.param)
        if record.size > self._reader.limits.attachment_bytes - self._size:
            self.count(record.size, part.param)
        data = await _blob(store, self._owner, record.digest, part.param)
        return replace(part, name=part.name or record.filename), data

    def count(self, size: int, param: str) -> None:
        """Count bytes that were read. Raises RequestError if they are too many."""
        self._size += size
        if self._size > self._reader.limits.attachment_bytes:
            what = f"The attachments have {self._size} bytes"
            self._reader.limits.refuse("attachment_bytes", param, what)

    async def keep(
        self, items: Sequence[StoredItem], holder: str, param: str, *, fetch: bool = False
    ) -> tuple[StoredItem, ...]:
        """The items as they are stored: with references to blobs, which `holder` keeps until they are.

        Media that were not fetched for the model stay URLs, unless all are to be fetched now. Raises
        RequestError for `param`, which has the items.
        """
        if not any(may_have_media(item.payload) for item in items):
            return tuple(items)  # as most requests: no timer is set for them
        fetch = fetch and self._reader.fetches
        async with self._reader.in_time(param):
            return tuple([await self._convert(item, holder, param, fetch=fetch) for item in items])

    async def _convert(self, item: StoredItem, holder: str, param: str, *, fetch: bool) -> StoredItem:
        if not may_have_media(item.payload):
            return item
        value = await self.with_references(msgspec.json.decode(item.payload), holder, param, fetch=fetch)
        blobs = tuple(reference.digest for reference in references_in(value))
        return replace(item, payload=msgspec.json.encode(value), blobs=blobs) if blobs else item

    async def with_references(
        self, value: Mapping[str, Any], holder: str, param: str, *, fetch: bool = False
    ) -> dict[str, Any]:
        """An item, or a message, with references to blobs. The holder has them for `UNFINISHED_SECONDS`.

        Raises RequestError for `param`.
        """
        for source in sources_in(value):
            if fetch and is_web(source):
                self.count(len(await self._content(source, param)), param)
            if source not in self._references and (reference := await self._reference(source, holder, param)):
                self._references[source] = reference.text
        return with_sources(value, self.reference_of)

    async def _reference(self, source: str, holder: str, param: str) -> MediaReference | None:
        """The reference that is stored for a source; None if its content is unknown."""
        store, until = self._store(), time() + UNFINISHED_SECONDS
        reference = reference_in(source)
        if reference is not None:
            if not await store.blobs.hold(self._owner, reference.digest, holder, until):
                raise _not_stored(reference.digest, param)
            return reference
        try:
            data = self._fetched.get(source) if is_web(source) else await _decoded(source, param)
        except RequestError:  # no model was shown it
            return None
        if data is None:
            return None
        digest = await digest_of(data)
        # The same content is often sent again.
        if not await store.blobs.hold(self._owner, digest, holder, until):
            media_type = format_of(data).media_type
            new = NewBlob(
                owner=self._owner, holder=holder, media_type=media_type, created_at=time(), expires_at=until
            )
            try:
                await store.blobs.put(new, data)
            except RequestError as error:
                error.param = param
                raise
        return MediaReference(digest, _prefix_of(source))

    def reference_of(self, source: str) -> str:
        """The stored form of a source, after `keep`."""
        return self._references.get(source, source)


async def with_media(store: Store, owner: str, payload: bytes) -> bytes:
    """The payload of a stored item as its client gave it: with media in the place of references."""
    if b'"blob:' not in payload:
        return payload
    value = msgspec.json.decode(payload)
    sources: dict[str, str] = {}
    for reference in references_in(value):
        sources[reference.text] = reference.lead
        if not is_web(reference.lead):
            data = await _blob(store, owner, reference.digest, "")
            sources[reference.text] += (await in_thread_if_large(len(data), base64.b64encode, data)).decode()
    return msgspec.json.encode(with_sources(value, lambda source: sources.get(source, source)))


async def shown_page(store: Store, owner: str, page: Page[ItemRecord], max_bytes: int) -> Page[ItemRecord]:
    """A page of items as their clients gave them; it ends before they have more than `max_bytes` in all."""
    data: list[ItemRecord] = []
    size = 0
    for item in page.data:
        payload = await with_media(store, owner, item.payload)
        size += len(payload)
        if data and size > max_bytes:
            return Page(data, has_more=True)
        data.append(replace(item, payload=payload))
    return Page(data, page.has_more)


class _Reading:
    """Reads the attachments of one turn."""

    def __init__(self, reader: AttachmentReader, turn: Turn, able: Capabilities, contents: Contents) -> None:
        self._reader = reader
        self._takes = able.media
        self._remedy = able.media_remedy
        self._contents = contents
        self._notes = (turn.media_fallback or reader.fallback) == "note"

    async def item(self, item: Item) -> Item:
        """An item without attachments."""
        if not isinstance(item, WITH_PARTS):
            return item
        notes = self._notes or isinstance(item, FunctionOutput)
        parts = [await self._parts(part, notes=notes) for part in item.parts]
        return replace(item, parts=tuple(chain.from_iterable(parts)))

    async def _parts(self, part: Part, *, notes: bool) -> Sequence[Part]:
        if not isinstance(part, Attachment):
            return [part]
        if part.kind is not MediaKind.FILE and part.kind not in self._takes:
            return [self._note_for(part.kind, part.param, notes=notes)]
        part, data = await self._contents.of(part)
        content_format = format_of(data)
        if part.kind is MediaKind.FILE and content_format.kind is MediaKind.FILE:
            return await self._document(data, part)
        if part.kind not in (MediaKind.FILE, content_format.kind):
            message = f"This is not a readable {part.kind} file. Send a complete file of a common format."
            raise RequestError(message, param=part.param)
        if content_format.kind not in self._takes:
            return [self._note_for(content_format.kind, part.param, notes=notes)]
        return await read_media(self._reader.pool, data, self._reader.limits, part.param, low=part.low)

    def _note_for(self, kind: MediaKind, param: str, *, notes: bool) -> TextPart:
        """The note for media that the model does not take. Raises RequestError if notes are not allowed."""
        if notes:
            return TextPart(NOTES[kind])
        message = f"This model takes no {kind}. Leave it out, or set 'media_fallback' to 'note'."
        if self._remedy:
            message += f" {self._remedy}"
        raise RequestError(message, param=param, code="unsupported_media")

    async def _document(self, data: bytes, part: Attachment) -> Sequence[Part]:
        """A file as text, under its name; pages without text as images, if the model takes them.

        Raises RequestError for a file without content.
        """
        document = await read_document(self._reader.pool, data, part.param)
        unread = [number for number, page in enumerate(document.pages) if not page.strip()]
        sees = MediaKind.IMAGE in self._takes
        parts: Sequence[Part] = [TextPart(document.text)]
        if unread and document.media_type == PDF and sees and draws_pages():
            self._reader.limits.check("document_pages", len(unread), part.param)
            parts = [page_part async for page_part in self._pages(data, document.pages, part.param)]
        elif data and len(unread) == len(document.pages):
            what = (
                missing_extra("Images of pages", "media") if sees else "Send it to a model that takes images."
            )
            message = f"This file has no text: its pages are images. {what}"
            raise RequestError(message, param=part.param, code=UNSUPPORTED)
        elif document.media_type == PDF and unread:
            pages = (page.strip() or f"({_UNREAD})" for page in document.pages)
            parts = [TextPart("\n\n".join(pages))]
        if not part.name:
            return parts
        head, *rest = parts
        if isinstance(head, TextPart):
            return [TextPart(f"{part.name}:\n{head.text}"), *rest]
        return [TextPart(f"{part.name}:"), *parts]

    async def _pages(self, data: bytes, pages: Sequence[str], param: str) -> AsyncIterator[Part]:
        """Pages of a PDF in their order: texts, and images of pages without text."""
        for has_text, run in groupby(enumerate(pages), lambda page: bool(page[1].strip())):
            if has_text:
                yield TextPart("\n\n".join(text for _, text in run))
                continue
            for number, _ in run:
                image = await self._reader.page(data, number, param)
                self._contents.count(len(image.data), param)
                yield image


def _parts_of(item: Item) -> Iterable[Part]:
    return item.parts if isinstance(item, Message | FunctionOutput) else ()


async def _blob(store: Store, owner: str, digest: str, param: str) -> bytes:
    """All of a blob. Raises NotFoundError."""
    try:
        return b"".join([piece async for piece in store.blobs.read(owner, digest)])
    except NotFoundError as error:
        raise _not_stored(digest, param) from error


def _not_stored(digest: str, param: str) -> NotFoundError:
    return NotFoundError(f"The content {digest} is not stored any more. Send it again.", param=param or None)


async def _decoded(source: str, param: str) -> bytes:
    """The content of a data URL, or of plain base64. Raises RequestError."""
    if source[:5].lower() != "data:":
        return await _from_base64(source, param)
    head, comma, data = source.partition(",")
    if not comma:
        raise RequestError("A data URL has a comma before its data.", param=param)
    if head.lower().endswith(";base64"):
        return await _from_base64(data, param)
    return unquote_to_bytes(data)


def _prefix_of(source: str) -> str:
    """The text before the base64 of a source, or a whole URL of the web."""
    if is_web(source):
        return source
    if source[:5].lower() != "data:":
        return ""
    head = source.partition(",")[0]
    return f"{head}," if head.lower().endswith(";base64") else f"{head};base64,"


async def _from_base64(data: str, param: str) -> bytes:
    try:
        return await in_thread_if_large(len(data), partial(base64.b64decode, validate=True), data)
    except (binascii.Error, ValueError) as error:
        raise RequestError("This is not base64. Encode it once, without line breaks.", param=param) from error
