"""Drives one answer from its source to its client: the same loop for every API and mode.

    source ──push──► projection ──► journal ──► client
                     events to       storage     the connection,
                     wire events                 or none

A source pushes events by plain calls, once per engine step; projecting, journaling and writing happen inside
that call. The driver awaits three things: the source's end, the journal, and a client that reads slowly.
Modes (streamed or not, stored or not, foreground or background) differ in the parts they choose, never here.
The ways in which an answer may end are one table, `endings.py`.

Back-pressure begins at the source: while the driver is `paused`, generations hold back the engine's chunks,
under a bound, and merge them into one chunk when it resumes.

To add a source of answers that is not an engine: a class with the protocol `Source`, given to the `Driver` in
`app/`; `tests/run/`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

from antiphon.core.errors import AntiphonError, EngineNotReadyError, public_error
from antiphon.core.events import ReasoningDelta, TextDelta
from antiphon.core.observation import observed
from antiphon.core.plain_tokens import DeltaEncoder, DeltaWriter
from antiphon.engines.engine import Prompt
from antiphon.log import log_failure
from antiphon.run.endings import FINISHED, ClientResult, DeadlineError, Ending, Stored, ending_of

T = TypeVar("T")

JOURNAL = "journal"
CLIENT = "client"
"""The reasons for a pause: a journal that is not open yet, or a client that does not read."""
LARGE = 1024 * 1024
"""Wire events of at least this number of bytes are processed in a separate turn of the event loop."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[Callable[[], None]]] = WeakKeyDictionary()


def call_in_turn(call: Callable[[], None]) -> None:
    """Call `call` later on the event loop: at most one such call runs in each iteration.

    If many answers have much work at the same time, for example at their ends, other work is not delayed.
    """
    loop = asyncio.get_running_loop()
    turns = _turns.setdefault(loop, deque())
    turns.append(call)
    if len(turns) == 1:
        loop.call_soon(_take_turn, loop, turns)


async def wait_for_turn(output: "Output | None" = None) -> None:
    """Wait for a turn of `call_in_turn`, and until the client of `output` reads."""
    loop = asyncio.get_running_loop()
    while True:
        turn = loop.create_future()
        call_in_turn(partial(_resolve, turn))
        await turn
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


class Output(Protocol):
    """Where a source pushes its events: a driver, or what stands before it."""

    @property
    def paused(self) -> bool:
        """Sources hold back their events."""
        ...

    @property
    def has_begun(self) -> bool:
        """The wire events that begin the answer were made."""
        ...

    def announce(self) -> None:
        """Send the wire events that begin the answer, before its first event: the client waits for long."""
        ...

    def push(self, choice: int, events: Any) -> None:
        """Process the next events of a choice."""
        ...

    def delta_writer(self, choice: int, delta: type[TextDelta | ReasoningDelta]) -> DeltaWriter | None:
        """A writer for deltas of this type in the open item; None if `push` has to do more."""
        ...

    def set_prompts(self, prompts: Sequence[Prompt]) -> None:
        """The prompts of the answer are rendered."""
        ...

    async def calls_begin(self, count: int) -> None:
        """Store the total number of started calls of server tools."""
        ...

    def stop(self, reason: Exception) -> None:
        """End the answer for this reason."""
        ...

    def on_pause(self, call: Callable[[], None]) -> None:
        """Call `call` once, when the answer is paused."""
        ...

    def on_resume(self, call: Callable[[], None]) -> None:
        """Call `call` once, when the answer is not paused any more."""
        ...


class PassedOutput:
    """Passes all on: what stands before an output does something else with some of it."""

    def __init__(self, output: Output) -> None:
        self._output = output

    @property
    def paused(self) -> bool:
        return self._output.paused

    @property
    def has_begun(self) -> bool:
        return self._output.has_begun

    def announce(self) -> None:
        self._output.announce()

    def push(self, choice: int, events: Any) -> None:
        self._output.push(choice, events)

    def delta_writer(self, choice: int, delta: type[TextDelta | ReasoningDelta]) -> DeltaWriter | None:
        return self._output.delta_writer(choice, delta)

    def set_prompts(self, prompts: Sequence[Any]) -> None:
        self._output.set_prompts(prompts)

    async def calls_begin(self, count: int) -> None:
        await self._output.calls_begin(count)

    def stop(self, reason: Exception) -> None:
        self._output.stop(reason)

    def on_pause(self, call: Callable[[], None]) -> None:
        self._output.on_pause(call)

    def on_resume(self, call: Callable[[], None]) -> None:
        self._output.on_resume(call)


class Source(Protocol):
    """Pushes the events of an answer: of one generation, of several with tools, or of a recording."""

    async def run(self, output: Output) -> None:
        """Push events until there are no more. Cancelling stops the engine. Raises why the answer failed."""
        ...

    def abandon(self) -> Iterable[tuple[int, Any]]:
        """The events that close open items, after `run` failed or was cancelled."""
        ...


@runtime_checkable
class Steerable(Source, Protocol):
    """A source whose answer can be steered."""

    def steer(self) -> None:
        """End the answer as soon as a conversation can go on from there. It may be called at any time."""
        ...


class Projection(Protocol):
    """Makes wire events of the events of an answer, and the body of the full answer."""

    def set_prompts(self, prompts: Sequence[Prompt]) -> None:
        """These are the prompts that the answer begins with; called in a thread if they have `tokens`."""
        ...

    def begin(self) -> list[bytes]:
        """The wire events before the first event."""
        ...

    def push(self, choice: int, events: Any) -> list[bytes]:
        """The wire events for the next events of a choice."""
        ...

    def delta_encoder(self, choice: int, delta: type[TextDelta | ReasoningDelta]) -> DeltaEncoder | None:
        """The encoder for deltas of this type in the open item; None if `push` has to do more than that.

        It is valid until any other event.
        """
        ...

    def finish(self) -> list[bytes]:
        """The wire events after the last event."""
        ...

    def fail(self, error: AntiphonError) -> list[bytes]:
        """The wire events that end an answer that failed."""
        ...

    def cancel(self) -> list[bytes]:
        """The wire events that end a cancelled answer."""
        ...

    def body(self) -> bytes:
        """The full answer in its current state."""
        ...


class Journal:
    """Stores an answer. The methods that most journals do not need do nothing here."""

    background = False
    """No client waits for the answer: another server may continue it."""

    @property
    def replaying(self) -> bool:
        """The answer is being replayed, and has not reached the end of the stored events."""
        return False

    def set_prompts(self, prompts: Sequence[Prompt]) -> None:
        """These are the prompts that the answer begins with."""

    def open(self, stop: Callable[[Exception], None]) -> Awaitable[None] | None:
        """The first event has arrived. If an awaitable is returned, nothing may be sent before it is done.

        The journal may call `stop` to end the answer.
        """
        return None

    def record(self, choice: int, events: Any, lines: list[bytes]) -> list[bytes]:
        """Store these wire events soon; those of them that are new to the client."""
        return lines

    def delta_encoder(self, encode: DeltaEncoder) -> DeltaEncoder | None:
        """`encode` with the effect of `record`, or an equal encoder; None if that needs events."""
        return encode

    async def calls_begin(self, count: int) -> None:
        """Store the total number of calls of server tools, before the last of them begin."""

    async def close(self, ending: Ending, reason: BaseException | None, lines: list[bytes]) -> list[bytes]:
        """Store the end, these last wire events and the body; returns the events that are new.

        `reason` is why the answer was ended from outside.
        """
        raise NotImplementedError

    async def release(self) -> None:
        """Write no more; the stored answer is not changed."""


class Client:
    """The client of an answer; this base class does nothing, for answers that are only stored."""

    started = False
    """Something was sent: a failure can no longer become the status of the response."""

    def attach(self, driver: "Driver") -> None:
        """From now on, report pauses to the driver, and the end of the connection."""

    def write(self, lines: list[bytes]) -> None:
        """Send wire events, at once or as soon as they can be sent."""

    def delta_writer(self, choice: int, encode: DeltaEncoder) -> DeltaWriter:
        """Sends the wire events that `encode` makes of deltas of a choice's open item, each as `write` would.

        The writer of an item before it is not used any more.
        """
        return lambda text, tokens: self.write([encode(text, tokens)])

    def end(self, lines: list[bytes], body: Callable[[], bytes]) -> None:
        """Send the last wire events, or the body: the answer is over."""


_NO_CLIENT = Client()


class Driver:
    """Drives one answer; sources push to it. A driver is used once."""

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
        self._client = _NO_CLIENT
        self._has_begun = False
        self._opening: asyncio.Task[None] | None = None  # the journal's
        self._unopened: Exception | None = None  # why the journal cannot be opened
        self._task: asyncio.Task[Any] | None = None  # cancelled by `stop`
        self._reason: BaseException | None = None  # the argument of `stop`
        self._cancelled: asyncio.CancelledError | None = None
        self._pauses: set[str] = set()
        self._on_pause: set[Callable[[], None]] = set()
        self._waiting: list[Callable[[], None]] = []
        self._early: list[bytes] = []  # wire events that wait for the journal
        self._observation = observed()
        self.paused = False  # sources hold back their events

    # The way of every event

    def push(self, choice: int, events: Any) -> None:
        """Process the next events of a choice."""
        if self._observation.first is None:
            self._observation.first = perf_counter()
        if self._has_begun:
            lines = self._projection.push(choice, events)
        else:
            lines = self._begin()
            lines += self._projection.push(choice, events)
        self._pass_on(choice, events, lines)

    def announce(self) -> None:
        if not self._has_begun:
            self._pass_on(0, (), self._begin())

    def _pass_on(self, choice: int, events: Any, lines: list[bytes]) -> None:
        """Record wire events, and send them."""
        if self._journal is not None:
            lines = self._journal.record(choice, events, lines)
        if self._opening is not None:
            self._early += lines
        elif lines:
            self._client.write(lines)

    def delta_writer(self, choice: int, delta: type[TextDelta | ReasoningDelta]) -> DeltaWriter | None:
        """A writer for deltas of this type in the open item; None if `push` has to do more.

        Most of an answer is such deltas. A writer needs half the calls for each, and no events.
        """
        encode = self._projection.delta_encoder(choice, delta)
        if encode is not None and self._journal is not None:
            encode = self._journal.delta_encoder(encode)
        return None if encode is None else self._client.delta_writer(choice, encode)

    @property
    def has_begun(self) -> bool:
        """The wire events that begin the answer were made."""
        return self._has_begun

    @property
    def holding(self) -> bool:
        """Wire events wait for the journal: until it is open, or has stored the end."""
        return self._opening is not None or self._task is None

    def set_prompts(self, prompts: Sequence[Prompt]) -> None:
        """The prompts of the answer are rendered."""
        self._projection.set_prompts(prompts)
        if self._journal is not None:
            self._journal.set_prompts(prompts)

    async def calls_begin(self, count: int) -> None:
        """Store the total number of started calls of server tools, for a server that continues the answer."""
        if self._journal is not None:
            await self._journal.calls_begin(count)

    def _begin(self) -> list[bytes]:
        self._has_begun = True
        if self._journal is not None and (opening := self._journal.open(self.stop)) is not None:
            self._opening = asyncio.ensure_future(self._open(opening))
            self.pause(JOURNAL)
        return self._projection.begin()

    async def _open(self, opening: Awaitable[None]) -> None:
        """Wait for the journal, then send the events that arrived meanwhile."""
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
        while self._on_pause:
            self._on_pause.pop()()

    def resume(self, why: str) -> None:
        """This is no longer a reason to pause the answer."""
        self._pauses.discard(why)
        self.paused = bool(self._pauses)
        while self._waiting and not self.paused:
            self._waiting.pop(0)()

    def on_pause(self, call: Callable[[], None]) -> None:
        """Call `call` once, when the answer is paused."""
        self._on_pause.add(call)

    def on_resume(self, call: Callable[[], None]) -> None:
        """Call `call` once, when the answer is not paused any more."""
        self._waiting.append(call)

    # From the beginning to the end

    def stop(self, reason: Exception) -> None:
        """End the answer for this reason.

        Only the first call has an effect, and none after the source has ended.
        """
        if self._reason is None and self._task is not None:
            self._reason = reason
            self._task.cancel()

    def steer(self) -> None:
        """Have the answer end as soon as a conversation can go on from there, if its source can do that."""
        source = getattr(self, "_source", None)  # not there any more, once the answer has ended
        if isinstance(source, Steerable):
            source.steer()

    async def run(self, client: Client | None = None) -> Ending:
        """Drive the answer to its end.

        Raises the reason of the end, if nothing was sent to the client that could report it, and
        CancelledError if its task was cancelled otherwise than by `stop`.
        """
        self._task = asyncio.current_task()
        self._client = client or self._client
        self._client.attach(self)
        reason, ending = await self._run_to_end(), FINISHED
        if reason is not None:
            self._observation.fail(reason)
            background = self._journal is not None and self._journal.background
            # A comment may have begun the stream: then the failure has to be its last event.
            has_begun = self._has_begun or self._client.started
            ending = ending_of(reason, has_begun=has_begun, background=background)
        try:
            await self._end(ending, reason)
        finally:
            # All of these refer to this object: without them no cycle is left for the garbage collector.
            self._client = _NO_CLIENT
            self._journal = self._reason = None
            self._on_pause.clear()
            del self._source
            if self._cancelled is not None:
                raise self._cancelled
        return ending

    async def _run_to_end(self) -> BaseException | None:
        """Run the source; returns why it was ended early, or None."""
        limit = None if self._deadline is None else asyncio.timeout(self._deadline)
        try:
            if limit is None:
                await self._run_source()
            else:
                async with limit:
                    await self._run_source()
        except asyncio.CancelledError as cancelled:
            self._cancelled = cancelled  # the server cancels requests that take too long to end
            return self._reason or EngineNotReadyError()
        except Exception as error:  # a variable would form a cycle: the traceback has this frame
            return self._reason or (DeadlineError() if limit is not None and limit.expired() else error)
        return self._reason

    async def _run_source(self) -> None:
        """Run the source until it ends or is stopped; then `stop` has no effect, and the journal is open."""
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
                # Otherwise a deadline that expires now would look like a cancellation from outside.
                task.uncancel()
        if self._opening is not None:
            await self._opened(self._opening)

    async def _opened(self, opening: asyncio.Task[None]) -> None:
        """Wait until the journal is open. Raises why it cannot be opened."""
        await asyncio.wait((opening,))
        if self._unopened is not None:
            raise self._unopened

    async def _end(self, ending: Ending, reason: BaseException | None) -> None:
        """Close the journal, then send the end to the client, who can then rely on the stored answer."""
        try:
            lines = await self._close(ending, reason)
        except Exception as error:  # the stored answer has no end
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
            for _ in self._source.abandon():  # the events are only counted; they are not sent
                pass
            return []
        if ending.stored is Stored.UNCHANGED:
            if journal is not None:
                await journal.release()
            return self._unstored_lines(reason) if self._has_begun else []
        lines = [] if self._has_begun else self._begin()
        if self._opening is not None:
            await self._opened(self._opening)
        if reason is not None and not (journal is not None and journal.replaying):
            lines = await self._abandon(lines)
        lines += self._last_lines(ending, reason)
        if journal is None:
            return lines
        # The client may disconnect from here on: a complete answer is stored as complete.
        closing = asyncio.ensure_future(journal.close(ending, reason, lines))
        try:
            new_lines = await asyncio.shield(closing)
        except asyncio.CancelledError:
            closing.add_done_callback(_log_unstored)
            raise
        if new_lines and len(new_lines[-1]) > LARGE:  # many answers may be stored in one transaction
            await wait_for_turn()
        return new_lines

    async def _abandon(self, lines: list[bytes]) -> list[bytes]:
        """Close open items, after the lines that begin the answer; returns the lines still to be sent."""
        await wait_for_turn()  # events may be large, if the client did not read
        for choice, events in self._source.abandon():
            if lines:  # held back until now
                lines, opening = [], self._journal.record(choice, [], lines) if self._journal else lines
                if opening:
                    self._client.write(opening)
            for event in events:
                self.push(choice, [event])
                await wait_for_turn()
        return lines

    def _unstored_lines(self, reason: BaseException | None) -> list[bytes]:
        """The last wire events for the client, if the stored answer is not changed."""
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
        """Send a failure to the client, in the stream if it has begun; otherwise raise it."""
        if not self._client.started:
            raise error
        log_failure(error)
        self._client.end([*lines] or self._failure(error), self._projection.body)

    def _failure(self, error: Exception) -> list[bytes]:
        """The last wire events of an answer whose end could not be stored, with open items closed."""
        lines = [] if self._has_begun else self._projection.begin()
        for choice, events in self._source.abandon():
            lines += self._projection.push(choice, events)
        return lines + self._projection.fail(public_error(error))


async def _cancel_arrived() -> None:
    """Let a cancellation of this task arrive that was requested while it did not wait."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


def _log_unstored(closing: asyncio.Task[list[bytes]]) -> None:
    """Log why an end could not be stored: no caller waits for the result."""
    if not closing.cancelled() and (error := closing.exception()) is not None:
        log_failure(error)
