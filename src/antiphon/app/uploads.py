"""Files that are sent in several requests: an upload is created, gets its parts, and becomes a file.

The description of an upload is a blob of its owner, and its id the digest of that; parts are blobs, too. The
upload holds all of them for an hour: after it is completed, cancelled or expired, they are deleted.
"""

import time
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from hashlib import md5, sha256

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.apis.files.schema import (
    CompleteUpload,
    CreateFile,
    CreateUpload,
    File,
    Upload,
    UploadPart,
)
from antiphon.app import files
from antiphon.app.app import App
from antiphon.app.ids import random_id
from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import HOUR

PREFIX, PART = "upload_", "part_"


class _Described(Struct):
    """An upload. Its random `mark` makes its digest unique."""

    mark: str
    created_at: float
    wire: CreateUpload


async def create(app: App, owner: str, wire: CreateUpload) -> bytes:
    """Begin an upload. Raises RequestError."""
    files.check_purpose(wire.purpose)
    app.limits.check("file_bytes", wire.bytes, "bytes")
    described = _Described(random_id("", 24), time.time(), wire)
    content = msgspec.json.encode(described)
    upload_id = PREFIX + sha256(content).hexdigest()
    await files.hold(app.storage.store, owner, upload_id, content, HOUR)
    return _resource(upload_id, described, "pending")


async def add_part(app: App, owner: str, upload_id: str, content: AsyncIterable[bytes]) -> bytes:
    """Store a part of an upload. Raises NotFoundError, RequestError."""
    await _find(app, owner, upload_id)
    blob = await files.hold(app.storage.store, owner, upload_id, content, HOUR)
    return msgspec.json.encode(UploadPart(PART + blob.digest, int(time.time()), upload_id))


async def complete(app: App, owner: str, upload_id: str, wire: CompleteUpload) -> bytes:
    """Make a file of the parts of an upload, in this order. Raises NotFoundError, RequestError."""
    described = await _find(app, owner, upload_id)
    digests = [part_id.removeprefix(PART) for part_id in wire.part_ids]
    size = await _size(app, owner, digests)
    if size != described.wire.bytes:
        message = f"The parts have {size} bytes, and the upload was to have {described.wire.bytes}."
        raise RequestError(message, param="part_ids")
    if wire.md5 is not None and await _md5(app, owner, digests) != wire.md5.lower():
        raise RequestError("The uploaded content does not match 'md5'. Send its parts again.", param="md5")
    fields = CreateFile(described.wire.purpose, described.wire.expires_after)
    content = _content(app, owner, digests)
    file = await files.create(app, owner, fields, files.plain_name(described.wire.filename), content)
    await app.storage.store.blobs.release(owner, upload_id)
    return _resource(upload_id, described, "completed", msgspec.json.decode(file, type=File))


async def cancel(app: App, owner: str, upload_id: str) -> bytes:
    """Let an upload go, with its parts. Raises NotFoundError."""
    described = await _find(app, owner, upload_id)
    await app.storage.store.blobs.release(owner, upload_id)
    return _resource(upload_id, described, "cancelled")


async def _find(app: App, owner: str, upload_id: str) -> _Described:
    """The description of an upload. Raises NotFoundError."""
    try:
        described = await _content_of(app, owner, upload_id.removeprefix(PREFIX))
        return msgspec.json.decode(described, type=_Described)
    except (NotFoundError, msgspec.DecodeError) as error:
        message = f"There is no open upload '{upload_id}': it may be complete, cancelled or expired."
        raise NotFoundError(message, param="upload_id") from error


async def _content_of(app: App, owner: str, digest: str) -> bytes:
    blob = await app.storage.store.blobs.get(owner, digest)
    if blob is None or blob.size > app.limits.small_body_bytes:
        raise NotFoundError
    return b"".join([piece async for piece in app.storage.store.blobs.read(owner, digest)])


async def _size(app: App, owner: str, digests: Sequence[str]) -> int:
    """The bytes of all parts. Raises NotFoundError for a missing one."""
    size = 0
    for index, digest in enumerate(digests):
        blob = await app.storage.store.blobs.get(owner, digest)
        if blob is None:
            raise NotFoundError(
                f"There is no part '{PART}{digest}'. Use the ids of this upload's parts.",
                param=f"part_ids[{index}]",
            )
        size += blob.size
    return size


async def _content(app: App, owner: str, digests: Sequence[str]) -> AsyncIterator[bytes]:
    """The bytes of all parts, in their order."""
    for digest in digests:
        async for piece in app.storage.store.blobs.read(owner, digest):
            yield piece


async def _md5(app: App, owner: str, digests: Sequence[str]) -> str:
    sum_ = md5(usedforsecurity=False)
    async for piece in _content(app, owner, digests):
        sum_.update(piece)
    return sum_.hexdigest()


def _resource(upload_id: str, described: _Described, status: str, file: File | UnsetType = UNSET) -> bytes:
    wire, at = described.wire, int(described.created_at)
    return msgspec.json.encode(
        Upload(
            id=upload_id,
            created_at=at,
            expires_at=at + HOUR,
            filename=wire.filename,
            bytes=wire.bytes,
            purpose=wire.purpose,
            status=status,
            file=file,
        )
    )
