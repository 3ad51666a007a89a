"""Writes of other processes are seen, whatever becomes of the write-ahead log meanwhile; own ones wake nobody."""

import asyncio
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random

import pytest

from antiphon.store import sqlite
from antiphon.store.open import open_store
from antiphon.store.records import StoreTuning
from antiphon.store.store import JOBS, Store
from antiphon.store.watch import Signal
from tests.store.samples import TIMEOUT, response

POLL = 0.01

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
for line in sys.stdin:
    print(connection.execute(line).fetchall(), flush=True)
"""
COMMITS = ["INSERT INTO looks VALUES (1)", "UPDATE looks SET x = 1 - x"]
CHECKPOINTS = [f"PRAGMA wal_checkpoint({kind})" for kind in ("PASSIVE", "RESTART", "TRUNCATE")]


class Writer:
    """Another process that writes, one statement after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        self.stdin, self.stdout = process.stdin, process.stdout

    def begin(self, statement: str) -> None:
        self.stdin.write(statement.encode() + b"\n")

    async def do(self, statement: str) -> None:
        self.begin(statement)
        assert (await self.stdout.readline()).startswith(b"[")


@asynccontextmanager
async def writer(path: Path) -> AsyncIterator[Writer]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, path, stdin=pipe, stdout=pipe
    )
    try:
        yield Writer(process)
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()


@pytest.fixture(params=["WAL", "DELETE"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in each journal mode: where processes cannot share memory, SQLite keeps no write-ahead log."""
    pragmas = (f"journal_mode = {request.param}", *sqlite._PRAGMAS[1:])
    monkeypatch.setattr(sqlite, "_PRAGMAS", pragmas)
    return tmp_path / "store.db"


@asynccontextmanager
async def opened(path: Path, timeout: float = 5) -> AsyncIterator[tuple[Store, Signal]]:  # noqa: ASYNC109
    store = await open_store(
        f"sqlite:///{path}", tuning=StoreTuning(poll=POLL, longest_poll=4 * POLL, timeout=timeout)
    )
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE looks (x); INSERT INTO looks VALUES (1);")
    try:
        with store.watch(JOBS) as watch:
            assert isinstance(watch, Signal)
            assert await watch.changed(TIMEOUT)  # the table
            yield store, watch
    finally:
        await store.close()


looks = 0
"""How often a store has looked at its file."""


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    look = sqlite._Looker.has_changed

    def counting(looker: sqlite._Looker) -> bool:
        global looks  # noqa: PLW0603
        looks += 1
        return look(looker)

    monkeypatch.setattr(sqlite._Looker, "has_changed", counting)


async def woken(watch: Signal) -> bool:
    """Whether something that was just done wakes: it does before the second look after it."""
    before = looks
    while looks < before + 2:
        await asyncio.sleep(POLL / 2)
    return await watch.changed(0)


async def play(path: Path, seed: int, steps: int) -> None:
    """Write here and there, and check after each step who is woken."""
    rng = Random(seed)
    async with opened(path) as (store, watch), writer(path) as one, writer(path) as other:
        for step in range(steps):
            act, by = rng.choice(("commit", "commit", "checkpoint", "own")), rng.choice((one, other))
            if act == "commit":
                await by.do(rng.choice(COMMITS))
                assert await woken(watch), f"missed in step {step}"
            elif act == "checkpoint":
                await by.do(rng.choice(CHECKPOINTS))
                await woken(watch)  # a log that begins anew looks like a change
            else:
                await store.responses.create(response(f"resp_{step}"), ())
                assert not await woken(watch), f"an own write has woken in step {step}"


async def test_it_looks_less_often_until_others_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(sqlite.asyncio, "sleep", pause)
    async with opened(path) as (_, watch), writer(path) as other:
        while pauses[-3:] != [4 * POLL] * 3:
            await sleep(POLL)
        await other.do(COMMITS[0])
        assert await watch.changed(TIMEOUT)
        count = len(pauses)
        while len(pauses) < count + 3:
            await sleep(POLL)
    rising = pauses[pauses.index(POLL, 1) :]
    assert rising[:3] == [POLL, 2 * POLL, 4 * POLL]


@pytest.mark.parametrize("seed", range(2))
async def test_each_write_of_another_process_wakes_and_own_ones_do_not(path: Path, seed: int) -> None:
    await play(path, seed, 40)


async def test_the_last_of_many_writes_is_not_missed(path: Path) -> None:
    async with opened(path) as (store, watch), writer(path) as one, writer(path) as other:
        for number in range(60):
            for by in (one, other):
                by.begin(COMMITS[0])
            if number % 20 == 0:
                await store.responses.create(response(f"resp_{number}"), ())
        with closing(sqlite3.connect(path)) as reader:
            while reader.execute("SELECT count(*) FROM looks").fetchone() != (121,):
                assert await watch.changed(TIMEOUT)


class _Sizes(sqlite._Looker):
    """A fault: it looks at the size of the log, which stays when the log begins anew."""

    def __init__(self, path: Path) -> None:
        self._log = path.with_name(f"{path.name}-wal")
        super().__init__(path)

    def _version(self) -> int | None:
        return self._log.stat().st_size if self._log.exists() else None


@pytest.mark.parametrize("path", ["WAL"], indirect=True)
async def test_the_law_finds_a_look_at_sizes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_Looker", _Sizes)
    with pytest.raises(AssertionError, match="missed"):
        await play(path, 0, 40)


@pytest.mark.parametrize("path", ["DELETE"], indirect=True)
async def test_a_file_that_is_locked_is_waited_for_elsewhere(path: Path) -> None:
    async with opened(path, timeout=0.1) as (_, watch), writer(path) as other:
        await other.do("BEGIN EXCLUSIVE")
        looker = sqlite._Looker(path)
        begun = time.monotonic()
        assert looker.has_changed()  # perhaps
        assert time.monotonic() - begun < 1  # or else the event loop would be held up
        looker.close()
        assert await watch.changed(TIMEOUT)
        await other.do(COMMITS[0])
        await other.do("COMMIT")
        assert await watch.changed(TIMEOUT)
