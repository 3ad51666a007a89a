"""What the database knows of replicas is applied in order, and only where others know the replica."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from antiphon.app.metrics import Metrics
from antiphon.app.shared_replicas import SharedPools
from antiphon.core.shared_loads import Drain, SharedReplicas, ToldLoads, shared_name

URL, LOOPBACK, FILE = "http://gpu:8000", "http://127.0.0.1:8000", "model.gguf"


class Pools:
    """Replicas without engines."""

    def __init__(self, *names: str) -> None:
        self.replica_loads = dict.fromkeys(names, 0)
        self.drained_replicas: dict[str, Drain] = {}
        self.elsewhere: Mapping[str, int] = {}

    def count_elsewhere(self, loads: Mapping[str, int]) -> None:
        self.elsewhere = loads

    def drain(self, replica: str, drain: Drain | None) -> None:
        if drain is None:
            del self.drained_replicas[replica]
        else:
            self.drained_replicas[replica] = drain


class Replicas:
    """A database that answers when it is told to."""

    def __init__(self) -> None:
        self.known = SharedReplicas()
        self.slow: asyncio.Event | None = None
        self.told: list[Mapping[str, int]] = []

    async def read(self, _: str) -> SharedReplicas:
        known, slow = self.known, self.slow
        if slow is not None:
            self.slow = None
            await slow.wait()
        return known

    async def tell(self, _server: str, _process: str, loads: Mapping[str, int], **_: Any) -> SharedReplicas:
        self.told.append(loads)
        return self.known


def shared(pools: Pools) -> tuple[SharedPools, Replicas]:
    replicas = Replicas()

    class Storage:
        class store:  # noqa: N801 - as `Storage` has it
            pass

    Storage.store.replicas = replicas  # type: ignore[attr-defined]
    storage: Any = Storage
    return SharedPools(
        storage, Metrics(), pools, lambda: "server", partial(shared_name, host="here")
    ), replicas


async def test_an_older_answer_never_undoes_a_newer_one() -> None:
    pools = Pools(URL)
    sharing, replicas = shared(pools)
    replicas.slow = slow = asyncio.Event()
    older = asyncio.create_task(sharing.refresh())
    await asyncio.sleep(0)
    replicas.known = SharedReplicas(drained={URL: Drain("ann", 1.0)})
    newer = asyncio.create_task(sharing.refresh())
    await asyncio.sleep(0.01)
    slow.set()
    await asyncio.gather(older, newer)
    assert pools.drained_replicas == {URL: Drain("ann", 1.0)}


async def test_what_others_told_is_by_the_names_of_this_server() -> None:
    pools = Pools(URL, LOOPBACK, FILE)
    sharing, replicas = shared(pools)
    loads = {URL: 2, f"{LOOPBACK} here": 3, LOOPBACK: 5, f"{LOOPBACK} there": 7, FILE: 11, "http://x": 13}
    told = ToldLoads("p", 0.0, loads)
    drained = dict.fromkeys((f"{LOOPBACK} here", FILE, "http://x"), Drain("ann", 1.0))
    replicas.known = SharedReplicas([told, told], drained)
    await sharing.refresh()
    assert pools.elsewhere == {URL: 4, LOOPBACK: 6}
    assert pools.drained_replicas == {LOOPBACK: Drain("ann", 1.0)}
    assert sharing.counted == {"p"}
    replicas.known = SharedReplicas()
    await sharing.refresh()
    assert pools.elsewhere == {URL: 0, LOOPBACK: 0}
    assert pools.drained_replicas == {}


async def test_work_is_told_by_the_names_that_all_know() -> None:
    pools = Pools(URL, LOOPBACK, FILE)
    sharing, replicas = shared(pools)
    pools.replica_loads = {URL: 1, LOOPBACK: 2, FILE: 3, "http://idle": 0}
    await sharing._tell(sharing._loads)
    assert replicas.told == [{URL: 1, f"{LOOPBACK} here": 2}]


async def test_work_at_two_spellings_of_one_url_is_added() -> None:
    pools = Pools()
    sharing, _ = shared(pools)
    pools.replica_loads = {URL: 1, f"{URL}/": 2}
    assert sharing._loads == {URL: 3}


async def test_a_server_without_replicas_at_urls_asks_nothing() -> None:
    sharing, _ = shared(Pools(FILE))
    await sharing.start()  # the database would have no watch
    assert not sharing.shares(FILE)
    await sharing.stop()
