"""Answers the requests of a batch, of any API: several at a time, and each to its result.

What differs between APIs is a `BatchWork`: where the requests are, how one is answered, and what its result
looks like. The results are pushed to a driver, whose journal stores them in the log of the batch. Another
worker that takes the batch over does not answer requests again that have a result there; calls of server
tools that had begun according to the log are not run again, unless that is harmless.

To add an API with batches: a `BatchWork`, and a projection; its kind in `_KINDS` of `app/worker.py`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar

from antiphon.app.app import App
from antiphon.app.journal import BackgroundJournal, CallJournal
from antiphon.app.observing import begin, end
from antiphon.core.errors import (
    AntiphonError,
    ClientBusyError,
    EngineBusyError,
    EngineDiedError,
    EngineNotReadyError,
    StoreError,
    public_error,
)
from antiphon.log import log_failure
from antiphon.run.drive import Client, Driver, Output
from antiphon.run.endings import ENGINE_DEATHS, CancelRequestedError
from antiphon.store.records import ResponseRecord

BUSY_SECONDS = 1.0
"""Seconds until a request is tried again that found too many waiting."""
_BUSY = (EngineBusyError, ClientBusyError)
_NOT_NOW = (EngineNotReadyError, StoreError)
"""Errors that are temporary, or limited to this server: it gives the batch back."""

R = TypeVar("R")


class BatchWork(Protocol[R]):
    """The requests of a batch, and their results. `begun` has the calls of server tools by request."""

    parallel: int
    """How many requests are answered at a time."""
    expires_at: float
    begun: dict[str, int]

    async def next(self) -> R | None:
        """The next request to be answered; None if there are no more."""
        ...

    def name(self, request: R) -> str:
        """The name of a request within its batch."""
        ...

    def request_id(self, request: R) -> str:
        """The id of a request, in the log and for clients."""
        ...

    async def answer(self, request: R, calls: CallJournal) -> Any:
        """Answer a request; its result. Raises AntiphonError."""
        ...

    def failed(self, request: R, error: AntiphonError) -> Any:
        """The result of a request that failed."""
        ...

    def calls_begin(self, request: R, count: int) -> Any:
        """The entry of the log that says that a request has begun so many calls."""
        ...

    def expire(self) -> list[Any]:
        """The results of the requests for which there was no time."""
        ...


class BatchJournal(BackgroundJournal):
    """The journal of a batch: each of its workers only pushes what is new."""

    repeats = False


class BatchSource:
    """Answers requests, and pushes their results. See `run.drive.Source`."""

    def __init__(self, app: App, record: ResponseRecord, work: BatchWork[Any]) -> None:
        self._app = app
        self._record = record
        self._batch = work
        self._all_begun = record.calls_begun

    async def run(self, output: Output) -> None:
        """A request that fails has a result, too."""
        output.announce()
        if self._record.cancel_requested:
            raise CancelRequestedError
        workers: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(max(0.0, self._batch.expires_at - time.time())):
                workers += [asyncio.create_task(self._work(output)) for _ in range(self._batch.parallel)]
                await asyncio.gather(*workers)
        except TimeoutError:
            await _ended(workers)
            output.push(0, self._batch.expire())
        finally:
            await _ended(workers)

    def abandon(self) -> Iterable[tuple[int, list[Any]]]:
        """There are no open items."""
        return ()

    async def _work(self, output: Output) -> None:
        while (request := await self._batch.next()) is not None:
            output.push(0, [await self._result(request, output)])

    async def _result(self, request: Any, output: Output) -> Any:
        while True:
            try:
                return await self._answer(request, output)
            except _NOT_NOW:
                raise
            except _BUSY:
                await asyncio.sleep(BUSY_SECONDS)
            except Exception as error:
                # The worker counts the deaths of the engine; then it is requests that fail, not the batch.
                if isinstance(error, EngineDiedError) and self._record.engine_deaths < ENGINE_DEATHS - 1:
                    raise
                log_failure(error)
                return self._batch.failed(request, public_error(error))

    async def _answer(self, request: Any, output: Output) -> Any:
        """The result of a request that is answered. Raises AntiphonError."""
        name = self._batch.name(request)
        calls = CallJournal(self._batch.begun.get(name, 0), partial(self._begin_calls, output, request))
        observation = begin(self._app, self._batch.request_id(request), "request of a batch")
        observation.account = self._app.keys.of_owner(self._record.owner).in_background
        try:
            return await self._batch.answer(request, calls)
        finally:
            end(self._app, observation, "request of a batch")

    async def _begin_calls(self, output: Output, request: Any, count: int) -> None:
        """Store that a request begins this number of calls, before the last of them begins."""
        name = self._batch.name(request)
        if count > self._batch.begun.get(name, 0):
            self._batch.begun[name] = count
            self._all_begun += 1
            output.push(0, [self._batch.calls_begin(request, count)])
            await output.calls_begin(self._all_begun)


async def _ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _BodyCollector(Client):
    """Keeps the body of an answer."""

    body = b""

    def end(self, lines: list[bytes], body: Callable[[], bytes]) -> None:
        self.body = body()


async def body_of(driving: Awaitable[Driver]) -> bytes:
    """The body of the full answer of a driver. Raises AntiphonError."""
    client = _BodyCollector()
    await (await driving).run(client)
    return client.body
