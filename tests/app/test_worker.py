"""Each background response is run by one worker at a time, to its end, with any failures of workers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.app import log_writer as writing
from antiphon.app import worker as module
from antiphon.app.journal import BackgroundJournal, StoredInput, StreamJournal, packed, unpacked
from antiphon.app.storage import Storage
from antiphon.app.worker import HEARTBEATS, AbandonedError, FatalAnswerError, Worker
from antiphon.config import Settings
from antiphon.core.errors import EngineBusyError, EngineDiedError, StoreError
from antiphon.core.stream_record import STREAM_RECORD, StreamRecord
from antiphon.core.turn import Sampling
from antiphon.engines.engine import Capabilities, GenerationRequest, Receiver, Work
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.drive import Driver
from antiphon.run.endings import ENGINE_DEATHS, DeadlineError
from antiphon.run.models import Health
from antiphon.store.open import open_store
from antiphon.store.records import Append, Lease, LogEntry, ResponseRecord, ResponseStatus
from antiphon.store.store import Store
from tests.acting import PYTHON, ActingTool, TakingTurns
from tests.app.support import (
    Diary,
    Outage,
    Server,
    creation,
    ended,
    found,
    log_of,
    queue,
    read,
    serving,
    text_of,
    timeless,
    until_written,
)
from tests.app.test_journal import Says
from tests.response_invariants import check
from tests.run.support import until
from tests.search import examples
from tests.store.samples import OWNER, conversation, items, response

LEASE = 0.3
TEXT = "One two three four five six seven eight nine ten."
SCRIPT = (
    {"when": "slow", "output": TEXT, "delay_ms": 4},
    {"when": "endless", "output": "word ", "tokens": 20_000, "delay_ms": 2},
    {"when": "breaks", "output": TEXT, "fail_after": 3},
    {"output": TEXT},
)


@asynccontextmanager
async def working(store: Store, engine: Any = SCRIPT, **options: Any) -> AsyncIterator[Server]:
    """A server that works on background responses, with a short lease."""
    async with serving(store, engine, **{"lease_seconds": LEASE, **options}) as server:
        yield server


async def queued(store: Store, given: Any = "Hi", name: str = "resp_1", **fields: Any) -> str:
    """A response that another server, which does not work itself, has queued."""
    async with serving(store, SCRIPT, works=False, model_name=("scripted", "gone")) as front:
        return await queue(front.app, given, name, **fields)


_uninterrupted: dict[str, list[bytes]] = {}


async def uninterrupted(given: str) -> list[bytes]:
    """The log of an answer that nothing happened to."""
    if given not in _uninterrupted:
        store = await open_store("memory")
        async with working(store):
            await queued(store, given)
            await ended(store)
        _uninterrupted[given] = timeless(await log_of(store))
        await store.close()
    return _uninterrupted[given]


def prepared(*servers: Server) -> int:
    """How often a response with a log was made ready, by these servers."""
    return sum(server.store.calls.count("log.read") for server in servers)


async def status_of(store: Store, name: str = "resp_1") -> str:
    return (await ended(store, name)).status


def last_of(lines: list[bytes]) -> Any:
    """The response that a log ends with."""
    return json.loads(lines[-1])["response"]


class Mortal(ScriptedEngine):
    """Dies after `life` chunks of an answer, for the first `deaths` times."""

    def __init__(self, deaths: int, life: int) -> None:
        super().__init__(SCRIPT)
        self.deaths = deaths
        self.life = life

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        engine = self

        class Listening:
            left = engine.life

            def push(self, chunks: Any) -> None:
                receiver.push(chunks)
                self.left -= len(chunks)
                if self.left <= 0 < engine.deaths:
                    engine.deaths -= 1
                    work.cancel()
                    receiver.fail(EngineDiedError())

            def fail(self, error: Any) -> None:
                receiver.fail(error)

        work = super().generate(request, Listening())
        return work


# Working


async def test_a_response_is_answered(store: Outage) -> None:
    async with working(store) as server:
        await queued(store, "slow")
        record = await ended(store)
    assert record.status is ResponseStatus.COMPLETED
    assert text_of(record.body) == TEXT
    assert unpacked(record.prompt_ids) == server.engine.seen[0].prompt.ids
    assert record.lease is None
    lines = await log_of(store)
    assert check(lines) == json.loads(record.body)


async def test_responses_from_before_the_start_are_answered(store: Outage) -> None:
    await queued(store)
    async with working(store):
        assert await status_of(store) == "completed"


async def test_many_responses_are_answered_so_many_at_a_time(store: Outage) -> None:
    async with working(store, jobs=3) as server:
        names = [await queued(store, "slow", f"resp_{number}") for number in range(9)]
        loads = [0]

        async def watch() -> None:
            while True:
                loads.append(server.engine.load.running)
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        while not all([(await found(store, name)).status.terminal for name in names]):
            await asyncio.sleep(0.001)
        watching.cancel()
        assert max(loads) == 3
        for name in names:
            assert await status_of(store, name) == "completed"
            check(await log_of(store, name))


async def test_an_engine_that_fails_fails_the_response(store: Outage) -> None:
    async with working(store):
        await queued(store, "breaks")
        record = await ended(store)
    failed = check(await log_of(store))
    assert failed == json.loads(record.body)
    assert failed["status"] == record.status == "failed"
    assert "The script says" in failed["error"]["message"]
    assert text_of(record.body) == "One two three"


async def test_an_answer_that_takes_too_long_fails(store: Outage) -> None:
    async with working(store, deadline_seconds=0.1) as server:
        await queued(store, "endless")
        record = await ended(store)
        await until(lambda: server.engine.load.running == 0)
    failed = check(await log_of(store))
    assert failed["status"] == record.status == "failed"
    assert failed["error"]["message"] == DeadlineError().message


@pytest.mark.parametrize(("fails", "said"), [("take", "endless"), ("_end", "Hi")])
async def test_what_cannot_be_stored_fails_and_is_not_answered_again(
    store: Outage, monkeypatch: pytest.MonkeyPatch, fails: str, said: str
) -> None:
    method = getattr(BackgroundJournal, fails)

    def failing(journal: BackgroundJournal, *args: Any) -> Any:
        if journal.response_id == "resp_1":
            raise OverflowError("Integer value out of range")
        return method(journal, *args)

    monkeypatch.setattr(BackgroundJournal, fails, failing)
    async with working(store, lease_seconds=0.2) as server:
        await queued(store, said, name="resp_1")
        await queued(store, name="resp_2")
        assert (await ended(store, "resp_1")).status is ResponseStatus.FAILED
        assert (await ended(store, "resp_2")).status is ResponseStatus.COMPLETED
        steps = server.engine.steps
        await asyncio.sleep(0.5)
        assert server.engine.steps == steps
    assert last_of(await log_of(store, "resp_1"))["status"] == "failed"


async def test_what_cannot_be_prepared_fails(store: Outage) -> None:
    async with working(store):
        await queued(store, model="gone")
        record = await ended(store)
    failed = last_of(await log_of(store))
    assert failed == json.loads(record.body)
    assert record.status is ResponseStatus.FAILED
    assert "'gone' does not exist" in failed["error"]["message"]


async def test_what_cannot_be_done_before_the_model_is_ready_is_done_later(store: Outage) -> None:
    async with working(store) as server:
        server.app.models.health = Health.LOADING
        await queued(store)
        await until(lambda: server.store.calls.count("jobs.claim") > 2)
        assert not (await found(store)).status.terminal
        server.app.models.health = Health.READY
        assert await status_of(store) == "completed"


async def test_jobs_are_claimed_again_after_any_failure_of_the_store(store: Outage) -> None:
    async with working(store) as server:
        await until(lambda: "jobs.any_background" in server.store.calls)  # there are none
        server.store.calls.clear()
        server.store.away = RuntimeError("It broke.")
        await queued(store)
        await until(lambda: "jobs.any_background" in server.store.calls)
        server.store.away = False
        assert await status_of(store) == "completed"


async def test_what_a_busy_engine_does_not_take_is_done_later(store: Outage) -> None:
    class Busy(ScriptedEngine):
        refused = 0

        def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
            if self.refused < 2:
                self.refused += 1
                return asyncio.get_running_loop().call_soon(receiver.fail, EngineBusyError())
            return super().generate(request, receiver)

    async with working(store, Busy(SCRIPT)) as server:
        await queued(store)
        assert await status_of(store) == "completed"
        assert server.engine.refused == 2  # type: ignore[attr-defined]
    assert timeless(await log_of(store)) == await uninterrupted("Hi")


async def test_what_the_next_engine_refuses_fails(store: Outage) -> None:
    """Also before it has said again what was said."""
    await queued(store, "slow", temperature=0.5)
    async with working(store) as first:
        await until_written(store, 8)
        await first.die()
    before = await log_of(store)
    async with working(store, ScriptedEngine(SCRIPT, capabilities=Capabilities(token_ids=True))):
        assert await status_of(store) == "failed"
    lines = await log_of(store)
    assert lines[: len(before)] == before
    assert "temperature" in last_of(lines)["error"]["message"]


async def test_a_log_that_cannot_be_read_fails(store: Outage) -> None:
    await queued(store)
    [record] = await store.jobs.claim("w", time.time(), 0, 1)
    entry = LogEntry(record.last_seq + 1, record.last_seq + 1, b'{"sequence_number":2}', b"\xc1nonsense")
    await store.log.append(Append(response_id="resp_1", worker="w", entries=(entry,)))
    async with working(store):
        assert await status_of(store) == "failed"


async def test_a_deadline_counts_from_the_request(store: Outage) -> None:
    """For any worker, after any time in the queue. It is at most one line in the log."""
    await queued(store, "endless")
    await asyncio.sleep(0.2)
    with capture_logs() as logs:
        async with working(store, deadline_seconds=0.1) as server:
            assert await status_of(store) == "failed"
            assert server.engine.steps == 0
    assert not [entry for entry in logs if "exc_info" in entry]


# Cancelling


async def test_a_cancel_stops_the_engine(store: Outage) -> None:
    async with working(store, lease_seconds=60) as server:
        await queued(store, "endless")
        await until_written(store, 10)
        await store.jobs.request_cancel(OWNER, "resp_1", 9.0)
        record = await ended(store)
        assert server.engine.load.running == 0
    cancelled = check(await log_of(store))
    assert cancelled == json.loads(record.body)
    assert cancelled["status"] == record.status == "cancelled"
    assert text_of(record.body).startswith("word word")


async def test_a_cancel_before_the_claim(store: Outage) -> None:
    await queued(store)
    await store.jobs.request_cancel(OWNER, "resp_1", 9.0)
    async with working(store) as server:
        assert await status_of(store) == "cancelled"
        assert server.engine.steps == 0
    assert last_of(await log_of(store))["status"] == "cancelled"


async def test_a_cancel_between_two_workers(store: Outage) -> None:
    await queued(store, "endless")
    async with working(store) as first:
        await until_written(store, 20)
        await first.die()
    await store.jobs.request_cancel(OWNER, "resp_1", 9.0)
    before = await log_of(store)
    async with working(store) as second:
        assert await status_of(store) == "cancelled"
        assert second.engine.steps == 0
    lines = await log_of(store)
    assert lines[:-1] == before
    last = last_of(lines)
    assert last["status"] == "cancelled"
    assert last["usage"]["input_tokens"] == len(unpacked((await found(store)).prompt_ids) or ())
    assert last["usage"]["output_tokens"] >= sum(b".delta" in line for line in before) > 0


async def test_a_cancel_while_a_response_is_prepared(store: Outage) -> None:
    async with working(store, lease_seconds=60) as server:
        server.store.held["log.read"] = asyncio.Event()
        await queued(store)
        await until(lambda: prepared(server))
        await store.jobs.request_cancel(OWNER, "resp_1", 9.0)
        await until(lambda: prepared(server) == 2)  # for its end, the log is read once more
        server.store.held["log.read"].set()
        assert await status_of(store) == "cancelled"
        assert server.engine.steps == 0
    assert last_of(await log_of(store))["status"] == "cancelled"


async def test_a_cancel_while_a_tool_runs(store: Outage) -> None:
    tool = ActingTool(results=[None])
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "1"}}\n</tool_call>'
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    async with working(store, TakingTurns(call, "Never."), lease_seconds=60, tools=[tool]) as server:
        await queue(server.app, tools=tools)
        await tool.running.wait()
        await until(lambda: server.engine.load.running == 0)
        await store.jobs.request_cancel(OWNER, "resp_1", 9.0)
        assert await status_of(store) == "cancelled"
    assert tool.done[-1] == ("close", None)
    cancelled = check(await log_of(store))
    assert [item["type"] for item in cancelled["output"]] == ["code_interpreter_call"]
    assert PYTHON.hosted is not None


async def test_a_deleted_response_stops(store: Outage) -> None:
    async with working(store, lease_seconds=60) as server:
        await queued(store, "endless")
        await until_written(store, 5)
        await store.responses.delete(OWNER, "resp_1")
        await until(lambda: server.engine.load.running == 0)
        await queued(store, name="resp_2")
        assert await status_of(store, "resp_2") == "completed"


async def test_the_end_of_an_answer_is_not_lost_to_a_cancel(store: Outage) -> None:
    """The first one wins, and the log agrees with the status."""
    async with working(store):
        for number in range(10):
            name = await queued(store, "slow", f"resp_{number}")
            await until_written(store, 12 + number // 2, name)
            await store.jobs.request_cancel(OWNER, name, 9.0)
            record = await ended(store, name)
            assert check(await log_of(store, name))["status"] == record.status


# Leases


async def test_a_lease_is_kept_as_long_as_it_takes(store: Outage) -> None:
    """Also while a response is prepared, which may take the store long."""
    async with working(store) as first, working(store) as second:
        for server in (first, second):
            server.store.held["log.read"] = asyncio.Event()
        await queued(store)
        await until(lambda: prepared(first, second))
        await asyncio.sleep(3 * LEASE)
        for server in (first, second):
            server.store.held["log.read"].set()
        assert await status_of(store) == "completed"
        assert prepared(first, second) == 1


def test_what_a_dead_server_leaves_waits_for_five_seconds_at_most() -> None:
    """Its lease has to run out, and then the others look."""
    lease = Settings().lease_seconds
    assert lease + lease / HEARTBEATS <= 5


async def test_a_worker_that_lost_its_lease_stops(store: Outage) -> None:
    async with working(store) as server:
        await queued(store, "endless")
        await until_written(store, 5)
        [claimed] = await store.jobs.claim("other", time.time() + 2 * LEASE, 60, 1)
        before = await store.log.read("resp_1")
        await until(lambda: server.engine.load.running == 0)
        assert claimed.id == "resp_1"
        assert await store.log.read("resp_1") == before
        assert (await found(store)).lease == claimed.lease


async def test_a_worker_does_not_take_over_from_itself(store: Outage) -> None:
    """After the database was unavailable for longer than a lease, its own responses look abandoned to it."""
    async with working(store) as server:
        await queued(store, "slow")
        await until_written(store, 3)
        [taken] = await store.jobs.claim(server.writer.worker, time.time() + 2 * LEASE, -60, 1)
        await queued(store, name="resp_2")
        assert taken.id == "resp_1"
        assert await status_of(store) == "completed"
        assert await status_of(store, "resp_2") == "completed"
        assert prepared(server) == 2
    assert timeless(await log_of(store)) == await uninterrupted("slow")


async def test_shutdown_gives_leases_back(store: Outage) -> None:
    async with working(store, lease_seconds=60) as first:
        await queued(store, "slow")
        await until_written(store, 8)
        await first.worker.release()
        record = await found(store)
        assert (record.status, record.lease) == (ResponseStatus.IN_PROGRESS, None)
        assert first.engine.load.running == 0
        async with working(store, lease_seconds=60) as second:
            assert await status_of(store) == "completed"
            assert prepared(second) == 1
    assert timeless(await log_of(store)) == await uninterrupted("slow")


async def test_a_server_that_drains_claims_no_more(store: Outage) -> None:
    async with working(store) as server:
        await queued(store, "slow")
        await until_written(store, 3)
        server.worker.drain()
        await queued(store, name="resp_2")
        assert await status_of(store) == "completed"
        await asyncio.sleep(LEASE)
        assert (await found(store, "resp_2")).status is ResponseStatus.QUEUED


async def test_abandoned_foreground_responses_are_failed(store: Outage) -> None:
    for name, lease in (("resp_1", Lease("dead", time.time() + LEASE)), ("resp_2", Lease("alive", 4e9))):
        body = b'{"status": "in_progress", "output": []}'
        await store.responses.create(response(name, body=body, lease=lease), ())
    async with working(store) as server:
        record = await ended(store)
        failed = last_of(await log_of(store))
        assert failed == json.loads(record.body)
        assert (failed["status"], failed["error"]["message"]) == ("failed", AbandonedError().message)
        assert not (await found(store, "resp_2")).status.terminal
        assert prepared(server) == 0


@pytest.mark.parametrize("count", [0, 1, 45])
async def test_a_conversation_has_what_was_said_to_a_server_that_crashed(store: Outage, count: int) -> None:
    """As it has what was said to any other response that failed."""
    said = items(*(f"in_{number}" for number in range(count)))
    await store.conversations.create(conversation(), ())
    lease, body = Lease("dead", time.time() + LEASE), b'{"status": "in_progress", "output": []}'
    await store.responses.create(response(body=body, lease=lease, conversation_id="conv_1"), said)
    async with working(store):
        assert (await ended(store)).status is ResponseStatus.FAILED
        assert await store.conversations.history(OWNER, "conv_1") == [*said]


async def test_our_own_foreground_responses_are_not_abandoned(store: Outage) -> None:
    class Resting(Says):
        async def run(self, output: Any) -> None:
            await super().run(output)
            await asyncio.sleep(2 * LEASE)

    async with working(store) as server:

        def row(body: bytes) -> ResponseRecord:
            return response(body=body, lease=Lease(server.writer.worker, time.time() - 60))

        diary = Diary()
        journal = StreamJournal(server.writer, diary, StoredInput("resp_1", row, ()))
        await Driver(Resting("ab"), diary, journal).run()
    assert (await found(store)).status is ResponseStatus.COMPLETED


async def test_what_a_dead_process_has_begun_is_not_ended_while_it_is_begun_again(
    store: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, may_end = asyncio.Event(), asyncio.Event()
    finish = module.finish_from_record

    async def slowly(*args: Any) -> Any:
        ending.set()
        await may_end.wait()
        return await finish(*args)

    monkeypatch.setattr(module, "finish_from_record", slowly)
    body = b'{"status": "in_progress", "output": []}'
    await store.responses.create(response(body=body, lease=Lease("dead", time.time() - 1)), ())
    async with working(store) as server:
        await ending.wait()

        def row(body: bytes) -> ResponseRecord:
            return response(body=body, lease=server.writer.lease())

        journal = StreamJournal(server.writer, Diary(), StoredInput("resp_1", row, ()))
        token = STREAM_RECORD.set(StreamRecord(b"seed", 0, ()))
        opening = journal.open(lambda _: None)
        assert opening is not None
        begun = asyncio.ensure_future(opening)
        STREAM_RECORD.reset(token)
        await asyncio.sleep(LEASE / 3)
        may_end.set()
        await begun
        await asyncio.sleep(LEASE / 3)
        assert (await found(store)).status is ResponseStatus.IN_PROGRESS
        await server.writer.unregister(journal)


# The law of takeovers


@settings(max_examples=examples(25))
@given(st.lists(st.integers(0, 20), min_size=1, max_size=3), st.booleans())
async def test_an_interrupted_log_is_that_of_one_that_was_not(steps: list[int], politely: bool) -> None:
    """Law: kill the worker anywhere, as often as you like: the log is the same, and readers see it grow."""
    store = await open_store("memory")
    try:
        await queued(store, "slow")
        async with serving(store, SCRIPT, works=False) as front:
            reading = asyncio.create_task(read(front.writer))
            for until_step in steps:
                async with working(store, lease_seconds=0.05) as server:
                    async with asyncio.timeout(20):
                        while server.engine.steps < until_step and not (await found(store)).status.terminal:
                            await asyncio.sleep(0.004)  # as long as a step
                    await (server.worker.stop() if politely else server.die())
            async with working(store, lease_seconds=0.05):
                record = await ended(store)
            assert record.status is ResponseStatus.COMPLETED
            assert text_of(record.body) == TEXT
            lines = await log_of(store)
            assert timeless(lines) == await uninterrupted("slow")
            assert await reading == lines
            *_, said = await store.responses.history(OWNER, "resp_1")
            assert json.loads(said.payload)["content"][0]["text"] == TEXT
    finally:
        await store.close()


async def test_an_answer_with_tools_is_taken_over_between_its_generations(store: Outage) -> None:
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "print(42)"}}\n</tool_call>'
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]

    class Slow(TakingTurns):
        def answer_to(self, prompt: str) -> Any:
            answer = super().answer_to(prompt)
            return msgspec.structs.replace(answer, line=msgspec.structs.replace(answer.line, delay_ms=2))

    def options() -> dict[str, Any]:
        return {"engine": Slow(f"Let me see.{call}", "It is 42."), "tools": [ActingTool()]}

    alone = await open_store("memory")
    async with working(alone, **options()) as server:
        await queue(server.app, tools=tools)
        await ended(alone)
    whole = timeless(await log_of(alone))
    await alone.close()
    check(whole)

    taken = 0
    for cut in range(4, len(whole), 5):
        store = await open_store("memory")  # type: ignore[assignment]
        async with working(store, lease_seconds=0.05, **options()) as first:
            await queue(first.app, tools=tools)
            await until_written(store, cut)
            await first.die()
        async with working(store, lease_seconds=0.05, **options()) as second:
            assert await status_of(store) == "completed"
            taken += prepared(second)
        assert timeless(await log_of(store)) == whole
        await store.close()
    assert taken


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_call_is_run_again_by_another_server_only_if_it_may_be(
    store: Outage, idempotent: bool
) -> None:
    assert PYTHON.hosted is not None
    function = msgspec.structs.replace(
        PYTHON, hosted=msgspec.structs.replace(PYTHON.hosted, idempotent=idempotent)
    )
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "1"}}\n</tool_call>'
    tools = [{"type": "code_interpreter", "container": {"type": "auto"}}]
    first_tool = ActingTool(functions=(function,), results=[None])
    async with working(store, TakingTurns(call, "So."), lease_seconds=0.05, tools=[first_tool]) as first:
        await queue(first.app, tools=tools)
        await first_tool.running.wait()
        await first.die()
    tool = ActingTool(functions=(function,))
    async with working(store, TakingTurns(call, "So."), lease_seconds=0.05, tools=[tool]) as second:
        assert await status_of(store) == "completed"
        assert ("outcome of this call is unknown" in second.engine.seen[-1].prompt.text) == (not idempotent)
    assert ("python" in [action for action, _ in tool.done]) == idempotent
    response = check(await log_of(store))
    assert [item["type"] for item in response["output"]] == ["code_interpreter_call", "message"]
    assert [usage["tool_calls"] for usage in response["generations"]] == [1, 0]


async def test_a_prompt_that_the_next_engine_cannot_read_is_rendered_again(store: Outage) -> None:
    await queued(store, "slow")
    async with working(store, lease_seconds=0.05) as first:
        await until_written(store, 8)
        await first.die()
    before = first.engine.seen[0].prompt.ids
    async with working(store) as second:  # a scripted engine only knows pieces that it has seen
        record = await ended(store)
        assert second.engine.seen[-1].prompt.ids[: len(before)] == before
    assert record.status is ResponseStatus.COMPLETED


async def test_what_was_rendered_is_what_is_gone_on_with(store: Outage) -> None:
    await queued(store, "slow")
    async with working(store, lease_seconds=0.05) as first:
        await until_written(store, 8)
        await first.die()
    text = "<|im_start|>user\nslow, as it was rendered then"
    other = await first.engine.tokenize([text])
    [record] = await store.jobs.claim("between", time.time() + 60, -60, 1)
    await store.log.append(Append(response_id=record.id, worker="between", prompt_ids=packed(tuple(other))))
    async with serving(store, SCRIPT, works=False, lease_seconds=LEASE) as second:
        await second.engine.tokenize([text])
        await second.worker.start()
        await ended(store)
        assert second.engine.seen[-1].prompt.ids[: len(other)] == tuple(other)


# The database goes away


async def test_a_store_that_comes_back_loses_nothing(store: Outage) -> None:
    async with working(store) as server:
        await queued(store, "slow")
        await until_written(store, 5)
        server.store.away = True
        await asyncio.sleep(2 * LEASE)
        server.store.away = False
        assert await status_of(store) == "completed"
        await queued(store, name="resp_2")
        assert await status_of(store, "resp_2") == "completed"
    assert timeless(await log_of(store)) == await uninterrupted("slow")


async def test_a_store_that_stays_away_leaves_the_work_for_later(
    store: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "STORE_TIMEOUT", 0.02)
    async with working(store, lease_seconds=0.1) as server:
        await queued(store, "slow")
        await until_written(store, 5)
        server.store.away = True
        await until(lambda: server.engine.load.running == 0)
        assert (await found(store)).status is ResponseStatus.IN_PROGRESS
        server.store.away = False
        assert await status_of(store) == "completed"
    assert timeless(await log_of(store)) == await uninterrupted("slow")


async def test_a_server_stops_also_while_the_store_is_away(store: Outage) -> None:
    async with working(store) as server:
        await queued(store, "endless")
        await until_written(store, 5)
        server.store.away = True
        await until(lambda: server.store.calls[-2:] == ["log.append"] * 2)
        async with asyncio.timeout(10):  # less than it waits for a store while it works
            await server.worker.stop()
        assert server.engine.load.running == 0


async def test_a_worker_that_stumbles_walks_on(store: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stumbling:
        """A store whose sweep fails once."""

        swept = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def sweep(self, now: float) -> Any:
            self.swept += 1
            if self.swept == 1:
                raise KeyError
            return await store.sweep(now)

    monkeypatch.setattr(module, "SWEEP", 0.01)
    stumbling = Stumbling()
    async with working(stumbling):  # type: ignore[arg-type]
        await until(lambda: stumbling.swept > 2)
        await queued(store)
        assert await status_of(store) == "completed"


async def test_a_worker_that_never_started_has_no_store() -> None:
    async def open_nothing() -> Any:
        raise AssertionError

    storage = Storage(open_nothing)
    assert not storage.started
    with pytest.raises(StoreError):
        _ = storage.store
    store = await open_store("memory")
    async with serving(store, SCRIPT, works=False) as server:
        await Worker(server.app).stop()
        await storage.stop()
    await store.close()


async def test_in_the_foreground_and_the_background_the_same_is_answered(store: Outage) -> None:
    """Sampling included: what a request demands is kept with it."""
    fields = {"temperature": 0.5, "max_output_tokens": 4}
    async with working(store) as server:
        await queue(server.app, name="resp_1", **fields)
        await ended(store)
        await (await creation(server.app, "Hi", "resp_2", **fields)).driver(streamed=False).run()
        first, second = server.engine.seen
    assert first == replace(second, resumable=True)  # by another server
    assert first.sampling == Sampling(temperature=0.5, max_tokens=4)
    bodies = [json.loads((await found(store, name)).body) for name in ("resp_1", "resp_2")]
    assert [body["status"] for body in bodies] == ["incomplete"] * 2
    assert [text_of(json.dumps(body).encode()) for body in bodies] == ["One two three four"] * 2


@pytest.mark.parametrize("life", [1, 4])
async def test_a_response_whose_engine_died_goes_on_where_it_stopped(store: Outage, life: int) -> None:
    engine = Mortal(ENGINE_DEATHS - 1, life)
    async with working(store, engine):
        await queued(store, "slow")
        assert await status_of(store) == "completed"
    assert engine.deaths == 0
    assert timeless(await log_of(store)) == await uninterrupted("slow")
    assert len(engine.seen) == ENGINE_DEATHS
    assert all(TEXT.startswith(request.answer_start) for request in engine.seen)


async def test_a_response_of_which_engines_die_fails_in_the_end(store: Outage) -> None:
    engine = Mortal(99, 2)
    async with working(store, engine):
        await queued(store, "slow")
        record = await ended(store)
    assert record.status == "failed"
    last = last_of(await log_of(store))
    assert last["error"]["message"] == str(FatalAnswerError())
    assert engine.deaths == 99 - ENGINE_DEATHS
