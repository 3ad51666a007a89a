"""What happens in a response is written down: all of it, once, in order, whatever the database does meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.errors import StoreError
from antiphon.core.events import TextDelta, TextEnded
from antiphon.run import record as module
from antiphon.run.record import Desk, LostError, Past, Recorder
from antiphon.run.tape import Tape, read_entries
from antiphon.store.open import open_store
from antiphon.store.records import ConversationRecord, Lease, Paging, ResponseStatus, Verdict
from antiphon.store.store import Store
from tests.run.support import Diary, Outage, chunk
from tests.store.samples import OWNER, item, response

WORKER = "w"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TICK", 0.001)
    monkeypatch.setattr(module, "RETRY", 0.005)


@pytest_asyncio.fixture
async def store() -> AsyncIterator[Outage]:
    store = await open_store("memory")
    yield Outage(store)
    await store.close()


@pytest_asyncio.fixture
async def desk(store: Outage) -> AsyncIterator[Desk]:
    desk = Desk(store, WORKER)
    writing = asyncio.create_task(desk.write())
    yield desk
    writing.cancel()
    await asyncio.wait([writing])


async def begun(store: Store, name: str = "resp_1", **changes: Any) -> str:
    record = response(name, lease=Lease(WORKER, 4e9), **changes)
    await store.responses.create(record, ())
    return name


def say(text: str) -> list[Any]:
    return [TextDelta(char, char) for char in text]


async def lines_of(store: Store, name: str = "resp_1") -> list[bytes]:
    entries = await store.log.read(name)
    return [line for entry in entries for line in entry.events.split(b"\n")]


async def until_written(store: Store, lines: int, name: str = "resp_1") -> None:
    async with asyncio.timeout(10):
        while len(await lines_of(store, name)) < lines:
            await asyncio.sleep(0.001)


async def test_what_is_said_is_written_soon(store: Outage, desk: Desk) -> None:
    recorder = Recorder(await begun(store), Diary(), desk, Past())
    with desk.lying(recorder):
        told = recorder.add(recorder.projection.begin()) + recorder.push(say("ab"))
        await until_written(store, 3)
        told += recorder.push(say("c"))
        await until_written(store, 4)
    assert await lines_of(store) == told
    assert [json.loads(line)["n"] for line in told] == [0, 1, 2, 3]


async def test_all_that_write_share_one_call(store: Outage, desk: Desk) -> None:
    names = [await begun(store, f"resp_{number}") for number in range(20)]
    recorders = [Recorder(name, Diary(), desk, Past()) for name in names]
    for recorder in recorders:
        with desk.lying(recorder):
            recorder.push(say("a"))
            recorder.push(say("b"))
            desk.has_news(recorder)
    store.calls.clear()
    for recorder in recorders:
        desk.has_news(recorder)
    await until_written(store, 2, names[-1])
    assert store.calls.count("log.append") == 1


async def test_the_end_comes_with_everything(store: Outage, desk: Desk) -> None:
    conversation = ConversationRecord(id="conv_1", owner=OWNER, created_at=0.0, metadata=b"{}")
    await store.conversations.create(conversation, ())
    name = await begun(store, conversation_id="conv_1")
    past = Past(conversation=(item("in_1"),))
    recorder = Recorder(name, Diary(), desk, past)
    with desk.lying(recorder):
        recorder.push(say("ab"))
        last = await recorder.end(recorder.projection.finish())

    record = await store.responses.get(OWNER, name)
    assert record is not None
    assert (record.status, record.lease) == (ResponseStatus.COMPLETED, None)
    assert json.loads(record.body) == {"status": "completed", "text": "ab"}
    lines = await lines_of(store)
    assert len(lines) == 3
    assert lines[-1:] == last
    items = await store.conversations.items(OWNER, "conv_1", Paging("asc"))
    assert [(item.id, item.payload) for item in items.data] == [
        ("in_1", item("in_1").payload),
        ("item", b"ab"),
    ]


async def test_prompt_and_chunks_come_with_the_events(store: Outage, desk: Desk) -> None:
    tape = Tape()
    recorder = Recorder(await begun(store), Diary(), desk, Past(tape=tape))
    with desk.lying(recorder):
        recorder.prompt_ids = b"\1\0\0\0"
        for char in "abc":
            tape.write(chunk(char))
            recorder.push(say(char))
            await until_written(store, len(tape.chunks))
    record = await store.responses.get(OWNER, "resp_1")
    assert record is not None
    assert record.prompt_ids == b"\1\0\0\0"
    assert read_entries(entry.chunks for entry in await store.log.read("resp_1")) == tape.chunks


async def test_whoever_asks_meanwhile_sees_the_items_that_are_done(store: Outage, desk: Desk) -> None:
    recorder = Recorder(await begun(store), Diary(), desk, Past())
    with desk.lying(recorder):
        recorder.push(say("ab"))
        await until_written(store, 2)
        before = await store.responses.get(OWNER, "resp_1")
        recorder.push([TextEnded()])
        await until_written(store, 3)
        after = await store.responses.get(OWNER, "resp_1")
    assert before is not None
    assert after is not None
    assert before.body == response().body
    assert json.loads(after.body)["text"] == "ab"


async def test_what_was_said_before_is_not_said_again(store: Outage, desk: Desk) -> None:
    name, past = await begun(store), Past(last=2)
    recorder = Recorder(name, Diary(), desk, past)
    assert recorder.behind
    assert recorder.add(recorder.projection.begin()) == []
    assert recorder.behind
    [only] = recorder.push(say("abc"))
    assert json.loads(only) == {"n": 3, "text": "c"}
    assert not recorder.behind


# What goes wrong


async def test_a_database_that_comes_back_gets_everything(store: Outage, desk: Desk) -> None:
    recorder = Recorder(await begun(store), Diary(), desk, Past())
    with desk.lying(recorder):
        told = recorder.push(say("a"))
        store.away = True
        for char in "bcd":
            told += recorder.push(say(char))
            await asyncio.sleep(0.01)
        store.away = False
        told += recorder.push(say("e"))
        await until_written(store, 5)
    assert await lines_of(store) == told


async def test_a_database_that_stays_away_stops_the_work(
    store: Outage, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.02)
    reasons: list[Exception] = []
    recorder = Recorder(await begun(store), Diary(), desk, Past())
    recorder.stop = reasons.append
    with desk.lying(recorder):
        store.away = True
        recorder.push(say("a"))
        async with asyncio.timeout(10):
            while not reasons:
                await asyncio.sleep(0.001)
        assert isinstance(reasons[0], StoreError)
        with pytest.raises(StoreError):
            await recorder.end(recorder.projection.finish())
        store.away = False
        other = Recorder(await begun(store, "resp_2"), Diary(), desk, Past())
        with desk.lying(other):  # the hand writes on
            other.push(say("a"))
            await until_written(store, 1, "resp_2")


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.GONE, Verdict.ENDED])
async def test_a_response_that_is_not_ours_any_more(store: Outage, desk: Desk, verdict: Verdict) -> None:
    recorder = Recorder(await begun(store, background=True), Diary(), desk, Past())
    reasons: list[Exception] = []
    recorder.stop = reasons.append
    with desk.lying(recorder):
        if verdict is Verdict.GONE:
            await store.responses.delete(OWNER, "resp_1")
        elif verdict is Verdict.LOST:
            await store.jobs.claim("other", 5e9, 10, 1)
        else:
            other = Recorder("resp_1", Diary(), desk, Past())
            await other.end(other.projection.cancel())
        recorder.push(say("a"))
        async with asyncio.timeout(10):
            while not reasons:
                await asyncio.sleep(0.001)
        [lost] = reasons
        assert isinstance(lost, LostError)
        assert lost.verdict is verdict
        with pytest.raises(LostError):
            await recorder.end(recorder.projection.finish())


ACTIONS = st.lists(
    st.sampled_from(["say", "say", "say", "tick", "write", "away", "back", "item"]), max_size=30
)


@settings(max_examples=60)
@given(ACTIONS, st.integers(0, 5))
async def test_the_log_is_what_was_said(actions: list[str], known: int) -> None:
    """Law: whatever happens in between, the log has every line, once, in order."""
    real = await open_store("memory")
    store = Outage(real)
    desk = Desk(store, WORKER)
    writing = asyncio.create_task(desk.write())
    told: list[bytes] = []
    try:
        name = await begun(store)
        diary = Diary()
        past = Past(known - 1)
        earlier = Recorder(name, Diary(), desk, Past())
        with desk.lying(earlier):
            told += earlier.push(say("x" * known))
            if known:
                await until_written(real, known)
        recorder = Recorder(name, diary, desk, past)
        with desk.lying(recorder):
            told += recorder.push(say("x" * known))
            for action in actions:
                match action:
                    case "say":
                        told += recorder.push(say("ab"))
                    case "item":
                        told += recorder.push([TextEnded()])
                    case "tick":
                        await asyncio.sleep(0.002)
                    case "write":
                        await asyncio.sleep(0)
                    case "away" | "back":
                        store.away = action == "away"
            store.away = False
            told += await recorder.end(diary.finish())
        assert await lines_of(real) == told
        assert [json.loads(line)["n"] for line in told] == list(range(len(told)))
    finally:
        writing.cancel()
        await asyncio.wait([writing])
        await real.close()
