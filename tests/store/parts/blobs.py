"""What every store does with blobs."""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store.blobs import PIECE_BYTES, UNFINISHED_SECONDS
from antiphon.store.records import BlobRecord, NewBlob, SweepResult, Verdict
from antiphon.store.store import Store
from tests.store.samples import (
    NOW,
    OWNER,
    Opener,
    completion,
    conversation,
    ended,
    item,
    leased,
    response,
    response_end,
)


async def stored(store: Store, content: Any, **changes: Any) -> BlobRecord:
    new = NewBlob(owner=OWNER, holder="file_1", media_type="text/plain", created_at=NOW)
    return await store.blobs.put(msgspec.structs.replace(new, **changes), content)


async def content_of(store: Store, digest: str, owner: str = OWNER) -> bytes:
    pieces = [piece async for piece in store.blobs.read(owner, digest)]
    assert all(len(piece) <= PIECE_BYTES for piece in pieces)
    return b"".join(pieces)


async def streamed(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


class BlobsContract:
    """Content by its digest."""

    @pytest.mark.parametrize("start", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES])
    async def test_a_blob_is_read_from_any_byte_on(self, store: Store, start: int) -> None:
        content = bytes(range(256)) * (PIECE_BYTES // 256) + b"the end"
        blob = await stored(store, content)
        pieces = [piece async for piece in store.blobs.read(OWNER, blob.digest, start)]
        assert b"".join(pieces) == content[start:]
        assert all(pieces)

    @pytest.mark.parametrize(
        "chunks",
        [
            (),
            (b"",),
            (b"a",),
            (b"x" * PIECE_BYTES,),
            (b"a\0b", b"", b"\xff" * (PIECE_BYTES - 3), b"c"),
            (bytes(range(256)) * (PIECE_BYTES // 100),) * 2,
        ],
        ids=["nothing", "empty", "small", "one-piece", "over-one", "many"],
    )
    async def test_content_comes_back(self, store: Store, chunks: tuple[bytes, ...]) -> None:
        whole = b"".join(chunks)
        record = await stored(store, streamed(*chunks))
        assert record == BlobRecord(sha256(whole).hexdigest(), "text/plain", len(whole), NOW)
        assert await store.blobs.get(OWNER, record.digest) == record
        assert await content_of(store, record.digest) == whole
        assert await stored(store, whole) == record
        assert await store.usage.of(OWNER) == len(whole)

    async def test_it_is_kept_while_something_holds_it(self, store: Store) -> None:
        first = await stored(store, b"same", holder="a")
        again = await stored(
            store, streamed(b"sa", b"me"), holder="b", media_type="text/html", created_at=NOW + 1
        )
        assert again == first
        assert await store.blobs.hold(OWNER, first.digest, "c")
        for holder in ("a", "b", "b"):
            await store.blobs.release(OWNER, holder)
            await store.sweep(NOW)
            assert await content_of(store, first.digest) == b"same"
        await store.blobs.release(OWNER, "c")
        assert await store.blobs.get(OWNER, first.digest) is None
        assert await store.usage.of(OWNER) == 0
        assert not await store.blobs.hold(OWNER, first.digest, "d")
        with pytest.raises(NotFoundError):
            await content_of(store, first.digest)

    async def test_what_is_not_held_any_more_is_swept(self, opened: Opener) -> None:
        store = await opened(sweep=2)
        for index in range(3):
            await stored(store, b"%d" % index * 3 * PIECE_BYTES, holder=str(index))
            await store.blobs.release(OWNER, str(index))
        kept = await stored(store, b"kept")
        assert await store.sweep(NOW) == SweepResult(0, 0, 3)
        assert await content_of(store, kept.digest) == b"kept"

    async def test_holders_expire(self, store: Store) -> None:
        record = await stored(store, b"a", holder="a", expires_at=NOW + 1)
        await store.blobs.hold(OWNER, record.digest, "b", NOW + 5)
        await store.blobs.hold(OWNER, record.digest, "b", NOW + 2)
        assert await store.sweep(NOW + 1) == SweepResult(0, 0, 0)
        assert await content_of(store, record.digest) == b"a"
        assert await store.sweep(NOW + 2) == SweepResult(0, 0, 1)
        assert await store.blobs.get(OWNER, record.digest) is None

    async def test_it_goes_with_what_holds_it(self, store: Store) -> None:
        await store.responses.save(ended("r"), (), ())
        await store.conversations.create(conversation("c"), ())
        await store.completions.save(completion("k"), ())
        record = await stored(store, b"a", holder="r")
        for holder in ("c", "k"):
            assert await store.blobs.hold(OWNER, record.digest, holder)
        assert await store.responses.delete(OWNER, "r")
        assert await store.conversations.delete(OWNER, "c")
        assert await store.blobs.get(OWNER, record.digest)
        assert await store.completions.delete(OWNER, "k")
        assert await store.blobs.get(OWNER, record.digest) is None

    async def test_what_items_refer_to_is_held_with_them(self, store: Store) -> None:
        """By the response and the conversation that it goes to, each until it is deleted."""
        record = await stored(store, b"a", holder="r", expires_at=NOW + 1)
        its = item("m1", blobs=(record.digest,))
        await store.conversations.create(conversation("c"), ())
        await store.responses.create(leased("r", conversation_id="c"), [its])
        ending = response_end("r", conversation=(its, item("m2")))
        assert await store.responses.finish(ending) is Verdict.ACCEPTED
        await store.completions.save(completion("k"), [its])
        assert [each.blobs for each in await store.conversations.history(OWNER, "c")] == [its.blobs, ()]

        await store.sweep(NOW + 1)
        assert await store.responses.delete(OWNER, "r")
        await store.conversations.delete_item(OWNER, "c", "m2")
        await store.completions.delete(OWNER, "k")
        assert await content_of(store, record.digest) == b"a"
        await store.conversations.add(OWNER, "c", [item("m3", blobs=its.blobs)])
        await store.conversations.delete_item(OWNER, "c", "m1")
        assert await content_of(store, record.digest) == b"a"
        await store.conversations.delete_item(OWNER, "c", "m3")
        assert await store.blobs.get(OWNER, record.digest) is None

    async def test_nothing_refers_to_what_is_not_there(self, store: Store) -> None:
        mine = await stored(store, b"a")
        lost = item("m", blobs=("0" * 64,))
        theirs = item("m", blobs=(mine.digest,))
        await store.conversations.create(conversation("c"), ())
        for refused in (
            store.responses.create(response("r1"), [lost]),
            store.responses.save(ended("r2", owner="eve"), [theirs], ()),
            store.completions.save(completion("k"), [lost]),
            store.conversations.add(OWNER, "c", [lost]),
            store.conversations.create(conversation("d", owner="eve"), [theirs]),
        ):
            with pytest.raises(NotFoundError):
                await refused
        assert await store.responses.get(OWNER, "r1") is None
        assert await store.conversations.history(OWNER, "c") == []

    async def test_owners_have_nothing_in_common(self, store: Store) -> None:
        record = await stored(store, b"secret")
        assert await store.blobs.get("eve", record.digest) is None
        assert not await store.blobs.hold("eve", record.digest, "x")
        with pytest.raises(NotFoundError):
            await content_of(store, record.digest, "eve")
        await store.blobs.release("eve", "file_1")
        await stored(store, b"secret", owner="eve")
        await store.blobs.release("eve", "file_1")
        assert await store.blobs.get("eve", record.digest) is None
        assert await content_of(store, record.digest) == b"secret"

    async def test_no_owner_has_more_than_the_limit(self, opened: Opener) -> None:
        store = await opened(stored_bytes=2 * PIECE_BYTES)
        await stored(store, b"a" * PIECE_BYTES)
        read = []

        async def endless() -> AsyncIterator[bytes]:
            while True:
                read.append(1)
                yield b"b" * PIECE_BYTES

        with pytest.raises(RequestError, match="stored_bytes") as caught:
            await stored(store, endless())
        assert caught.value.code == LIMIT_EXCEEDED
        assert len(read) < 5
        assert await store.usage.of(OWNER) == PIECE_BYTES
        await stored(store, b"b" * PIECE_BYTES)
        with pytest.raises(RequestError):
            await stored(store, b"c")
        await stored(store, b"c", owner="eve")

    async def test_nothing_is_kept_of_what_does_not_end(self, store: Store) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield b"a" * 3 * PIECE_BYTES
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await stored(store, broken())
        assert await store.usage.of(OWNER) == 0
        assert await store.sweep(NOW) == SweepResult(0, 0, 1)

    async def test_one_that_is_cut_off_expires(self, store: Store) -> None:
        """As if the server had crashed: it is not abandoned explicitly."""
        waiting = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield b"a" * 2 * PIECE_BYTES
            waiting.set()
            await asyncio.sleep(600)

        writing = asyncio.create_task(stored(store, slow()))
        await waiting.wait()
        assert await store.sweep(NOW) == SweepResult(0, 0, 0)
        assert await store.usage.of(OWNER) > 0
        assert await store.sweep(NOW + UNFINISHED_SECONDS) == SweepResult(0, 0, 1)
        assert await store.usage.of(OWNER) == 0
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    async def test_one_that_expired_while_it_was_written_is_refused(self, store: Store) -> None:
        async def slow() -> AsyncIterator[bytes]:
            yield b"a" * 2 * PIECE_BYTES
            await store.sweep(NOW + UNFINISHED_SECONDS)
            yield b"b"

        with pytest.raises(RequestError, match="faster"):
            await stored(store, slow())

    async def test_one_that_goes_while_it_is_read(self, store: Store) -> None:
        record = await stored(store, b"a" * 3 * PIECE_BYTES)
        pieces = store.blobs.read(OWNER, record.digest)
        assert await anext(pieces)
        await store.blobs.release(OWNER, "file_1")
        await store.sweep(NOW)
        with pytest.raises(NotFoundError):
            await anext(pieces)

    async def test_many_store_the_same_at_once(self, store: Store) -> None:
        await asyncio.gather(*(stored(store, b"same" * PIECE_BYTES, holder=f"h{i}") for i in range(8)))
        assert await store.usage.of(OWNER) == 4 * PIECE_BYTES
        assert await store.sweep(NOW) == SweepResult(0, 0, 7)
        for index in range(8):
            assert await store.usage.of(OWNER) == 4 * PIECE_BYTES
            await store.blobs.release(OWNER, f"h{index}")
        assert await store.usage.of(OWNER) == 0
