"""The log of a running answer: all of it, once, in order, with any failures of the database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.app import log_writer as module
from antiphon.app.journal import BackgroundJournal, StoredInput, StreamJournal
from antiphon.app.log_writer import LogWriter
from antiphon.app.metrics import Metrics, ServerState
from antiphon.core.errors import NotFoundError, StoreError
from antiphon.core.events import TextDelta, TextEnded
from antiphon.run import drive
from antiphon.run.endings import FINISHED, LostError
from antiphon.run.replay import ReplayLog
from antiphon.store.open import open_store
from antiphon.store.records import ResponseRecord, Verdict
from tests.app.support import Diary, Outage, found, log_of, until_written
from tests.run.support import until
from tests.search import examples
from tests.store.samples import OWNER, response, response_end


@asynccontextmanager
async def writing(store: Any) -> AsyncIterator[LogWriter]:
    writer = LogWriter(store)
    task = asyncio.create_task(writer.write())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest_asyncio.fixture
async def writer(store: Outage) -> AsyncIterator[LogWriter]:
    async with writing(store) as writer:
        yield writer


class Answer:
    """A streamed response: `told` is what its client got."""

    def __init__(self, writer: LogWriter, name: str = "resp_1", **changes: Any) -> None:
        self.diary = Diary()
        self.told: list[bytes] = []
        self.stops: list[Exception] = []
        self.lines: list[bytes] = []

        def row(body: bytes) -> ResponseRecord:
            return response(name, body=body, lease=writer.lease(), **changes)

        self.journal = StreamJournal(writer, self.diary, StoredInput(name, row, ()))

    async def open(self) -> "Answer":
        opening = self.journal.open(self.stops.append)
        assert opening is not None
        await opening
        return self

    def say(self, text: str) -> None:
        self.push([TextDelta(char, char) for char in text])

    def push(self, events: list[Any]) -> None:
        self.told += self.journal.record(0, events, self.diary.push(0, events))

    async def end(self) -> None:
        self.told += await self.journal.close(FINISHED, None, self.diary.finish())


async def begun(writer: LogWriter, name: str = "resp_1", **changes: Any) -> Answer:
    return await Answer(writer, name, **changes).open()


async def test_what_is_said_is_written_soon(store: Outage, writer: LogWriter) -> None:
    answer = await begun(writer)
    answer.say("ab")
    await until_written(store, 2)
    answer.say("c")
    await until_written(store, 3)
    assert await log_of(store) == answer.told


async def test_a_stream_waits_for_a_background_response_to_be_written_with(
    store: Outage, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOREGROUND_TICK", 3600)
    stream = await begun(writer)
    stream.say("ab")
    await asyncio.sleep(4 * module.TICK)
    assert "log.append" not in store.calls
    background = await begun(writer, "resp_2")
    background.journal.background = True
    background.say("c")
    await until_written(store, 2)
    assert store.calls.count("log.append") == 1
    assert await log_of(store) == stream.told


async def test_what_is_said_before_there_is_a_row_is_written_after_it(
    store: Outage, writer: LogWriter
) -> None:
    store.held["responses.create"] = asyncio.Event()
    answer = Answer(writer)
    opening = asyncio.create_task(answer.open())
    await until(lambda: "responses.create" in store.calls)
    answer.say("ab")
    await writer.flush()
    assert "log.append" not in store.calls
    store.held["responses.create"].set()
    await opening
    await until_written(store, 2)
    assert await log_of(store) == answer.told


async def test_all_that_write_share_one_call(store: Outage, writer: LogWriter) -> None:
    answers = [await begun(writer, f"resp_{number}") for number in range(20)]
    store.calls.clear()
    for answer in answers:
        answer.say("a")
        answer.say("b")
    await writer.flush()
    for number in range(20):
        assert len(await log_of(store, f"resp_{number}")) == 2
    assert store.calls.count("log.append") == 1


async def test_nothing_is_written_of_what_was_let_go(store: Outage, writer: LogWriter) -> None:
    answer = await begun(writer)
    answer.say("a")
    await answer.journal.release()
    before = await found(store)
    answer.say("b")
    await writer.flush()
    assert await found(store) == before
    assert not before.status.terminal


async def test_what_was_just_written_need_not_be_read(store: Outage, writer: LogWriter) -> None:
    answer = await begun(writer)
    for text in ("abc", "def"):
        answer.say(text)
        await writer.flush()
    assert [writer.fresh("resp_1", after) for after in range(-1, 6)] == [
        [],
        [],
        [],
        *(answer.told[after + 1 :] for after in range(2, 5)),
        [],
    ]
    await answer.end()
    assert writer.fresh("resp_1", 3) == []


async def test_what_is_large_is_several_entries(
    store: Outage, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await begun(writer)
    answer.say("ab")
    size = len(answer.told[0])
    for part in (drive, module):
        monkeypatch.setattr(part, "LARGE", 2 * size)
    answer.say("cde")
    answer.push([TextDelta("f" * 3 * size, "")])
    answer.say("g")
    await writer.flush()
    entries = await store.log.read("resp_1")
    assert [(entry.first, entry.last) for entry in entries] == [(0, 1), (2, 3), (4, 4), (5, 5), (6, 6)]
    assert await log_of(store) == answer.told
    for after in range(-1, 7):
        assert writer.fresh("resp_1", after) == answer.told[after + 1 :]


# What goes wrong


@pytest.mark.parametrize("rounds", range(6))
async def test_a_flush_that_is_given_up_loses_nothing(
    store: Outage, writer: LogWriter, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    monkeypatch.setattr(module, "LARGE", 1)  # each is taken in a turn of its own
    answers = [await begun(writer, f"resp_{number}") for number in range(3)]
    store.held["log.append"] = asyncio.Event()
    for answer in answers:
        answer.say("ab")
    flushing = asyncio.create_task(writer.flush())
    for _ in range(rounds):
        await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.wait([flushing])
    store.held["log.append"].set()
    for number, answer in enumerate(answers):
        answer.say("c")
        await answer.end()
        assert await log_of(store, f"resp_{number}") == answer.told
        assert answer.stops == []


async def test_a_database_that_comes_back_gets_everything(store: Outage, writer: LogWriter) -> None:
    answer = await begun(writer)
    answer.say("a")
    store.away = True
    for char in "bcd":
        answer.say(char)
        await asyncio.sleep(0.01)
    store.away = False
    answer.say("e")
    await until_written(store, 5)
    assert await log_of(store) == answer.told
    assert answer.stops == []


async def test_a_database_that_stays_away_stops_the_work(
    store: Outage, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STORE_TIMEOUT", 0.02)
    answer = await begun(writer)
    store.away = True
    answer.say("a")
    await until(lambda: answer.stops)
    assert isinstance(answer.stops[0], StoreError)
    with pytest.raises(StoreError):
        await answer.end()
    store.away = False
    other = await begun(writer, "resp_2")  # the writer continues
    other.say("a")
    await until_written(store, 1, "resp_2")


async def test_writes_and_outages_are_counted(store: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY", 0.001)
    metrics = Metrics()
    writer = LogWriter(store, metrics=metrics)
    store.away = True
    calls = asyncio.create_task(writer.retried(lambda: store.log.read("resp_1")))
    await until(lambda: len(store.calls) > 2)
    store.away = False
    await calls
    failed = len(store.calls) - 1
    text = metrics.text("text/plain", ServerState())[0].decode()
    assert f"\nantiphon:store_failures_total {float(failed)}\n" in text
    assert "\nantiphon:store_write_seconds_count 1.0\n" in text


async def test_an_answer_that_was_given_up_does_not_wait_for_the_store_again(
    store: Outage, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STORE_TIMEOUT", 0.02)
    monkeypatch.setattr(module, "FOREGROUND_TICK", module.TICK)
    answer = await begun(writer)
    store.away = True
    answer.say("ab")
    await until(lambda: len(store.calls) > 1)
    answer.say("c")  # while the writer waits for the store
    await until(lambda: bool(answer.stops))
    monkeypatch.setattr(module, "STORE_TIMEOUT", 3600)
    answer.say("d")
    await asyncio.sleep(4 * module.TICK)
    async with asyncio.timeout(1):
        await answer.journal.release()
    assert isinstance(answer.stops[0], StoreError)


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.GONE, Verdict.ENDED])
async def test_a_response_that_is_not_ours_any_more(
    store: Outage, writer: LogWriter, verdict: Verdict
) -> None:
    answer = await begun(writer, background=True)
    if verdict is Verdict.GONE:
        await store.responses.delete(OWNER, "resp_1")
    elif verdict is Verdict.LOST:
        await store.jobs.claim("other", 5e9, 10, 1)
    else:
        await store.responses.finish(response_end(worker=writer.worker))
    answer.say("a")
    await until(lambda: answer.stops)
    [lost] = answer.stops
    assert isinstance(lost, LostError)
    assert lost.verdict is verdict
    with pytest.raises(LostError):
        await answer.end()


async def test_only_a_store_that_is_away_is_asked_again(writer: LogWriter) -> None:
    asked: list[int] = []

    async def ask() -> None:
        asked.append(1)
        raise NotFoundError

    with pytest.raises(NotFoundError):
        await writer.retried(ask)
    assert len(asked) == 1


ACTIONS = st.lists(
    st.sampled_from(["say", "say", "say", "tick", "write", "away", "back", "item"]), max_size=30
)


@settings(max_examples=examples(60))
@given(ACTIONS, st.integers(0, 5))
async def test_the_log_is_what_was_said(actions: list[str], known: int) -> None:
    """Law: with any failures in between, the log has every line, once, in order."""
    real = await open_store("memory")
    store = Outage(real)
    try:
        async with writing(store) as writer:
            earlier = await begun(writer, background=True)
            earlier.say("x" * known)
            await until_written(real, known)
            await earlier.journal.release()
            told = earlier.told

            record, diary = await found(real), Diary()
            given = StoredInput("resp_1", lambda _: record, ())
            journal = BackgroundJournal(writer, diary, given, record, ReplayLog())

            def push(events: list[Any]) -> list[bytes]:
                return journal.record(0, events, diary.push(0, events))

            with writer.registered(journal):
                assert journal.open(print) is None
                told += push([TextDelta("x", "x") for _ in range(known)])
                for action in actions:
                    match action:
                        case "say":
                            told += push([TextDelta("a", "a"), TextDelta("b", "b")])
                        case "item":
                            told += push([TextEnded()])
                        case "tick":
                            await asyncio.sleep(0.002)
                        case "write":
                            await asyncio.sleep(0)
                        case "away" | "back":
                            store.away = action == "away"
                store.away = False
                told += await journal.close(FINISHED, None, diary.finish())
        assert await log_of(real) == told
    finally:
        await real.close()


# The end of the server


@pytest.mark.parametrize("turns", range(6))
async def test_the_writer_ends_whatever_comes_with_its_cancellation(store: Outage, turns: int) -> None:
    """The end of what it waits for may come in the same turn of the event loop."""
    writer = LogWriter(store)  # type: ignore[arg-type]
    task = asyncio.create_task(writer.write())
    journal = (await Answer(writer).open()).journal
    writer.notify(journal)
    await asyncio.sleep(0.01)  # it waits for other journals, of background responses
    journal.background = True
    writer.notify(journal)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(5):
        await asyncio.wait((task,))
    assert task.cancelled()


@pytest.mark.parametrize("answers", [True, False])
async def test_the_last_calls_of_the_store_may_end(
    writer: LogWriter, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """The request that began a call may have ended."""
    monkeypatch.setattr(module, "LAST_CALLS_SECONDS", 0.05)

    async def call() -> str:
        await asyncio.sleep(0.01 if answers else 100)
        return "stored"

    calling = asyncio.create_task(writer.retried(call))
    await asyncio.sleep(0)
    await writer.finish()
    assert calling.cancelled() is not answers
    assert not answers or calling.result() == "stored"
