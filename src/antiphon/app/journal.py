"""Stores answers: the four journals of a response, and that of a chat completion. See `run.drive.Journal`.

A streamed response has a row from its first event on, and a log that is written while it is sent. A full
response is stored when it has ended. A background response has its row and perhaps a part of its log
already; the engine's chunks are recorded, too, so that another server can continue it. So are those of a
durable stream.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from time import time
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.responses.stored import StoredItem
from antiphon.app.event_log import DeltaRun, EventBuffer
from antiphon.app.log_writer import LogWriter
from antiphon.app.responses.record import EndFromRecord, end_from_record, finish_from_record
from antiphon.core.accumulator import DELTAS
from antiphon.core.errors import StoreError
from antiphon.core.plain_tokens import DeltaEncoder, NumberedFrame
from antiphon.core.stream_record import STREAM_RECORD
from antiphon.engines.engine import Prompt
from antiphon.run.drive import Journal, Projection
from antiphon.run.endings import Ending, LostError, Stored
from antiphon.run.replay import ReplayLog
from antiphon.store.records import (
    Append,
    ItemRecord,
    LogEntry,
    ResponseEnd,
    ResponseRecord,
    ResponseStatus,
    Verdict,
)

Stop = Callable[[Exception], None]
"""Ends an answer, for a reason."""


class StoredProjection(Projection, Protocol):
    """A projection whose answer is stored: `status` is that of a response."""

    status: str

    @property
    def frame(self) -> NumberedFrame | None:
        """The frame of the deltas of the open item, if it has one."""
        ...

    @property
    def items(self) -> Sequence[StoredItem]:
        """The items that are finished."""
        ...

    def recording_encoder(self, texts: list[str]) -> DeltaEncoder | None:
        """As `delta_encoder`; the text of each delta is also appended to `texts`."""
        ...


class StoredInput(Struct, frozen=True):
    """The row of a response, and its input items. `row` makes it, with a body."""

    response_id: str
    row: Callable[[bytes], ResponseRecord]
    items: tuple[ItemRecord, ...]
    in_conversation: bool = False
    """The items, and the output, are appended to a conversation."""


class ResponseJournal(Journal):
    """The common part of the journals of a response: its end."""

    def __init__(self, writer: LogWriter, projection: StoredProjection, given: StoredInput) -> None:
        self.response_id = given.response_id
        self._writer = writer
        self._projection = projection
        self._given = given

    def _end(self, entries: tuple[LogEntry, ...] = ()) -> ResponseEnd:
        """How the response ends, as its projection has it."""
        output = as_records(self._projection.items)
        return ResponseEnd(
            response_id=self.response_id,
            worker=self._writer.worker,
            status=ResponseStatus(self._projection.status),
            body=self._projection.body(),
            output=output,
            entries=entries,
            conversation=(*self._given.items, *output) if self._given.in_conversation else (),
        )


class FullAnswerJournal(ResponseJournal):
    """Stores a response that is not streamed, when it has ended, in one transaction.

    `calls` also gets the calls that begin, if the response is part of a batch.
    """

    calls: "CallJournal | None" = None

    async def calls_begin(self, count: int) -> None:
        if self.calls is not None:
            await self.calls.calls_begin(count)

    async def close(self, ending: Ending, reason: BaseException | None, lines: list[bytes]) -> list[bytes]:
        """Store all of it, in one transaction."""
        body, output = self._projection.body(), as_records(self._projection.items)
        status = ResponseStatus(self._projection.status)
        row = replace(self._given.row(body), status=status, lease=None)
        responses = self._writer.store.responses

        async def save() -> bool:
            await responses.save(row, self._given.items, output)
            return True

        async def saved() -> bool | None:
            return await responses.get(row.owner, row.id) is not None or None

        await self._writer.retried(save, saved)
        return lines


class StreamJournal(ResponseJournal):
    """Writes the wire events of a response to its log while they are sent.

    `last` is the sequence number of the last event in the log: a response that is continued makes all of its
    events again, and only the new ones are written.
    """

    replay: ReplayLog | None = None
    last = -1
    repeats = True
    """The projection makes all events again, also those in the log."""

    def __init__(self, writer: LogWriter, projection: StoredProjection, given: StoredInput) -> None:
        super().__init__(writer, projection, given)
        self.stored: Sequence[LogEntry] = ()
        self._stop: Stop | None = None
        self._unwritten: StoreError | None = None  # why some of the log is not
        # This many of the next wire events are in the log already.
        self._known = self.last + 1 if self.repeats else 0
        self._next = self.last + 1  # sequence number of the first event in `_events`
        self._events = EventBuffer()

    def stop(self, reason: Exception) -> None:
        if isinstance(reason, StoreError):
            self._unwritten = reason  # an answer that has ended is not stopped
        if self._stop is not None:
            self._stop(reason)

    def open(self, stop: Stop) -> Awaitable[None] | None:
        """Create the row: a client that gets the id in the first event may retrieve it."""
        self._stop = stop
        return self._create(self._given.row(self._projection.body()))

    async def _create(self, row: ResponseRecord) -> None:
        record = STREAM_RECORD.get()
        if record is not None and record.resumed:
            await self._create_again(row)
        else:
            await self._writer.store.responses.create(row, self._given.items)
            self._writer.register(self)
        self._writer.notify(self)

    async def _create_again(self, row: ResponseRecord) -> None:
        """Create the row of a response that a process which has died had begun: all events are made again."""
        responses = self._writer.store.responses
        async with self._writer.abandoned:  # this process may be about to end it
            await responses.delete(row.owner, row.id, row.kind)
            await responses.create(row, self._given.items)
            self._writer.register(self)

    def record(self, choice: int, events: Any, lines: list[bytes]) -> list[bytes]:
        """Have these wire events written soon; those of them that are new."""
        # A projection always counts from 0: a continued response makes all events again.
        if self._known:
            known, self._known = self._known, max(0, self._known - len(lines))
            lines = lines[known:]
        if not lines:
            return lines
        if not self._events:
            self._writer.notify(self)
        run = self._events.run
        if run is None or run.frame is not self._projection.frame:
            self._events.follow(None)  # its item has ended
            self._events.add(lines)
        elif len(lines) == len(events) == 1 and type(events[0]) in DELTAS:
            run.texts.append(events[0].text)
        else:
            self._events.add(lines)
        return lines

    def delta_encoder(self, encode: DeltaEncoder) -> DeltaEncoder | None:
        """An encoder of the projection that records, in place of `encode`.

        The writer looks for new texts while there is a run: it is not told of each.
        """
        frame = self._projection.frame
        if frame is None or self.replaying:
            return None
        run = self._events.run
        if run is None or run.frame is not frame:
            run = DeltaRun(frame)
            self._events.follow(run)
        self._writer.notify(self)
        return self._projection.recording_encoder(run.texts)

    def take(self) -> Append | None:
        if self.response_id not in self._writer.open:
            return None  # its row is being created
        if self._events.run is not None:
            self._writer.notify(self)
        entries, calls = self._entries(), self._new_calls()
        if not entries and calls is None:
            return None
        return Append(
            response_id=self.response_id,
            worker=self._writer.worker,
            entries=entries,
            prompt_ids=self._new_prompt(),
            calls_begun=calls,
        )

    def _new_prompt(self) -> bytes | None:
        return None

    def _new_calls(self) -> int | None:
        return None

    def _entries(self) -> tuple[LogEntry, ...]:
        if not self._events:
            return ()
        entries = self._events.take(self._next, self.replay.new() if self.replay else b"")
        self._next = entries[-1].last + 1
        return entries

    async def close(self, ending: Ending, reason: BaseException | None, lines: list[bytes]) -> list[bytes]:
        """Write the end: these last wire events, the response, its items.

        Raises StoreError; LostError if it was not ours to end.
        """
        new_lines = self.record(0, (), lines)
        # Now nothing is being written any more: the rest goes into one transaction with the end.
        await self.release()
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is not None:
            try:
                raise unwritten
            finally:
                del unwritten  # its traceback has this frame
        end = self._end(self._entries())
        responses = self._writer.store.responses

        async def finished() -> Verdict | None:
            row = self._given.row(b"")
            record = await responses.get(row.owner, end.response_id, row.kind)
            ended = record is not None and record.status.terminal and record.body == end.body
            return Verdict.ACCEPTED if ended else None

        verdict = await self._writer.retried(lambda: responses.finish(end), finished)
        if verdict is not Verdict.ACCEPTED:
            raise LostError(verdict)
        return new_lines

    async def release(self) -> None:
        """Write no more of it."""
        await self._writer.unregister(self)


class ContinuableJournal(StreamJournal):
    """Records the chunks of the events in `log`, too, and what else a server needs to continue the answer."""

    def __init__(
        self,
        writer: LogWriter,
        projection: StoredProjection,
        given: StoredInput,
        log: ReplayLog,
        calls_begun: int = 0,
    ) -> None:
        self.replay = log
        self._prompt_ids: bytes | None = None
        self._calls_begun = self._calls_stored = calls_begun
        super().__init__(writer, projection, given)

    def set_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Prompts are written with the next events: a server that continues the answer needs them."""
        self._prompt_ids = packed(prompts[0].ids)

    async def calls_begin(self, count: int) -> None:
        """A server that continues the answer must not run calls again that may have run."""
        if count > self._calls_begun:
            self._calls_begun = count
            self._writer.notify(self)
            await self._writer.flush()

    def _new_prompt(self) -> bytes | None:
        new, self._prompt_ids = self._prompt_ids, None
        return new

    def _new_calls(self) -> int | None:
        new = self._calls_begun if self._calls_begun > self._calls_stored else None
        self._calls_stored = self._calls_begun
        return new


class DurableJournal(ContinuableJournal):
    """Writes a durable stream: once its row is there, it can be continued like a background response.

    `opened` is done then.
    """

    def __init__(
        self, writer: LogWriter, projection: StoredProjection, given: StoredInput, log: ReplayLog
    ) -> None:
        super().__init__(writer, projection, given, log)
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def _create(self, row: ResponseRecord) -> None:
        await self._writer.store.responses.create(row, self._given.items)
        self._writer.register(self)
        self.background = True  # from now on another server may continue it
        self.opened.set_result(None)
        self._writer.notify(self)

    async def calls_begin(self, count: int) -> None:
        """See `ContinuableJournal`; nothing can be stored before the row."""
        await asyncio.wait((self.opened,))
        await super().calls_begin(count)


class BackgroundJournal(ContinuableJournal):
    """Continues the log of a response that this server has claimed. `log` holds the chunks of the events.

    Its creator registers it with the writer.
    """

    background = True
    end_from_record: EndFromRecord = staticmethod(end_from_record)

    def __init__(
        self,
        writer: LogWriter,
        projection: StoredProjection,
        given: StoredInput,
        record: ResponseRecord,
        log: ReplayLog,
    ) -> None:
        self.last = record.last_seq  # before `super().__init__`, which continues after it
        self._record = record
        super().__init__(writer, projection, given, log, record.calls_begun)

    def open(self, stop: Stop) -> Awaitable[None] | None:
        """The row was created."""
        self._stop = stop
        return None

    @property
    def replaying(self) -> bool:
        return self._known > 0

    async def close(self, ending: Ending, reason: BaseException | None, lines: list[bytes]) -> list[bytes]:
        """Write the end; from the row alone, if the replay has not reached the end of the log."""
        if reason is None or not self.replaying:
            return await super().close(ending, reason, lines)
        await self.release()
        await finish_from_record(self._writer, self._record, reason, self.end_from_record)
        return []


class CompletionJournal(Journal):
    """Stores a chat completion when it is complete, before its client gets the end.

    `builder` makes the full answer, `save` stores it. The client gets the same answer. `calls` also gets the
    calls that begin, if the answer is part of a batch.
    """

    calls: "CallJournal | None" = None

    async def calls_begin(self, count: int) -> None:
        if self.calls is not None:
            await self.calls.calls_begin(count)

    def __init__(self, builder: Projection, save: Callable[[bytes], Awaitable[None]]) -> None:
        self._builder = builder
        self._save = save

    async def close(self, ending: Ending, reason: BaseException | None, lines: list[bytes]) -> list[bytes]:
        """Store it. A completion has no status: one that failed or was cancelled is not stored."""
        if ending.stored is Stored.RESULT:
            await self._save(self._builder.body())
        return lines


class StreamedCompletionJournal(CompletionJournal):
    """The same for an answer that is streamed: the full answer is built in addition to the stream."""

    def set_prompts(self, prompts: Sequence[Prompt]) -> None:
        self._builder.set_prompts(prompts)

    def record(self, choice: int, events: Any, lines: list[bytes]) -> list[bytes]:
        """Build the answer."""
        self._builder.push(choice, events)
        return lines

    def delta_encoder(self, encode: DeltaEncoder) -> None:
        """The answer is built of events."""


class CallJournal(Journal):
    """Stores which calls begin, for an answer that is part of another record: `begin` gets their number.

    `calls_begun` is the number for an earlier answer to the same request, which was interrupted.
    """

    def __init__(self, calls_begun: int, begin: Callable[[int], Awaitable[None]]) -> None:
        self.calls_begun = calls_begun
        self._begin = begin

    async def calls_begin(self, count: int) -> None:
        await self._begin(count)

    async def close(self, ending: Ending, reason: BaseException | None, lines: list[bytes]) -> list[bytes]:
        """The caller stores the answer itself."""
        return lines


def as_records(items: Sequence[StoredItem]) -> tuple[ItemRecord, ...]:
    """Items as the store takes them."""
    now = time()
    return tuple(
        ItemRecord(item.id, item.type, item.payload, now, item.tokens or None, item.blobs) for item in items
    )


_WIDE = b"q"


def packed(ids: tuple[int, ...]) -> bytes:
    """Token ids as the store takes them: four bytes each; those of estimated tokens eight, and a mark."""
    try:
        return array("i", ids).tobytes()
    except OverflowError:
        return array("q", ids).tobytes() + _WIDE


def unpacked(ids: bytes | None) -> tuple[int, ...] | None:
    """The ids that `packed` packed."""
    if ids is None:
        return None
    return tuple(array("q", ids.removesuffix(_WIDE)) if len(ids) % 4 else array("i", ids))
