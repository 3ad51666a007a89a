"""What every store does with stored completions, and what it sweeps."""

import msgspec
import pytest

from antiphon.core.errors import NotFoundError
from antiphon.store.records import CompletionFilter, Paging, SweepResult
from antiphon.store.store import Store
from tests.store.parts.pages import check_pages
from tests.store.samples import (
    NOW,
    OWNER,
    Opener,
    append,
    completion,
    entry,
    items,
    leased,
    response,
)


class CompletionsContract:
    """Stored completions and their messages."""

    async def test_a_completion(self, store: Store) -> None:
        record = completion(metadata={"a": "b", "ü": "\"'%"}, expires_at=NOW + 1)
        assert await store.completions.get(OWNER, "chat_1") is None
        await store.completions.save(record, items("a", "b"))
        assert await store.completions.get(OWNER, "chat_1") == record
        changed = msgspec.structs.replace(record, metadata={"c": "d"}, body=b"new")
        assert await store.completions.update(OWNER, "chat_1", {"c": "d"}, b"new") == changed
        assert await store.completions.get(OWNER, "chat_1") == changed
        assert await store.completions.delete(OWNER, "chat_1")
        assert not await store.completions.delete(OWNER, "chat_1")
        await store.completions.save(record, ())
        assert (await store.completions.messages(OWNER, "chat_1", Paging())).data == []

    async def test_pages_of_messages(self, store: Store) -> None:
        await store.completions.save(completion(), items(*"abcde"))
        await check_pages(lambda paging: store.completions.messages(OWNER, "chat_1", paging), "abcde")

    async def test_pages_of_completions(self, store: Store) -> None:
        for name, created in (("b", 1), ("d", 3), ("a", 1), ("c", 2), ("e", 3)):
            await store.completions.save(completion(name, created_at=created), ())
        await store.completions.save(completion("other", owner="eve"), ())
        read = store.completions.list
        await check_pages(lambda paging: read(OWNER, CompletionFilter(), paging), "abcde")

    async def test_completions_are_filtered(self, store: Store) -> None:
        for index, (model, metadata) in enumerate(
            [("m", {}), ("m", {"k": "1"}), ("n", {"k": "1", "l": "2"}), ("m", {"k": "2", "l": "1"})]
        ):
            await store.completions.save(completion(str(index), model=model, metadata=metadata), ())

        async def found(model: str | None = None, **metadata: str) -> str:
            page = await store.completions.list(OWNER, CompletionFilter(model, metadata), Paging("asc"))
            return "".join(record.id for record in page.data)

        assert await found() == "0123"
        assert await found("m") == "013"
        assert await found(k="1") == "12"
        assert await found("m", k="1") == "1"
        assert await found(k="1", l="2") == "2"
        assert await found(k="1", l="1") == ""
        await store.completions.update(OWNER, "1", {"k": "3"}, b"")
        assert await found(k="1") == "2"

    @pytest.mark.parametrize("owner", ["eve", OWNER])
    async def test_a_missing_completion_and_another_owners(self, store: Store, owner: str) -> None:
        name = "chat_1" if owner == "eve" else "chat_2"
        await store.completions.save(completion(), items("a"))
        completions = store.completions
        assert await completions.get(owner, name) is None
        assert not await completions.delete(owner, name)
        for attempt in (
            completions.update(owner, name, {}, b""),
            completions.messages(owner, name, Paging()),
        ):
            with pytest.raises(NotFoundError, match=name):
                await attempt
        assert await completions.get(OWNER, "chat_1") == completion()


class SweepContract:
    """What goes by itself."""

    async def test_what_has_expired_is_swept(self, opened: Opener) -> None:
        store = await opened(sweep=2)
        for index in range(5):
            await store.responses.create(leased(f"resp_{index}", expires_at=NOW + index), items("a"))
            await store.completions.save(completion(f"chat_{index}", expires_at=NOW + index), items("a"))
        await store.log.append(append(entry(0)))
        await store.responses.create(response("for ever"), ())
        assert await store.sweep(NOW - 1) == SweepResult(0, 0)
        assert await store.sweep(NOW + 3) == SweepResult(4, 4)
        assert await store.sweep(NOW + 3) == SweepResult(0, 0)
        assert await store.responses.get(OWNER, "resp_3") is None
        assert await store.log.read("resp_1") == []
        for kept in ("resp_4", "for ever"):
            assert await store.responses.get(OWNER, kept)
        assert await store.completions.get(OWNER, "chat_4")
