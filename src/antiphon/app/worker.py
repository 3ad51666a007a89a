"""Works on background responses and batches: claims them, runs them, renews their leases, sweeps the store.

Durable streams, whose clients wait, are begun elsewhere (`responses/durable.py`): it only continues them.

Every server has one worker. It keeps what it has claimed as long as it renews the lease in time; the
responses of a crashed server are taken over by another, which replays the recorded chunks and continues
after them. If a response cannot be worked on now, because the store is unavailable or the engine is busy or
stopping, its lease expires, and another server continues. So it is if the engine dies in the middle of an
answer, unless that has happened several times with this one.

Batches may take hours, so they have permits of their own, and no background response waits until one has
ended. Nobody waits for their requests: these are last for everything that they need (`core/permits.py`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import asdict, astuple

from antiphon.app import batch_work, message_batches
from antiphon.app.app import App
from antiphon.app.indexing import Indexer
from antiphon.app.journal import BackgroundJournal
from antiphon.app.observing import begin, end
from antiphon.app.readers import RENEWALS, read_until
from antiphon.app.responses.create import may_wait, prepare
from antiphon.app.responses.record import EndFromRecord, end_from_record, finish_from_record
from antiphon.app.siblings import Siblings
from antiphon.core.errors import (
    EngineBusyError,
    EngineDiedError,
    EngineError,
    EngineNotReadyError,
    StoreError,
)
from antiphon.core.limits import CLIENT
from antiphon.core.permits import LAST, PRIORITY, Permit, Permits
from antiphon.log import log_failure
from antiphon.run.drive import Driver
from antiphon.run.endings import ENGINE_DEATHS, CancelRequestedError, ClientLeftError, LostError
from antiphon.store.records import ResponseKind, ResponseRecord, Verdict
from antiphon.store.store import JOBS, cancel_of
from antiphon.store.watch import Signal

HEARTBEATS = 3
"""Renewals within a lease."""
SWEEP = 60.0
"""Seconds between sweeps of the store."""
BATCHES = 4
"""Batches that one server works on at the same time. Each has several requests under way."""
ABANDONED = 100
"""The number of responses of crashed servers that are ended at a time."""

_NOT_NOW = (StoreError, EngineNotReadyError, EngineBusyError, EngineDiedError)
"""Errors that are temporary, or limited to this server."""

_RESPONSES = frozenset({ResponseKind.RESPONSE})

log = structlog.get_logger(__name__)

Stop = Callable[[Exception], object]


class FatalAnswerError(EngineError):
    """The engine of the model has died each time that it worked on this answer. Send another request."""


class AbandonedError(EngineError):
    """The server stopped in the middle of this answer. Send the request again."""

    expected = True  # see `log_failure`


class _Kind(Struct, frozen=True):
    """How jobs of one kind are worked on, and ended from their row. A `batch` decides itself how it ends."""

    prepare: Callable[[App, ResponseRecord], Awaitable[tuple[Driver, BackgroundJournal]]]
    end: EndFromRecord
    batch: bool = True


_KINDS: Mapping[ResponseKind, _Kind] = {
    ResponseKind.RESPONSE: _Kind(prepare, end_from_record, batch=False),
    ResponseKind.MESSAGE_BATCH: _Kind(message_batches.prepare, message_batches.end_from_record),
    ResponseKind.BATCH: _Kind(batch_work.prepare, batch_work.end_from_record),
}


class Worker:
    """Runs at most so many background responses at a time as the option --jobs says, and a few batches."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.permits = Permits(share_of(app.settings.jobs, app.siblings))
        self.batches = Permits(share_of(BATCHES, app.siblings))
        self._lease_seconds = app.settings.lease_seconds
        # Clients wait for those that are continued.
        self._abandoned_seconds = self._lease_seconds / (HEARTBEATS if app.settings.durable_streams else 1)
        self._draining = False
        self._jobs: dict[asyncio.Task[None], str] = {}
        self._stops: dict[str, Stop] = {}
        self._steers: dict[str, Callable[[], None]] = {}
        self._steered: set[str] = set()  # of those that run
        self._cancels = Signal()
        self._claiming: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.indexer = Indexer(app)
        app.metrics.permits |= {
            "background": self.permits,
            "batches": self.batches,
            "indexing": self.indexer.pool.permits,
        }

    async def start(self) -> None:
        """Begin to work. The storage was started before."""
        app = self._app
        work = (
            _repeat(self._beat, self._cancels, self._lease_seconds / HEARTBEATS),
            _repeat(self._take_abandoned, Signal(), self._abandoned_seconds),
            _repeat(self._keep_read, app.storage.writer.readers.came, app.settings.stall_seconds / RENEWALS),
        )
        self._tasks = [asyncio.create_task(loop) for loop in work]
        self._claiming = asyncio.create_task(self._claim())
        if app.siblings.place == 0:  # once in a server is enough
            self._tasks.append(asyncio.create_task(_repeat(self._sweep, Signal(), SWEEP)))
            self.indexer.start()

    def drain(self) -> None:
        """Claim no more."""
        self._draining = True
        self.indexer.drain()
        if self._claiming is not None:
            self._claiming.cancel()

    async def release(self) -> None:
        """Stop working; other servers can continue unfinished jobs at once."""
        if self._claiming is None:
            return
        self._draining = True
        claiming, self._claiming = self._claiming, None
        await _cancelled([claiming])
        await self.indexer.stop()
        writer = self._app.storage.writer
        writer.stopping.set_result(None)  # before the jobs end: their journals wait for no store then
        await _cancelled([*self._jobs])
        with suppress(StoreError):  # then the leases run out
            await writer.store.jobs.release(writer.worker)

    async def stop(self) -> None:
        """Stop working."""
        await self.release()
        await _cancelled(self._tasks)
        self._tasks = []

    # Claiming

    async def _claim(self) -> None:
        """Claim new jobs, one for each free slot."""
        with self._app.storage.store.watch(JOBS) as watch:
            while True:
                # First: other servers could not run a job that waits here.
                permit = await self.permits.acquire()
                record = await self._next()
                # A job of this worker whose lease has expired may be claimed again: it still runs here.
                if record is None or record.id in self._jobs.values():
                    permit.leave()
                    await watch.changed(await self._pause())
                    continue
                if _KINDS[record.kind].batch:  # it was claimed because there is a permit for it
                    permit.leave()
                    permit = self.batches.enter(lambda: None)
                self._begin(record, permit)

    def _begin(self, record: ResponseRecord, permit: Permit | None = None) -> None:
        if record.prompt_ids is not None:  # another server has begun it
            log.info("a response is continued", id=record.id, after=record.last_seq)
        task = asyncio.create_task(self._work(record))
        self._jobs[task] = record.id
        task.add_done_callback(partial(self._done, permit))

    async def _pause(self) -> float:
        """Seconds to wait for a notification. A lease that runs out does not notify."""
        try:
            leased = await self._app.storage.store.jobs.any_background()
        except Exception as error:  # any error: the loop has to continue
            _log_trouble(error)
            leased = True
        return self._lease_seconds / HEARTBEATS if leased else SWEEP

    async def _next(self) -> ResponseRecord | None:
        writer = self._app.storage.writer
        kinds = _RESPONSES if self.batches.running >= self.batches.capacity else None
        try:
            claimed = await writer.store.jobs.claim(writer.worker, time.time(), self._lease_seconds, 1, kinds)
        except Exception as error:
            _log_trouble(error)
            await asyncio.sleep(self._lease_seconds)  # wait for servers that could not renew theirs either
            return None
        return claimed[0] if claimed else None

    def _done(self, permit: Permit | None, task: asyncio.Task[None]) -> None:
        response_id = self._jobs.pop(task)
        if permit is not None:
            permit.leave()
        if task.cancelled() or (failure := task.exception()) is None:
            return
        if isinstance(failure, LostError):
            log.info("a response was lost", id=response_id, verdict=failure.verdict)
        elif isinstance(failure, _NOT_NOW):
            log.warning("a response has to wait", id=response_id, error=str(failure.__cause__ or failure))
        else:
            log_failure(failure, id=response_id)

    # One job

    async def _work(self, record: ResponseRecord) -> None:
        """Answer a response, until any ending. Raises the reason if it was ended from outside."""
        if _KINDS[record.kind].batch or may_wait(record):  # nobody waits for it
            PRIORITY.set(LAST)
            # Clients who wait share slots among themselves; batches of several owners do, too.
            CLIENT.set(f"batches of {record.owner}")
        observation = begin(self._app, record.id, "background response")
        observation.answer, observation.model = record.id, record.model
        observation.account = self._app.keys.of_owner(record.owner).in_background
        self._app.metrics.background += 1
        try:
            await self._work_on(record)
        finally:
            self._app.metrics.background -= 1
            end(self._app, observation, "background response")

    async def _work_on(self, record: ResponseRecord) -> None:
        writer = self._app.storage.writer
        if record.cancel_requested and not _KINDS[record.kind].batch:
            await finish_from_record(writer, record, CancelRequestedError())
            return
        watching = asyncio.create_task(self._watch_cancel(record.id))
        try:
            await self._answer(record)
        finally:
            del self._stops[record.id]
            self._steers.pop(record.id, None)
            self._steered.discard(record.id)
            await _cancelled([watching])

    async def _answer(self, record: ResponseRecord) -> None:
        try:
            driver, journal = await self._prepared(record)
        except (*_NOT_NOW, LostError):
            raise
        except Exception as why:  # it cannot be run any more, for example because its model was removed
            await self._finish(record, why)
            return
        self._stops[record.id] = driver.stop
        self._steers[record.id] = driver.steer
        if record.successor_id is not None or record.id in self._steered:
            driver.steer()
        try:
            with self._app.storage.writer.registered(journal):
                await driver.run()
        except EngineDiedError:
            await self._engine_died(record)
            raise
        except (*_NOT_NOW, LostError):
            raise
        except Exception as why:  # its end cannot be stored: it would be answered again and again
            await self._finish(record, why)

    async def _engine_died(self, record: ResponseRecord) -> None:
        """Leave a response to whoever has an engine next, unless several engines have died of it."""
        writer = self._app.storage.writer
        deaths = await writer.store.jobs.count_death(writer.worker, record.id)
        if deaths >= ENGINE_DEATHS:
            await self._finish(record, FatalAnswerError())

    async def _finish(self, record: ResponseRecord, why: Exception) -> None:
        """End a job from its row and its log alone, as they are now. Raises LostError if it is not ours."""
        writer, kind = self._app.storage.writer, _KINDS[record.kind]
        now = await writer.store.responses.get(record.owner, record.id, record.kind)
        # Before anything is written: the files of a batch are those of the server that has it.
        if now is None or now.lease is None or now.lease.worker != writer.worker:
            raise LostError(Verdict.LOST)
        verdict = await finish_from_record(writer, now, why, kind.end)
        if verdict is not Verdict.ACCEPTED:
            raise LostError(verdict)
        if kind.batch:
            await batch_work.release_file(writer.store, now)

    async def _prepared(self, record: ResponseRecord) -> tuple[Driver, BackgroundJournal]:
        """The driver of the response. Raises the reason if it was stopped."""
        preparing = asyncio.ensure_future(_KINDS[record.kind].prepare(self._app, record))
        reasons: list[Exception] = []

        def stop(reason: Exception) -> None:
            reasons.append(reason)
            preparing.cancel()

        self._stops[record.id] = stop
        try:
            await asyncio.wait((preparing,))  # not awaited itself: `stop` cancels it, and not this task
        finally:
            await _cancelled([preparing])
        if reasons:
            raise reasons[0]
        return preparing.result()

    async def _watch_cancel(self, response_id: str) -> None:
        with self._app.storage.store.watch(cancel_of(response_id)) as watch:
            while await watch.changed():
                self._cancels.set()

    # Leases

    async def _beat(self) -> None:
        """Renew all leases; stop responses that are lost or cancelled, and end those that were steered."""
        writer = self._app.storage.writer
        stops: dict[str, Stop] = {journal.response_id: journal.stop for journal in writer.open.values()}
        stops |= self._stops
        if not stops:
            return
        beat = await writer.store.jobs.heartbeat(writer.worker, [*stops], time.time(), self._lease_seconds)
        for response_id in beat.lost:
            stops[response_id](LostError(Verdict.LOST))
        for response_id in beat.cancelled:
            stops[response_id](CancelRequestedError())
        for response_id in beat.unread:
            stops[response_id](ClientLeftError())
        for response_id in beat.steered & self._stops.keys() - self._steered:
            self._steered.add(response_id)
            if (steer := self._steers.get(response_id)) is not None:
                steer()

    async def _take_abandoned(self) -> None:
        """End foreground responses whose server crashed, and with it the connection to their client.

        Continue durable ones: the client may come back. They need no permit, as they would not have had one.
        """
        if self._draining:
            return
        writer = self._app.storage.writer
        jobs = writer.store.jobs
        async with writer.abandoned:
            now = time.time()
            until = read_until(now, self._app.settings.stall_seconds)
            claimed = await jobs.claim_abandoned(writer.worker, now, self._lease_seconds, ABANDONED, until)
            running = {*writer.open, *self._jobs.values()}  # this worker runs it, and its lease had expired
            for record in claimed:
                if record.id in running:
                    continue
                if record.read_until is None:
                    await finish_from_record(writer, record, AbandonedError())
                else:
                    self._begin(record)

    async def _keep_read(self) -> None:
        """Keep the durable streams that are read here."""
        storage = self._app.storage
        if until := storage.writer.readers.until(time.time(), self._app.settings.stall_seconds):
            await storage.store.jobs.keep(until)

    async def _sweep(self) -> None:
        swept = await self._app.storage.store.sweep(time.time())
        if any(astuple(swept)):
            log.info("swept", **asdict(swept))


def share_of(total: int, siblings: Siblings) -> int:
    """How much of so much work a process of a server does: of less than one for each, the last do nothing."""
    return total // siblings.count + (siblings.place < total % siblings.count)


async def _repeat(work: Callable[[], Awaitable[None]], sooner: Signal, pause: float) -> None:
    """Do the work every `pause` seconds, or when `sooner` is set, also if the database was unavailable."""
    while True:
        try:
            await work()
        except Exception as error:
            _log_trouble(error)
        await sooner.changed(pause)


def _log_trouble(error: Exception) -> None:
    if isinstance(error, StoreError):
        log.warning("the store does not answer", error=error.why)
    else:
        log.error("background work failed", exc_info=error)


async def _cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
