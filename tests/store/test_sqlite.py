"""The contract on a file, and what is only SQLite's."""

import asyncio
import os
import resource
import signal
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from antiphon.core.errors import StoreError
from antiphon.store.open import default_path, open_store
from antiphon.store.records import ResponseStatus, StoreTuning, Verdict
from antiphon.store.sqlite import Sqlite
from antiphon.store.store import JOBS, Store, events_of
from tests.contracts.store import SharedStoreContract
from tests.store.samples import (
    OWNER,
    append,
    entry,
    items,
    job,
    leased,
    names,
    response,
    response_end,
)

FINISH = """
import asyncio, sys, time
from antiphon.store.open import open_store
from tests.store.samples import *

async def main():
    store = await open_store(sys.argv[1])
    await store.responses.create(leased(), items("a"))
    await store.log.append(append(entry(0)))
    await store.responses.finish(response_end(output=items("b"), entries=(entry(1),)))
    print("finished", flush=True)
    time.sleep(600)  # nothing is closed, nothing more is written

asyncio.run(main())
"""

OPEN = """
import asyncio, sys
from antiphon.store.open import open_store
from tests.store.samples import *

async def main():
    store = await open_store(sys.argv[1])
    await store.responses.create(response(sys.argv[2]), ())
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    store = await open_store(f"sqlite:///{path}", tuning=StoreTuning(timeout=0.1))
    yield store
    await store.close()


async def program(source: str, *arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-c", source, *arguments, stdout=pipe)


class TestSqlite(SharedStoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/new folder/100%/store.db"


async def test_what_was_written_survives_a_kill(path: Path):
    writer = await program(FINISH, f"sqlite:///{path}")
    assert writer.stdout
    assert await writer.stdout.readline() == b"finished\n"
    writer.send_signal(signal.SIGKILL)
    await writer.wait()

    store = await open_store(f"sqlite:///{path}")
    record = await store.responses.get(OWNER, "resp_1")
    assert record is not None
    assert (record.status, record.last_seq) == (ResponseStatus.COMPLETED, 1)
    assert names(await store.responses.history(OWNER, "resp_1")) == ["a", "b"]
    assert await store.log.read("resp_1") == [entry(0), entry(1)]
    await store.close()


async def test_nothing_is_written_into_a_file_that_was_deleted_or_replaced(path: Path):
    """Nobody would find it there."""
    store = await open_store(f"sqlite:///{path}")
    await store.responses.create(response("resp_1"), ())
    aside = path.with_name("aside")
    os.rename(path, aside)
    with pytest.raises(StoreError):
        await store.responses.create(response("resp_2"), ())
    with pytest.raises(StoreError):
        await store.check_writable()
    os.close(os.open(path, os.O_CREAT))
    with pytest.raises(StoreError):
        await store.check_writable()
    os.replace(aside, path)
    await store.responses.create(response("resp_3"), ())
    await store.close()


async def test_processes_that_open_a_new_file_at_once(path: Path):
    programs = [await program(OPEN, f"sqlite:///{path}", f"r{index}") for index in range(4)]
    assert [await process.wait() for process in programs] == [0] * 4
    store = await open_store(f"sqlite:///{path}")
    assert [await store.responses.get(OWNER, f"r{index}") for index in range(4)].count(None) == 0
    await store.close()


async def test_another_process_wakes_who_waits(path: Path, store: Store):
    with store.watch(events_of("any")) as waiting:
        process = await program(OPEN, f"sqlite:///{path}", "r")
        assert await waiting.changed(30)
        assert await process.wait() == 0


async def test_own_writes_wake_nobody_else(store: Store):
    with store.watch(JOBS) as jobs:
        await store.responses.create(response(), ())
        assert not await jobs.changed(0.6)  # longer than two looks at the file


async def test_only_the_user_may_read_it(tmp_path: Path):
    path = tmp_path / "a" / "b" / "store.db"
    store = await open_store(f"sqlite:///{path}")
    await store.responses.create(response(), ())
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    files = sorted(file.name for file in path.parent.iterdir())
    assert files == ["store.db", "store.db-shm", "store.db-wal"]
    for name in files:
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600
    await store.close()
    assert os.listdir(path.parent) == ["store.db"]


async def test_a_locked_file_is_an_error_until_it_is_free(path: Path, store: Store):
    await store.responses.create(leased(), ())
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError):
            await store.log.append(append(entry(0)))
        assert await store.responses.get(OWNER, "resp_1") == leased()  # reads need no lock
        other.execute("ROLLBACK")
    assert await store.log.append(append(entry(0))) == [Verdict.ACCEPTED]


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """No file of this process may become larger than the database's log is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{path}-wal").stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_is_an_error_until_there_is_room(path: Path, store: Store):
    await store.responses.create(leased(), items("a"))
    with full_disk(path):
        for _ in range(2):
            with pytest.raises(StoreError):
                await store.responses.finish(response_end(output=items("b"), entries=(entry(0),)))
            assert await store.responses.get(OWNER, "resp_1") == leased()
            with pytest.raises(StoreError):
                await store.responses.create(job("resp_2"), ())
    assert await store.responses.get(OWNER, "resp_2") is None
    end = response_end(output=items("b"), entries=(entry(0),))
    assert await store.responses.finish(end) is Verdict.ACCEPTED
    assert names(await store.responses.history(OWNER, "resp_1")) == ["a", "b"]


def test_a_file_that_is_no_database(path: Path):
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(StoreError):
        asyncio.run(open_store(f"sqlite:///{path}"))
    assert path.read_bytes() == b"something else entirely" * 100


async def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        await open_store(f"sqlite:///{tmp_path}/file/store.db")


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="the folder is XDG's")
async def test_the_default_file_is_in_the_users_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_path() == tmp_path / ".local/share/antiphon/store.db"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    store = await open_store("sqlite")
    await store.close()
    assert (tmp_path / "data/antiphon/store.db").exists()


def test_a_file_whose_first_statement_fails_is_closed(path: Path):
    path.write_bytes(b"no database at all" * 100)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(
        sqlite3.DatabaseError, match="not a database"
    ) as kept:  # its frames refer to the connection
        Sqlite(path, StoreTuning(timeout=0.1))._connect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert kept
