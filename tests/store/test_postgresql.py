"""The contract on PostgreSQL, and what is only PostgreSQL's."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from antiphon.core.errors import StoreError
from antiphon.core.shared_limits import Question, Taken
from antiphon.store import postgresql
from antiphon.store.open import open_store
from antiphon.store.records import StoreTuning, Verdict
from antiphon.store.store import Store, events_of
from tests.contracts.store import SharedStoreContract
from tests.store.samples import OWNER, append, entry, items, job, leased, response

CLAIM = """
import asyncio, sys
from antiphon.store.open import open_store
from tests.store.samples import *

async def main():
    store = await open_store(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(13):  # so many that a process which is late gets some
        for record in await store.jobs.claim(sys.argv[2], NOW, 10, 3):
            print(record.id, flush=True)
    await store.close()

asyncio.run(main())
"""


class TestPostgresql(SharedStoreContract):
    @pytest.fixture
    def url(self, postgresql_url: str) -> str:
        return postgresql_url


@pytest.fixture
async def store(postgresql_url: str) -> AsyncIterator[Store]:
    store = await open_store(postgresql_url, tuning=StoreTuning(timeout=2, poll=0.1))
    yield store
    await store.close()


async def test_two_processes_claim_each_job_once(postgresql_url: str, store: Store):
    ids = [f"resp_{index}" for index in range(60)]
    await asyncio.gather(*(store.responses.create(job(name), ()) for name in ids))
    pipe = asyncio.subprocess.PIPE
    workers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLAIM, postgresql_url, name, stdin=pipe, stdout=pipe
        )
        for name in ("a", "b")
    ]
    for worker in workers:
        assert worker.stdout
        assert await worker.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(worker.communicate(b"\n") for worker in workers))
    taken = [output.decode().split() for output, _ in outputs]
    assert all(taken)  # both got some
    assert sorted(taken[0] + taken[1]) == sorted(ids)
    for name, claimed in zip("ab", taken, strict=True):
        beat = await store.jobs.heartbeat(name, ids, 0, 1)
        assert beat.lost == set(ids) - set(claimed)


async def test_a_server_that_goes_away_and_comes_back(postgresql_server: Any, store: Store):
    await store.responses.create(leased(), items("a"))
    with store.watch(events_of("resp_1")) as waiting:
        await asyncio.to_thread(postgresql_server.stop)
        try:
            assert await waiting.changed(30)  # a waiting reader checks again
            for _ in range(2):
                with pytest.raises(StoreError):
                    await store.responses.get(OWNER, "resp_1")
                with pytest.raises(StoreError):
                    await store.log.append(append(entry(0)))
        finally:
            await asyncio.to_thread(postgresql_server.start)
        assert await store.responses.get(OWNER, "resp_1") == leased()
        assert await store.log.append(append(entry(0))) == [Verdict.ACCEPTED]
        assert await store.log.read("resp_1") == [entry(0)]


async def test_it_listens_again_after_the_server_was_away(
    postgresql_server: Any, postgresql_url: str, store: Store
):
    other = await open_store(postgresql_url)
    await store.responses.create(leased(), ())
    await asyncio.to_thread(postgresql_server.stop)
    await asyncio.to_thread(postgresql_server.start)
    with store.watch(events_of("resp_1")) as waiting:
        async with asyncio.timeout(30):
            while await waiting.changed(1):  # until it listens and is quiet
                pass
        await other.log.append(append(entry(0)))
        assert await waiting.changed(30)
    await other.close()


@pytest.mark.parametrize("first", ["SET no_such_setting = off", "SELECT pg_sleep(60)"])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_connection_whose_first_statement_does_not_succeed_is_closed(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch, first: str, cancelled: bool
):
    made: list[asyncpg.Connection] = []
    connect = asyncpg.connect

    async def kept(*args: Any, **options: Any) -> asyncpg.Connection:
        made.append(await connect(*args, **options))
        return made[-1]

    monkeypatch.setattr(asyncpg, "connect", kept)
    monkeypatch.setattr(postgresql, "_BY_KEYS", first)
    backend = postgresql.Postgresql(postgresql_url, StoreTuning(timeout=0.5))
    reading = asyncio.ensure_future(backend._connect())
    while not made:
        await asyncio.sleep(0.001)
    if cancelled:
        reading.cancel()
    with pytest.raises((asyncpg.PostgresError, TimeoutError, asyncio.CancelledError)):
        await reading
    assert [each.is_closed() for each in made] == [True]


async def test_a_server_that_is_not_there(postgresql_server: Any):
    with pytest.raises(StoreError):
        await open_store("postgresql://postgres@127.0.0.1:1/none")
    with pytest.raises(StoreError):
        await open_store(postgresql_server.get_uri(database="none"))


async def test_lost_connections_are_replaced(postgresql_server: Any, store: Store):
    await store.responses.create(response(), ())
    assert await store.responses.get(OWNER, "resp_1") == response()
    others = "FROM pg_stat_activity WHERE datname LIKE 'test_%' AND pid <> pg_backend_pid()"
    ended = postgresql_server.psql(f"SELECT pg_terminate_backend(pid) {others};")
    # One that reads, one that writes, one that listens; PostgreSQL may still be ending those of
    # the test before.
    assert len([line for line in ended.splitlines() if line.strip() == "t"]) >= 3
    assert await store.responses.get(OWNER, "resp_1") == response()
    await store.responses.create(response("resp_2"), ())


async def test_servers_that_ask_for_many_limits_at_once_do_not_wait_in_a_circle(
    postgresql_server: Any, postgresql_url: str, store: Store
) -> None:
    """Each locks the rows in the same order. PostgreSQL counts the circles that it has to break."""
    other = await open_store(postgresql_url)
    owners = [f"owner {number}" for number in range(20)]
    circles = "SELECT 'circles', sum(deadlocks) FROM pg_stat_database;"
    before = postgresql_server.psql(circles)
    for _ in range(3):
        asking = [
            each.key_limits.take(name, Question(owner, "tokens", 600, 0, 1, 1))
            for name, each, order in (("one", store, owners), ("other", other, owners[::-1]))
            for owner in order
        ]
        holding = [other.key_limits.hold("other", owner, 5, 1, 60) for owner in owners]
        taken = await asyncio.gather(*asking, *holding)
        assert [answer.amount for answer in taken[:40] if isinstance(answer, Taken)] == [1] * 40
    await other.close()
    assert postgresql_server.psql(circles) == before
