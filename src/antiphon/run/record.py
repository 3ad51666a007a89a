"""Writes what happens in a response to the store, while it happens.

A `Recorder` belongs to one response: it projects events to wire events and
collects them. The `Desk` of the server takes what all recorders have
collected, some forty times a second, and appends it in one transaction. So a
stored stream costs little more than one that is not, and a reader of the log
is a moment behind.

When the database is away, what was collected waits and is written when it is
back; if that takes too long, its recorder is told to stop. So it is when a
response turns out to be another worker's, or ended, or deleted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

import structlog
from msgspec import Struct

from antiphon.core.errors import StoreError
from antiphon.core.events import Event
from antiphon.run.tape import Tape
from antiphon.store.records import Append, Entry, ItemRecord, Outcome, ResponseStatus, Verdict
from antiphon.store.store import Store

TICK = 0.025
"""Seconds in which the server collects events before it writes them."""
PATIENCE = 30.0
"""Seconds that what shall be written, or read on, waits for a database that is away."""
RETRY = 0.5
"""Seconds between tries to write them."""

log = structlog.get_logger()

T = TypeVar("T")


class Projection(Protocol):
    """Makes the wire events of a response, and the response itself, of the events of its turn."""

    @property
    def status(self) -> ResponseStatus:
        """How far the response got."""
        ...

    @property
    def done(self) -> int:
        """How many items are finished."""
        ...

    def begin(self) -> list[bytes]:
        """The first wire events."""
        ...

    def count_prompt(self, tokens: int) -> None:
        """A generation begins, with so many tokens of prompt."""
        ...

    def push(self, events: list[Event]) -> list[bytes]:
        """The wire events for the next events, as JSON."""
        ...

    def finish(self) -> list[bytes]:
        """The last wire events of a response whose turn ended."""
        ...

    def fail(self, error: Exception) -> list[bytes]:
        """The last wire events of a response that failed."""
        ...

    def cancel(self) -> list[bytes]:
        """The last wire events of a response that was cancelled."""
        ...

    def body(self) -> bytes:
        """The response as it is now, as JSON."""
        ...

    def output(self) -> tuple[ItemRecord, ...]:
        """The finished items, with their tokens."""
        ...


class Past(Struct, frozen=True):
    """What a response has been through.

    `last` is the sequence number of the last event that is in the log already:
    a response that goes on after an interruption says all of it again, and only
    what is new counts. `tape` holds the chunks behind the events, for a response that
    shall be able to go on. `conversation` holds the input items if a conversation gets them.
    """

    last: int = -1
    tape: Tape | None = None
    conversation: tuple[ItemRecord, ...] | None = None


class Recorder:
    """Projects the events of one response, and has what comes out written.

    `stop` is called, with the reason, when there is no use in going on: whoever
    does the work sets it. `prompt_ids` are written with the next events. `stored` is
    what was written last.
    """

    def __init__(self, response_id: str, projection: Projection, desk: "Desk", past: Past) -> None:
        self.response_id = response_id
        self.projection = projection
        self.stop: Callable[[Exception], object] = _ignore
        self.prompt_ids: bytes | None = None
        self.stored: Entry | None = None
        self._desk = desk
        self._past = past
        self._said = 0  # sequence number of the next wire event
        self._written = past.last + 1  # that of the next one for the log
        self._done = 0  # finished items in the body that is stored
        self._lines: list[bytes] = []

    @property
    def behind(self) -> bool:
        """What is in the log already was not said again whole: what is said now would not be new."""
        return self._said < self._written

    def push(self, events: list[Event]) -> list[bytes]:
        """The wire events for these events that are new; they are written soon."""
        return self.add(self.projection.push(events))

    def add(self, lines: list[bytes]) -> list[bytes]:
        """Have these wire events written soon; those of them that are new."""
        known = self._written + len(self._lines) - self._said
        self._said += len(lines)
        new = lines[known:] if known > 0 else lines
        if new:
            if not self._lines:
                self._desk.has_news(self)
            self._lines += new
        return new

    def take(self) -> Append | None:
        """What was collected since this was last called."""
        entries = self._entries()
        if not entries:
            return None
        prompt_ids, self.prompt_ids = self.prompt_ids, None
        return Append(
            response_id=self.response_id,
            worker=self._desk.worker,
            entries=entries,
            body=self._new_body(),
            prompt_ids=prompt_ids,
        )

    def _new_body(self) -> bytes | None:
        """The response, whenever it has got more items: whoever asks for it meanwhile sees them."""
        before, self._done = self._done, self.projection.done
        return self.projection.body() if self._done != before else None

    def _entries(self) -> tuple[Entry, ...]:
        if not self._lines:
            return ()
        chunks = self._past.tape.new() if self._past.tape else b""
        first, self._written = self._written, self._written + len(self._lines)
        lines, self._lines = self._lines, []
        return (Entry(first, self._written - 1, b"\n".join(lines), chunks),)

    async def end(self, lines: list[bytes]) -> list[bytes]:
        """Write the end: these last wire events, the response, its items. What is new of the events.

        Raises StoreError; LostError if it was not ours to end.
        """
        new = self.add(lines)
        await self._desk.settled(self)
        output, given = self.projection.output(), self._past.conversation
        outcome = Outcome(
            response_id=self.response_id,
            worker=self._desk.worker,
            status=self.projection.status,
            body=self.projection.body(),
            output=output,
            entries=self._entries(),
            conversation=() if given is None else (*given, *output),
        )
        verdict = await patiently(lambda: self._desk.store.responses.finish(outcome))
        if verdict is not Verdict.ACCEPTED:
            raise LostError(verdict)
        return new


class Desk:
    """Where the recorders of one server lie, and the one hand that writes for all of them.

    `worker` is the name in the leases of this server. `stopping` is done when it gives its work back.
    """

    def __init__(self, store: Store, worker: str) -> None:
        self.store = store
        self.worker = worker
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open: dict[str, Recorder] = {}
        self._news: dict[Recorder, None] = {}
        self._has_news = asyncio.Event()
        self._writing = asyncio.Lock()

    @contextmanager
    def lying(self, recorder: Recorder) -> Iterator[Recorder]:
        """Keep the lease of a response while the block runs."""
        self.open[recorder.response_id] = recorder
        try:
            yield recorder
        finally:
            del self.open[recorder.response_id]
            self._news.pop(recorder, None)

    def fresh(self, response_id: str, after: int) -> list[bytes]:
        """The events behind `after`, if this server has just stored them: they need not be read."""
        entry = recorder.stored if (recorder := self.open.get(response_id)) else None
        if entry is None or not entry.first - 1 <= after < entry.last:
            return []
        return entry.events.split(b"\n")[after + 1 - entry.first :]

    def has_news(self, recorder: Recorder) -> None:
        """The recorder has collected something."""
        self._news[recorder] = None
        self._has_news.set()

    async def settled(self, recorder: Recorder) -> None:
        """Wait until nothing of the recorder is being written, and write no more of it."""
        async with self._writing:
            self._news.pop(recorder, None)

    async def write(self) -> None:
        """Write what recorders collect, until cancelled."""
        while True:
            await self._has_news.wait()
            await asyncio.sleep(TICK)
            await self.flush()

    async def flush(self) -> None:
        """Write what was collected, now."""
        async with self._writing:
            await self._write_news()

    async def _write_news(self) -> None:
        news, self._news = self._news, {}
        self._has_news.clear()
        appends = {recorder: append for recorder in news if (append := recorder.take())}
        if not appends:
            return
        try:
            verdicts = await patiently(lambda: self.store.log.append(*appends.values()))
        except Exception as error:  # it ends those that it is about; the hand writes on
            for recorder in appends:
                recorder.stop(error)
            return
        for (recorder, append), verdict in zip(appends.items(), verdicts, strict=True):
            if verdict is Verdict.ACCEPTED:
                recorder.stored = append.entries[-1]
            else:
                recorder.stop(LostError(verdict))


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask the store, again and again while it is away. What is written twice must count once."""
    now = asyncio.get_running_loop().time
    patience = now() + PATIENCE
    while True:
        try:
            return await ask()
        except StoreError as error:
            log.warning("the store does not answer", error=str(error.__cause__ or error))
            if now() > patience:
                raise
        await asyncio.sleep(RETRY)


def _ignore(reason: Exception) -> None:
    """Nobody does the work yet."""


class LostError(StoreError):
    """This response was deleted, or ended by somebody else, before its answer was whole."""

    code = "response_lost"

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        super().__init__()
