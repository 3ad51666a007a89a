"""Readers of a stored response: they get all that they have not seen, in order, while it is written or later."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.apis.responses.errors import encode_stream_error
from antiphon.app import log_source
from antiphon.app import log_writer as writing
from antiphon.app.log_source import LogProjection, LogSource
from antiphon.app.log_writer import LogWriter
from antiphon.core.errors import EngineNotReadyError, NotFoundError, StoreError
from antiphon.run import drive
from antiphon.run.drive import CLIENT, Driver
from antiphon.run.endings import ClientLeftError
from antiphon.store.open import open_store
from tests.app.support import (
    Outage,
    Reader,
    ended,
    log_of,
    queue,
    read,
    serving,
    until_written,
)
from tests.run.support import until
from tests.search import examples
from tests.store.samples import OWNER, response

TEXT = "One two three four five six seven eight nine ten."
SCRIPT = (
    {"when": "slow", "output": TEXT, "delay_ms": 4},
    {"when": "endless", "output": "word ", "tokens": 20_000, "delay_ms": 2},
    {"output": TEXT},
)


async def test_a_reader_of_nothing(store: Outage) -> None:
    async with serving(store, SCRIPT) as server:
        with pytest.raises(NotFoundError):
            await read(server.writer)
        await queue(server.app)
        await ended(store)
        with pytest.raises(NotFoundError):
            await read(server.writer, owner="somebody else")


@given(st.integers(-1, 30))
@settings(max_examples=examples(10))
async def test_a_reader_gets_what_it_has_not_seen(after: int) -> None:
    store = await open_store("memory")
    async with serving(store, SCRIPT) as server:
        await queue(server.app)
        await ended(store)
        assert await read(server.writer, after=after) == (await log_of(store))[after + 1 :]
    await store.close()


async def test_a_reader_of_much_gets_it_in_pieces(store: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (drive, log_source):
        monkeypatch.setattr(part, "LARGE", 3000)
    async with serving(store, SCRIPT) as server:
        await queue(server.app)
        await ended(store)
        reader = Pieces()
        source = LogSource(server.writer, OWNER, "resp_1")
        await Driver(source, LogProjection(encode_stream_error)).run(reader)
        assert reader.lines == await log_of(store)
        assert all(len(piece) == 1 or sum(map(len, piece)) <= 3000 for piece in reader.pieces)
        assert len(set(reader.rounds)) == len(reader.rounds) > 2


class Pieces(Reader):
    """It notes the pieces that it gets, and in which round of the event loop each came."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[list[bytes]] = []
        self.rounds: list[int] = []
        self._round = 0

    def _next(self) -> None:
        self._round += 1

    def write(self, lines: list[bytes]) -> None:
        super().write(lines)
        self.pieces.append(lines)
        self.rounds.append(self._round)
        asyncio.get_running_loop().call_soon(self._next)


async def test_a_reader_waits_for_the_store(store: Outage) -> None:
    async with serving(store, SCRIPT) as server, serving(store, SCRIPT, works=False) as other:
        await queue(server.app, "slow")
        reading = asyncio.create_task(read(other.writer))
        await until_written(store, 8)
        other.store.away = True
        calls = len(other.store.calls)
        await until(lambda: len(other.store.calls) > calls + 2)
        other.store.away = False
        await ended(store)
        assert await reading == await log_of(store)


async def test_a_reader_that_waited_too_long_for_the_store_is_told(
    store: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "STORE_TIMEOUT", 0.02)
    async with serving(store, SCRIPT) as server, serving(store, SCRIPT, works=False) as other:
        await queue(server.app, "endless")
        reading = asyncio.create_task(read(other.writer))
        await until_written(store, 8)
        other.store.away = True
        with pytest.raises(StoreError):
            await reading


async def test_a_reader_that_cannot_begin_is_told(store: Outage) -> None:
    async with serving(store, SCRIPT) as server:
        await queue(server.app)
        server.store.away = True
        with pytest.raises(StoreError):
            await read(server.writer)


async def test_readers_beside_the_worker_get_what_it_has_just_written(store: Outage) -> None:
    """Without a look into the store for each batch, also where the machine is busy with something else."""
    async with serving(store, SCRIPT) as server:
        await queue(server.app, "slow")
        await until_written(store, 4)
        begins = (-1, 0, 2, 3, 7)
        readers = [asyncio.create_task(read(server.writer, after=after)) for after in begins]
        await ended(store)
        lines = await log_of(store)
        for after, reader in zip(begins, readers, strict=True):
            assert await reader == lines[after + 1 :]
        entries = await store.log.read("resp_1")
        assert server.store.calls.count("log.events_after") < len(begins) * len(entries) * 9 / 10


async def test_a_reader_of_a_server_that_stops(store: Outage) -> None:
    async with serving(store, SCRIPT) as server:
        await queue(server.app, "endless")
        await until_written(store, 5)
        reading = asyncio.create_task(read(server.writer))
        await asyncio.sleep(0.05)
        await server.worker.release()
        with pytest.raises(EngineNotReadyError):
            await reading


async def test_a_reader_of_a_response_that_is_deleted(store: Outage) -> None:
    async with serving(store, SCRIPT) as server:
        await queue(server.app, "endless")
        await until_written(store, 5)
        reading = asyncio.create_task(read(server.writer))
        await asyncio.sleep(0.05)
        await store.responses.delete(OWNER, "resp_1")
        with pytest.raises(NotFoundError):
            await reading


async def test_a_reader_that_hears_of_a_batch_and_the_deletion_at_once(
    store: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_source, "LOCAL_POLL_INTERVAL", 0.02)
    monkeypatch.setattr(
        LogWriter, "fresh", lambda _, __, after: [b'{"sequence_number":0}'] if after < 0 else []
    )
    await store.responses.create(response(), ())
    reading = asyncio.create_task(read(LogWriter(store)))
    await asyncio.sleep(0.05)
    await store.responses.delete(OWNER, "resp_1")
    async with asyncio.timeout(10):
        with pytest.raises(NotFoundError):
            await reading


async def test_a_reader_that_leaves_stops_nothing_but_itself(store: Outage) -> None:
    class Leaving(Reader):
        def attach(self, driver: Driver) -> None:
            self.driver = driver

    async with serving(store, SCRIPT) as server:
        await queue(server.app, "slow")
        reader = Leaving()
        driver = Driver(LogSource(server.writer, OWNER, "resp_1"), LogProjection(encode_stream_error))
        reading = asyncio.create_task(driver.run(reader))
        await until(lambda: reader.lines)
        driver.stop(ClientLeftError())
        await reading
        assert (await ended(store)).status == "completed"


async def test_a_reader_that_does_not_read_is_waited_for(store: Outage) -> None:
    async with serving(store, SCRIPT) as server:
        await queue(server.app, "slow")
        reader = Reader()
        driver = Driver(LogSource(server.writer, OWNER, "resp_1"), LogProjection(encode_stream_error))
        reading = asyncio.create_task(driver.run(reader))
        await until(lambda: reader.lines)
        driver.pause(CLIENT)
        await ended(store)
        lines = await log_of(store)
        # Of what was stored meanwhile, it had at most one piece under way.
        seen = len(reader.lines)
        assert seen < len(lines)
        await asyncio.sleep(0.05)
        assert reader.lines == lines[:seen]
        driver.resume(CLIENT)
        await reading
        assert reader.lines == lines


def test_a_reader_that_cannot_go_on_is_told_so_in_its_stream() -> None:
    [line] = LogProjection(encode_stream_error).fail(EngineNotReadyError())
    event = json.loads(line)
    assert (event["type"], event["code"]) == ("error", "engine_not_ready")
