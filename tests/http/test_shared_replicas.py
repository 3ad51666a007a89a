"""Servers that share a database share the work of their replicas, and which are drained."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from structlog.testing import capture_logs

from antiphon.app import shared_replicas
from antiphon.core.errors import StoreError
from antiphon.core.shared_loads import LEASE_SECONDS
from antiphon.engines.pool import PoolEngine
from antiphon.engines.upstream import Options
from antiphon.store.replicas import SqlReplicas
from tests.server import NO_TLS, Running, running
from tests.server_process import serving

pytest_plugins = ("tests.postgresql",)

SCRIPT: list[dict[str, Any]] = [
    {"when": "slow", "output": "word ", "tokens": 10**6, "delay_ms": 20},
    {"output": "Hi"},
]
ADMIN = {"authorization": "Bearer admin"}
NOTICED = 1.0
"""Seconds in which other servers learn of a change, at least as promised."""


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return str(request.getfixturevalue("postgresql_url"))


@pytest.fixture
async def replicas() -> AsyncIterator[list[str]]:
    """The URLs of two servers of a model."""
    async with running(SCRIPT) as one, running(SCRIPT) as other:
        yield [one.url, other.url]


class Front(httpx.AsyncClient):
    """A client of a server over a pool, and the server."""

    def __init__(self, server: Running) -> None:
        super().__init__(verify=NO_TLS, base_url=server.url, timeout=30, headers=ADMIN)
        self.server = server

    async def replicas(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (await self.get("/v1/replicas")).json()["data"]
        return listed

    async def numbers(self, field: str) -> list[int]:
        """A number of each replica."""
        return [replica[field] for replica in await self.replicas()]

    async def until(self, seconds: float, is_so: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Wait until the list of replicas is as it should be."""
        async with asyncio.timeout(seconds):
            while not is_so(await self.replicas()):
                await asyncio.sleep(0.02)

    def ask(self, text: str) -> Any:
        body = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": text}]}
        return self.stream("POST", "/v1/chat/completions", json=body)


@asynccontextmanager
async def front(replicas: Sequence[str], store: str) -> AsyncIterator[Front]:
    """A server over a pool of these, of which it likes the first best."""
    first, *others = replicas
    pool = Options(model=first, replica=tuple(others), upstream_kind="chat").build()
    assert isinstance(pool, PoolEngine)
    for place, replica in enumerate(pool._replicas):
        replica.place = place
    async with (
        running(pool, store=store, admin_key=("admin",), model_name=("scripted",), dialect=None) as server,
        Front(server) as client,
    ):
        yield client


@asynccontextmanager
async def two(replicas: Sequence[str], store: str) -> AsyncIterator[list[Front]]:
    async with front(replicas, store) as one, front(replicas, store) as other:
        yield [one, other]


def know(work: int, listed: list[dict[str, Any]]) -> bool:
    """Whether a server knows of so much work, of all servers."""
    return sum(replica["running"] + replica["elsewhere"] for replica in listed) == work


async def test_loads_even_out(store: str, replicas: list[str]) -> None:
    async with two(replicas, store) as fronts, AsyncExitStack() as answers:
        for turn in range(6):
            asked = fronts[turn % 2]
            await answers.enter_async_context(asked.ask("slow"))
            assert sum(await asked.numbers("running")) == turn // 2 + 1
            for one in fronts:
                await one.until(2 * NOTICED, partial(know, turn + 1))
            both = [replica["running"] + replica["elsewhere"] for replica in await asked.replicas()]
            assert max(both) - min(both) <= 1


async def test_work_that_has_ended_does_not_count(store: str, replicas: list[str]) -> None:
    async with two(replicas, store) as (one, other):
        async with one.ask("slow"):
            await other.until(NOTICED * 2, lambda listed: sum(r["elsewhere"] for r in listed) == 1)
        await other.until(NOTICED * 2, lambda listed: sum(r["elsewhere"] for r in listed) == 0)


async def test_a_replica_is_drained_at_all_servers(store: str, replicas: list[str]) -> None:
    async with two(replicas, store) as (one, other):
        before = time.time()
        drained = await one.post("/v1/replicas/drain", json={"replica": replicas[0]})
        assert [replica["status"] for replica in drained.json()["data"]] == ["drained"]
        await other.until(NOTICED, lambda listed: [r["status"] for r in listed] == ["drained", "up"])
        listed = await other.replicas()
        assert listed[0]["drained_by"] == drained.json()["data"][0]["drained_by"]
        assert before - 1 <= listed[0]["drained_at"] <= time.time() + 1
        assert listed[1]["drained_by"] is listed[1]["drained_at"] is None
        async with other.ask("Hi") as answer:
            assert answer.status_code == 200
            await answer.aread()
        async with front(replicas, store) as third:  # which starts later
            assert [replica["status"] for replica in await third.replicas()] == ["drained", "up"]
            resumed = await third.post("/v1/replicas/resume", json={"replica": replicas[0]})
            assert [replica["status"] for replica in resumed.json()["data"]] == ["up"]
            for client in (one, other):
                await client.until(NOTICED, lambda listed: [r["status"] for r in listed] == ["up", "up"])
        unknown = await one.post("/v1/replicas/drain", json={"replica": "none"})
        assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "replica")


async def test_a_replica_stays_drained_when_all_servers_start_again(store: str, replicas: list[str]) -> None:
    async with front(replicas, store) as client:
        await client.post("/v1/replicas/drain", json={"replica": replicas[0]})
    async with front(replicas, store) as client:
        assert [replica["status"] for replica in await client.replicas()] == ["drained", "up"]


async def test_a_replica_that_is_not_in_the_options_any_more_is_resumed(
    tmp_path: Path, replicas: list[str]
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    async with front(replicas, store) as client:
        await client.post("/v1/replicas/drain", json={"replica": replicas[1]})
    async with front([replicas[0], "http://127.0.0.1:9"], store) as client:
        resumed = await client.post("/v1/replicas/resume", json={"replica": f"{replicas[1]}/"})
        assert (resumed.status_code, resumed.json()["data"]) == (200, [])
        again = await client.post("/v1/replicas/resume", json={"replica": replicas[1]})
        assert again.status_code == 404  # nobody knows it
        drained = await client.post("/v1/replicas/drain", json={"replica": replicas[1]})
        assert drained.status_code == 404
    async with front(replicas, store) as client:
        assert [replica["status"] for replica in await client.replicas()] == ["up", "up"]


async def test_a_drain_that_is_not_stored_is_refused(
    tmp_path: Path, replicas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> None:
        raise StoreError

    monkeypatch.setattr(SqlReplicas, "drain", away)
    async with front(replicas, f"sqlite:///{tmp_path}/store.db") as client:
        answer = await client.post("/v1/replicas/drain", json={"replica": replicas[0]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_error")
        assert [replica["status"] for replica in await client.replicas()] == ["up", "up"]


async def test_a_drain_that_is_refused_does_not_come_later(tmp_path: Path, replicas: list[str]) -> None:
    """Also if the database gets to it: its operator was told that nothing has changed."""
    async with front(replicas, f"sqlite:///{tmp_path}/store.db") as client:
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as database:
            await asyncio.sleep(0.5)  # the writes of its start, behind which the drain would not even begin
            database.execute("BEGIN IMMEDIATE")
            answer = await client.post("/v1/replicas/drain", json={"replica": replicas[0]})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_error")
        answer = await client.post("/v1/replicas/drain", json={"replica": replicas[1]})  # after that one
        assert answer.status_code == 200
        assert [replica["status"] for replica in await client.replicas()] == ["up", "drained"]


@pytest.mark.parametrize("hangs", [False, True])
async def test_without_the_database_each_server_counts_its_own_work(
    tmp_path: Path, replicas: list[str], monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    async def away(*_: Any, **__: Any) -> Any:
        if hangs:
            await asyncio.sleep(60)
        raise StoreError

    store = f"sqlite:///{tmp_path}/store.db"
    async with two(replicas, store) as (one, other):
        drained = await other.post("/v1/replicas/drain", json={"replica": replicas[1]})
        assert drained.status_code == 200
        async with one.ask("slow"):
            await other.until(NOTICED * 2, lambda listed: listed[0]["elsewhere"] == 1)
            with capture_logs() as logs, monkeypatch.context() as patch:
                patch.setattr(shared_replicas, "QUESTION_SECONDS", 0.1)
                patch.setattr(SqlReplicas, "tell", away)
                patch.setattr(SqlReplicas, "read", away)
                await other.until(LEASE_SECONDS + 1, lambda listed: listed[0]["elsewhere"] == 0)
                async with other.ask("Hi") as answer:
                    assert answer.status_code == 200
                assert [replica["status"] for replica in await other.replicas()] == ["up", "drained"]
                metrics = (await other.get("/metrics")).text
            await other.until(NOTICED * 3, lambda listed: listed[0]["elsewhere"] == 1)
    warned = [log for log in logs if log["log_level"] == "warning"]
    assert len(warned) == 2  # once a server
    assert all("does not answer: replicas" in log["event"] for log in warned)
    assert 'antiphon:replica_questions_total{outcome="unanswered"} ' in metrics
    assert 'antiphon:replica_questions_total{outcome="unanswered"} 0.0' not in metrics


async def test_an_idle_server_asks_nothing_and_one_alone_seldom(
    replicas: list[str], postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def count(name: str) -> None:
        method = getattr(SqlReplicas, name)

        async def counted(self: SqlReplicas, *args: Any, **more: Any) -> Any:
            questions.append(name)
            return await method(self, *args, **more)

        monkeypatch.setattr(SqlReplicas, name, counted)

    for name in ("tell", "read"):
        count(name)
    async with front(replicas, postgresql_url) as client:
        await asyncio.sleep(1)  # what it asks when it starts, and is connected, is over
        questions.clear()
        await asyncio.sleep(1)
        assert questions == []
        async with client.ask("slow"):
            for _ in range(10):
                async with client.ask("Hi") as answer:
                    await answer.aread()
                await asyncio.sleep(0.1)
        await asyncio.sleep(1.5)
        assert questions.count("tell") <= 4
        assert len(questions) <= 6
        questions.clear()
        await asyncio.sleep(0.6)
        assert questions == []


async def test_without_a_database_a_drain_is_of_one_server(replicas: list[str]) -> None:
    async with front(replicas, "none") as one, front(replicas, "none") as other:
        await one.post("/v1/replicas/drain", json={"replica": replicas[0]})
        [drained, _] = await one.replicas()
        assert drained["status"] == "drained"
        assert drained["drained_by"]
        await asyncio.sleep(2 * shared_replicas.TICK_SECONDS)
        assert [replica["status"] for replica in await other.replicas()] == ["up", "up"]
        await one.post("/v1/replicas/resume", json={"replica": replicas[0]})
        assert [replica["status"] for replica in await one.replicas()] == ["up", "up"]


async def test_the_work_of_a_server_that_was_killed_vanishes(tmp_path: Path, replicas: list[str]) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    options = ("--upstream-kind", "chat", "--store", store, "--model-name", "scripted", "--port", "0")
    with serving(tmp_path, replicas[0], "--replica", replicas[1], *options) as process:
        url = await asyncio.to_thread(lambda: process.url)
        async with (
            front(replicas, store) as client,
            httpx.AsyncClient(verify=NO_TLS, base_url=url, timeout=30) as asking,
        ):
            body = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "slow"}]}
            async with asking.stream("POST", "/v1/chat/completions", json=body) as answer:
                assert answer.status_code == 200
                await client.until(NOTICED * 2, lambda listed: sum(r["elsewhere"] for r in listed) == 1)
                process.kill()
                killed = time.monotonic()
                await client.until(LEASE_SECONDS + 1, lambda listed: not sum(r["elsewhere"] for r in listed))
                assert time.monotonic() - killed <= LEASE_SECONDS + 0.5
