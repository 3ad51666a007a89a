"""Indexing continues when a server crashes."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from antiphon.app.indexing import ATTEMPTS
from antiphon.core.errors import EngineBusyError
from antiphon.run.bounded import BoundedPool
from antiphon.run.documents import TextChunk
from antiphon.store.open import open_store
from antiphon.store.records import IndexedFile, IndexStatus
from antiphon.store.store import Store
from tests.endless import endless
from tests.run.support import until
from tests.server import running
from tests.store.parts.files import uploaded
from tests.store.parts.vector_stores import indexed, vector_store
from tests.store.samples import OWNER, TIMEOUT

LEASE = 0.2

DYING = """
import asyncio, os, signal, sys, time
from antiphon.store.open import open_store
from antiphon.store.records import NewChunk

async def main():
    store = await open_store(sys.argv[1])
    worker = f"dead {os.getpid()}"
    claimed = await store.vector_stores.claim(worker, time.time(), float(sys.argv[2]))
    await store.vector_stores.add_chunks(worker, claimed.key, [NewChunk(0, "half of it", "half")])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


async def prepare(url: str, content: bytes = b"whole text", files: int = 1) -> None:
    """A vector store with files that wait."""
    store = await open_store(url)
    names = [f"file_{number}" for number in range(1, files + 1)]
    for name in names:
        await uploaded(store, name, content)
    await store.vector_stores.create(vector_store(), [*map(indexed, names)])
    await store.close()


async def ended(store: Store, name: str = "file_1") -> IndexedFile:
    async with asyncio.timeout(TIMEOUT):
        while True:
            record = await store.vector_stores.file(OWNER, "vs_1", name)
            if record.status is not IndexStatus.IN_PROGRESS:
                return record
            await asyncio.sleep(0.01)


async def die(url: str) -> None:
    """A server that is killed in the middle of a file."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", DYING, url, str(LEASE))
    assert await process.wait() == -signal.SIGKILL


async def test_another_server_indexes_what_a_killed_one_had_begun(url: str):
    await prepare(url)
    await die(url)
    async with running([{"output": "Hi"}], store=url, lease_seconds=LEASE) as server:
        store = server.app.storage.store
        assert (await ended(store)).status == "completed"
        assert await store.vector_stores.texts(OWNER, "vs_1", "file_1") == ["whole text"]


async def test_a_file_that_ends_every_server_is_left_out(url: str):
    await prepare(url)
    for _ in range(ATTEMPTS):
        await die(url)
        await asyncio.sleep(LEASE)
    async with running([{"output": "Hi"}], store=url, lease_seconds=LEASE) as server:
        store = server.app.storage.store
        record = await ended(store)
        assert record.status == "failed"
        assert b"invalid_file" in (record.error or b"")
        assert await store.vector_stores.texts(OWNER, "vs_1", "file_1") == []


async def test_a_server_that_stops_gives_its_files_back(url: str):
    await prepare(url, b"word " * 400_000)
    async with running([{"output": "Hi"}], store=url, lease_seconds=600) as server:
        store = server.app.storage.store
        async with asyncio.timeout(TIMEOUT):
            while await store.vector_stores.claim("w", 0.0, 1.0) is not None:
                await store.vector_stores.release("w")
    async with running([{"output": "Hi"}], store=url, lease_seconds=600) as server:
        assert (await ended(server.app.storage.store)).status == "completed"


async def test_a_server_that_stops_leaves_its_files_to_the_next(url: str, monkeypatch: pytest.MonkeyPatch):
    """One is read, the other waits for its process: the stop cancels both in one turn, and ends."""

    async def forever(pool: BoundedPool, *_: object) -> list[TextChunk]:
        return await pool.run("file", endless)

    await prepare(url, files=2)
    with monkeypatch.context() as patch:
        patch.setattr("antiphon.app.indexing.read_chunks", forever)
        async with (
            asyncio.timeout(TIMEOUT),
            running([{"output": "Hi"}], store=url, lease_seconds=600) as server,
        ):
            permits = server.worker.indexer.pool.permits
            await until(lambda: (permits.running, permits.waiting) == (1, 1))
        assert (permits.running, permits.waiting) == (0, 0)
    async with running([{"output": "Hi"}], store=url, lease_seconds=600) as server:
        for name in ("file_1", "file_2"):
            assert (await ended(server.app.storage.store, name)).status == "completed"


async def test_what_fails_because_the_server_stops_says_nothing_of_the_file(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    begun = asyncio.Event()

    async def broken(*_: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise ZeroDivisionError from error

    await prepare(url)
    with monkeypatch.context() as patch:
        patch.setattr("antiphon.app.indexing.read_chunks", broken)
        async with asyncio.timeout(TIMEOUT), running([{"output": "Hi"}], store=url, lease_seconds=600):
            await begun.wait()
    async with running([{"output": "Hi"}], store=url, lease_seconds=600) as server:
        assert (await ended(server.app.storage.store)).status == "completed"


async def test_a_file_waits_as_long_as_the_model_is_busy(url: str, monkeypatch: pytest.MonkeyPatch):
    """Only servers that crash are counted."""
    tries = 0

    async def busy(*_: object) -> list[TextChunk]:
        nonlocal tries
        tries += 1
        if tries <= ATTEMPTS + 1:
            raise EngineBusyError
        return [TextChunk("at last", "last")]

    await prepare(url)
    monkeypatch.setattr("antiphon.app.indexing.read_chunks", busy)
    async with running([{"output": "Hi"}], store=url, lease_seconds=0.05) as server:
        assert (await ended(server.app.storage.store)).status == "completed"
    assert tries == ATTEMPTS + 2


async def test_a_failure_of_ours_is_told_without_its_cause(url: str, monkeypatch: pytest.MonkeyPatch):
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    await prepare(url)
    monkeypatch.setattr("antiphon.app.indexing.read_chunks", broken)
    async with running([{"output": "Hi"}], store=url, lease_seconds=LEASE) as server:
        record = await ended(server.app.storage.store)
    assert record.status == "failed"
    assert b"server_error" in (record.error or b"")
    assert b"secret" not in (record.error or b"")


async def test_a_file_that_is_detached_meanwhile(url: str, monkeypatch: pytest.MonkeyPatch):
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> list[TextChunk]:
        reading.set()
        await go_on.wait()
        return [TextChunk("late", "late")]

    await prepare(url)
    monkeypatch.setattr("antiphon.app.indexing.read_chunks", slow)
    async with running([{"output": "Hi"}], store=url) as server:
        store = server.app.storage.store
        async with asyncio.timeout(TIMEOUT):
            await reading.wait()
        await store.vector_stores.detach(OWNER, "vs_1", "file_1")
        go_on.set()
        await store.sweep(0.0)
        page = await store.vector_stores.postings(OWNER, ["vs_1"], ["late"])
        assert page.chunks == []
