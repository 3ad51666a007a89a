"""What every store does with conversations."""

import asyncio

import pytest
from msgspec.structs import replace

from antiphon.core.errors import NotFoundError, RequestError
from antiphon.core.limits import LIMIT_EXCEEDED
from antiphon.store.records import (
    Paging,
)
from antiphon.store.store import Store
from tests.store.parts.pages import check_pages
from tests.store.samples import (
    OWNER,
    Opener,
    conversation,
    item,
    items,
    names,
)


class ConversationsContract:
    """Conversations and their items."""

    async def test_no_owner_has_more_conversations_than_the_limit(self, opened: Opener) -> None:
        store = await opened(conversations=2)
        for name in "ab":
            await store.conversations.create(conversation(name), ())
        with pytest.raises(RequestError, match="'conversations'") as caught:
            await store.conversations.create(conversation("c"), items("x"))
        assert caught.value.code == LIMIT_EXCEEDED
        assert await store.conversations.get(OWNER, "c") is None
        await store.conversations.create(conversation("d", owner="eve"), ())
        await store.conversations.delete(OWNER, "a")
        await store.conversations.create(conversation("c"), items("x"))

    async def test_a_conversation(self, store: Store) -> None:
        record = conversation(metadata=b'{"a":"b"}')
        assert await store.conversations.get(OWNER, "conv_1") is None
        await store.conversations.create(record, items("a", "b"))
        assert await store.conversations.get(OWNER, "conv_1") == record
        await store.conversations.add(OWNER, "conv_1", items("c"))
        assert await store.conversations.history(OWNER, "conv_1") == [*items("a", "b", "c")]
        changed = conversation(metadata=b"{}")
        assert await store.conversations.update(OWNER, "conv_1", b"{}") == changed
        assert await store.conversations.get(OWNER, "conv_1") == changed
        assert await store.conversations.delete(OWNER, "conv_1")
        assert not await store.conversations.delete(OWNER, "conv_1")
        await store.conversations.create(record, ())
        assert await store.conversations.history(OWNER, "conv_1") == []

    async def test_single_items_of_a_conversation(self, store: Store) -> None:
        await store.conversations.create(conversation(), items("a", "b", "c"))
        assert await store.conversations.item(OWNER, "conv_1", "b") == item("b")
        assert await store.conversations.delete_item(OWNER, "conv_1", "b") == conversation()
        assert await store.conversations.item(OWNER, "conv_1", "b") is None
        await store.conversations.add(OWNER, "conv_1", items("d"))
        assert names(await store.conversations.history(OWNER, "conv_1")) == ["a", "c", "d"]
        with pytest.raises(NotFoundError, match="'b'"):
            await store.conversations.delete_item(OWNER, "conv_1", "b")

    @pytest.mark.parametrize("owner", ["eve", OWNER])
    async def test_a_missing_conversation_and_another_owners(self, store: Store, owner: str) -> None:
        name = "conv_1" if owner == "eve" else "conv_2"
        await store.conversations.create(conversation(), items("a"))
        conversations = store.conversations
        assert await conversations.get(owner, name) is None
        assert await conversations.item(owner, name, "a") is None
        assert not await conversations.delete(owner, name)
        for attempt in (
            conversations.update(owner, name, b"{}"),
            conversations.add(owner, name, items("b")),
            conversations.items(owner, name, Paging()),
            conversations.history(owner, name),
            conversations.delete_item(owner, name, "a"),
        ):
            with pytest.raises(NotFoundError, match=name):
                await attempt
        assert names(await conversations.history(OWNER, "conv_1")) == ["a"]

    async def test_pages_of_a_conversation(self, store: Store) -> None:
        await store.conversations.create(conversation(), items("a", "x", "b"))
        await store.conversations.add(OWNER, "conv_1", items(*"cde"))
        await store.conversations.delete_item(OWNER, "conv_1", "x")
        await check_pages(lambda paging: store.conversations.items(OWNER, "conv_1", paging), "abcde")

    @pytest.mark.parametrize(("most", "fitting"), [(1, 1), (60, 3)])
    async def test_a_page_has_so_many_bytes(self, opened: Opener, most: int, fitting: int) -> None:
        store = await opened(page_bytes=most)
        records = [replace(each, payload=b"x" * 20) for each in items(*"abcde")]
        await store.conversations.create(conversation(), records)
        await check_pages(lambda paging: store.conversations.items(OWNER, "conv_1", paging), "abcde", fitting)

    async def test_items_added_at_once_stay_side_by_side(self, store: Store) -> None:
        await store.conversations.create(conversation(), ())
        additions = [[f"{index}.{part}" for part in range(index % 4 + 1)] for index in range(20)]
        await asyncio.gather(
            *(store.conversations.add(OWNER, "conv_1", items(*added)) for added in additions)
        )
        found = names(await store.conversations.history(OWNER, "conv_1"))
        for added in additions:
            at = found.index(added[0])
            assert found[at : at + len(added)] == added
        assert sorted(found) == sorted(name for added in additions for name in added)
