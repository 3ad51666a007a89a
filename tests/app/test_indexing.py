"""Indexing continues when a server crashes."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from antiphon.app.indexing import ATTEMPTS
from antiphon.store.open import open_store
from antiphon.store.records import IndexedFile, IndexStatus
from antiphon.store.store import Store
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
    claimed = await store.vector_stores.claim("dead", time.time(), float(sys.argv[2]))
    await store.vector_stores.add_chunks("dead", claimed.key, [NewChunk(0, "half of it", "half")])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


async def prepare(url: str, content: bytes = b"whole text") -> None:
    """A vector store with a file that waits."""
    store = await open_store(url)
    await uploaded(store, "file_1", content)
    await store.vector_stores.create(vector_store(), [indexed()])
    await store.close()


async def ended(store: Store) -> IndexedFile:
    async with asyncio.timeout(TIMEOUT):
        while True:
            record = await store.vector_stores.file(OWNER, "vs_1", "file_1")
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
    async with running([{"output": "Hi"}], store=url, lease=LEASE) as server:
        store = server.app.storage.store
        assert (await ended(store)).status == "completed"
        assert await store.vector_stores.texts(OWNER, "vs_1", "file_1") == ["whole text"]


async def test_a_file_that_ends_every_server_is_left_out(url: str):
    await prepare(url)
    for _ in range(ATTEMPTS):
        await die(url)
        await asyncio.sleep(LEASE)
    async with running([{"output": "Hi"}], store=url, lease=LEASE) as server:
        store = server.app.storage.store
        record = await ended(store)
        assert record.status == "failed"
        assert b"invalid_file" in (record.error or b"")
        assert await store.vector_stores.texts(OWNER, "vs_1", "file_1") == []


async def test_a_server_that_stops_gives_its_files_back(url: str):
    await prepare(url, b"word " * 400_000)
    async with running([{"output": "Hi"}], store=url, lease=600) as server:
        store = server.app.storage.store
        async with asyncio.timeout(TIMEOUT):
            while await store.vector_stores.claim("w", 0.0, 1.0) is not None:
                await store.vector_stores.release("w", [indexed().key])
    async with running([{"output": "Hi"}], store=url, lease=600) as server:
        assert (await ended(server.app.storage.store)).status == "completed"


async def test_a_failure_of_ours_is_told_without_its_cause(url: str, monkeypatch: pytest.MonkeyPatch):
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    await prepare(url)
    monkeypatch.setattr("antiphon.app.indexing.read_chunks", broken)
    async with running([{"output": "Hi"}], store=url, lease=LEASE) as server:
        record = await ended(server.app.storage.store)
    assert record.status == "failed"
    assert b"server_error" in (record.error or b"")
    assert b"secret" not in (record.error or b"")


async def test_a_file_that_is_detached_meanwhile(url: str, monkeypatch: pytest.MonkeyPatch):
    from antiphon.run.documents import TextChunk  # noqa: PLC0415

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
