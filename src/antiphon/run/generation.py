"""One generation: an engine, a decoder, and interceptors. Most answers consist of one.

The engine pushes chunks; each call decodes them, and pushes their events on, at once. Three conditions end
a generation before the model does: a stop string, the last call of an answer with a limited number, and
more input of the client.
Reasoning that has become too long is closed, and the engine continues after it.

To add a part between the engine and the events: a field of `Interceptors`, set in `Prepared.generation` of
`run/model.py`; `tests/run/test_generation.py`.
"""

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from time import perf_counter
from typing import Protocol

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.core.accumulator import DELTAS, Accumulator
from antiphon.core.chunks import ChatChunk, Chunk, Finish, FinishReason, merge_chunks
from antiphon.core.errors import AntiphonError, ReplicaLostError
from antiphon.core.events import CallStarted, Event, Finished, Malformed, ReasoningDelta, TextDelta, Usage
from antiphon.core.items import FunctionCall, Item
from antiphon.core.observation import Observation, ObservedGeneration, observed
from antiphon.core.permits import GIVE_BACK, LAST, PRIORITY
from antiphon.core.plain_tokens import PlainTokens
from antiphon.engines.engine import Engine, GenerationRequest, Work
from antiphon.run.bounded import BoundedPool
from antiphon.run.call_filter import CallFilter
from antiphon.run.check import OutputCheck
from antiphon.run.closing import ClosedGeneration, least_tokens
from antiphon.run.constraints import ConstraintPlan
from antiphon.run.drive import Output, call_in_turn, wait_for_turn
from antiphon.run.endings import ClientStalledError
from antiphon.run.repetition import WINDOW, RepetitionDetector
from antiphon.run.replay import ReplayLog, request_after, split_unfinished

log = structlog.get_logger()

Emit = Callable[[int, list[Event]], None]
"""Processes the next events of a choice."""


REPETITION = "repetition"
"""The finish of an answer that repeats the same text; see `run/repetition.py`."""
PIECE = 256
"""Tokens, with their alternatives, that are pushed at once when a client resumes reading."""
LONG_TEXT = 256
"""Characters of a chunk that count as another chunk."""
LARGE = 4096
"""Log probabilities from which on an answer is large: its last events have all of them."""
MAX_LOST = 3
"""Replicas that may fail in one generation: a request that makes replicas fail must not reach all of them."""
MAX_CLOSINGS = 16
"""How often the reasoning of a generation is closed before the answer ends."""


class GivenBackError(AntiphonError):
    """The engine's slot was given to a request that somebody waits for."""


class AnswerDecoder(Protocol):
    """Chunks of one generation → events."""

    @property
    def stopped(self) -> bool:
        """Whether the engine can stop."""
        ...

    @property
    def in_reasoning(self) -> bool:
        """Whether the next text is reasoning."""
        ...

    @property
    def can_end(self) -> bool:
        """Whether an answer that ends here is whole up to here: no call is open, nor may have begun."""
        ...

    @property
    def completion_tokens(self) -> int:
        """Tokens so far."""
        ...

    @property
    def reasoning_tokens(self) -> int:
        """Reasoning tokens so far."""
        ...

    @property
    def open_delta(self) -> type[TextDelta | ReasoningDelta] | None:
        """The type of the deltas of plain chunks; None if no chunk is plain in this state."""
        ...

    @property
    def plain(self) -> Mapping[str, bool]:
        """Text → whether a chunk of one token with this text is plain now: its text is its only delta."""
        ...

    def count_plain(self, texts: Sequence[str]) -> None:
        """Plain chunks with these texts came, and were not fed."""
        ...

    def feed(self, chunk: Chunk) -> list[Event]:
        """The events that this chunk completes."""
        ...

    def finish(self, finish: Finish) -> list[Event]:
        """The last events."""
        ...


class ReasoningLimit(Struct, frozen=True):
    """After this number of reasoning `tokens`, `closing` is inserted as the model's text."""

    tokens: int
    closing: Chunk


_MARKED = frozenset({CallStarted, Malformed})
"""The types of events that a generation changes or counts."""


class Interceptors(Struct, frozen=True):
    """The parts that may act between engine and client; most answers have none.

    `on_end` is called with the items of each answer that has ended; `content` returns events to be added at
    its end. `hosted` names the functions that the server runs, `names` are those by their endings: a call
    without the namespace is one of its function. `plan` is the source of the generation's
    constraint: an answer that is continued needs it, and `pool` to work on it. The pool's limits also apply
    to the answer. `running` has the generation in it while it runs.
    """

    replay: ReplayLog | None = None
    calls: CallFilter | None = None
    reasoning: ReasoningLimit | None = None
    check: OutputCheck | None = None
    hosted: Container[str] = frozenset()
    names: Mapping[str, str] = {}
    plan: ConstraintPlan = ConstraintPlan()
    pool: BoundedPool | None = None
    on_end: Callable[[Sequence[Item]], None] | None = None
    content: Callable[[Sequence[Item]], list[Event]] | None = None
    running: "set[GenerationRun]" = field(default_factory=set)


class GenerationRun:
    """Generates once; a `Receiver` of an engine. Not for reuse.

    `items` numbers and builds the items of the answer that this generation is part of.
    """

    def __init__(
        self,
        engine: Engine,
        request: GenerationRequest,
        decoder: AnswerDecoder,
        interceptors: Interceptors,
        items: Accumulator,
    ) -> None:
        self._engine = engine
        self._interceptors = interceptors
        self._decoder = decoder
        self._pool = interceptors.pool or BoundedPool()
        times = self._pool.limits.repetitions  # this many characters are never examined: off
        self._repetition = RepetitionDetector(times) if times < WINDOW else None
        closes = interceptors.plan.closing is not None
        # For the rest of the answer: after a failed replica, closed reasoning, or repeated text.
        recorded = engine.card.capabilities.replicas or interceptors.reasoning is not None
        recorded = recorded or (closes and self._repetition is not None)
        self._replay = interceptors.replay or (ReplayLog() if recorded else None)
        # Others may need the slot, unless the answer cannot be continued: see `request_after`.
        self._gives_back = PRIORITY.get() >= LAST and request.conversation is None
        # Until then they are only kept: recording takes the short way from the engine to the client.
        self._kept: list[Chunk] | None = [] if self._gives_back and self._replay is None else None
        self._asked_back = False
        continued = closes or self._replay is not None or self._gives_back
        self._request = replace(request, resumable=True) if continued else request
        self._unfinished: list[Chunk] = []  # tokens that the answer could not be continued after
        self._lost = 0  # replicas that failed
        self._closings = 0
        self._cut: Finish | None = None  # how an answer ends that is closed now
        self._items = items
        log = interceptors.replay
        self._logs_plain = log is not None and log.takes_plain
        record = log.record if log is not None and self._logs_plain else None
        self._plain = PlainTokens(items.pieces, decoder.count_plain, record)
        self._before = 0  # tokens that were written before the engine began its part
        self._work: Work
        self._works = False  # the engine does
        self._ended: asyncio.Future[None]  # done when the engine's part is over
        self._output: Output
        self._choice: int
        self._emit: Emit
        self._direct = False  # no interceptor between engine and driver
        self._begins = False  # another item may be open: how its deltas are written is not known yet
        self._held: list[Chunk] = []  # while the client does not read
        self._unread = 0  # how many those are, each with every alternative to its tokens
        self._failure: AntiphonError | None = None  # reported after them
        self._later: list[Event] = []  # the last of a large answer
        self._finished = False
        self._begun = False  # some of it was decoded
        self._steered = False  # it ends as soon as it can
        self._broken = 0  # number of malformed parts, and the problem of the first
        self._verdict = ""
        self._observation: Observation
        self._started = 0.0
        self._first: float | None = None

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        self._plain.count()
        return self._decoder.completion_tokens

    async def run(self, output: Output, choice: int, emit: Emit | None = None) -> None:
        """Generate a choice of `output`, to the end.

        `emit` is where its events go, if not straight there; plain deltas always go there.

        Raises AntiphonError.
        """
        self._output, self._choice, self._emit = output, choice, emit or output.push
        running = self._interceptors.running
        running.add(self)
        try:
            await self._run()
        finally:
            running.discard(self)
            del self._emit  # it may be of whoever has this object: no cycle is left for the garbage collector

    async def _run(self) -> None:
        parts = self._interceptors
        recorded = None if self._logs_plain else self._replay
        between = (parts.calls, parts.check, parts.reasoning, recorded, self._repetition)
        self._direct = all(part is None for part in between)
        self._observation, self._started = observed(), perf_counter()
        if self._replay is not None and self._replay.chunks:
            await self._decode_again([*self._replay.chunks])
            self._replay.replayed()
        while not (self._finished or self._ends_steered()):
            if self._replay is None:
                await self._generate_whole()
            elif self._cut is None and self._exceeds_reasoning_limit():
                await self._close_reasoning()
            else:
                await self._generate_rest(self._replay)
        if self._later:
            await self._emit_later()
        if parts.check is not None and (events := await parts.check.verdict()):
            ends = [event for event in events if isinstance(event, Finished)]
            self._observation.unmet += [why for end in ends for why in end.unmet]
            self._emit(self._choice, events)

    async def _generate_whole(self) -> None:
        """Have the engine write the answer. If it gives the slot back, it is recorded from then on."""
        try:
            await self._generate(self._request, self._interceptors.plan)
        except GivenBackError:
            self._observation.given_back += 1
            self._direct = False
            self._make_events()
            self._replay = ReplayLog()
            self._replay.record(self._kept or [])
            self._kept = None

    async def _generate_rest(self, replay: ReplayLog) -> None:
        """Have the engine continue. If a replica fails, another one continues after the chunks so far."""
        try:
            request, plan = self._request, self._interceptors.plan
            if replay.chunks:
                self._make_events()  # what a first chunk says besides its text is said for the second time
                request, self._before, plan = await request_after(
                    replay.chunks, self._engine, request, plan, self._pool
                )
            await self._generate(request, plan)
        except GivenBackError:  # continued when there is a slot again
            self._observation.given_back += 1
        except ReplicaLostError as lost:
            self._lost += 1
            if self._lost > MAX_LOST:
                raise
            token_count = sum(len(chunk.tokens) for chunk in replay.chunks)
            log.warning("another replica continues", after=token_count, error=str(lost.__cause__))
            self._observation.failovers += 1

    async def _generate(self, request: GenerationRequest, plan: ConstraintPlan) -> None:
        """Have the engine work until the generation is over, or has to continue in another way."""
        self._unfinished = []
        self._asked_back = False
        cut, self._cut = self._cut, None
        if self._before and request.max_tokens < 1:  # engines refuse a limit of 0
            cut = cut or Finish(FinishReason.LENGTH)
        if cut is not None and plan.closing is None:
            self._decode(self._taken([Chunk("", finish=cut)]))
            return
        self._ended = asyncio.get_running_loop().create_future()
        token = GIVE_BACK.set(self._give_back) if self._gives_back else None
        try:
            if plan.closing is None:
                self._work = self._engine.generate(request, self)
            else:
                self._work = ClosedGeneration(self._engine, request, self, plan, self._pool)
                self._work.begin(cut)
        finally:
            if token is not None:
                GIVE_BACK.reset(token)
        self._works = True
        try:
            await self._ended
        except BaseException:
            # The failure's traceback has this object: no cycle is left for the garbage collector.
            self._ended = self._ended.get_loop().create_future()
            raise
        finally:
            self._works = False
            self._work.cancel()
            self._ended.cancel()  # calls after this have no effect, because it is done
            # They refer to this object: no cycle is left for the garbage collector.
            self._failure = None
            del self._work

    def steer(self) -> None:
        """End where a conversation can go on: at once, or after the call that is open."""
        self._steered = True
        if not self._works:
            return
        try:
            if self._ends_steered():
                self._stop_work()
        except Exception as error:
            self._break_off(error)

    def _ends_steered(self) -> bool:
        """End here, if the client has sent more input and a conversation can go on from here."""
        if not self._steered or self._finished or self._held or self._output.paused:
            return False
        if not self._begun:  # nothing has to be closed
            self._finished = True
            self._emit(self._choice, self._last([Finished(FinishReason.STEERED, Usage())]))
        elif self._decoder.can_end:
            self._make_events()
            self._decode(self._taken([Chunk("", finish=Finish(FinishReason.STEERED))]))
        return self._finished

    def _give_back(self) -> None:
        """Give the slot of the engine to somebody who waits for one, when the answer can be continued."""
        self._asked_back = True
        if not self._kept or not split_unfinished(self._kept[-1:])[1]:
            self._leave()

    def _leave(self) -> None:
        if not self._ended.done():
            self._ended.set_exception(GivenBackError())

    # Called by the engine

    def push(self, chunks: list[Chunk]) -> None:
        try:
            if self._kept is not None:
                self._kept += chunks
                if self._asked_back and not split_unfinished(chunks[-1:])[1]:
                    self._leave()
            if self._plain.take(chunks):  # as most of most answers
                return
            if self._output.paused or self._held:
                self._hold(chunks)
            else:
                self._pass(chunks)
        except Exception as error:
            self._break_off(error)

    def _break_off(self, error: Exception) -> None:
        """An error of ours ends this answer, and is no concern of the engine's."""
        self._work.cancel()
        if not self._ended.done():
            self._ended.set_exception(error)

    def _pass(self, chunks: list[Chunk]) -> None:
        if self._interceptors.reasoning is None:
            self._decode(chunks if self._direct and self._replay is None else self._taken(chunks))
            over = self._finished
        else:  # the reasoning may have to be closed after any of the chunks
            over = any(self._is_last([chunk]) for chunk in chunks)
        over = over or self._cut is not None or self._ends_steered()
        ready = self._begins and not (over or self._held or self._unfinished or self._output.paused)
        if ready and (delta := self._decoder.open_delta) is not None:
            self._begins = False
            self._plain.begin(self._output.delta_writer(self._choice, delta))
            if self._plain.write is not None:
                self._output.on_pause(self._make_events)
        self._plain.texts = self._decoder.plain
        if over:
            self._stop_work()

    def _stop_work(self) -> None:
        """The engine's part is over."""
        if not self._ended.done():
            self._held.clear()
            self._unread = 0
            self._work.cancel()
            self._ended.set_result(None)

    def _make_events(self) -> None:
        """Write nothing more without looking whether the answer is held back."""
        self._plain.end()
        self._begins = self._direct

    def fail(self, error: AntiphonError) -> None:
        """Chunks that were pushed before are processed first."""
        if self._held:
            self._failure = error
        elif not self._ended.done():
            self._ended.set_exception(error)

    def _hold(self, chunks: list[Chunk]) -> None:
        """Hold chunks until the client reads on, or too many are held."""
        if not self._held:
            self._output.on_resume(self._release)
        self._held += chunks
        self._unread += sum(map(_weight, chunks))
        if self._unread > self._pool.limits.unread_chunks and not self._ended.done():
            self._ended.set_exception(ClientStalledError())

    def _is_large(self) -> bool:
        """Its last events have so much in them that no two of any answers may be made at the same time."""
        scores = self._request.sampling.logprobs
        return scores is not None and self.tokens * (1 + scores) > LARGE

    def _release(self) -> None:
        """Push the held chunks when the client reads again, one piece in each turn of the loop."""
        if self._ended.done() or not self._held:
            return  # the held chunks are left for `abandon`
        if self._output.paused:
            self._output.on_resume(self._release)
            return
        piece = _first_piece(self._held)
        del self._held[: len(piece)]
        self._unread -= sum(map(_weight, piece))
        if self._held:
            call_in_turn(self._release)
        try:
            self._pass(piece if self._interceptors.reasoning is not None else [merge_chunks(piece)])
        except Exception as error:
            self._break_off(error)
        if self._failure is not None and not self._held:
            self.fail(self._failure)

    def abandon(self) -> list[Event]:
        """The last events of a generation that failed: its items so far are kept."""
        if self._finished:
            later, self._later = self._later, []
            check = self._interceptors.check
            return later if check is None else later + check.end()
        self._finished = True
        self._plain.count()
        decoder, held_events = self._decoder, list[Event]()
        self._held, self._unfinished = self._unfinished + self._held, []
        while self._held:
            piece = _first_piece(self._held)
            del self._held[: len(piece)]
            held_events += decoder.feed(merge_chunks(piece))
        return self._last([*held_events, *decoder.finish(Finish(FinishReason.ERROR))])

    # Between engine and client

    def _is_last(self, chunks: list[Chunk]) -> bool:
        """Decode these chunks; returns whether the engine's part is over after them."""
        self._decode(self._taken(chunks))
        return self._finished or self._exceeds_reasoning_limit()

    def _taken(self, chunks: list[Chunk]) -> list[Chunk]:
        """The chunks to decode, of these chunks of the engine; they are recorded."""
        if self._replay is not None:
            chunks = self._whole(chunks)
        if self._repetition is not None and self._repetition.push("".join(chunk.text for chunk in chunks)):
            log.info("an answer repeats itself", request_id=self._observation.request_id)
            end = Finish(FinishReason.LENGTH, REPETITION)
            if self._interceptors.plan.closing is None:
                chunks = [*chunks, Chunk("", finish=end)]
            elif chunks[-1:] and chunks[-1].finish is None:
                self._cut = end
        if self._replay is not None:
            chunks = self._replay.record(chunks, self._before)
        return chunks

    def _whole(self, chunks: list[Chunk]) -> list[Chunk]:
        """Of these chunks, and those that were held back, the ones that the answer can be continued after."""
        tokens = chunks[-1].tokens
        if tokens and tokens[-1].text and not self._unfinished:  # as of most steps
            return chunks
        whole, unfinished = split_unfinished(chunks)
        if not whole:
            self._unfinished += unfinished
            return whole
        whole, self._unfinished = self._unfinished + whole, unfinished
        return whole

    def _decode(self, chunks: list[Chunk]) -> None:
        """Emit the events of these chunks, up to the end."""
        self._begun = True
        decoder, calls, check, emitted = (
            self._decoder,
            self._interceptors.calls,
            self._interceptors.check,
            None,
        )
        for chunk in chunks:
            events = decoder.feed(chunk)
            if len(events) == 1 and type(events[0]) in DELTAS and calls is None:
                self._plain.add(events[0].text)  # type: ignore[union-attr]
            elif events:
                events = self._visible(events)
                self._plain.write, self._begins = None, self._direct
            finish = chunk.finish
            if finish is None and (decoder.stopped or (calls is not None and calls.limit_reached)):
                finish = Finish(FinishReason.STOP)  # there is no need for the engine to continue
            if finish is not None:
                self._finished = True
                events = events + self._last(decoder.finish(finish))
            emitted = events if emitted is None else emitted + events
            if finish is not None:
                break
        if emitted and check is not None:
            emitted = check.push(emitted)
        if emitted and self._finished and self._is_large():
            self._later = emitted
        elif emitted:
            self._emit(self._choice, emitted)

    async def _decode_again(self, chunks: list[Chunk]) -> None:
        """Emit the events of recorded chunks, one piece in each turn."""
        while chunks and not self._finished:
            piece = _first_piece(chunks)
            del chunks[: len(piece)]
            self._decode(piece)
            if chunks:
                await wait_for_turn()

    async def _emit_later(self) -> None:
        """Emit the last events of a large answer, each in a turn of its own, while the client reads."""
        while self._later:
            await wait_for_turn(self._output)
            event = self._later.pop(0)
            if self._replay is not None:
                self._replay.emits_last(len(self._later))
            self._emit(self._choice, [event])
        await wait_for_turn()  # the end that is made from them is as large

    def _visible(self, events: list[Event]) -> list[Event]:
        """Those of the events that the client may see, numbered, with their items."""
        if self._first is None:
            self._first = perf_counter()
        if self._interceptors.names:
            events = [self._named(event) for event in events]
        if self._interceptors.calls is not None:
            events = self._interceptors.calls.filter(events)
        push = self._items.push
        return [push(self._marked(event) if type(event) in _MARKED else event) for event in events]

    def _named(self, event: Event) -> Event:
        """The event with the whole name of a function that is called without its namespace."""
        if isinstance(event, CallStarted) and (name := self._interceptors.names.get(event.name)):
            return replace(event, name=name)
        return event

    def _marked(self, event: Event) -> Event:
        if isinstance(event, CallStarted) and event.name in self._interceptors.hosted:
            return replace(event, hosted=True)
        if isinstance(event, Malformed):
            self._broken += 1
            self._verdict = self._verdict or event.why
        return event

    def _last(self, events: list[Event]) -> list[Event]:
        """The last events, visible. Malformed markup is logged once for the whole generation."""
        visible = self._visible(events[:-1])
        parts = self._interceptors
        if parts.content is not None and self._finishes(events[-1]):
            visible += self._visible(parts.content(self._items.items))
        visible += self._visible(events[-1:])
        if parts.on_end is not None:
            parts.on_end(self._items.items)
        if self._is_whole(visible[-1]):
            visible[-1] = replace(visible[-1], reason=FinishReason.STOP)
        observation = self._observation
        model = observation.served or self._engine.card.name
        if self._broken:
            # The engine calls this outside of the request's context.
            names = {"model": model, "request_id": observation.request_id}
            log.info("broken markup", verdict=self._verdict, places=self._broken, **names)
        if type(end := visible[-1]) is Finished:
            observation.closed += bool(end.closed)
            prompt, conversation = self._request.prompt, self._request.conversation
            prompt_tokens = len(prompt.ids) + end.usage.prompt_tokens  # one of the two is known
            observation.generations.append(
                ObservedGeneration(
                    model, self._started, perf_counter(), self._first, prompt_tokens, end, self._broken
                )
            )
            if observation.content:
                log.info(
                    "content",
                    request_id=observation.request_id,
                    prompt=prompt.text if conversation is None else conversation.messages,
                    answer=[*self._items.items],
                )
        return visible

    def _is_whole(self, end: Event) -> bool:
        """Whether an answer that was steered ends with a call: nothing of it is missing."""
        if not isinstance(end, Finished) or end.reason is not FinishReason.STEERED:
            return False
        return bool(self._items.items) and isinstance(self._items.items[-1], FunctionCall)

    @staticmethod
    def _finishes(event: Event) -> bool:
        """Whether the answer ends with this event, did not fail, and is not gone on with."""
        return isinstance(event, Finished) and event.reason not in (FinishReason.ERROR, FinishReason.STEERED)

    def _exceeds_reasoning_limit(self) -> bool:
        limit, decoder = self._interceptors.reasoning, self._decoder
        return limit is not None and decoder.in_reasoning and decoder.reasoning_tokens >= limit.tokens

    async def _close_reasoning(self) -> None:
        """End the reasoning, recorded as if the model had written it; or the answer, if that did not help."""
        assert self._replay is not None
        limit = self._interceptors.reasoning
        assert limit is not None
        closing, token_count = limit.closing, sum(len(chunk.tokens) for chunk in self._replay.chunks)
        self._closings += 1
        over = self._closings > MAX_CLOSINGS or token_count + len(closing.tokens) > self._request.max_tokens
        if over or not await self._has_room_after(closing):
            self._cut = Finish(FinishReason.LENGTH)
        else:
            self._decode(self._replay.record([closing]))

    async def _has_room_after(self, closing: Chunk) -> bool:
        """Whether the answer has room for the rest of its form if this is inserted."""
        plan = self._interceptors.plan
        if plan.closing is None:
            return True
        assert self._replay is not None
        chunks = [*self._replay.chunks, closing]
        rest, _, plan = await request_after(chunks, self._engine, self._request, plan, self._pool)
        return await least_tokens(self._engine, plan.closing) <= rest.max_tokens


def _weight(chunk: Chunk) -> int:
    """The size of a chunk: one, with the alternatives to its tokens, and more if its text is long."""
    size = len(chunk.text)
    if isinstance(chunk, ChatChunk):
        size += sum(len(piece.text) for piece in chunk.pieces)
    return 1 + size // LONG_TEXT + sum(len(token.top) for token in chunk.tokens)


def _first_piece(chunks: list[Chunk]) -> list[Chunk]:
    """As many of these chunks as may be pushed at once, at least one."""
    weight = 0
    for count, chunk in enumerate(chunks):
        weight += _weight(chunk)
        if weight > PIECE:
            return chunks[: max(1, count)]
    return chunks[:]
