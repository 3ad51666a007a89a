"""What every store does with files."""

from typing import Any

import msgspec
import pytest

from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store.records import FileRecord, NewBlob, Paging, SweepResult
from antiphon.store.store import Store
from tests.store.parts.pages import check_pages
from tests.store.samples import NOW, OWNER, Opener


async def uploaded(
    store: Store, name: str = "file_1", content: bytes = b"text", **changes: Any
) -> FileRecord:
    owner = changes.get("owner", OWNER)
    new = NewBlob(owner=owner, holder=name, media_type="text/plain", created_at=NOW, expires_at=NOW + 1)
    blob = await store.blobs.put(new, content)
    record = FileRecord(
        id=name,
        owner=OWNER,
        created_at=NOW,
        filename="ü.txt",
        purpose="assistants",
        digest=blob.digest,
        size=blob.size,
    )
    record = msgspec.structs.replace(record, **changes)
    await store.files.create(record)
    return record


class FilesContract:
    """Files and their content."""

    async def test_a_file(self, store: Store) -> None:
        record = await uploaded(store)
        assert await store.files.get(OWNER, "file_1") == record
        await store.sweep(NOW + 10)
        assert await store.blobs.get(OWNER, record.digest)
        assert await store.files.delete(OWNER, "file_1")
        assert not await store.files.delete(OWNER, "file_1")
        assert await store.files.get(OWNER, "file_1") is None
        assert await store.blobs.get(OWNER, record.digest) is None

    async def test_one_in_the_place_of_another(self, store: Store) -> None:
        before = await uploaded(store, content=b"before")
        for content in (b"after, or not", b"after", b"after"):
            new = NewBlob(
                owner=OWNER, holder="other", media_type="text/plain", created_at=NOW, expires_at=NOW + 1
            )
            blob = await store.blobs.put(new, content)
            after = msgspec.structs.replace(before, digest=blob.digest, size=blob.size)
            await store.files.replace(after)
            await store.blobs.release(OWNER, "other")
        assert await store.files.get(OWNER, "file_1") == after
        assert await store.blobs.get(OWNER, after.digest)
        assert await store.blobs.get(OWNER, before.digest) is None
        assert await store.usage.of(OWNER) == len(b"after")

    async def test_one_whose_content_is_gone(self, store: Store) -> None:
        record = await uploaded(store)
        await store.files.delete(OWNER, "file_1")
        with pytest.raises(NotFoundError):
            await store.files.create(record)
        assert await store.files.get(OWNER, "file_1") is None

    async def test_pages_of_files(self, store: Store) -> None:
        for name, created in (("b", 1), ("d", 3), ("a", 1), ("c", 2), ("e", 3)):
            await uploaded(store, name, created_at=created)
        await uploaded(store, "other", owner="eve")
        await uploaded(store, "picture", purpose="vision")
        await check_pages(lambda paging: store.files.list(OWNER, "assistants", paging), "abcde")
        everything = await store.files.list(OWNER, None, Paging("asc"))
        assert [record.id for record in everything.data] == [*"abcde", "picture"]

    async def test_no_owner_has_more_files_than_the_limit(self, opened: Opener) -> None:
        store = await opened(files=2)
        for name in "ab":
            await uploaded(store, name)
        with pytest.raises(RequestError, match="'files'") as caught:
            await uploaded(store, "c", b"other")
        assert caught.value.code == LIMIT_EXCEEDED
        await uploaded(store, "d", owner="eve")
        await store.files.delete(OWNER, "a")
        await uploaded(store, "c")

    async def test_another_owners_file(self, store: Store) -> None:
        record = await uploaded(store)
        assert await store.files.get("eve", "file_1") is None
        assert not await store.files.delete("eve", "file_1")
        assert await store.files.get(OWNER, "file_1") == record

    async def test_files_expire(self, store: Store) -> None:
        record = await uploaded(store, expires_at=NOW + 5)
        await uploaded(store, "same content")
        assert await store.sweep(NOW + 4) == SweepResult(0, 0, 1, 0)  # the second copy
        assert await store.sweep(NOW + 5) == SweepResult(0, 0, 0, 1)
        assert await store.files.get(OWNER, "file_1") is None
        assert await store.blobs.get(OWNER, record.digest)
