"""What every store does with what is counted, and where there is no room."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from antiphon.core.errors import RequestError, StoreError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store import quota
from antiphon.store.quota import ENOUGH_BYTES
from antiphon.store.records import NewBlob, ResponseKind, Verdict
from antiphon.store.store import Store
from antiphon.store.usage import ROW_BYTES
from tests.store.samples import (
    NOW,
    OWNER,
    Opener,
    append,
    completion,
    conversation,
    ended,
    entry,
    item,
    items,
    job,
    leased,
    names,
    response_end,
)

LONG = item("long", payload=b"x" * 10_000)


def refused(caught: Any, limit: str, param: str | None) -> None:
    error = caught.value
    assert (error.code, error.param) == (LIMIT_EXCEEDED, param)
    assert f"'{limit}'" in error.message


class UsageContract:
    """Bytes of owners. That the sums are right is checked after every test of the contract."""

    async def test_what_is_deleted_counts_no_more(self, store: Store) -> None:
        assert await store.usage.of(OWNER) == 0
        await store.responses.create(leased(), items("a"))
        begun = await store.usage.of(OWNER)
        await store.log.append(append(entry(0), prompt_ids=b"1234"))
        await store.log.append(append(entry(1), prompt_ids=b"12345678"))
        log = 2 * ROW_BYTES + sum(len(each.events + each.chunks) for each in (entry(0), entry(1)))
        assert await store.usage.of(OWNER) == begun + log + 8
        await store.responses.finish(response_end(output=items("b")))
        await store.responses.save(ended("r2"), items("a"), items("b"))
        await store.conversations.create(conversation(), items("a"))
        await store.conversations.add(OWNER, "conv_1", [LONG, item("c")])
        await store.conversations.update(OWNER, "conv_1", b'{"a":"b"}')
        await store.conversations.delete_item(OWNER, "conv_1", "long")
        await store.completions.save(completion(metadata={"a": "b"}), items("a"))
        await store.completions.update(OWNER, "chat_1", {"a": "c", "d": "e"}, b'{"longer":true}')
        await store.responses.create(job("r3", owner="eve"), [LONG])
        assert 5 * ROW_BYTES < await store.usage.of(OWNER) < 10_000 < await store.usage.of("eve")
        await store.responses.delete(OWNER, "resp_1")
        await store.responses.delete(OWNER, "r2")
        await store.conversations.delete(OWNER, "conv_1")
        await store.completions.delete(OWNER, "chat_1")
        assert await store.usage.of(OWNER) == 0

    async def test_an_owner_has_what_its_kinds_have(self, opened: Opener) -> None:
        store = await opened(stored_bytes=12_000)
        await store.responses.create(job("b1", kind=ResponseKind.MESSAGE_BATCH), [LONG])
        assert await store.usage.of(OWNER) > 10_000
        with pytest.raises(RequestError) as caught:
            await store.responses.create(job("r"), [LONG])
        refused(caught, "stored_bytes", "store")

    async def test_nobody_has_more_than_there_is_room_for(self, opened: Opener) -> None:
        store = await opened(stored_bytes=25_000, all_stored_bytes=40_000)
        await store.conversations.create(conversation(), ())
        await store.responses.create(job("r1"), [LONG])
        await store.responses.create(job("r2"), [LONG])
        with pytest.raises(RequestError) as caught:
            await store.responses.create(job("r3"), [LONG])
        refused(caught, "stored_bytes", "store")
        for refusal in (
            store.conversations.add(OWNER, "conv_1", [LONG]),
            store.conversations.create(conversation("c2"), [LONG]),
            store.usage.check(OWNER, 10_000, "items"),
        ):
            with pytest.raises(RequestError) as caught:
                await refusal
            refused(caught, "stored_bytes", "items")
        await store.usage.check(OWNER, 10, "items")
        await store.usage.check("eve", 10_000, "items")
        await store.responses.create(job("r4", owner="eve"), [LONG])
        new = NewBlob(owner="eve", holder="f", media_type="text/plain", created_at=NOW)
        with pytest.raises(RequestError) as caught:
            await store.blobs.put(new, b"x" * 10_000)
        refused(caught, "all_stored_bytes", None)
        assert names(await store.conversations.history(OWNER, "conv_1")) == []
        await store.responses.delete(OWNER, "r1")
        await store.blobs.put(new, b"x" * 10_000)

    async def test_a_response_ends_where_it_is_too_large(self, opened: Opener) -> None:
        store = await opened(response_bytes=12_000)
        with pytest.raises(RequestError) as caught:
            await store.responses.create(leased("r0"), [LONG, item("m", payload=b"x" * 2000)])
        refused(caught, "response_bytes", "store")
        with pytest.raises(RequestError) as caught:
            await store.usage.check(OWNER, 12_001, "input")
        refused(caught, "response_bytes", "input")
        await store.responses.create(leased(), [LONG])
        assert await store.log.append(append(entry(0))) == [Verdict.ACCEPTED]
        [verdict] = await store.log.append(append(entry(1, chunks=b"c" * 2000)))
        assert (verdict.accepted, verdict.limit) == (True, "response_bytes")
        assert await store.log.read("resp_1") == [entry(0), entry(1, chunks=b"c" * 2000)]
        end = response_end(entries=(entry(2),), output=items("b"))
        assert await store.responses.finish(end) is Verdict.ACCEPTED

    async def test_what_grows_ends_where_there_is_no_room(self, opened: Opener) -> None:
        store = await opened(stored_bytes=12_000, all_stored_bytes=20_000)
        for name, owner in (("resp_1", OWNER), ("r2", "eve"), ("r3", "ann")):
            await store.responses.create(leased(name, owner=owner), ())
        long = entry(0, chunks=b"c" * 11_500)
        verdicts = await store.log.append(append(long), append(long, name="r2"))
        assert [verdict.limit for verdict in verdicts] == ["stored_bytes", "stored_bytes"]
        [verdict] = await store.log.append(append(entry(0), name="r3"))
        assert verdict.limit == "all_stored_bytes"
        await store.responses.save(ended("r4"), [LONG], [LONG])  # an answer that is there is not lost

    async def test_where_there_is_plenty_of_room_it_is_not_looked_up_each_time(
        self, opened: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quota, "ENOUGH_SECONDS", 3600.0)
        for stored, known in ((2 * ENOUGH_BYTES, True), (ENOUGH_BYTES, False)):
            store = await opened(stored_bytes=stored)
            await store.usage.check(OWNER, 100, "input")
            await store.close()
            with nullcontext() if known else pytest.raises(StoreError):
                await store.usage.check(OWNER, 100, "input")
            with pytest.raises(StoreError):
                await store.usage.check("eve", 100, "input")

    async def test_checks_at_the_same_time_have_results_of_their_own(self, opened: Opener) -> None:
        store = await opened(stored_bytes=2 * ENOUGH_BYTES, response_bytes=10_000)
        for _ in range(2):
            sizes = (100, 10_001, 100, 10_001)
            checks = [store.usage.check(OWNER, size, "input") for size in sizes]
            results = await asyncio.gather(*checks, return_exceptions=True)
            assert [isinstance(result, RequestError) for result in results] == [False, True, False, True]
        small = await opened(stored_bytes=20_000)
        checks = [small.usage.check(OWNER, size, "input") for size in (100, 30_000, 100)]
        results = await asyncio.gather(*checks, return_exceptions=True)
        assert [isinstance(result, RequestError) for result in results] == [False, True, False]

    async def test_a_check_that_is_given_up_holds_no_other_back(self, opened: Opener) -> None:
        store = await opened()
        first, second = [asyncio.create_task(store.usage.check(OWNER, 100, "input")) for _ in range(2)]
        await asyncio.sleep(0)
        first.cancel()
        await second
        await asyncio.wait((first,))

    async def test_what_is_written_is_not_looked_up_each_time_either(
        self, opened: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quota, "ENOUGH_BYTES", 10_000)
        store = await opened(stored_bytes=25_000)
        for lasting, known in ((3600.0, True), (0.0, False)):
            monkeypatch.setattr(quota, "ENOUGH_SECONDS", lasting)
            name = owner = f"for_{lasting}"
            await store.responses.create(leased(name, owner=owner), [LONG])
            [verdict] = await store.log.append(append(entry(0, chunks=b"c" * 20_000), name=name))
            assert verdict.limit == (None if known else "stored_bytes")
            with nullcontext() if known else pytest.raises(RequestError):
                await store.responses.create(job(f"{name}_2", owner=owner), ())

    async def test_a_conversation_has_an_end(self, opened: Opener) -> None:
        store = await opened(conversation_bytes=12_000)
        with pytest.raises(RequestError) as caught:
            await store.conversations.create(conversation("c0"), [LONG, LONG])
        refused(caught, "conversation_bytes", "items")
        assert await store.conversations.get(OWNER, "c0") is None
        await store.conversations.create(conversation(), [LONG])
        with pytest.raises(RequestError) as caught:
            await store.conversations.add(OWNER, "conv_1", items(*"abcdefg"))
        refused(caught, "conversation_bytes", "items")
        await store.usage.check(OWNER, 1000, "input", "conv_1")
        with pytest.raises(RequestError) as caught:
            await store.usage.check(OWNER, 2000, "input", "conv_1")
        refused(caught, "conversation_bytes", "conversation")
        await store.conversations.delete_item(OWNER, "conv_1", "long")
        await store.conversations.add(OWNER, "conv_1", items(*"abcdefg"))
