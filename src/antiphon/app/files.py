"""Files without HTTP: uploaded, read and deleted."""

import time
from collections.abc import AsyncIterable, AsyncIterator

import msgspec
from msgspec import UNSET

from antiphon.apis.files.schema import REFUSED, CreateFile, DeletedFile, File
from antiphon.apis.lists import encode_objects
from antiphon.app.app import App
from antiphon.app.ids import random_id
from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import DAY
from antiphon.store.files import missing_file
from antiphon.store.records import BlobRecord, FileRecord, NewBlob, Paging
from antiphon.store.store import Store

NAME_CHARACTERS = 512


async def hold(
    store: Store, owner: str, holder: str, content: AsyncIterable[bytes] | bytes, seconds: float = DAY
) -> BlobRecord:
    """Store the content of a file whose row is written next. Raises RequestError.

    It is held for a limited time until then: if the server crashes in between, the sweep deletes it.
    """
    now = time.time()
    blob = NewBlob(
        owner=owner,
        holder=holder,
        media_type="application/octet-stream",
        created_at=now,
        expires_at=now + seconds,
    )
    return await store.blobs.put(blob, content)


async def create(
    app: App, owner: str, wire: CreateFile, filename: str, content: AsyncIterable[bytes]
) -> bytes:
    """Store a file. Raises RequestError."""
    check_purpose(wire.purpose)
    file_id, now, store = random_id("file-", 24), time.time(), app.storage.store
    blob = await hold(store, owner, file_id, content)
    seconds = wire.expires_after.seconds if wire.expires_after is not None else None
    record = FileRecord(
        id=file_id,
        owner=owner,
        created_at=now,
        filename=filename,
        purpose=wire.purpose,
        digest=blob.digest,
        size=blob.size,
        expires_at=None if seconds is None else now + seconds,
    )
    try:
        await store.files.create(record)
    except BaseException:
        await store.files.delete(owner, file_id)  # a write whose caller is cancelled may have been done
        await store.blobs.release(owner, file_id)
        raise
    return _encode(record)


def check_purpose(purpose: str) -> None:
    """Raise RequestError for an unsupported purpose."""
    if purpose in REFUSED:
        message = f"No files are taken for the purpose '{purpose}'. {REFUSED[purpose]}"
        raise RequestError(f"{message} To keep a file, send 'user_data'.", param="purpose")


async def list_files(app: App, owner: str, purpose: str | None, paging: Paging) -> bytes:
    """A page of files. Raises NotFoundError for ids in `paging`."""
    page = await app.storage.store.files.list(owner, purpose, paging)
    # There may be thousands.
    return await app.large.run(
        lambda: encode_objects([_resource(record) for record in page.data], has_more=page.has_more)
    )


async def retrieve(app: App, owner: str, file_id: str) -> bytes:
    """One file. Raises NotFoundError."""
    return _encode(await find(app, owner, file_id))


async def delete(app: App, owner: str, file_id: str) -> bytes:
    """Delete a file. Raises NotFoundError."""
    if not await app.storage.store.files.delete(owner, file_id):
        raise missing_file(file_id)
    return msgspec.json.encode(DeletedFile(file_id))


async def find(app: App, owner: str, file_id: str) -> FileRecord:
    """The record of a file. Raises NotFoundError."""
    record = await app.storage.store.files.get(owner, file_id)
    if record is None:
        raise missing_file(file_id)
    return record


def content(app: App, record: FileRecord) -> AsyncIterator[bytes]:
    """The bytes of a file, in pieces. Raises NotFoundError if it is deleted meanwhile."""
    return app.storage.store.blobs.read(record.owner, record.digest)


async def whole_content(app: App, owner: str, file_id: str, param: str) -> tuple[FileRecord, bytearray]:
    """A file that a request refers to with `param`, and all of its bytes. Raises NotFoundError."""
    data = bytearray()
    try:
        record = await find(app, owner, file_id)
        async for piece in content(app, record):
            data += piece  # in small steps, because joining many pieces takes long
    except NotFoundError as error:
        error.param = param
        raise
    return record, data


def plain_name(name: str) -> str:
    """The name of a file, without folders, and without characters that databases or headers cannot hold."""
    filename = name.replace("\\", "/").rpartition("/")[2]
    printable = "".join(letter for letter in filename if letter.isprintable())
    return printable[:NAME_CHARACTERS] or "file"


def _encode(record: FileRecord) -> bytes:
    return msgspec.json.encode(_resource(record))


def _resource(record: FileRecord) -> File:
    return File(
        id=record.id,
        bytes=record.size,
        created_at=int(record.created_at),
        expires_at=UNSET if record.expires_at is None else int(record.expires_at),
        filename=record.filename,
        purpose=record.purpose,
    )
