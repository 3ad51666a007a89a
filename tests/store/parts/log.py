"""The contract of logs, and of notifications of changes."""

import asyncio

import pytest

from antiphon.store.records import (
    LogEntry,
    ResponseStatus,
    Verdict,
)
from antiphon.store.store import JOBS, Store, cancel_of, events_of
from tests.store.samples import (
    NOW,
    OWNER,
    TIMEOUT,
    Opener,
    append,
    entry,
    job,
    leased,
    quiet,
    response,
    response_end,
    woken,
)


class LogContract:
    """The events of responses."""

    async def test_the_log_gives_back_what_was_appended(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        assert await store.log.append(append(entry(0, 2), entry(3))) == [Verdict.ACCEPTED]
        assert await store.log.append(append(entry(4, 9))) == [Verdict.ACCEPTED]
        assert await store.log.read("resp_1") == [entry(0, 2), entry(3), entry(4, 9)]
        record = await store.responses.get(OWNER, "resp_1")
        assert record == leased(last_seq=9)

    async def test_events_after(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        tail = await store.log.events_after(OWNER, "resp_1", -1)
        assert tail is not None
        assert (tail.status, tail.last_seq, tail.entries) == (ResponseStatus.IN_PROGRESS, -1, [])
        await store.log.append(append(entry(0, 2), entry(3), entry(4, 9)))
        shown = [entry(0, 2, b""), entry(3, 3, b""), entry(4, 9, b"")]
        some = await store.log.events_after(OWNER, "resp_1", -1, 2)
        assert some is not None
        assert (some.last_seq, some.entries) == (9, shown[:2])
        for seq, first in [
            (-(10**30), 0),
            (-1, 0),
            (0, 0),
            (1, 0),
            (2, 1),
            (3, 2),
            (8, 2),
            (9, 3),
            (10**30, 3),
        ]:
            tail = await store.log.events_after(OWNER, "resp_1", seq)
            assert tail is not None
            assert (tail.last_seq, tail.entries) == (9, shown[first:]), seq
        await store.responses.finish(response_end())
        tail = await store.log.events_after(OWNER, "resp_1", 9)
        assert tail is not None
        assert tail.status is ResponseStatus.COMPLETED

    async def test_a_long_log_comes_in_parts(self, opened: Opener) -> None:
        store = await opened(entries=2)
        await store.responses.create(leased(), ())
        await store.log.append(append(*(entry(seq) for seq in range(5))))
        seq, parts = -1, []
        while (tail := await store.log.events_after(OWNER, "resp_1", seq)) and tail.last_seq > seq:
            parts.append(len(tail.entries))
            seq = tail.entries[-1].last
        assert parts == [2, 2, 1]

    @pytest.mark.parametrize(
        "entries",
        [
            [(1, 1)],
            [(4, 4)],
            [(2, 3)],
            [(0, 0)],
            [(3, 3), (5, 5)],
            [(3, 3), (3, 4)],
            [(3, 2)],
            [(3, 4), (5, 2)],
        ],
    )
    async def test_a_gap_is_refused_whole(self, store: Store, entries: list[tuple[int, int]]) -> None:
        await store.responses.create(leased(), ())
        await store.log.append(append(entry(0, 2)))
        wrong = [LogEntry(first, last, b"wrong") for first, last in entries]
        assert await store.log.append(append(*wrong, prompt_ids=b"wrong")) == [Verdict.GAP]
        assert await store.log.read("resp_1") == [entry(0, 2)]
        assert await store.responses.get(OWNER, "resp_1") == leased(last_seq=2)

    async def test_the_last_append_may_be_repeated(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        for _ in range(2):
            assert await store.log.append(append(entry(0, 2), entry(3))) == [Verdict.ACCEPTED]
        assert await store.log.read("resp_1") == [entry(0, 2), entry(3)]
        assert await store.responses.finish(response_end(entries=(entry(3),))) is Verdict.ACCEPTED
        assert await store.log.read("resp_1") == [entry(0, 2), entry(3)]

    async def test_only_the_holder_of_the_lease_appends(self, store: Store) -> None:
        await store.responses.create(leased("resp_1"), ())
        await store.responses.create(response("resp_2"), ())
        verdicts = await store.log.append(
            append(entry(0), worker="v"),
            append(entry(0), worker=None),
            append(entry(0), name="resp_2", worker="w"),
            append(entry(0), name="resp_3"),
            append(entry(0), name="resp_2", worker=None),
            append(entry(0)),
        )
        assert verdicts == [*[Verdict.LOST] * 3, Verdict.GONE, *[Verdict.ACCEPTED] * 2]

    async def test_one_append_after_the_other_in_one_call(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        verdicts = await store.log.append(
            append(entry(0)),
            append(entry(2)),
            append(entry(1), prompt_ids=b"ids"),
            append(entry(2)),
        )
        assert verdicts == [Verdict.ACCEPTED, Verdict.GAP, Verdict.ACCEPTED, Verdict.ACCEPTED]
        assert await store.responses.get(OWNER, "resp_1") == leased(last_seq=2, prompt_ids=b"ids")

    async def test_an_append_without_entries_changes_the_rest(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        changes = (append(), append(prompt_ids=b"p"), append(calls_begun=2), append())
        assert await store.log.append(*changes) == [Verdict.ACCEPTED] * 4
        assert await store.responses.get(OWNER, "resp_1") == leased(prompt_ids=b"p", calls_begun=2)

    async def test_many_logs_at_once(self, store: Store) -> None:
        ids = [f"resp_{index}" for index in range(20)]
        for name in ids:
            await store.responses.create(leased(name), ())

        async def write(name: str) -> None:
            for seq in range(10):
                assert await store.log.append(append(entry(seq), name=name)) == [Verdict.ACCEPTED]

        await asyncio.gather(*map(write, ids))
        for name in ids:
            assert await store.log.read(name) == [entry(seq) for seq in range(10)]


class WatchContract:
    """Who is woken, and by what."""

    async def test_watching_events(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        with store.watch(events_of("resp_1")) as waiting, store.watch(events_of("resp_2")) as other:
            assert await quiet(waiting)
            await store.log.append(append(entry(0)))
            assert await woken(waiting)
            assert await quiet(waiting)
            await store.log.append(append(entry(7)))  # refused
            assert await quiet(waiting)
            await store.responses.finish(response_end())
            assert await woken(waiting)
            await store.responses.delete(OWNER, "resp_1")
            assert await woken(waiting)
            assert await quiet(other)

    async def test_what_waits_is_woken(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        with store.watch(events_of("resp_1")) as one, store.watch(events_of("resp_1")) as two:
            tasks = [asyncio.create_task(woken(waiting)) for waiting in (one, two)]
            await asyncio.sleep(0)
            await store.log.append(append(entry(0)))
            assert await asyncio.gather(*tasks) == [True, True]

    async def test_watching_jobs(self, store: Store) -> None:
        with store.watch(JOBS) as waiting:
            await store.responses.create(response("front"), ())
            assert await quiet(waiting)
            await store.responses.create(job(), ())
            assert await woken(waiting)
            await store.jobs.claim("w", NOW, 10, 1)
            await store.jobs.release("w")
            assert await woken(waiting)

    async def test_watching_for_cancellation(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        with store.watch(cancel_of("resp_1")) as waiting:
            await store.log.append(append(entry(0)))
            assert await quiet(waiting)
            await store.jobs.request_cancel(OWNER, "resp_1", NOW)
            assert await woken(waiting)
            await store.responses.delete(OWNER, "resp_1")
            assert await woken(waiting)

    async def test_a_reader_misses_nothing(self, store: Store) -> None:
        await store.responses.create(leased(), ())
        read: list[int] = []

        async def follow() -> None:
            with store.watch(events_of("resp_1")) as waiting:
                while tail := await store.log.events_after(OWNER, "resp_1", len(read) - 1):
                    read.extend(seq for it in tail.entries for seq in range(it.first, it.last + 1))
                    if tail.status.terminal and tail.last_seq == len(read) - 1:
                        return
                    await waiting.changed(TIMEOUT)

        reader = asyncio.create_task(follow())
        for seq in range(0, 60, 2):
            await store.log.append(append(entry(seq, seq + 1)))
        await store.responses.finish(response_end(entries=(entry(60),)))
        async with asyncio.timeout(TIMEOUT):
            await reader
        assert read == list(range(61))
