"""What every store does with vector stores."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store.database import Database
from antiphon.store.records import (
    FileCounts,
    IndexedFile,
    IndexEnd,
    IndexStatus,
    NewChunk,
    Paging,
    VectorStoreBatch,
    VectorStoreChange,
    VectorStoreRecord,
)
from antiphon.store.store import INDEXING, Store
from tests.store.parts.files import uploaded
from tests.store.parts.pages import check_pages
from tests.store.samples import NOW, OWNER, Opener, woken


def vector_store(name: str = "vs_1", **changes: Any) -> VectorStoreRecord:
    record = VectorStoreRecord(
        id=name,
        owner=OWNER,
        created_at=NOW,
        name="ü",
        description=None,
        metadata=b"{}",
        expires_after_seconds=None,
        last_active_at=NOW,
        expires_at=None,
    )
    return msgspec.structs.replace(record, **changes)


def indexed(file_id: str = "file_1", store: str = "vs_1", **changes: Any) -> IndexedFile:
    record = IndexedFile(
        key=f"{store} {file_id}",
        id=file_id,
        vector_store_id=store,
        owner=OWNER,
        created_at=NOW,
        status=IndexStatus.IN_PROGRESS,
        attributes=b"{}",
        chunk_size=800,
        chunk_overlap=400,
    )
    return msgspec.structs.replace(record, **changes)


async def index(
    store: Store, chunks: Sequence[str], status: IndexStatus = IndexStatus.COMPLETED
) -> IndexedFile:
    """Index the next file, with chunks whose text is their terms."""
    claimed = await store.vector_stores.claim("w", NOW, 10)
    assert claimed is not None
    new = [NewChunk(position, text, text) for position, text in enumerate(chunks)]
    assert await store.vector_stores.add_chunks("w", claimed.key, new)
    assert await store.vector_stores.finish(IndexEnd("w", claimed.key, status))
    return claimed


async def filled(store: Store, chunks: dict[str, Sequence[str]], name: str = "vs_1", **changes: Any) -> None:
    """A vector store with these files, indexed."""
    owner = changes.get("owner", OWNER)
    for file_id in chunks:
        if await store.files.get(owner, file_id) is None:
            await uploaded(store, file_id, owner=owner)
    await store.vector_stores.create(
        vector_store(name, **changes), [indexed(file_id, name, owner=owner) for file_id in chunks]
    )
    for _ in chunks:
        claimed = await store.vector_stores.claim("w", NOW, 10)
        assert claimed is not None
        new = [NewChunk(position, text, text) for position, text in enumerate(chunks[claimed.id])]
        assert await store.vector_stores.add_chunks("w", claimed.key, new)
        assert await store.vector_stores.finish(IndexEnd("w", claimed.key, IndexStatus.COMPLETED))


async def found(store: Store, *terms: str, ids: Sequence[str] = ("vs_1",), **changes: Any) -> list[str]:
    read = await store.vector_stores.postings(changes.pop("owner", OWNER), ids, terms, **changes)
    return [chunk.text for chunk in read.chunks]


class VectorStoresContract:
    """Vector stores, their files, and what is found in them."""

    async def test_a_vector_store(self, store: Store) -> None:
        record = vector_store(description="d", metadata=b'{"a":"b"}')
        assert await store.vector_stores.create(record, []) == record
        assert await store.vector_stores.get(OWNER, "vs_1") == record
        change = VectorStoreChange(name="n", expires_after_seconds=10, expires_at=NOW + 10)
        changed = msgspec.structs.replace(record, name="n", expires_after_seconds=10, expires_at=NOW + 10)
        assert await store.vector_stores.update(OWNER, "vs_1", change) == changed
        assert await store.vector_stores.update(OWNER, "vs_1", VectorStoreChange()) == changed
        await store.vector_stores.touch(OWNER, ["vs_1", "vs_2"], NOW + 5)
        touched = msgspec.structs.replace(changed, last_active_at=NOW + 5, expires_at=NOW + 15)
        assert await store.vector_stores.get(OWNER, "vs_1") == touched
        assert (await store.sweep(NOW + 14)).vector_stores == 0
        assert (await store.sweep(NOW + 15)).vector_stores == 1
        assert await store.vector_stores.get(OWNER, "vs_1") is None
        assert not await store.vector_stores.delete(OWNER, "vs_1")

    async def test_pages_of_vector_stores(self, store: Store) -> None:
        for name in "abcde":
            await store.vector_stores.create(vector_store(name), [])
        await store.vector_stores.create(vector_store("other", owner="eve"), [])
        await check_pages(lambda paging: store.vector_stores.list(OWNER, paging), "abcde")

    async def test_pages_of_files(self, store: Store) -> None:
        await filled(store, {name: ["x"] for name in "abcde"})
        read = store.vector_stores.files
        await check_pages(lambda paging: read(OWNER, "vs_1", paging), "abcde")
        assert (await read(OWNER, "vs_1", Paging(), "failed")).data == []

    async def test_a_file_is_indexed(self, store: Store) -> None:
        await uploaded(store)
        with store.watch(INDEXING) as watch:
            made = await store.vector_stores.create(vector_store(), [indexed()])
            assert await woken(watch)
        assert made.counts == FileCounts(in_progress=1)
        claimed = await store.vector_stores.claim("w", NOW, 10)
        assert claimed == indexed()
        assert await store.vector_stores.claim("v", NOW + 9, 10) is None
        assert await store.vector_stores.add_chunks("w", claimed.key, [NewChunk(0, "One, two", "one two")])
        assert await found(store, "one") == []
        assert await store.vector_stores.finish(IndexEnd("w", claimed.key, IndexStatus.COMPLETED))
        assert await found(store, "one") == ["One, two"]
        record = await store.vector_stores.get(OWNER, "vs_1")
        assert record is not None
        assert (record.counts, record.usage_bytes) == (FileCounts(completed=1), 15)
        assert await store.usage.of(OWNER) == 15 + 4
        assert await store.vector_stores.texts(OWNER, "vs_1", "file_1") == ["One, two"]

    async def test_a_worker_that_dies(self, store: Store) -> None:
        await uploaded(store)
        await store.vector_stores.create(vector_store(), [indexed()])
        key = indexed().key
        assert await store.vector_stores.claim("dead", NOW, 10)
        assert await store.vector_stores.add_chunks("dead", key, [NewChunk(0, "old", "old")])
        await store.vector_stores.renew("dead", [key], NOW + 5, 10)
        assert await store.vector_stores.claim("w", NOW + 14, 10) is None
        claimed = await store.vector_stores.claim("w", NOW + 15, 10)
        assert claimed is not None
        assert claimed.attempts == 1
        assert not await store.vector_stores.add_chunks("dead", key, [NewChunk(0, "old", "old")])
        assert not await store.vector_stores.finish(IndexEnd("dead", key, IndexStatus.COMPLETED))
        assert await store.vector_stores.add_chunks("w", key, [NewChunk(0, "new", "new")])
        assert await store.vector_stores.finish(IndexEnd("w", key, IndexStatus.COMPLETED))
        assert await found(store, "old", "new") == ["new"]
        record = await store.vector_stores.file(OWNER, "vs_1", "file_1")
        assert record.usage_bytes == 6

    async def test_a_worker_that_renews_too_late_does_not_take_its_own_file(self, store: Store) -> None:
        await uploaded(store)
        await store.vector_stores.create(vector_store(), [indexed()])
        key = indexed().key
        assert await store.vector_stores.claim("w", NOW, 10)
        assert await store.vector_stores.add_chunks("w", key, [NewChunk(0, "first", "first")])
        assert await store.vector_stores.claim("w", NOW + 20, 10, [key]) is None
        assert await store.vector_stores.claim("v", NOW + 29, 10) is None
        assert await store.vector_stores.finish(IndexEnd("w", key, IndexStatus.COMPLETED))
        assert await store.vector_stores.texts(OWNER, "vs_1", "file_1") == ["first"]

    async def test_a_worker_that_has_not_crashed_is_not_counted(self, store: Store) -> None:
        await uploaded(store)
        files = store.vector_stores
        await files.create(vector_store(), [indexed()])
        key = indexed().key

        async def claimed(worker: str, at: float) -> int | None:
            record = await files.claim(worker, NOW + at, 10)
            return None if record is None else record.attempts

        assert await claimed("w", 0) == 0
        assert await claimed("w", 20) == 0  # it was not told that it has it, or forgot to give it back
        assert await claimed("v", 40) == 1
        assert not await files.postpone("w", key, NOW)  # it was only late
        assert not await files.postpone("w", key, NOW)  # none is there that is counted
        assert await claimed("u", 60) == 1
        assert await files.postpone("u", key, NOW + 70)
        assert not await files.postpone("u", key, NOW + 70)  # told twice
        assert await claimed("t", 69) is None
        assert await claimed("t", 70) == 1

    async def test_a_worker_that_gives_up(self, store: Store) -> None:
        await uploaded(store)
        await store.vector_stores.create(vector_store(), [indexed()])
        assert await store.vector_stores.claim("w", NOW, 10)
        with store.watch(INDEXING) as watch:
            await store.vector_stores.release("w")
            assert await woken(watch)
        claimed = await store.vector_stores.claim("v", NOW, 10)
        assert claimed is not None
        assert claimed.attempts == 0  # only servers that crash are counted

    async def test_a_small_file_does_not_wait_for_anothers_many(self, store: Store) -> None:
        for owner, name, count in ((OWNER, "many", 9), ("other", "one", 1)):
            ids = [f"{name}_{index}" for index in range(count)]
            for file_id in ids:
                await uploaded(store, file_id, owner=owner)
            attached = [indexed(file_id, name, owner=owner) for file_id in ids]
            await store.vector_stores.create(vector_store(name, owner=owner), attached)
        claimed = [await store.vector_stores.claim("w", NOW, 10) for _ in range(2)]
        assert {each.owner for each in claimed if each is not None} == {OWNER, "other"}

    async def test_what_fails_is_found_nowhere(self, store: Store) -> None:
        await uploaded(store)
        await store.vector_stores.create(vector_store(), [indexed()])
        await index(store, ["one"], IndexStatus.FAILED)
        assert await found(store, "one") == []
        assert await store.vector_stores.texts(OWNER, "vs_1", "file_1") == []
        assert await store.vector_stores.claim("w", NOW + 99, 10) is None
        record = await store.vector_stores.file(OWNER, "vs_1", "file_1")
        assert (record.status, record.usage_bytes) == ("failed", 0)

    async def test_chunks_count_for_the_quota(self, opened: Opener) -> None:
        store = await opened(stored_bytes=100)
        await uploaded(store)
        await store.vector_stores.create(vector_store(), [indexed()])
        claimed = await store.vector_stores.claim("w", NOW, 10)
        assert claimed is not None
        with pytest.raises(RequestError, match="stored_bytes") as caught:
            await store.vector_stores.add_chunks("w", claimed.key, [NewChunk(0, "x" * 80, "x" * 80)])
        assert caught.value.code == LIMIT_EXCEEDED
        assert await store.vector_stores.add_chunks("w", claimed.key, [NewChunk(0, "x" * 40, "x" * 40)])

    async def test_no_owner_has_more_than_the_limit(self, opened: Opener) -> None:
        store = await opened(vector_stores=1)
        await store.vector_stores.create(vector_store("a"), [])
        with pytest.raises(RequestError, match="vector_stores"):
            await store.vector_stores.create(vector_store("b"), [])
        await store.vector_stores.create(vector_store("c", owner="eve"), [])

    async def test_what_is_taken_out_is_swept(self, opened: Opener) -> None:
        store = await opened(sweep=2)
        await filled(store, {"a": [f"x a{index}" for index in range(5)], "b": ["x b"], "c": ["x c"]})
        await filled(store, {"a": ["x other"]}, "vs_2")
        await store.vector_stores.detach(OWNER, "vs_1", "a")
        assert sorted(await found(store, "x")) == ["x b", "x c"]
        with pytest.raises(NotFoundError):
            await store.vector_stores.detach(OWNER, "vs_1", "a")
        await store.files.delete(OWNER, "b")
        assert await found(store, "x") == ["x c"]
        await store.vector_stores.attach(OWNER, "vs_1", [indexed("c", key="again")])
        assert await found(store, "x") == []
        await index(store, ["x new"])
        await store.sweep(NOW)
        assert await found(store, "x") == ["x new"]
        assert await found(store, "x", ids=["vs_2"]) == ["x other"]
        assert await store.vector_stores.delete(OWNER, "vs_1")
        assert await found(store, "x") == []
        await store.sweep(NOW)
        assert await store.files.get(OWNER, "c")
        assert await found(store, "x", ids=["vs_1", "vs_2"]) == ["x other"]

    async def test_a_batch(self, store: Store) -> None:
        for name in "abc":
            await uploaded(store, name)
        await store.vector_stores.create(vector_store(), [])
        batch = VectorStoreBatch(id="b_1", vector_store_id="vs_1", owner=OWNER, created_at=NOW)
        attached = [indexed(name, batch_id="b_1") for name in "ab"]
        await store.vector_stores.attach(OWNER, "vs_1", attached, batch)
        await index(store, ["x"])
        counted = await store.vector_stores.batch(OWNER, "vs_1", "b_1")
        assert counted.counts == FileCounts(in_progress=1, completed=1)
        await store.vector_stores.attach(OWNER, "vs_1", [indexed("c")])
        listed = await store.vector_stores.files(OWNER, "vs_1", Paging("asc"), None, "b_1")
        assert [it.id for it in listed.data] == ["a", "b"]
        cancelled = await store.vector_stores.cancel_batch(OWNER, "vs_1", "b_1")
        assert (cancelled.cancelled, cancelled.counts) == (True, FileCounts(completed=1, cancelled=1))
        claimed = await store.vector_stores.claim("w", NOW, 10)
        assert claimed is not None
        assert claimed.id == "c"
        for wrong in (("vs_1", "b_2"), ("vs_2", "b_1")):
            with pytest.raises(NotFoundError):
                await store.vector_stores.batch(OWNER, *wrong)

    async def test_a_worker_on_what_is_cancelled(self, store: Store) -> None:
        await uploaded(store)
        await store.vector_stores.create(vector_store(), [])
        batch = VectorStoreBatch(id="b_1", vector_store_id="vs_1", owner=OWNER, created_at=NOW)
        await store.vector_stores.attach(OWNER, "vs_1", [indexed(batch_id="b_1")], batch)
        claimed = await store.vector_stores.claim("w", NOW, 10)
        assert claimed is not None
        await store.vector_stores.cancel_batch(OWNER, "vs_1", "b_1")
        assert not await store.vector_stores.add_chunks("w", claimed.key, [NewChunk(0, "x", "x")])

    async def test_what_is_cancelled_keeps_no_chunks(self, store: Store) -> None:
        await uploaded(store)
        await store.vector_stores.create(vector_store(), [])
        before = await store.usage.of(OWNER)
        batch = VectorStoreBatch(id="b_1", vector_store_id="vs_1", owner=OWNER, created_at=NOW)
        await store.vector_stores.attach(OWNER, "vs_1", [indexed(batch_id="b_1")], batch)
        claimed = await store.vector_stores.claim("w", NOW, 10)
        assert claimed is not None
        assert await store.vector_stores.add_chunks("w", claimed.key, [NewChunk(0, "x", "x")])
        await store.vector_stores.cancel_batch(OWNER, "vs_1", "b_1")
        assert await store.vector_stores.texts(OWNER, "vs_1", "file_1") == []
        assert (await store.vector_stores.file(OWNER, "vs_1", "file_1")).usage_bytes == 0
        assert await store.usage.of(OWNER) == before

    @pytest.mark.parametrize("how", ["cancelled", "failed"])
    async def test_what_a_server_leaves_that_ends_is_swept(self, opened: Opener, how: str) -> None:
        """The many chunks of a file: they are deleted in pieces, and the server has ended after the first."""
        store = await opened(sweep=2)
        await uploaded(store)
        await store.vector_stores.create(vector_store(), [])
        batch = VectorStoreBatch(id="b_1", vector_store_id="vs_1", owner=OWNER, created_at=NOW)
        await store.vector_stores.attach(OWNER, "vs_1", [indexed(batch_id="b_1")], batch)
        claimed = await store.vector_stores.claim("w", NOW, 10)
        assert claimed is not None
        new = [NewChunk(position, "x", "x") for position in range(7)]
        assert await store.vector_stores.add_chunks("w", claimed.key, new)
        with patch.object(Database, "begin"):
            if how == "cancelled":
                await store.vector_stores.cancel_batch(OWNER, "vs_1", "b_1")
            else:
                end = IndexEnd("w", claimed.key, IndexStatus.FAILED, b"{}")
                assert await store.vector_stores.finish(end)
        assert len(await store.vector_stores.texts(OWNER, "vs_1", "file_1")) == 5
        await store.sweep(NOW)
        assert await store.vector_stores.texts(OWNER, "vs_1", "file_1") == []

    async def test_attributes(self, store: Store) -> None:
        await filled(store, {"a": ["x a"], "b": ["x b"]})
        changed = await store.vector_stores.update_file(OWNER, "vs_1", "b", b'{"k":1}')
        assert changed.attributes == b'{"k":1}'
        everything = await store.vector_stores.attributes(OWNER, ["vs_1"])
        assert everything == {"vs_1 a": b"{}", "vs_1 b": b'{"k":1}'}
        assert await found(store, "x", keys=["vs_1 b"]) == ["x b"]
        assert await found(store, "x", keys=[]) == []

    async def test_what_is_not_there(self, store: Store) -> None:
        await uploaded(store)
        await uploaded(store, "hers", owner="eve")
        await filled(store, {"file_2": ["secret"]})
        vectors = store.vector_stores
        for attempt, param in (
            (lambda: vectors.create(vector_store("x"), [indexed("hers", "x")]), "file_ids"),
            (lambda: vectors.attach(OWNER, "vs_1", [indexed("nothing")]), "file_id"),
            (lambda: vectors.attach(OWNER, "vs_2", [indexed("file_1", "vs_2")]), "vector_store_id"),
            (lambda: vectors.attach("eve", "vs_1", [indexed("hers", owner="eve")]), "vector_store_id"),
            (lambda: vectors.update("eve", "vs_1", VectorStoreChange(name="x")), "vector_store_id"),
            (lambda: vectors.file("eve", "vs_1", "file_2"), "vector_store_id"),
            (lambda: vectors.file(OWNER, "vs_1", "file_1"), "file_id"),
            (lambda: vectors.files("eve", "vs_1", Paging()), "vector_store_id"),
            (lambda: vectors.texts("eve", "vs_1", "file_2"), "vector_store_id"),
            (lambda: vectors.detach("eve", "vs_1", "file_2"), "vector_store_id"),
            (lambda: vectors.update_file("eve", "vs_1", "file_2", b""), "vector_store_id"),
        ):
            with pytest.raises(NotFoundError) as caught:
                await attempt()  # type: ignore[no-untyped-call]
            assert caught.value.param == param
        assert await vectors.get("eve", "vs_1") is None
        assert not await vectors.delete("eve", "vs_1")
        assert await vectors.get(OWNER, "x") is None
        assert await found(store, "secret", owner="eve") == []
        assert await found(store, "secret") == ["secret"]

    async def test_the_best_chunks_are_found(self, store: Store) -> None:
        common = [f"the common{index} word the" for index in range(300)]
        await filled(store, {"a": common, "b": ["the rare word", "rare rare rare", "else"]})
        read = await store.vector_stores.postings(OWNER, ["vs_1"], ["the", "rare", "nowhere"])
        assert read.total == 303
        assert read.counts == {"the": 301, "rare": 2, "nowhere": 0}
        assert {chunk.text for chunk in read.chunks[:2]} == {"the rare word", "rare rare rare"}
        assert len(read.chunks) == 200
        assert read.chunks[0].filename == "ü.txt"

    async def test_vectors_are_found_by_the_model_that_made_them(self, store: Store) -> None:
        await filled(store, {"a": ["plain"]})
        await uploaded(store, "b")
        await store.vector_stores.attach(OWNER, "vs_1", [indexed("b")])
        claimed = await store.vector_stores.claim("w", NOW, 10)
        assert claimed is not None
        new = [NewChunk(place, text, text, "m", text.encode()) for place, text in enumerate(("one", "three"))]
        assert await store.vector_stores.add_chunks("w", claimed.key, new)
        vectors, keys = store.vector_stores.vectors, [claimed.key]
        assert await vectors(OWNER, ["vs_1"], keys, "m") == []  # it is not indexed yet
        await store.vector_stores.finish(IndexEnd("w", claimed.key, IndexStatus.COMPLETED))

        every = await store.vector_stores.attributes(OWNER, ["vs_1"])
        read = dict(await vectors(OWNER, ["vs_1"], every, "m"))
        assert sorted(read.values()) == [b"one", b"three"]
        chunks = await store.vector_stores.chunks(OWNER, [*read, 5])
        assert {each.id: each.text.encode() for each in chunks} == read
        for nothing in (
            vectors("eve", ["vs_1"], every, "m"),
            vectors(OWNER, ["vs_1"], every, "other"),
            vectors(OWNER, ["vs_1"], every.keys() - {claimed.key}, "m"),
            vectors(OWNER, ["vs_2"], every, "m"),
            store.vector_stores.chunks("eve", [*read]),
        ):
            assert await nothing == []
        file = await store.vector_stores.file(OWNER, "vs_1", "b")
        assert file.usage_bytes == 3 * len("onethree")

    async def test_terms_are_what_they_are(self, store: Store) -> None:
        """No database cuts, folds or understands them."""
        terms = ["x86", "3", "1e5", "10k", "東京", "naïve", "हिन्दी", "or", "and", "not", "near", "the", "İx"]
        await filled(store, {"a": [f"{term} text" for term in terms]})
        for term in terms:
            assert await found(store, term) == [f"{term} text"]
        assert await found(store, "naive") == []
        assert await found(store, "vs") == []

    async def test_what_is_found_is_what_matches(self, store: Store) -> None:
        rng = Random(5)
        words = ["a1", "b2", "c3", "d4", "e5"]
        texts = {
            name: [" ".join(rng.choices(words, k=rng.randrange(1, 4))) for _ in range(6)] for name in "pqr"
        }
        await filled(store, texts)
        for _ in range(10):
            terms = rng.sample(words, 2)
            matching = [text for some in texts.values() for text in some if set(terms) & set(text.split())]
            assert sorted(await found(store, *terms)) == sorted(matching)

    async def test_each_file_is_claimed_once(self, store: Store) -> None:
        names = [f"file_{index}" for index in range(10)]
        for name in names:
            await uploaded(store, name)
        await store.vector_stores.create(vector_store(), [indexed(name) for name in names])
        claims = await asyncio.gather(*(store.vector_stores.claim(f"w{i}", NOW, 10) for i in range(12)))
        assert sorted(it.id for it in claims if it) == names
