"""For any order of actions, a store behaves like a dict with the same rules."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from antiphon.store.open import open_store
from antiphon.store.records import (
    Append,
    Lease,
    LogEntry,
    ResponseEnd,
    ResponseRecord,
    ResponseStatus,
    Verdict,
)
from antiphon.store.store import Store
from tests.store.samples import OWNER, job

LEASE = 10.0
workers = st.sampled_from(["a", "b", None])
runs = st.tuples(st.integers(-2, 2), st.lists(st.integers(0, 2), max_size=3))
"""Where entries begin, from the place where they should, and how long each is."""


class Model(Struct):
    """A response as the rules say that it is."""

    status: ResponseStatus = ResponseStatus.QUEUED
    lease: Lease | None = None
    log: list[LogEntry] = []
    now: float = 1000.0

    @property
    def last_seq(self) -> int:
        return self.log[-1].last if self.log else -1

    def entries(self, run: tuple[int, list[int]]) -> tuple[LogEntry, ...]:
        offset, lengths = run
        entries, first = [], max(0, self.last_seq + 1 + offset)
        for length in lengths:
            entries.append(LogEntry(first, first + length, b"%d" % len(self.log)))
            first += length + 1
        return tuple(entries)

    def write(self, worker: str | None, entries: tuple[LogEntry, ...]) -> Verdict:
        if self.status.terminal:
            return Verdict.ENDED
        if worker != (self.lease and self.lease.worker):
            return Verdict.LOST
        if entries and entries[-1].last == self.last_seq:
            return Verdict.ACCEPTED
        if entries and entries[0].first != self.last_seq + 1:
            return Verdict.GAP
        self.log.extend(entries)
        return Verdict.ACCEPTED

    def claim(self, worker: str) -> bool:
        free = not self.status.terminal and (self.lease is None or self.lease.until <= self.now)
        if free:
            self.status, self.lease = ResponseStatus.IN_PROGRESS, Lease(worker, self.now + LEASE)
        return free


async def _append(store: Store, model: Model, worker: str | None, run: Any) -> None:
    entries = model.entries(run)
    verdicts = await store.log.append(Append(response_id="resp_1", worker=worker, entries=entries))
    assert verdicts == [model.write(worker, entries)]


async def _finish(store: Store, model: Model, worker: str | None, run: Any) -> None:
    entries = model.entries(run)
    end = ResponseEnd(
        response_id="resp_1", worker=worker, status=ResponseStatus.FAILED, body=b"", entries=entries
    )
    verdict = model.write(worker, entries)
    assert await store.responses.finish(end) is verdict
    if verdict is Verdict.ACCEPTED:
        model.status, model.lease = ResponseStatus.FAILED, None


async def _claim(store: Store, model: Model, worker: str) -> None:
    claimed = await store.jobs.claim(worker, model.now, LEASE, 1)
    assert bool(claimed) is model.claim(worker)


async def _beat(store: Store, model: Model, worker: str) -> None:
    mine = model.lease is not None and model.lease.worker == worker
    beat = await store.jobs.heartbeat(worker, ["resp_1"], model.now, LEASE)
    assert beat.lost == (frozenset() if mine else {"resp_1"})
    if mine:
        model.lease = Lease(worker, model.now + LEASE)


async def _release(store: Store, model: Model, worker: str) -> None:
    await store.jobs.release(worker)
    if model.lease and model.lease.worker == worker:
        model.lease = None


async def _wait(_store: Store, model: Model, seconds: float) -> None:
    model.now += seconds


named = st.sampled_from(["a", "b"])
actions = st.one_of(
    st.tuples(st.just(_append), workers, runs),
    st.tuples(st.just(_append), workers, runs.map(lambda run: (0, run[1]))),
    st.tuples(st.just(_finish), workers, runs),
    st.tuples(st.just(_claim), named),
    st.tuples(st.just(_beat), named),
    st.tuples(st.just(_release), named),
    st.tuples(st.just(_wait), st.sampled_from([4.0, LEASE])),
)


async def _play(script: list[tuple[Any, ...]]) -> None:
    store, model = await open_store("memory"), Model()
    await store.responses.create(job(), ())
    for act, *arguments in script:
        await act(store, model, *arguments)
    record = await store.responses.get(OWNER, "resp_1")
    assert isinstance(record, ResponseRecord)
    assert (record.status, record.lease, record.last_seq) == (model.status, model.lease, model.last_seq)
    assert await store.log.read("resp_1") == model.log
    await store.close()


@given(st.lists(actions, max_size=25))
def test_a_store_does_what_the_rules_say(script: list[tuple[Any, ...]]):
    asyncio.run(_play(script))
