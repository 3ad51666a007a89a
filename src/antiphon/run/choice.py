"""One generation: an engine, a decoder, and whoever may step in between. Most answers are one.

The engine's chunks go through the decoder and, if the tool choice needs it, a
filter. Two things end a generation before the model does: a stop string, and
the one call of an answer that may have only one. One thing makes it go on
differently: a thought that has become too long is closed, and the engine
continues after it.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.call_filter import CallFilter
from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.errors import AntiphonError, EngineError
from antiphon.core.events import Event, Finished
from antiphon.decode.decoder import Decoder
from antiphon.engines.engine import Engine, Generation
from antiphon.run.check import Check
from antiphon.run.plan import Held
from antiphon.run.tape import Tape


class ThinkingLimit(Struct, frozen=True):
    """After so many `tokens` of thoughts, `closing` is written for the model."""

    tokens: int
    closing: Chunk


class Guards(Struct, frozen=True):
    """Who may step in between engine and client; most answers need none of them.

    `held` says what a constraint of the generation comes from: an answer that is gone on with needs it.
    """

    tape: Tape | None = None
    calls: CallFilter | None = None
    thinking: ThinkingLimit | None = None
    check: Check | None = None
    held: Held = Held()


class Choice:
    """Generates once. Not for reuse."""

    def __init__(self, engine: Engine, generation: Generation, decoder: Decoder, guards: Guards) -> None:
        self._engine = engine
        self._generation = generation
        self._decoder = decoder
        self._tape = guards.tape or (Tape() if guards.thinking else None)
        self._calls = guards.calls
        self._thinking = guards.thinking
        self._check = guards.check
        self._held = guards.held

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """What the model says, in batches as it comes. Raises EngineError."""
        more = True
        if self._tape and self._tape.chunks:
            events, more = self._decode(self._tape.chunks)
            yield events
        while more:
            if self._thinks_too_long():
                events, more = self._decode([self._closing()])
                yield events
                if not more:
                    return
            async with aclosing(self._chunks()) as batches:
                async for batch in batches:
                    events, more = self._decode(batch)
                    if events:
                        yield events
                    if not more:
                        return
                    if self._thinks_too_long():
                        break
                else:
                    raise EngineError  # it broke its contract: no chunk was the last

    def fail(self, error: Exception) -> list[Event]:
        """The last events of an answer that `error` ended: what was said so far stands."""
        *events, end = self._decoder.finish(Finish(FinishReason.ERROR))
        assert isinstance(end, Finished)
        return self._shown([*events, replace(end, error=told(error).message)])

    def _chunks(self) -> AsyncGenerator[list[Chunk], None]:
        if self._tape is None:
            return self._engine.generate(self._generation)
        return self._tape.go_on(self._engine, self._generation, self._held)

    def _decode(self, batch: list[Chunk]) -> tuple[list[Event], bool]:
        """The events of a batch, and whether there is more to come."""
        events: list[Event] = []
        for chunk in batch:
            fed = self._shown(self._decoder.feed(chunk))
            events = events + fed if events else fed
            finish = chunk.finish or (Finish(FinishReason.STOP) if self._over else None)
            if finish:
                return events + self._shown(self._decoder.finish(finish)), False
        return events, True

    @property
    def _over(self) -> bool:
        """There is no need for the engine to go on."""
        return self._decoder.stopped or (self._calls is not None and self._calls.over)

    def _shown(self, events: list[Event]) -> list[Event]:
        if self._calls and events:
            events = self._calls.filter(events)
        return self._check.seen(events) if self._check else events

    def _thinks_too_long(self) -> bool:
        limit, decoder = self._thinking, self._decoder
        return limit is not None and decoder.thinking and decoder.reasoning_tokens >= limit.tokens

    def _closing(self) -> Chunk:
        """What ends the thought, recorded as if the model had written it."""
        assert self._tape is not None
        assert self._thinking is not None
        self._tape.write(self._thinking.closing)
        return self._thinking.closing


def told(error: Exception) -> AntiphonError:
    """What clients may know of a failure."""
    return error if isinstance(error, AntiphonError) else EngineError()
