"""What every store does with the work of replicas that servers share, and with those that are drained."""

import asyncio
from time import time

import pytest

from antiphon.core.errors import StoreError
from antiphon.store import replicas
from antiphon.store.store import REPLICAS, Store
from tests.store.samples import TIMEOUT


class ReplicasContract:
    """What a server has told counts for others, for a time; what is drained stays so."""

    async def test_the_work_of_other_servers_is_told(self, store: Store) -> None:
        tell = store.replicas.tell
        assert not (await tell("a", "a1", {"x": 3, "y": 1}, begins=True)).others
        [told] = (await tell("b", "b1", {"x": 2}, begins=True)).others
        assert (told.process, told.loads) == ("a1", {"x": 3, "y": 1})
        assert 0 <= told.age < TIMEOUT
        await tell("a", "a1", {"x": 4}, begins=False)
        await tell("a", "a2", {"z": 1}, begins=True)
        others = (await store.replicas.read("b")).others
        assert {told.process: told.loads for told in others} == {"a1": {"x": 4}, "a2": {"z": 1}}
        assert [told.process for told in (await store.replicas.read("a")).others] == ["b1"]

    async def test_a_process_without_work_is_not_told_of(self, store: Store) -> None:
        await store.replicas.tell("a", "a1", {"x": 3}, begins=True)
        await store.replicas.tell("a", "a1", {}, begins=False)
        assert not (await store.replicas.read("b")).others

    async def test_a_process_that_stops_is_forgotten(self, store: Store) -> None:
        await store.replicas.tell("a", "a1", {"x": 3}, begins=True)
        await store.replicas.leave("a1")
        assert not (await store.replicas.read("b")).others

    async def test_it_is_told_how_old_it_is(self, store: Store) -> None:
        await store.replicas.tell("dead", "d1", {"x": 3}, begins=True)
        ages = []
        for _ in range(2):
            await asyncio.sleep(0.05)
            [told] = (await store.replicas.read("b")).others
            ages.append(told.age)
        assert 0.04 <= ages[0] <= ages[1] - 0.04

    async def test_rows_of_processes_that_died_are_deleted(self, store: Store) -> None:
        await store.replicas.tell("dead", "d1", {"x": 3}, begins=True)
        await store.sweep(time())
        assert (await store.replicas.read("b")).others
        await store.sweep(time() + 2 * replicas.KEPT_SECONDS)
        assert not (await store.replicas.read("b")).others

    async def test_a_replica_is_drained_until_it_is_resumed(self, store: Store) -> None:
        before = time()
        await store.replicas.drain("x", "ann", TIMEOUT)
        await store.replicas.drain("x", "bob", TIMEOUT)
        await store.replicas.drain("y", "bob", TIMEOUT)
        drained = (await store.replicas.tell("a", "a1", {}, begins=False)).drained
        assert {replica: drain.by for replica, drain in drained.items()} == {"x": "ann", "y": "bob"}
        assert before - 1 <= drained["x"].at <= time() + 1
        await store.sweep(time() + 10**9)
        await store.replicas.resume("x", TIMEOUT)
        await store.replicas.resume("x", TIMEOUT)
        assert (await store.replicas.read("b")).drained.keys() == {"y"}

    async def test_what_is_late_is_not_done(self, store: Store) -> None:
        with pytest.raises(StoreError):
            await store.replicas.drain("x", "ann", within=-1)
        await store.replicas.drain("y", "ann", TIMEOUT)
        with pytest.raises(StoreError):
            await store.replicas.resume("y", within=-1)
        assert (await store.replicas.read("b")).drained.keys() == {"y"}

    async def test_servers_are_notified(self, store: Store) -> None:
        with store.watch(REPLICAS) as watch:
            await store.replicas.tell("a", "a1", {"x": 1}, begins=True)
            assert await watch.changed(TIMEOUT)
            await store.replicas.drain("x", "ann", TIMEOUT)
            assert await watch.changed(TIMEOUT)
            await store.replicas.resume("x", TIMEOUT)
            assert await watch.changed(TIMEOUT)

    async def test_many_that_tell_at_once_are_all_told_of(self, store: Store) -> None:
        telling = [store.replicas.tell(f"s{n}", f"p{n}", {"x": n + 1}, begins=True) for n in range(30)]
        await asyncio.gather(*telling)
        assert sum(told.loads["x"] for told in (await store.replicas.read("b")).others) == 465
