"""Drives one answer from its source to its client: the only loop there is, for every API and mode.

    source ──push──► projection ──► journal ──► client
                     events to       what        the connection,
                     wire events     lasts       or none

A source pushes events by plain calls, once per engine step; projecting, journaling
and writing happen inside that call. The driver awaits three things: the source's end,
the journal, and a client that reads slowly. Modes (streamed or not, stored or not,
foreground or background) differ in the parts they choose, never here. How an
answer may end is one table, `endings.py`.

Back-pressure begins at the source: while the driver is `paused`, generations hold
back the engine's chunks, under a bound, and push them merged into one when it is not.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from antiphon.core.chunks import Token
from antiphon.core.errors import AntiphonError, EngineNotReadyError, public_error
from antiphon.core.events import ReasoningDelta, TextDelta
from antiphon.core.observation import observed
from antiphon.engines.engine import Prompt
from antiphon.log import log_failure
from antiphon.run.endings import ClientResult, DeadlineError, Ending, Stored, ending_of

T = TypeVar("T")

JOURNAL = "journal"
CLIENT = "client"
"""What may pause an answer: a journal that is not open yet, a client that does not read."""
DeltaWriter = Callable[[str, tuple[Token, ...]], None]
"""Takes the text of a delta, and the tokens behind it."""
DeltaEncoder = Callable[[str, tuple[Token, ...]], bytes]
"""Text, and the tokens behind it → the wire event with it."""
LARGE = 1024 * 1024
"""Bytes of wire events from which on they are handled in a turn of their own."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[Callable[[], None]]] = WeakKeyDictionary()


def in_turn(call: Callable[[], None]) -> None:
    """Have `call` called on the event loop, when it is its turn: one such call in each of its rounds.

    What is much for many answers at the same time, as the end of each may be, keeps nobody waiting so.
    """
    loop = asyncio.get_running_loop()
    turns = _turns.setdefault(loop, deque())
    turns.append(call)
    if len(turns) == 1:
        loop.call_soon(_take_turn, loop, turns)


async def own_turn(output: "Driver | None" = None) -> None:
    """Wait until it is the turn of whoever waits, and until the client of `output` reads on."""
    loop = asyncio.get_running_loop()
    while True:
        mine = loop.create_future()
        in_turn(partial(_resolve, mine))
        await mine
        if output is None or not output.paused:
            return
        resumed = loop.create_future()
        output.on_resume(partial(_resolve, resumed))
        await resumed


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _take_turn(loop: asyncio.AbstractEventLoop, turns: deque[Callable[[], None]]) -> None:
    try:
        turns[0]()
    finally:
        turns.popleft()
        if turns:
            loop.call_soon(_take_turn, loop, turns)


def pieces(values: list[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """These values in pieces of at most `LARGE` bytes, or of one value."""
    if values and sum(map(size, values)) <= LARGE:  # nearly always
        yield values
        return
    piece: list[T] = []
    total = 0
    for value in values:
        total += size(value)
        if piece and total > LARGE:
            yield piece
            piece, total = [], size(value)
        piece.append(value)
    if piece:
        yield piece


class Source(Protocol):
    """Events for an answer: of one generation, of several with tools in between, of a recorded answer."""

    async def run(self, output: "Driver") -> None:
        """Push events until there are no more. Cancelling stops the engine. Raises why the answer failed."""
        ...

    def abandon(self) -> Iterable[tuple[int, Any]]:
        """The events that close what is open, after `run` failed or was cancelled."""
        ...


class Projection(Protocol):
    """Makes wire events of the events of an answer, and the body of the full answer."""

    def prompted(self, prompts: Sequence[Prompt]) -> None:
        """These are the prompts that the answer begins with; called in a thread if they have `tokens`."""
        ...

    def begin(self) -> list[bytes]:
        """The wire events before the first event."""
        ...

    def push(self, choice: int, events: Any) -> list[bytes]:
        """The wire events for the next events of a choice."""
        ...

    def delta_encoder(self, choice: int, delta: type[TextDelta | ReasoningDelta]) -> DeltaEncoder | None:
        """What `push` does for each delta of this type in the item that is open; None if there is more to it.

        It holds until there is another event than such a delta.
        """
        ...

    def finish(self) -> list[bytes]:
        """The wire events after the last event."""
        ...

    def fail(self, error: AntiphonError) -> list[bytes]:
        """The wire events that end an answer that failed."""
        ...

    def cancel(self) -> list[bytes]:
        """The wire events that end an answer that is not wanted any more."""
        ...

    def body(self) -> bytes:
        """The full answer as it is now."""
        ...


class Journal:
    """Stores an answer. What most journals have nothing to do for does nothing here."""

    background = False
    """No client waits for the answer: another server may go on with it."""

    @property
    def behind(self) -> bool:
        """Some of what is stored was not made again yet, by an answer that is continued."""
        return False

    def prompted(self, prompts: Sequence[Prompt]) -> None:
        """These are the prompts that the answer begins with."""

    def open(self, stop: Callable[[Exception], None]) -> Awaitable[None] | None:
        """The first event is there. What is returned has to be awaited before anything is shown.

        The journal may call `stop` to end the answer.
        """
        return None

    def record(self, choice: int, events: Any, lines: list[bytes]) -> list[bytes]:
        """Store these wire events soon; those of them that are new to the client."""
        return lines

    def delta_encoder(self, encode: DeltaEncoder) -> DeltaEncoder | None:
        """`encode`, and what `record` does with the wire event; None if that is not all, or needs events."""
        return encode

    async def calls_begin(self, count: int) -> None:
        """Store that so many calls of the server's tools are begun in all, before the last of them are."""

    async def close(self, ending: Ending, reason: BaseException | None, lines: list[bytes]) -> list[bytes]:
        """Store the end, these last wire events and the body; those of the events that are new.

        `reason` is why the answer did not come to its own end.
        """
        raise NotImplementedError

    async def release(self) -> None:
        """Write no more; the answer stays as it is."""


class Client:
    """The client of an answer; this one gets nothing: the answer is only stored, or only folded."""

    started = False
    """Something was sent: a failure can no longer become the status of the response."""

    def attach(self, driver: "Driver") -> None:
        """From now on, report pauses to the driver, and the end of the connection."""

    def write(self, lines: list[bytes]) -> None:
        """Send wire events, at once or as soon as they can be sent."""

    def delta_writer(self, encode: DeltaEncoder) -> DeltaWriter:
        """Sends the wire events that `encode` makes of deltas, each as `write` would."""
        return lambda text, tokens: self.write([encode(text, tokens)])

    def end(self, lines: list[bytes], body: Callable[[], bytes]) -> None:
        """Send the last wire events, or the body: the answer is over."""


class Driver:
    """Drives one answer; what its source pushes to. Not for reuse."""

    # Every token looks some of them up.
    __slots__ = (
        "_begun",
        "_cancelled",
        "_client",
        "_deadline",
        "_early",
        "_journal",
        "_observation",
        "_opening",
        "_pauses",
        "_projection",
        "_reason",
        "_source",
        "_task",
        "_unopened",
        "_waiting",
        "paused",
    )

    def __init__(
        self,
        source: Source,
        projection: Projection,
        journal: Journal | None = None,
        deadline: float | None = None,
    ) -> None:
        self._deadline = deadline
        self._source = source
        self._projection = projection
        self._journal = journal
        self._client = Client()
        self._begun = False
        self._opening: asyncio.Task[None] | None = None  # the journal's
        self._unopened: Exception | None = None  # why the journal cannot be opened
        self._task: asyncio.Task[Any] | None = None  # what `stop` cancels
        self._reason: BaseException | None = None  # given to `stop`
        self._cancelled: asyncio.CancelledError | None = None
        self._pauses: set[str] = set()
        self._waiting: list[Callable[[], None]] = []
        self._early: list[bytes] = []  # wire events that wait for the journal
        self._observation = observed()
        self.paused = False  # sources hold back what they have

    # The way of every event

    def push(self, choice: int, events: Any) -> None:
        """Take the next events of a choice."""
        if self._begun:
            lines = self._projection.push(choice, events)
        else:
            lines = self._begin()
            lines += self._projection.push(choice, events)
        if self._journal is not None:
            lines = self._journal.record(choice, events, lines)
        if self._opening is not None:
            self._early += lines
        elif lines:
            self._client.write(lines)

    def delta_writer(self, choice: int, delta: type[TextDelta | ReasoningDelta]) -> DeltaWriter | None:
        """What `push` does for each delta of this type in the item that is open; None if there is more to it.

        Most of an answer is such deltas. With it, each takes half the calls, and no event is made of it.
        """
        encode = self._projection.delta_encoder(choice, delta)
        if encode is not None and self._journal is not None:
            encode = self._journal.delta_encoder(encode)
        return None if encode is None else self._client.delta_writer(encode)

    @property
    def begun(self) -> bool:
        """There was a first event."""
        return self._begun

    def prompted(self, prompts: Sequence[Prompt]) -> None:
        """The prompts of the answer are rendered."""
        self._projection.prompted(prompts)
        if self._journal is not None:
            self._journal.prompted(prompts)

    async def calls_begin(self, count: int) -> None:
        """So many calls of the server's tools are begun in all, as whoever takes over knows from now on."""
        if self._journal is not None:
            await self._journal.calls_begin(count)

    def _begin(self) -> list[bytes]:
        self._begun = True
        self._observation.first = perf_counter()
        if self._journal is not None and (opening := self._journal.open(self.stop)) is not None:
            self._opening = asyncio.ensure_future(self._open(opening))
            self.pause(JOURNAL)
        return self._projection.begin()

    async def _open(self, opening: Awaitable[None]) -> None:
        """Wait for the journal, then show what came meanwhile."""
        try:
            await opening
        except Exception as error:  # raised by `_opened`; the driver is stopped
            self._unopened = error
            self.stop(error)
            return
        self._opening = None
        early, self._early = self._early, []
        if early:
            self._client.write(early)
        self.resume(JOURNAL)

    # Back-pressure

    def pause(self, why: str) -> None:
        """Hold the answer back."""
        self._pauses.add(why)
        self.paused = True

    def resume(self, why: str) -> None:
        """This does not hold the answer back any more."""
        self._pauses.discard(why)
        self.paused = bool(self._pauses)
        while self._waiting and not self.paused:
            self._waiting.pop(0)()

    def on_resume(self, call: Callable[[], None]) -> None:
        """Have `call` called once, when the answer is not held back any more."""
        self._waiting.append(call)

    # From the beginning to the end

    def stop(self, reason: Exception) -> None:
        """End the answer for this reason. The first one counts, and none once the source has ended."""
        if self._reason is None and self._task is not None:
            self._reason = reason
            self._task.cancel()

    async def run(self, client: Client | None = None) -> Ending:
        """Drive the answer to its end, whatever that is.

        Raises what ended it, if nothing was sent to the client that could report it,
        and CancelledError if its task was cancelled otherwise than by `stop`.
        """
        self._task = asyncio.current_task()
        self._client = client or self._client
        self._client.attach(self)
        reason = await self._play()
        if reason is not None:
            self._observation.fail(reason)
        background = self._journal is not None and self._journal.background
        # A comment may have begun the stream: then the failure has to be its last event.
        begun = self._begun or self._client.started
        ending = ending_of(reason, begun=begun, background=background)
        try:
            await self._end(ending, reason)
        finally:
            # All refer to this object, in the end: no cycle is left for the garbage collector.
            self._client = Client()
            self._journal = self._reason = None
            del self._source
            if self._cancelled is not None:
                raise self._cancelled
        return ending

    async def _play(self) -> BaseException | None:
        """Run the source; why it did not come to its end, if it did not."""
        limit = None if self._deadline is None else asyncio.timeout(self._deadline)
        try:
            async with limit or nullcontext():
                await self._run_source()
                await self._opened()
        except asyncio.CancelledError as cancelled:
            self._cancelled = cancelled  # the server cancels what has not ended in time
            return self._reason or EngineNotReadyError()
        except Exception as error:  # a variable would keep it: its traceback has this frame
            return self._reason or (DeadlineError() if limit is not None and limit.expired() else error)
        return self._reason

    async def _run_source(self) -> None:
        """Run the source until it ends or is stopped. From then on `stop` has no effect."""
        task = self._task
        assert task is not None
        try:
            await self._source.run(self)
        except asyncio.CancelledError:
            if self._reason is None:
                raise
        finally:
            self._task = None
            if self._reason is not None:
                await _cancel_arrived()
                # Else a deadline that comes now would look like a cancellation from outside.
                task.uncancel()

    async def _opened(self) -> None:
        """Wait until the journal is open. Raises why it cannot be opened."""
        if self._opening is not None:
            await asyncio.wait((self._opening,))
        if self._unopened is not None:
            raise self._unopened

    async def _end(self, ending: Ending, reason: BaseException | None) -> None:
        """Close the journal, then answer the client: whoever has seen the end can rely on what is stored."""
        try:
            lines = await self._close(ending, reason)
        except Exception as error:  # what was stored of the answer is not its end
            self._send_failure(error)
            return
        match ending.client:
            case ClientResult.RESULT | ClientResult.CANCELLED:
                self._client.end(lines, self._projection.body)
            case ClientResult.ERROR:
                assert isinstance(reason, Exception)
                self._send_failure(reason, lines)

    async def _close(self, ending: Ending, reason: BaseException | None) -> list[bytes]:
        """Store the end; the last wire events."""
        journal = self._journal
        if journal is None and ending.client is ClientResult.NOTHING:
            for _ in self._source.abandon():  # it is counted what was generated; nobody will see the rest
                pass
            return []
        if ending.stored is Stored.UNCHANGED:
            if journal is not None:
                await journal.release()
            return self._unstored_lines(reason) if self._begun else []
        lines = [] if self._begun else self._begin()
        await self._opened()
        if reason is not None and not (journal is not None and journal.behind):
            lines = await self._abandon(lines)
        lines += self._last_lines(ending, reason)
        if journal is None:
            return lines
        # A client that has seen enough may leave now: what is whole is stored whole.
        closing = asyncio.ensure_future(journal.close(ending, reason, lines))
        try:
            new = await asyncio.shield(closing)
        except asyncio.CancelledError:
            closing.add_done_callback(_log_unheard)
            raise
        if new and len(new[-1]) > LARGE:  # many answers may be stored in one transaction
            await own_turn()
        return new

    async def _abandon(self, lines: list[bytes]) -> list[bytes]:
        """Close what is open, behind the lines that begin the answer; what is left of these."""
        await own_turn()  # with what a client did not read, each event may be much
        for choice, events in self._source.abandon():
            if lines:  # held back until now
                lines, first = [], self._journal.record(choice, [], lines) if self._journal else lines
                if first:
                    self._client.write(first)
            for event in events:
                self.push(choice, [event])
                await own_turn()
        return lines

    def _unstored_lines(self, reason: BaseException | None) -> list[bytes]:
        """The last wire events for the client of an answer that stays stored as it is."""
        closing = [
            line
            for choice, events in self._source.abandon()
            for line in self._projection.push(choice, events)
        ]
        return closing + self._projection.fail(public_error(reason))

    def _last_lines(self, ending: Ending, reason: BaseException | None) -> list[bytes]:
        match ending.stored:
            case Stored.FAILED:
                return self._projection.fail(public_error(reason))
            case Stored.CANCELLED:
                return self._projection.cancel()
        return self._projection.finish()

    def _send_failure(self, error: Exception, lines: Sequence[bytes] = ()) -> None:
        """Send a failure to the client, in the stream if there is one. Else it is raised."""
        if not self._client.started:
            raise error
        log_failure(error)
        self._client.end([*lines] or self._failure(error), self._projection.body)

    def _failure(self, error: Exception) -> list[bytes]:
        """The last wire events of an answer whose end is not stored: what is open is closed in them."""
        lines = [] if self._begun else self._projection.begin()
        for choice, events in self._source.abandon():
            lines += self._projection.push(choice, events)
        return lines + self._projection.fail(public_error(error))


async def _cancel_arrived() -> None:
    """Let a cancellation of this task arrive that was requested while it did not wait."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


def _log_unheard(closing: asyncio.Task[list[bytes]]) -> None:
    """Log why an end could not be stored, for nobody waits for it any more."""
    if not closing.cancelled() and (error := closing.exception()) is not None:
        log_failure(error)
