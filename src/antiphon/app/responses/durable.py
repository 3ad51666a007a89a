"""Durable streams: a response in the foreground whose events are stored before its client gets them.

Two drivers share the work, as they do in the background. One answers, without a client, and writes the log.
The other one reads the log to the client, so that nothing can be sent that is not stored. Another server that
takes the response over (`app/worker.py`) writes on in the same log, and any server can read it.

Otherwise it is an answer in the foreground: until it has begun, its errors are those of the request, and it
ends if its client leaves. Afterwards its client may leave for `--stall-seconds`.
"""

import asyncio

from antiphon.apis.responses.errors import encode_stream_error
from antiphon.apis.responses.stream import ResponseProjection
from antiphon.app.journal import DurableJournal
from antiphon.app.log_source import LogProjection, LogSource
from antiphon.app.log_writer import LogWriter
from antiphon.core.errors import EngineDiedError
from antiphon.log import log_failure
from antiphon.run.drive import Client, Driver, Output
from antiphon.run.endings import ClientLeftError, Ending


class DurableSource(LogSource):
    """The log of a response, while `answering` writes it here. See `Source`."""

    def __init__(self, writer: LogWriter, owner: str, answering: Driver, journal: DurableJournal) -> None:
        super().__init__(writer, owner, journal.response_id)
        self._answering = answering
        self._journal = journal
        self._answer: asyncio.Task[None] | None = None

    async def run(self, output: Output) -> None:
        """Answer, and push the events that are stored. Raises why the answer has not begun."""
        self._answer = answer = asyncio.create_task(self._run_answer())
        await asyncio.wait((answer, self._journal.opened), return_when=asyncio.FIRST_COMPLETED)
        if not self._journal.background:
            await answer
        with self._writer.readers.reading(self._id, known=True):
            await super().run(output)

    async def _run_answer(self) -> None:
        try:
            await self._answering.run()
        except EngineDiedError:
            if self._journal.background:  # the next one that works on it has to know
                await self._writer.store.jobs.count_death(self._writer.worker, self._id)
            raise

    async def answered(self) -> None:
        """Wait until the answer has ended here: its client may come back until then.

        One that has not begun ends at once; so does one whose waiting task is cancelled, and then another
        server goes on with it.
        """
        answer, self._answer = self._answer, None  # its failure would refer to this object
        if answer is None:
            return
        if not self._journal.background:
            self._answering.stop(ClientLeftError())
        cancelled = None
        while not answer.done():
            try:
                await asyncio.wait((answer,))
            except asyncio.CancelledError as error:
                answer.cancel()
                cancelled = error
        if cancelled is not None:
            raise cancelled
        failure = answer.exception()
        if failure is not None and self._journal.background:  # otherwise it is the request that fails
            log_failure(failure, id=self._id)


class DurableDriver(Driver):
    """Drives a durable stream to its client, and waits until `answering` has ended."""

    def __init__(self, source: DurableSource, answering: Driver, projection: ResponseProjection) -> None:
        super().__init__(source, LogProjection(encode_stream_error))
        self._log = source
        self._answering = answering
        self._made = projection

    @property
    def has_begun(self) -> bool:
        return self._answering.has_begun

    @property
    def holding(self) -> bool:
        """Wire events wait to be stored."""
        unsent = self.has_begun and self._log.position != self._made.last_number
        return unsent or self._answering.holding

    def announce(self) -> None:
        self._answering.announce()

    def steer(self) -> None:
        self._answering.steer()

    async def run(self, client: Client | None = None) -> Ending:
        """Drive the stream to its end, or until its client has left for too long. See `Driver.run`."""
        try:
            return await super().run(client)
        finally:
            await self._log.answered()
