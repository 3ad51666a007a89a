"""Works on background responses: claims them, runs them, keeps their leases, and the store tidy.

Every server has one worker. What it has claimed is its own as long as it says
so in time; what a dead one has left behind is taken over by another, which
plays the tape of what was said and goes on in the middle of the sentence.

A response that cannot be worked on now, since the store is away or the engine
is busy or stopping, is left alone: its lease runs out, and somebody goes on.
"""

import asyncio
import secrets
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing, suppress
from functools import partial
from random import Random
from typing import Any, TypeVar

import structlog
from msgspec import Struct

from antiphon.core.errors import (
    EngineBusyError,
    EngineError,
    EngineNotReadyError,
    StoreError,
)
from antiphon.core.turn import Turn
from antiphon.run.loop import start
from antiphon.run.model import Model
from antiphon.run.record import Desk, LostError, Past, Projection, Recorder
from antiphon.run.round import Recording
from antiphon.run.tape import Tape, read_entries
from antiphon.store.records import Entry, ItemRecord, Lease, Outcome, ResponseRecord, ResponseStatus, Verdict
from antiphon.store.store import JOBS, Store, cancel_of
from antiphon.store.watching import Signal

LEASE = 15.0
"""Seconds after which the responses of a worker that was not heard of are taken over."""
BEATS = 3
"""Signs of life within a lease."""
SWEEP = 60.0
"""Seconds between sweeps of the store."""
PAUSE = 1.0
"""Seconds to wait when the database is away."""
ABANDONED = 100
"""So many responses of dead servers are ended at a time."""

_NOT_NOW = (StoreError, EngineNotReadyError, EngineBusyError)
"""What keeps a worker from going on, and may be over for the next one."""

log = structlog.get_logger()

T = TypeVar("T")


class Job(Struct, frozen=True):
    """A stored response, ready to be run.

    `conversation` holds its input items if a conversation gets them.
    """

    turn: Turn
    model: Model
    projection: Projection
    conversation: tuple[ItemRecord, ...] | None = None


class LastWords(Struct, frozen=True):
    """How a response ends of which only the record is known: its body, and its last wire events."""

    status: ResponseStatus
    body: bytes
    lines: list[bytes]


Prepare = Callable[[ResponseRecord], Coroutine[Any, Any, Job]]
"""Makes a job of a stored response. What it raises fails the response."""

Bury = Callable[[ResponseRecord, Exception], LastWords]
"""Ends a response that failed, or was cancelled, by its record alone."""


class CancelledByClientError(Exception):
    """Somebody asked for this response to be cancelled."""


class AbandonedError(EngineError):
    """The server stopped in the middle of this answer. Ask again."""


class Worker:
    """Runs at most `jobs` background responses at a time. `lease` is in seconds."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[Store]],
        prepare: Prepare,
        bury: Bury,
        *,
        jobs: int,
        lease: float = LEASE,
    ) -> None:
        self._open_store = open_store
        self._prepare = prepare
        self._bury = bury
        self._slots = asyncio.Semaphore(jobs)
        self._lease = lease
        self._jobs: dict[asyncio.Task[None], str] = {}
        self._stops: dict[str, Callable[[Exception], None]] = {}
        self._cancels = Signal()
        self._desk: Desk | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def started(self) -> bool:
        """The store is open."""
        return self._desk is not None

    @property
    def desk(self) -> Desk:
        """Where what happens is written down. Raises StoreError before `start`."""
        if self._desk is None:
            raise StoreError
        return self._desk

    @property
    def store(self) -> Store:
        """The store. Raises StoreError before `start`."""
        return self.desk.store

    def lease(self) -> Lease:
        """A new lease of this worker."""
        return Lease(self.desk.worker, time.time() + self._lease)

    async def start(self) -> None:
        """Open the store and begin to work. Raises StoreError if that cannot be done."""
        desk = self._desk = Desk(await self._open_store(), f"worker-{secrets.token_hex(8)}")
        work = (
            desk.write(),
            _again_and_again(self._beat, self._cancels, self._lease / BEATS),
            _again_and_again(self._bury_abandoned, Signal(), self._lease),
            _again_and_again(self._sweep, Signal(), SWEEP),
        )
        self._tasks = [asyncio.create_task(each) for each in work]
        self._claiming = asyncio.create_task(self._claim())

    def drain(self) -> None:
        """Claim no more."""
        if self._claiming is not None:
            self._claiming.cancel()

    async def give_back(self) -> None:
        """Stop working, so that another server can go on at once with what is not done."""
        if self._claiming is None:
            return
        claiming, self._claiming = self._claiming, None
        await _cancelled([claiming])
        mine = [*self._jobs.values()]
        await _cancelled([*self._jobs])
        with suppress(StoreError):  # then the leases run out
            await self.store.jobs.release(self.desk.worker, mine)
        self.desk.stopping.set_result(None)

    async def stop(self) -> None:
        """Stop working, and close the store."""
        if self._desk is None:
            return
        await self.give_back()
        await _cancelled(self._tasks)
        desk, self._desk = self._desk, None
        await desk.store.close()

    # Claiming

    async def _claim(self) -> None:
        """Claim jobs as they come, one for each free slot."""
        with self.store.watch(JOBS) as watch:
            while True:
                await self._slots.acquire()
                record = await self._next()
                if record is None or record.id in self._jobs.values():  # ours: its lease had run out
                    self._slots.release()
                    await watch.changed(self._lease / BEATS)
                    continue
                task = asyncio.create_task(self._work(record))
                self._jobs[task] = record.id
                task.add_done_callback(self._done)

    async def _next(self) -> ResponseRecord | None:
        try:
            claimed = await self.store.jobs.claim(self.desk.worker, time.time(), self._lease, 1)
        except Exception as error:
            _complain(error)
            await asyncio.sleep(PAUSE)
            return None
        return claimed[0] if claimed else None

    def _done(self, task: asyncio.Task[None]) -> None:
        response_id = self._jobs.pop(task)
        self._slots.release()
        if task.cancelled() or (failure := task.exception()) is None:
            return
        if isinstance(failure, LostError):
            log.info("a response was lost", id=response_id, verdict=failure.verdict)
        elif isinstance(failure, _NOT_NOW):
            log.warning("a response has to wait", id=response_id, error=str(failure.__cause__ or failure))
        else:
            log.error("a response could not be ended", id=response_id, exc_info=failure)

    # One job

    async def _work(self, record: ResponseRecord) -> None:
        """Run a response to its end, whatever that is. Raises what kept it from ending."""
        try:
            job = await self._driven(record.id, self._prepare(record))
            tape = Tape(read_entries([entry.chunks for entry in await self._log(record)]))
        except _NOT_NOW:
            raise
        except Exception as why:  # it cannot be run any more: its model is gone, or its history
            await self._end_by_record(record, why)
            return
        recorder = Recorder(
            record.id, job.projection, self.desk, Past(record.last_seq, tape, job.conversation)
        )
        recorder.stop = partial(self._stop, record.id)
        with self.desk.lying(recorder):
            await self._answer(record, job, recorder, tape)

    async def _answer(self, record: ResponseRecord, job: Job, recorder: Recorder, tape: Tape) -> None:
        try:
            await self._driven(record.id, self._say(record, job, recorder, tape))
        except _NOT_NOW:
            await self.desk.settled(recorder)
            raise
        except Exception as why:
            if recorder.behind:
                await self._end_by_record(record, why)
            else:
                await recorder.end(_last_words(job.projection, why))
        else:
            await recorder.end(job.projection.finish())

    async def _log(self, record: ResponseRecord) -> list[Entry]:
        """What was said before: nothing, if nobody got as far as the prompt."""
        return [] if record.prompt_ids is None else await self.store.log.read(record.id)

    async def _driven(self, response_id: str, work: Coroutine[Any, Any, T]) -> T:
        """Do work on a response while its lease is kept. Raises why it was stopped, if it was."""
        task = asyncio.create_task(work)
        reasons: list[Exception] = []

        def stop(reason: Exception) -> None:
            if not reasons:
                task.cancel()
            reasons.append(reason)

        self._stops[response_id] = stop
        watching = asyncio.create_task(self._watch_cancel(response_id))
        try:
            await asyncio.wait((task,))
        finally:
            del self._stops[response_id]
            await _cancelled([task, watching])
        if reasons:
            raise reasons[0]
        return task.result()

    def _stop(self, response_id: str, reason: Exception) -> None:
        if stop := self._stops.get(response_id):
            stop(reason)

    async def _say(self, record: ResponseRecord, job: Job, recorder: Recorder, tape: Tape) -> None:
        """Generate the answer, or what is left of it."""
        recorder.add(job.projection.begin())
        if record.cancel_requested and not recorder.behind:
            raise CancelledByClientError
        dice = Random(record.id)  # noqa: S311 - call ids must be those of the first time, not secret
        recording = Recording(tape, dice, _unpacked(record.prompt_ids))
        run = await start(job.turn, model=job.model, recording=recording)
        job.projection.count_prompt(run.prompt_tokens)
        recorder.prompt_ids = packed(run.prompts[0].ids)
        async with aclosing(run.batches) as batches:
            async for batch in batches:
                for _, events in batch:
                    recorder.push(events)
                if record.cancel_requested:
                    raise CancelledByClientError

    async def _watch_cancel(self, response_id: str) -> None:
        with self.store.watch(cancel_of(response_id)) as watch:
            while await watch.changed():
                self._cancels.set()

    async def _end_by_record(self, record: ResponseRecord, why: Exception) -> None:
        """End a response of which nothing but the record is known."""
        if not isinstance(why, CancelledByClientError):
            log.error("response failed", id=record.id, exc_info=why)
        last = self._bury(record, why)
        first = record.last_seq + 1
        entry = Entry(first, first + len(last.lines) - 1, b"\n".join(last.lines))
        outcome = Outcome(
            response_id=record.id,
            worker=self.desk.worker,
            status=last.status,
            body=last.body,
            entries=(entry,),
        )
        await self.store.responses.finish(outcome)

    # Leases

    async def _beat(self) -> None:
        """Renew all leases; stop what is lost or shall be cancelled."""
        stops = {recorder.response_id: recorder.stop for recorder in self.desk.open.values()} | self._stops
        if not stops:
            return
        beat = await self.store.jobs.heartbeat(self.desk.worker, [*stops], time.time(), self._lease)
        for response_id in beat.lost:
            stops[response_id](LostError(Verdict.LOST))
        for response_id in beat.cancelled:
            stops[response_id](CancelledByClientError())

    async def _bury_abandoned(self) -> None:
        """End foreground responses whose server died: nobody waits for them."""
        jobs = self.store.jobs
        for record in await jobs.claim_abandoned(self.desk.worker, time.time(), self._lease, ABANDONED):
            if record.id not in self.desk.open:  # else it is ours, and its lease had run out
                await self._end_by_record(record, AbandonedError())

    async def _sweep(self) -> None:
        swept = await self.store.sweep(time.time())
        if swept.responses or swept.completions:
            log.info("swept", responses=swept.responses, completions=swept.completions)


def _last_words(projection: Projection, why: Exception) -> list[bytes]:
    if isinstance(why, CancelledByClientError):
        return projection.cancel()
    log.error("response failed", exc_info=why)
    return projection.fail(why)


async def _again_and_again(work: Callable[[], Awaitable[None]], sooner: Signal, pause: float) -> None:
    """Do the work every `pause` seconds, or `sooner`. A database that is away comes back."""
    while True:
        try:
            await work()
        except Exception as error:
            _complain(error)
        await sooner.changed(pause)


def _complain(error: Exception) -> None:
    if isinstance(error, StoreError):
        log.warning("the store does not answer", error=str(error.__cause__ or error))
    else:
        log.error("the worker stumbled", exc_info=error)


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def packed(ids: tuple[int, ...]) -> bytes:
    """Token ids as the store keeps them: four bytes each."""
    return array("i", ids).tobytes()


def _unpacked(ids: bytes | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(array("i", ids))
