"""What is stored of an answer at its beginning and its end, by each kind of journal."""

import asyncio
import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from antiphon.apis.responses.accept import ResponseContext, accept
from antiphon.apis.responses.schema import CreateResponse
from antiphon.apis.responses.stream import ResponseProjection
from antiphon.app import log_writer
from antiphon.app.journal import (
    BackgroundJournal,
    FullAnswerJournal,
    StoredInput,
    StreamedCompletionJournal,
    StreamJournal,
    packed,
    unpacked,
)
from antiphon.app.log_writer import LogWriter
from antiphon.core.chunks import FinishReason
from antiphon.core.errors import EngineError, StoreError, StoreFullError
from antiphon.core.events import Finished, TextDelta, TextStarted, Usage
from antiphon.engines.engine import Prompt
from antiphon.run.drive import Driver
from antiphon.run.endings import CancelRequestedError, ClientLeftError, LostError
from antiphon.run.replay import ReplayLog, read_entries
from antiphon.store.records import ConversationRecord, Paging, ResponseRecord, ResponseStatus
from tests.app.support import Diary, Outage, Reader, found, log_of
from tests.run.support import chunk, until
from tests.store.samples import OWNER, item, job, response

LATER = count(5_000_000_000, 1000)
"""Times, each after the leases of those before."""


class Says:
    """A source that pushes a delta for each character of a text, and then fails, if it has to."""

    def __init__(self, text: str, failure: Exception | None = None, closing: str = "") -> None:
        self._text = text
        self._failure = failure
        self._closing = closing

    async def run(self, output: Driver) -> None:
        output.set_prompts([Prompt("p", (1, 2))])
        for char in self._text:
            output.push(0, [TextDelta(char, char)])
        if self._failure is not None:
            raise self._failure

    def abandon(self) -> Sequence[tuple[int, Any]]:
        return [(0, [TextDelta(char, char) for char in self._closing])] if self._closing else []


@pytest.fixture
async def writer(store: Outage) -> LogWriter:
    return LogWriter(store)  # type: ignore[arg-type]


def stored_input(writer: LogWriter, **changes: Any) -> StoredInput:
    def row(body: bytes) -> ResponseRecord:
        return response(body=body, lease=writer.lease(), **changes)

    return StoredInput("resp_1", row, (item("in_1"),), in_conversation="conversation_id" in changes)


async def gone_on_with(writer: LogWriter, source: Says, log: ReplayLog | None = None) -> None:
    """Have a worker go on with a response that is queued, or was begun."""
    [record] = await writer.store.jobs.claim(writer.worker, next(LATER), 60, 1)
    given, diary = StoredInput(record.id, lambda _: record, ()), Diary()
    journal = BackgroundJournal(writer, diary, given, record, log or ReplayLog())
    with writer.registered(journal):
        await Driver(source, diary, journal).run()


# Whole, and streamed


class Mixes:
    """A source of one text: of each two characters one is an event, the other is left to the delta writer."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def run(self, output: Driver) -> None:
        output.set_prompts([Prompt("p", (1, 2))])
        output.push(0, [TextStarted()])
        await until(lambda: not output.paused)
        for index, char in enumerate(self._text):
            write = output.delta_writer(0, TextDelta) if index % 2 else None
            if write is None:
                output.push(0, [TextDelta(char, char)])
            else:
                write(char, ())
        output.push(0, [Finished(FinishReason.STOP, Usage())])

    def abandon(self) -> Sequence[tuple[int, Any]]:
        return []


async def test_deltas_share_a_line_of_the_log_whoever_writes_them(store: Outage, writer: LogWriter) -> None:
    wire = CreateResponse(model="m", input="Hi")
    projection = ResponseProjection(accept(wire, ResponseContext("resp_1", OWNER)), 1, lambda: 2.0)
    reader = Reader()
    await Driver(Mixes("abcdefgh"), projection, StreamJournal(writer, projection, stored_input(writer))).run(
        reader
    )
    assert await log_of(store) == reader.lines
    assert sum(b'"response.output_text.delta"' in line for line in reader.lines) == 8
    lines = [line for entry in await store.log.read("resp_1") for line in entry.events.split(b"\n")]
    assert len(lines) <= len(reader.lines) - 6


async def test_deltas_are_written_while_an_item_goes_on(store: Outage, writer: LogWriter) -> None:
    wire = CreateResponse(model="m", input="Hi")
    projection = ResponseProjection(accept(wire, ResponseContext("resp_1", OWNER)), 1, lambda: 2.0)
    journal = StreamJournal(writer, projection, stored_input(writer))
    opening = journal.open(lambda reason: None)
    assert opening is not None
    await opening
    told = journal.record(0, (), projection.begin())
    started = [TextStarted()]
    told += journal.record(0, started, projection.push(0, started))
    encode = projection.delta_encoder(0, TextDelta)
    assert encode is not None
    write = journal.delta_encoder(encode)
    assert write is not None
    for text in ("", "ab", "", "c", "de"):  # at first, and in between, there is nothing to be written
        told += [write(char, ()) for char in text]
        await writer.flush()
        assert await log_of(store) == told
    held = [TextDelta("f", "f")]
    told += journal.record(0, held, projection.push(0, held))
    await writer.flush()
    told.append(write("g", ()))
    await writer.flush()
    assert await log_of(store) == told


@pytest.mark.parametrize("kind", [FullAnswerJournal, StreamJournal])
async def test_the_end_comes_with_everything(store: Outage, writer: LogWriter, kind: Any) -> None:
    conversation = ConversationRecord(id="conv_1", owner=OWNER, created_at=0.0, metadata=b"{}")
    await store.conversations.create(conversation, ())
    diary, reader = Diary(), Reader()
    journal = kind(writer, diary, stored_input(writer, conversation_id="conv_1"))
    await Driver(Says("ab"), diary, journal).run(reader)

    record = await found(store)
    assert (record.status, record.lease) == (ResponseStatus.COMPLETED, None)
    assert json.loads(record.body) == {"status": "completed", "text": "ab"}
    assert await log_of(store) == (reader.lines if kind is StreamJournal else [])
    assert len(reader.lines) == 4
    items = await store.conversations.items(OWNER, "conv_1", Paging("asc"))
    assert [(item.id, item.payload) for item in items.data] == [
        ("in_1", item("in_1").payload),
        ("item", b"ab"),
    ]
    assert [each.id for each in await store.responses.history(OWNER, "resp_1")] == ["in_1", "item"]


@pytest.mark.parametrize("kind", [FullAnswerJournal, StreamJournal])
@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (EngineError("broken"), ResponseStatus.FAILED),
        (ClientLeftError(), ResponseStatus.CANCELLED),
    ],
)
async def test_what_was_said_before_a_failure_is_stored(
    store: Outage, writer: LogWriter, kind: Any, failure: Exception, status: ResponseStatus
) -> None:
    class Started(Reader):
        started = True

    diary, reader = Diary(), Started()
    journal = kind(writer, diary, stored_input(writer))
    await Driver(Says("ab", failure), diary, journal).run(reader)
    record = await found(store)
    assert (record.status, json.loads(record.body)["text"]) == (status, "ab")
    assert record.lease is None


@pytest.mark.parametrize("kind", [FullAnswerJournal, StreamJournal])
async def test_nothing_is_stored_of_an_answer_that_never_began(
    store: Outage, writer: LogWriter, kind: Any
) -> None:
    diary = Diary()
    with pytest.raises(EngineError):
        await Driver(Says("", EngineError()), diary, kind(writer, diary, stored_input(writer))).run()
    assert await store.responses.get(OWNER, "resp_1") is None


@pytest.mark.parametrize("kind", [FullAnswerJournal, StreamJournal])
async def test_a_store_that_stays_away_is_an_error(
    store: Outage, writer: LogWriter, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "STORE_TIMEOUT", 0.02)
    store.away = True
    diary, reader = Diary(), Reader()
    with pytest.raises(StoreError):
        await Driver(Says("ab"), diary, kind(writer, diary, stored_input(writer))).run(reader)
    store.away = False
    assert await store.responses.get(OWNER, "resp_1") is None


async def test_what_is_not_in_the_log_has_no_end(store: Outage, writer: LogWriter) -> None:
    """The source has ended when its events turn out not to be storable: no end can follow them."""
    store.held["log.append"] = asyncio.Event()
    diary = Diary()
    journal = StreamJournal(writer, diary, stored_input(writer))
    writing: list[asyncio.Task[None]] = []

    class Ends(Says):
        async def run(self, output: Driver) -> None:
            await super().run(output)
            await until(lambda: journal.response_id in writer.open)
            writing.append(asyncio.create_task(writer.flush()))
            await until(lambda: "log.append" in store.calls)

    running = asyncio.create_task(Driver(Ends("ab"), diary, journal).run(Reader()))
    await until(lambda: "log.append" in store.calls)
    await asyncio.sleep(0)
    store.full = True
    store.held["log.append"].set()
    with pytest.raises(StoreFullError):
        await running
    await writing[0]
    assert not (await found(store)).status.terminal


async def test_a_full_answer_waits_for_the_store(store: Outage, writer: LogWriter) -> None:
    store.away = True
    diary, reader = Diary(), Reader()
    driver = Driver(Says("ab"), diary, FullAnswerJournal(writer, diary, stored_input(writer)))
    answering = asyncio.create_task(driver.run(reader))
    await until(lambda: len(store.calls) > 2)
    store.away = False
    await answering
    assert (await found(store)).status is ResponseStatus.COMPLETED


@pytest.mark.parametrize("kind", [FullAnswerJournal, StreamJournal])
async def test_an_end_whose_success_was_not_told_counts_once(
    store: Outage, writer: LogWriter, kind: Any
) -> None:
    store.unsure = {"responses.save", "responses.finish"}
    diary, reader = Diary(), Reader()
    await Driver(Says("ab"), diary, kind(writer, diary, stored_input(writer))).run(reader)
    assert (await found(store)).status is ResponseStatus.COMPLETED
    assert not store.unsure, "it was not lost"
    assert json.loads(reader.lines[-1])["status"] == "completed"
    assert store.calls.count("responses.save") + store.calls.count("responses.finish") == 1


async def test_who_has_seen_the_id_of_a_stream_finds_the_response(store: Outage, writer: LogWriter) -> None:
    rows: list[ResponseRecord] = []

    class Asking(Says):
        async def run(self, output: Driver) -> None:
            await super().run(output)
            while not reader.lines:
                await asyncio.sleep(0)
            rows.append(await found(store))

    diary, reader = Diary(), Reader()
    await Driver(Asking("ab"), diary, StreamJournal(writer, diary, stored_input(writer))).run(reader)
    assert [row.status for row in rows] == [ResponseStatus.IN_PROGRESS]


# In the background


async def test_a_worker_goes_on_with_the_log_behind_what_it_holds(store: Outage, writer: LogWriter) -> None:
    await store.responses.create(job(), ())
    await gone_on_with(writer, Says("ab"))
    assert [json.loads(line).get("text") for line in await log_of(store)] == [None, "a", "b", None]
    assert (await found(store)).status is ResponseStatus.COMPLETED


async def test_what_was_said_before_is_not_said_again(store: Outage, writer: LogWriter) -> None:
    await store.responses.create(job(), ())
    other = LogWriter(store)  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        await gone_on_with(other, Flushing(other, "ab", StoreError()))
    before = await log_of(store)
    assert len(before) == 3

    await gone_on_with(writer, Says("abc"))
    lines = await log_of(store)
    assert lines[:3] == before
    assert [json.loads(line).get("text") for line in lines] == [None, "a", "b", "c", None]


class Flushing(Says):
    """Has all that it says written before it ends."""

    def __init__(
        self, writer: LogWriter, text: str, failure: Exception | None = None, log: ReplayLog | None = None
    ) -> None:
        super().__init__("", failure)
        self._writer = writer
        self._said = text
        self._log = log

    async def run(self, output: Driver) -> None:
        output.set_prompts([Prompt("p", (1, 2))])
        for char in self._said:
            if self._log is not None:
                self._log.record([chunk(char)])
            output.push(0, [TextDelta(char, char)])
            await self._writer.flush()
        await super().run(output)


async def test_prompt_and_chunks_come_with_the_events(store: Outage, writer: LogWriter) -> None:
    await store.responses.create(job(), ())
    log = ReplayLog()
    with pytest.raises(StoreError):
        await gone_on_with(writer, Flushing(writer, "abc", StoreError(), log), log)
    assert unpacked((await found(store)).prompt_ids) == (1, 2)
    assert read_entries(entry.chunks for entry in await store.log.read("resp_1")) == log.chunks


@pytest.mark.parametrize(
    ("reason", "status"),
    [(EngineError("broken"), ResponseStatus.FAILED), (CancelRequestedError(), ResponseStatus.CANCELLED)],
)
async def test_an_end_before_all_was_made_again_stands_behind_all_that_is_stored(
    store: Outage, writer: LogWriter, reason: Exception, status: ResponseStatus
) -> None:
    """Nothing of what closes the part that was made again gets between."""
    await store.responses.create(job(body=b'{"status": "queued", "output": []}'), ())
    other = LogWriter(store)  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        await gone_on_with(other, Flushing(other, "abcd", StoreError()))
    before = await log_of(store)

    if isinstance(reason, CancelRequestedError):
        await gone_on_with(writer, Says("ab", reason, closing="zzzzzz"))
    else:
        with pytest.raises(EngineError):
            await gone_on_with(writer, Says("ab", reason, closing="zzzzzz"))

    lines = await log_of(store)
    assert lines[: len(before)] == before
    last = json.loads(lines[-1])["response"]
    assert last["status"] == status
    record = await found(store)
    assert record.status is status
    assert json.loads(record.body) == last


async def test_another_server_that_ended_it_first_counts(store: Outage, writer: LogWriter) -> None:
    await store.responses.create(job(), ())

    class Taken(Says):
        async def run(self, output: Driver) -> None:
            await super().run(output)
            await store.jobs.claim("other", next(LATER), 60, 1)

    with pytest.raises(LostError):
        await gone_on_with(writer, Taken("ab"))
    record = await found(store)
    assert (record.status, record.lease and record.lease.worker) == (ResponseStatus.IN_PROGRESS, "other")


# Chat completions


@pytest.mark.parametrize(
    ("failure", "kept"), [(None, True), (EngineError(), False), (ClientLeftError(), False)]
)
async def test_only_a_whole_completion_is_kept(failure: Exception | None, kept: bool) -> None:
    class Started(Reader):
        started = True

    saved: list[bytes] = []

    async def save(body: bytes) -> None:
        saved.append(body)

    await Driver(Says("ab", failure), Diary(), StreamedCompletionJournal(Diary(), save)).run(Started())
    assert [json.loads(body)["text"] for body in saved] == (["ab"] if kept else [])


async def test_a_completion_is_kept_before_its_end_is_told() -> None:
    reader = Reader()

    async def save(body: bytes) -> None:
        assert b"completed" not in b"".join(reader.lines)

    await Driver(Says("ab"), Diary(), StreamedCompletionJournal(Diary(), save)).run(reader)
    assert b"completed" in reader.lines[-1]


# Ids


@pytest.mark.parametrize("ids", [(), (1,), (0, 2**31 - 1, 7), (2**33, 5), (2**31, 2**34, 1)])
def test_ids_are_packed_and_unpacked(ids: tuple[int, ...]) -> None:
    assert unpacked(packed(ids)) == ids


def test_no_ids_are_none() -> None:
    assert unpacked(None) is None
