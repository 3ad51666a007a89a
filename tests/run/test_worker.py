"""Background responses are worked on by one worker at a time, to their end, whatever happens to the worker."""

import asyncio
import json
import time
from array import array
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.errors import EngineBusyError, EngineNotReadyError, NotFoundError, StoreError
from antiphon.core.events import TextDelta
from antiphon.core.turn import Sampling
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run import record as recording
from antiphon.run import worker as module
from antiphon.run.follow import follow
from antiphon.run.model import Model
from antiphon.run.record import Desk
from antiphon.run.worker import CancelledByClientError, Job, LastWords, Worker
from antiphon.store.open import open_store
from antiphon.store.records import Append, Entry, Lease, ResponseRecord, ResponseStatus
from antiphon.store.store import Store
from tests.run.support import Diary, Outage, scripted, turn
from tests.store.samples import OWNER, response

LEASE = 0.3
TEXT = "One two three four five six seven eight nine ten."
SCRIPT = (
    {"when": "slow", "output": TEXT, "delay_ms": 4},
    {"when": "endless", "output": "word ", "tokens": 100_000, "delay_ms": 2},
    {"when": "breaks", "output": TEXT, "fail_after": 3},
    {"output": TEXT},
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "TICK", 0.002)
    monkeypatch.setattr(recording, "RETRY", 0.01)
    monkeypatch.setattr(module, "PAUSE", 0.01)


@pytest_asyncio.fixture
async def store() -> AsyncIterator[Outage]:
    store = await open_store("memory")
    yield Outage(store)
    await store.close()


class Server:
    """A worker with an engine of its own, and the store as this server sees it."""

    def __init__(self, store: Store, model: Model, lease: float = LEASE, jobs: int = 4) -> None:
        self.store = Outage(store)
        self.model = model
        self.refusal: Exception | None = None
        self.sampling = Sampling(temperature=0)
        self.prepared = 0
        self.worker = Worker(self._open, self._prepare, bury, jobs=jobs, lease=lease)

    @property
    def engine(self) -> ScriptedEngine:
        engine = self.model.engine
        assert isinstance(engine, ScriptedEngine)
        return engine

    async def _open(self) -> Any:
        return self.store

    async def _prepare(self, record: ResponseRecord) -> Job:
        self.prepared += 1
        if self.refusal:
            raise self.refusal
        return Job(turn(record.request.decode(), sampling=self.sampling), self.model, Diary())

    async def die(self) -> None:
        """As if killed: nothing more of it reaches the store."""
        self.store.away = True
        await self.worker.stop()


def bury(record: ResponseRecord, why: Exception) -> LastWords:
    cancelled = isinstance(why, CancelledByClientError)
    status = ResponseStatus.CANCELLED if cancelled else ResponseStatus.FAILED
    line = json.dumps({"n": record.last_seq + 1, "status": status, "why": type(why).__name__}).encode()
    return LastWords(status, json.dumps({"status": status}).encode(), [line])


@asynccontextmanager
async def serving(store: Store, **options: Any) -> AsyncIterator[Server]:
    server = Server(store, await scripted(*SCRIPT), **options)
    await server.worker.start()
    try:
        yield server
    finally:
        server.store.away = False
        await server.worker.stop()


async def queue(store: Store, request: str = "Hi", name: str = "resp_1", **changes: Any) -> str:
    record = response(
        name, status=ResponseStatus.QUEUED, background=True, request=request.encode(), created_at=time.time()
    )
    fields = {name: getattr(record, name) for name in record.__struct_fields__} | changes
    await store.responses.create(ResponseRecord(**fields), ())
    return name


async def found(store: Store, name: str = "resp_1") -> ResponseRecord:
    record = await store.responses.get(OWNER, name)
    assert record is not None
    return record


async def ended(store: Store, name: str = "resp_1") -> ResponseRecord:
    async with asyncio.timeout(20):
        while not (record := await found(store, name)).status.terminal:
            await asyncio.sleep(0.005)
    return record


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


async def until_written(store: Store, lines: int, name: str = "resp_1") -> None:
    async with asyncio.timeout(20):
        while (await found(store, name)).last_seq + 1 < lines:
            await asyncio.sleep(0.001)


def split(entries: Iterable[Entry]) -> list[bytes]:
    return [line for entry in entries for line in entry.events.split(b"\n")]


async def log_of(store: Store, name: str = "resp_1") -> list[bytes]:
    """The lines of a log, which are numbered without gaps."""
    entries = await store.log.read(name)
    assert [entry.first for entry in entries] == [0, *(entry.last + 1 for entry in entries[:-1])]
    lines = split(entries)
    assert [json.loads(line)["n"] for line in lines] == list(range(len(lines)))
    return lines


async def uninterrupted(request: str) -> list[bytes]:
    store = await open_store("memory")
    async with serving(store):
        await queue(store, request)
        await ended(store)
    lines = await log_of(store)
    await store.close()
    return lines


# Working


async def test_a_job_is_done(store: Outage) -> None:
    async with serving(store) as server:
        await queue(store, "slow")
        record = await ended(store)
        prompt = await server.model.prompt(turn("slow"))
    assert record.status is ResponseStatus.COMPLETED
    assert json.loads(record.body)["text"] == TEXT
    assert record.prompt_ids == array("i", prompt.ids).tobytes()
    assert record.lease is None
    *_, last = await log_of(store)
    assert json.loads(last)["status"] == "completed"


async def test_jobs_from_before_the_start_are_done(store: Outage) -> None:
    await queue(store)
    async with serving(store):
        assert (await ended(store)).status is ResponseStatus.COMPLETED


async def test_many_jobs_are_done_so_many_at_a_time(store: Outage) -> None:
    async with serving(store, jobs=3) as server:
        names = [await queue(store, "slow", f"resp_{number}") for number in range(9)]
        most = 0
        while not all([(await found(store, name)).status.terminal for name in names]):
            most = max(most, server.engine.active)
            await asyncio.sleep(0.001)
        assert most == 3
        for name in names:
            assert (await found(store, name)).status is ResponseStatus.COMPLETED
            await log_of(store, name)


async def test_an_engine_that_breaks_fails_the_response(store: Outage) -> None:
    async with serving(store):
        await queue(store, "breaks")
        assert (await ended(store)).status is ResponseStatus.FAILED
        *_, last = await log_of(store)
        assert "The script says" in json.loads(last)["error"]


async def test_what_cannot_be_prepared_fails(store: Outage) -> None:
    async with serving(store) as server:
        server.refusal = NotFoundError("The model is gone.")
        await queue(store)
        assert (await ended(store)).status is ResponseStatus.FAILED
        [line] = await log_of(store)
        assert json.loads(line)["why"] == "NotFoundError"


@pytest.mark.parametrize("refusal", [EngineNotReadyError(), EngineBusyError()])
async def test_what_cannot_be_done_now_is_done_later(store: Outage, refusal: Exception) -> None:
    async with serving(store) as server:
        server.refusal = refusal
        await queue(store)
        await until(lambda: server.prepared)
        assert not (await found(store)).status.terminal
        server.refusal = None
        assert (await ended(store)).status is ResponseStatus.COMPLETED


async def test_what_the_next_engine_refuses_fails(store: Outage) -> None:
    """Also before it has said again what was said."""
    await queue(store, "slow")
    async with serving(store) as first:
        await until_written(store, 8)
        await first.die()
    before = await log_of(store)
    async with serving(store) as second:
        second.sampling = Sampling(beam_width=4)
        assert (await ended(store)).status is ResponseStatus.FAILED
    lines = await log_of(store)
    assert lines[:-1] == before
    assert json.loads(lines[-1])["why"] == "RequestError"


async def test_a_tape_that_cannot_be_read_fails(store: Outage) -> None:
    await queue(store, lease=Lease("w", 1.0), status=ResponseStatus.IN_PROGRESS, prompt_ids=b"")
    entry = Entry(0, 0, b'{"n": 0}', b"\xc1nonsense")
    await store.log.append(Append(response_id="resp_1", worker="w", entries=(entry,)))
    async with serving(store):
        assert (await ended(store)).status is ResponseStatus.FAILED


# Cancelling


async def test_a_cancel_stops_the_engine(store: Outage) -> None:
    async with serving(store, lease=60) as server:
        await queue(store, "endless")
        await until_written(store, 5)
        await store.jobs.request_cancel(OWNER, "resp_1")
        assert (await ended(store)).status is ResponseStatus.CANCELLED
        assert server.engine.active == 0
        lines = await log_of(store)
        assert [line for line in lines if b"status" in line] == [lines[-1]]


async def test_a_cancel_before_the_claim(store: Outage) -> None:
    await queue(store, cancel_requested=True)
    async with serving(store) as server:
        assert (await ended(store)).status is ResponseStatus.CANCELLED
        assert server.engine.steps == 0
        assert json.loads((await log_of(store))[-1])["status"] == "cancelled"


async def test_a_cancel_between_two_workers(store: Outage) -> None:
    await queue(store, "endless")
    async with serving(store) as first:
        await until_written(store, 20)
        await first.die()
    await store.jobs.request_cancel(OWNER, "resp_1")
    before = await log_of(store)
    async with serving(store) as second:
        assert (await ended(store)).status is ResponseStatus.CANCELLED
        assert second.engine.steps == 0
    lines = await log_of(store)
    assert lines[:-1] == before
    assert json.loads(lines[-1])["status"] == "cancelled"


async def test_a_cancel_while_a_job_is_prepared(store: Outage) -> None:
    async with serving(store, lease=60) as server:
        preparing = asyncio.Event()

        async def prepare(record: ResponseRecord) -> Job:
            preparing.set()
            await asyncio.sleep(3600)
            raise AssertionError

        server.worker._prepare = prepare
        await queue(store)
        await preparing.wait()
        await store.jobs.request_cancel(OWNER, "resp_1")
        assert (await ended(store)).status is ResponseStatus.CANCELLED
        [line] = await log_of(store)
        assert json.loads(line)["status"] == "cancelled"


async def test_a_deleted_response_stops(store: Outage) -> None:
    async with serving(store, lease=60) as server:
        await queue(store, "endless")
        await until_written(store, 5)
        await store.responses.delete(OWNER, "resp_1")
        await until(lambda: server.engine.active == 0)
        await queue(store, name="resp_2")
        assert (await ended(store, "resp_2")).status is ResponseStatus.COMPLETED


# Leases


async def test_a_lease_is_kept_as_long_as_it_takes(store: Outage) -> None:
    """Also while a job is prepared, which may take a generation of its own."""
    async with serving(store) as first, serving(store) as second:
        preparing = first.worker._prepare

        async def prepare(record: ResponseRecord) -> Job:
            await asyncio.sleep(3 * LEASE)
            return await preparing(record)

        first.worker._prepare = prepare
        second.worker._prepare = prepare
        await queue(store)
        assert (await ended(store)).status is ResponseStatus.COMPLETED
        assert first.prepared + second.prepared == 1


async def test_a_worker_that_lost_its_lease_stops(store: Outage) -> None:
    async with serving(store) as server:
        await queue(store, "endless")
        await until_written(store, 5)
        [claimed] = await store.jobs.claim("other", time.time() + 2 * LEASE, 60, 1)
        before = await store.log.read("resp_1")
        await until(lambda: server.engine.active == 0)
        assert claimed.id == "resp_1"
        assert await store.log.read("resp_1") == before
        assert (await found(store)).lease == claimed.lease


async def test_a_worker_does_not_take_over_from_itself(store: Outage) -> None:
    """After the database was away for longer than a lease, its own jobs look abandoned to it."""
    async with serving(store) as server:
        await queue(store, "slow")
        await until_written(store, 3)
        [taken] = await store.jobs.claim(server.worker.desk.worker, time.time() + 2 * LEASE, -60, 1)
        await queue(store, name="resp_2")
        assert taken.id == "resp_1"
        assert (await ended(store)).status is ResponseStatus.COMPLETED
        assert (await ended(store, "resp_2")).status is ResponseStatus.COMPLETED
        assert server.prepared == 2
    assert await log_of(store) == await uninterrupted("slow")


async def test_shutdown_gives_leases_back(store: Outage) -> None:
    async with serving(store, lease=60) as first:
        await queue(store, "slow")
        await until_written(store, 8)
        await first.worker.give_back()
        record = await found(store)
        assert (record.status, record.lease) == (ResponseStatus.IN_PROGRESS, None)
        assert first.engine.active == 0
        async with serving(store, lease=60) as second:
            assert (await ended(store)).status is ResponseStatus.COMPLETED
            assert second.prepared == 1
    assert await log_of(store) == await uninterrupted("slow")


async def test_a_server_that_drains_claims_no_more(store: Outage) -> None:
    async with serving(store) as server:
        await queue(store, "slow")
        await until_written(store, 3)
        server.worker.drain()
        await queue(store, name="resp_2")
        assert (await ended(store)).status is ResponseStatus.COMPLETED
        await asyncio.sleep(LEASE)
        assert (await found(store, "resp_2")).status is ResponseStatus.QUEUED


async def test_abandoned_foreground_responses_are_failed(store: Outage) -> None:
    dead = {"background": False, "status": ResponseStatus.IN_PROGRESS}
    await queue(store, lease=Lease("dead", time.time() + LEASE), **dead)
    await queue(store, name="resp_2", lease=Lease("alive", time.time() + 60), **dead)
    async with serving(store) as server:
        assert (await ended(store)).status is ResponseStatus.FAILED
        [line] = await log_of(store)
        assert json.loads(line)["why"] == "AbandonedError"
        assert not (await found(store, "resp_2")).status.terminal
        assert server.prepared == 0


async def test_our_own_foreground_responses_are_not_abandoned(store: Outage) -> None:
    async with serving(store) as server:
        desk = server.worker.desk
        lease = Lease(desk.worker, time.time() - 60)
        await queue(store, background=False, status=ResponseStatus.IN_PROGRESS, lease=lease)
        diary = Diary()
        recorder = recording.Recorder("resp_1", diary, desk, recording.Past())
        with desk.lying(recorder):
            await asyncio.sleep(2 * LEASE)
            recorder.add(diary.begin())
            await recorder.end(diary.finish())
        assert (await found(store)).status is ResponseStatus.COMPLETED


# The law of takeovers


@settings(max_examples=25)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=3), st.booleans())
async def test_an_interrupted_log_is_that_of_one_that_was_not(steps: list[int], politely: bool) -> None:
    """Law: kill the worker anywhere, as often as you like: the log is the same, and readers see it grow."""
    store = await open_store("memory")
    try:
        await queue(store, "slow")
        reading = asyncio.create_task(read(store))
        for until_step in steps:
            async with serving(store, lease=0.05) as server:
                async with asyncio.timeout(20):
                    while server.engine.steps < until_step and not (await found(store)).status.terminal:
                        await asyncio.sleep(0.001)
                await (server.worker.stop() if politely else server.die())
        async with serving(store, lease=0.05):
            record = await ended(store)
        assert record.status is ResponseStatus.COMPLETED
        assert json.loads(record.body)["text"] == TEXT
        lines = await log_of(store)
        assert lines == await uninterrupted("slow")
        assert await reading == lines
        assert [item.payload for item in await store.responses.history(OWNER, "resp_1")] == [TEXT.encode()]
    finally:
        await store.close()


async def read(store: Store, after: int = -1) -> list[bytes]:
    return await whole(follow(Desk(store, "reader"), OWNER, "resp_1", after))


async def test_a_prompt_that_the_next_engine_cannot_read_is_rendered_again(store: Outage) -> None:
    await queue(store, "slow")
    async with serving(store, lease=0.05) as first:
        await until_written(store, 4)
        await first.die()
    async with serving(store) as second:  # a scripted engine only knows pieces that it has seen
        record = await ended(store)
        assert second.engine.seen[-1].prompt.ids[: len(first_prompt(first))] == first_prompt(first)
    assert record.status is ResponseStatus.COMPLETED


def first_prompt(server: Server) -> tuple[int, ...]:
    return server.engine.seen[0].prompt.ids


async def test_what_was_rendered_is_what_is_gone_on_with(store: Outage) -> None:
    await queue(store, "slow")
    async with serving(store, lease=0.05) as first:
        await until_written(store, 4)
        await first.die()
    other = await first.model.engine.tokenize("<|im_start|>user\nslow, as it was rendered then")
    await change_prompt(store, array("i", other).tobytes())
    async with serving(store) as second:
        await second.engine.tokenize("<|im_start|>user\nslow, as it was rendered then")
        await ended(store)
        assert second.engine.seen[-1].prompt.ids[: len(other)] == tuple(other)


async def change_prompt(store: Store, ids: bytes) -> None:
    [record] = await store.jobs.claim("between", time.time() + 60, -60, 1)
    await store.log.append(Append(response_id=record.id, worker="between", prompt_ids=ids))


# The database goes away


async def test_a_store_that_comes_back_loses_nothing(store: Outage) -> None:
    async with serving(store) as server:
        await queue(store, "slow")
        await until_written(store, 5)
        server.store.away = True
        await asyncio.sleep(2 * LEASE)
        server.store.away = False
        assert (await ended(store)).status is ResponseStatus.COMPLETED
        await queue(store, name="resp_2")
        assert (await ended(store, "resp_2")).status is ResponseStatus.COMPLETED
    assert await log_of(store) == await uninterrupted("slow")


async def test_a_store_that_stays_away_leaves_the_work_for_later(
    store: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "PATIENCE", 0.02)
    async with serving(store, lease=0.1) as server:
        await queue(store, "slow")
        await until_written(store, 5)
        server.store.away = True
        await until(lambda: server.engine.active == 0)
        assert (await found(store)).status is ResponseStatus.IN_PROGRESS
        server.store.away = False
        assert (await ended(store)).status is ResponseStatus.COMPLETED
    assert await log_of(store) == await uninterrupted("slow")


async def test_a_reader_waits_for_the_store(store: Outage) -> None:
    async with serving(store):
        await queue(store, "slow")
        seen = Outage(store)
        reading = asyncio.create_task(whole(follow(Desk(seen, "reader"), OWNER, "resp_1", -1)))
        await until_written(store, 5)
        seen.away = True
        calls = len(seen.calls)
        await until(lambda: len(seen.calls) > calls + 2)
        seen.away = False
        await ended(store)
        assert await reading == await log_of(store)


async def test_a_reader_that_cannot_begin_is_told(store: Outage) -> None:
    await queue(store)
    store.away = True
    with pytest.raises(StoreError):
        await read(store)


async def test_readers_beside_the_worker_get_what_it_has_just_written(store: Outage) -> None:
    """Most of it without a look into the store, also where the machine is busy with something else."""
    async with serving(store) as server:
        await queue(store, "slow")
        await until_written(store, 4)
        desk = server.worker.desk
        begins = (-1, 0, 2, 3, 7)
        readers = [asyncio.create_task(whole(follow(desk, OWNER, "resp_1", after))) for after in begins]
        await ended(store)
        lines = await log_of(store)
        for after, reader in zip(begins, readers, strict=True):
            assert await reader == lines[after + 1 :]
        entries = await store.log.read("resp_1")
        assert server.store.calls.count("log.events_after") < len(begins) * len(entries) * 3 / 4


async def test_a_reader_finds_its_place_in_what_was_just_written(store: Outage) -> None:
    await queue(store, status=ResponseStatus.IN_PROGRESS, lease=Lease("w", 4e9), background=False)
    desk, diary = Desk(store, "w"), Diary()
    recorder = recording.Recorder("resp_1", diary, desk, recording.Past())
    with desk.lying(recorder):
        told = []
        for text in ("abc", "def"):
            told += recorder.push([TextDelta(char, char) for char in text])
            await desk.flush()
        assert [desk.fresh("resp_1", after) for after in range(-1, 6)] == [
            [],
            [],
            [],
            *(told[after + 1 :] for after in range(2, 5)),
            [],
        ]
    assert desk.fresh("resp_1", 3) == []


async def test_a_reader_of_a_server_that_stops(store: Outage) -> None:
    async with serving(store) as server:
        await queue(store, "endless")
        await until_written(store, 5)
        reading = asyncio.create_task(whole(follow(server.worker.desk, OWNER, "resp_1", -1)))
        await asyncio.sleep(0.05)
        await server.worker.give_back()
        with pytest.raises(EngineNotReadyError):
            await reading


async def whole(payloads: AsyncIterator[list[bytes]]) -> list[bytes]:
    return [line async for lines in payloads for line in lines]


async def test_a_reader_of_nothing(store: Outage) -> None:
    with pytest.raises(NotFoundError):
        await read(store)


@given(st.integers(-1, 30))
@settings(max_examples=10)
async def test_a_reader_gets_what_it_has_not_seen(after: int) -> None:
    store = await open_store("memory")
    async with serving(store):
        await queue(store)
        await ended(store)
        assert await read(store, after) == (await log_of(store))[after + 1 :]
    await store.close()


async def test_a_worker_that_stumbles_walks_on(store: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    stumbles = iter([True])

    async def sweep(_worker: Worker) -> None:
        if next(stumbles, False):
            raise KeyError
        swept.set()

    swept = asyncio.Event()
    monkeypatch.setattr(Worker, "_sweep", sweep)
    monkeypatch.setattr(module, "SWEEP", 0.01)
    async with serving(store):
        async with asyncio.timeout(10):
            await swept.wait()


async def test_a_worker_that_never_started_has_no_store() -> None:
    worker = Worker(open_nothing, open_nothing, bury, jobs=1)  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        _ = worker.store
    await worker.stop()


async def open_nothing() -> Any:
    raise AssertionError


async def test_the_end_of_a_job_is_not_lost_to_a_cancel(store: Outage) -> None:
    """Whoever is first wins, and the log says the same as the status."""
    async with serving(store):
        for number in range(10):
            name = await queue(store, "slow", f"resp_{number}")
            await until_written(store, 10 + number // 2, name)
            await store.jobs.request_cancel(OWNER, name)
            record = await ended(store, name)
            *_, last = await log_of(store, name)
            assert json.loads(last)["status"] == record.status
