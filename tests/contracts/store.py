"""What every store must do: the contract in the docstring of `antiphon.store.store`.

A test module inherits `StoreContract` and says with which `url` an empty store opens.
One whose database several servers can share inherits `SharedStoreContract`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

import pytest

from antiphon.app.search import bm25
from antiphon.core.errors import NotFoundError, StoreError
from antiphon.core.limits import Limits
from antiphon.store.open import open_store
from antiphon.store.records import (
    FileCounts,
    LogEntry,
    Paging,
    StoreTuning,
    VectorStoreBatch,
    Verdict,
)
from antiphon.store.store import JOBS, REPLICAS, Store, cancel_of, events_of
from tests.store.interleaving import interleaved
from tests.store.parts.approvals import ApprovalsContract
from tests.store.parts.blobs import BlobsContract
from tests.store.parts.completions import CompletionsContract, SweepContract
from tests.store.parts.containers import ContainersContract
from tests.store.parts.conversations import ConversationsContract
from tests.store.parts.files import FilesContract
from tests.store.parts.jobs import JobsContract
from tests.store.parts.key_limits import KeyLimitsContract
from tests.store.parts.log import LogContract, WatchContract
from tests.store.parts.replicas import ReplicasContract
from tests.store.parts.responses import ChainsContract, ItemsContract, ResponsesContract
from tests.store.parts.usage import UsageContract
from tests.store.parts.vector_stores import VectorStoresContract, filled, indexed, vector_store
from tests.store.parts.vector_stores import index as index_next
from tests.store.samples import (
    NOW,
    OWNER,
    TIMEOUT,
    Opener,
    append,
    completion,
    conversation,
    entry,
    items,
    job,
    leased,
    names,
    response,
    response_end,
    woken,
)
from tests.store.weighing import check_counts


class StoreContract(
    ResponsesContract,
    ItemsContract,
    ChainsContract,
    LogContract,
    WatchContract,
    JobsContract,
    ConversationsContract,
    CompletionsContract,
    ApprovalsContract,
    BlobsContract,
    ContainersContract,
    FilesContract,
    VectorStoresContract,
    KeyLimitsContract,
    ReplicasContract,
    UsageContract,
    SweepContract,
):
    """Inherit, and give it a `url` of nothing yet."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    def counted_at(self, url: str) -> str | None:
        """The database of SQLite or PostgreSQL whose counters are checked in the end, if it is one of these."""
        return url

    @pytest.fixture
    async def opened(self, url: str) -> AsyncIterator[Opener]:
        """Opens stores, and closes them at the end. Then their counters must match their rows."""
        stores: list[Store] = []

        async def opened(**bounds: int) -> Store:
            tuning = {name: bounds.pop(name) for name in [*bounds] if name in StoreTuning.__struct_fields__}
            stores.append(await open_store(url, Limits(**bounds), StoreTuning(**tuning)))
            return stores[-1]

        yield opened
        for store in stores:
            await store.close()
        if (counted := self.counted_at(url)) is not None:
            await check_counts(counted)

    @pytest.fixture
    async def store(self, opened: Opener) -> Store:
        return await opened()

    async def test_what_waits_is_written_before_it_closes(self, opened: Opener) -> None:
        store = await opened()
        writes = [asyncio.create_task(store.responses.create(response(f"r{i}"), ())) for i in range(20)]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.gather(*writes) == [None] * 20
        await store.close()

    async def test_a_closed_store_takes_nothing(self, opened: Opener) -> None:
        store = await opened()
        await store.close()
        with pytest.raises(StoreError):
            await store.responses.create(response(), ())
        with pytest.raises(StoreError):
            await store.responses.get(OWNER, "resp_1")

    async def test_a_caller_that_leaves_harms_nobody(self, store: Store) -> None:
        tasks = [asyncio.create_task(store.responses.create(response(f"r{i}"), ())) for i in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[1::2] == [None] * 10
        for index in range(1, 20, 2):
            assert await store.responses.get(OWNER, f"r{index}")

    async def test_readers_that_leave_leave_no_mess(self, store: Store) -> None:
        await store.responses.create(response(), items("a"))
        for round_ in range(20):
            tasks = [asyncio.create_task(store.responses.history(OWNER, "resp_1")) for _ in range(8)]
            await asyncio.sleep(0.0005 * (round_ % 4))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        reads = await asyncio.gather(*(store.responses.history(OWNER, "resp_1") for _ in range(20)))
        assert [names(read) for read in reads] == [["a"]] * 20


class SharedStoreContract(StoreContract):
    """For databases that outlive a store, and that several servers may open at the same time."""

    @pytest.fixture
    async def other(self, opened: Opener, store: Store) -> Store:
        return await opened()

    async def test_it_is_still_there(self, opened: Opener) -> None:
        store = await opened()
        await store.responses.create(leased(), items("a"))
        await store.log.append(append(entry(0)))
        await store.close()
        again = await opened()
        assert await again.responses.get(OWNER, "resp_1") == leased(last_seq=0)
        assert await again.log.read("resp_1") == [entry(0)]

    async def test_several_open_it_at_once(self, opened: Opener) -> None:
        stores = await asyncio.gather(*(opened() for _ in range(5)))
        for index, store in enumerate(stores):
            await store.responses.create(response(f"r{index}"), ())
        for store in stores:
            assert [await store.responses.get(OWNER, f"r{index}") for index in range(5)].count(None) == 0

    async def test_a_drained_replica_stays_drained(self, opened: Opener) -> None:
        store, other = await opened(), await opened()
        with other.watch(REPLICAS) as watch:
            await store.replicas.drain("x", "ann", 60.0)
            assert await woken(watch)
        for each in (store, other):
            await each.close()
        assert (await (await opened()).replicas.read("again")).drained["x"].by == "ann"

    async def test_servers_share_what_is_claimed(self, store: Store, other: Store) -> None:
        for number in range(8):
            claims = [
                each.approvals.claim(OWNER, f"mcpr_{number}", f"resp_{index}", NOW)
                for index, each in enumerate((store, other))
            ]
            assert sorted(await asyncio.gather(*claims)) == [False, True]

    async def test_what_is_deleted_while_it_is_read_is_whole_or_not_there(
        self, store: Store, other: Store
    ) -> None:
        numbers, listed = count(), Paging("asc")
        name = ""

        async def prepare() -> None:
            nonlocal name
            name = f"{next(numbers)}"
            await store.conversations.create(conversation(f"conv_{name}"), items(f"{name} a", f"{name} b"))
            await store.responses.create(response(f"resp_{name}"), items(f"{name} c", f"{name} d"))
            await store.completions.save(completion(f"chat_{name}"), items(f"{name} e", f"{name} f"))

        reads: list[tuple[str, Callable[[str], Awaitable[Any]], Any, str]] = [
            ("conv", lambda name: store.conversations.history(OWNER, name), other.conversations, "ab"),
            ("conv", lambda name: store.conversations.items(OWNER, name, listed), other.conversations, "ab"),
            ("resp", lambda name: store.responses.history(OWNER, name), other.responses, "cd"),
            ("resp", lambda name: store.responses.input_items(OWNER, name, listed), other.responses, "cd"),
            ("chat", lambda name: store.completions.messages(OWNER, name, listed), other.completions, "ef"),
        ]
        found = []
        for kind, read, parents, whole in reads:
            async for each in interleaved(
                prepare,
                lambda kind=kind, read=read: read(f"{kind}_{name}"),  # type: ignore[misc]
                lambda kind=kind, parents=parents: parents.delete(OWNER, f"{kind}_{name}"),  # type: ignore[misc]
            ):
                seen = None if each is None else [item[-1] for item in names(getattr(each, "data", each))]
                assert seen in (None, [*whole])
                found.append(seen)
        assert None in found
        assert ["a", "b"] in found

    async def test_a_vector_store_that_is_deleted_while_it_is_read_is_whole_or_not_there(
        self, store: Store, other: Store
    ) -> None:
        numbers, listed = count(), Paging("asc")
        name = ""
        await filled(store, {"file_a": [], "file_b": []}, "vs_other")  # what is uploaded stays

        async def prepare() -> None:
            nonlocal name
            name = f"vs_{next(numbers)}"
            await store.vector_stores.create(vector_store(name), [])
            attached = [indexed(each, name, batch_id=f"b_{name}") for each in ("file_a", "file_b")]
            batch = VectorStoreBatch(id=f"b_{name}", vector_store_id=name, owner=OWNER, created_at=NOW)
            await store.vector_stores.attach(OWNER, name, attached, batch)
            for text in ("one", "two"):
                await index_next(store, [text])

        read = store.vector_stores

        async def listing() -> Any:
            found = await read.list(OWNER, listed)
            return next((each for each in found.data if each.id == name), None)

        def ids(page: Any) -> list[str]:
            return [each.id for each in page.data]

        both = FileCounts(completed=2)
        reads: list[tuple[Callable[[], Awaitable[Any]], Callable[[Any], Any], Any]] = [
            (lambda: read.files(OWNER, name, listed), ids, ["file_a", "file_b"]),
            (lambda: read.files(OWNER, name, listed, None, f"b_{name}"), ids, ["file_a", "file_b"]),
            (lambda: read.texts(OWNER, name, "file_a"), list, ["one"]),
            (lambda: read.batch(OWNER, name, f"b_{name}"), lambda it: it.counts, both),
            (lambda: read.get(OWNER, name), lambda it: it.counts, both),
            (listing, lambda it: it.counts, both),
        ]
        for reading, seen, whole in reads:
            found = [
                None if each is None else seen(each)
                async for each in interleaved(
                    prepare, reading, lambda: other.vector_stores.delete(OWNER, name)
                )
            ]
            assert all(each in (None, whole) for each in found), found
            assert whole in found

    async def test_what_is_searched_while_files_come_and_go_is_ranked(
        self, store: Store, other: Store
    ) -> None:
        await filled(store, {"file_a": []})
        await store.vector_stores.detach(OWNER, "vs_1", "file_a")

        async def come() -> None:
            await other.vector_stores.attach(OWNER, "vs_1", [indexed("file_a", key=f"{next(keys)}")])
            await index_next(other, ["one two", "two"])

        async def go() -> None:
            with suppress(NotFoundError):
                await other.vector_stores.detach(OWNER, "vs_1", "file_a")

        keys = count()
        for before, change in ((go, come), (come, go)):
            async for found in interleaved(
                before, lambda: store.vector_stores.postings(OWNER, ["vs_1"], ["one", "two"]), change
            ):
                assert all(0 < each.score < 1 for each in bm25(found))

    async def test_a_log_that_is_read_while_it_grows_has_no_hole(self, store: Store, other: Store) -> None:
        async def prepare() -> None:
            await store.responses.delete(OWNER, "resp_1")
            await store.responses.create(leased(), ())
            await store.log.append(append(entry(0)))

        async for tail in interleaved(
            prepare,
            lambda: store.log.events_after(OWNER, "resp_1", -1),
            lambda: other.log.append(append(entry(1))),
        ):
            assert tail.last_seq <= tail.entries[-1].last
            assert [each.first for each in tail.entries] == [*range(len(tail.entries))]

    async def test_each_is_woken_by_the_other(self, store: Store, other: Store) -> None:
        await store.responses.create(leased(), ())
        topics = (events_of("resp_1"), cancel_of("resp_1"), JOBS)
        with (
            other.watch(topics[0]) as events,
            other.watch(topics[1]) as cancel,
            other.watch(topics[2]) as jobs,
        ):
            await store.log.append(append(entry(0)))
            assert await woken(events)
            await store.jobs.request_cancel(OWNER, "resp_1", NOW)
            assert await woken(cancel)
            await store.responses.create(job("resp_2"), ())
            assert await woken(jobs)

    async def test_more_topics_than_one_message_holds(self, store: Store, other: Store) -> None:
        ids = [f"{'x' * 50}{index}" for index in range(400)]
        await asyncio.gather(*(store.responses.create(leased(name), ()) for name in ids))
        with other.watch(events_of(ids[0])) as first, other.watch(events_of(ids[-1])) as last:
            await store.log.append(*(append(entry(0), name=name) for name in ids))
            assert await woken(first)
            assert await woken(last)

    async def test_jobs_are_shared_out(self, store: Store, other: Store) -> None:
        for index in range(40):
            await store.responses.create(job(f"resp_{index}"), ())
        claims = await asyncio.gather(
            *((store, other)[index % 2].jobs.claim(f"w{index}", NOW, 10, 5) for index in range(20))
        )
        taken = sorted(record.id for claim in claims for record in claim)
        assert len(taken) == len(set(taken))
        taken += [record.id for record in await store.jobs.claim("last", NOW, 10, 99)]
        assert sorted(taken) == sorted(f"resp_{index}" for index in range(40))

    async def test_a_log_has_no_gaps_whoever_writes(self, store: Store, other: Store) -> None:
        """Two servers that both think they are the worker race for every number."""
        await store.responses.create(leased(), ())
        rng = Random(7)

        async def race(writer: Store, mark: bytes) -> int:
            accepted = 0
            for _ in count():
                tail = await writer.log.events_after(OWNER, "resp_1", 10**6)
                assert tail is not None
                if tail.last_seq > 60:
                    return accepted
                first = tail.last_seq + rng.choice((1, 1, 1, 2))
                ran = LogEntry(first, first + rng.randrange(3), mark)
                accepted += await writer.log.append(append(ran)) == [Verdict.ACCEPTED]
            raise AssertionError

        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(race(store, b"a"), race(store, b"b"), race(other, b"c"), race(other, b"d"))
        log = await store.log.read("resp_1")
        assert [it.first for it in log] == [0, *(it.last + 1 for it in log[:-1])]
        record = await other.responses.get(OWNER, "resp_1")
        assert record is not None
        assert record.last_seq == log[-1].last

    async def test_both_count_the_same_owner(self, store: Store, other: Store) -> None:
        """With any concurrent writes of two servers: `opened` checks the counters at the end."""

        async def churn(server: Store, other: Store, name: str) -> None:
            for index in range(12):
                await server.responses.create(leased(f"{name}{index}"), items("a", "b"))
                await server.log.append(append(entry(0, 3), name=f"{name}{index}"))
            await asyncio.gather(
                *(other.responses.delete(OWNER, f"{name}{index}") for index in range(0, 12, 2)),
                *(server.responses.delete(OWNER, f"{name}{index}") for index in range(0, 12, 3)),
                *(server.responses.finish(response_end(f"{name}{index}")) for index in range(12)),
            )

        await asyncio.gather(churn(store, other, "a"), churn(other, store, "b"))
        assert await store.usage.of(OWNER) == await other.usage.of(OWNER) > 0

    async def test_both_are_writable(self, store: Store, other: Store) -> None:
        await asyncio.gather(*(each.check_writable() for each in (store, other) for _ in range(3)))

    async def test_both_add_to_a_conversation(self, store: Store, other: Store) -> None:
        await store.conversations.create(conversation(), ())
        additions = [[f"{index}.{part}" for part in range(index % 4 + 1)] for index in range(20)]
        await asyncio.gather(
            *(
                (store, other)[index % 2].conversations.add(OWNER, "conv_1", items(*added))
                for index, added in enumerate(additions)
            )
        )
        found = names(await store.conversations.history(OWNER, "conv_1"))
        for added in additions:
            at = found.index(added[0])
            assert found[at : at + len(added)] == added
        assert sorted(found) == sorted(name for added in additions for name in added)
