"""Closes an answer that is cut: what it has begun in its form is ended by the shortest way.

A `ClosedGeneration` stands between an engine and a receiver. The engine may use all tokens, so an answer that
ends by itself is the same as without it. Chunks are passed on as long as the answer can surely be closed
after them: `Closing` in `run/constraints.py` bounds how long the way out may have become. Where that could be
more than the tokens left, chunks are held until the way is known. If the engine stops for want of tokens, the
answer is cut after the last of its held tokens from which the way out fits in, and is closed from there: by
the engine, where the way leaves a choice, with a constraint on the ways out; else, or if that fails, the
shortest text is added as if the model had written it. That always fits. The place depends on time: what is
passed on because the way out was known cannot be cut any more.

The way is worked out in another process. Text that was passed on is read there once; what is held, which has
at most as many tokens as the way has bytes, as often as the tokens left are halved.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.constrain.growth import growth_in
from antiphon.core.chunks import Chunk, Finish, FinishReason, Token, merge_chunks
from antiphon.core.errors import AntiphonError, ClientBusyError, RequestError
from antiphon.engines.engine import (
    MAX_CHARACTERS_PER_TOKEN,
    Engine,
    GenerationRequest,
    Receiver,
    Work,
    failure_of,
)
from antiphon.run.bounded import BoundedPool
from antiphon.run.constraints import (
    Closing,
    ConstraintPlan,
    WayOut,
    constraint_out,
    is_whole,
    plans_after,
    ways_out,
)
from antiphon.run.replay import continued

T = TypeVar("T")

log = structlog.get_logger()

FIRST = 1
"""Tokens that a tokenizer may make of the beginning of any text, in addition to its bytes."""
CHOICE_BYTES = 2
"""Bytes of a token, at the least, in what a choice adds to the way out. With fewer, the text is added."""
MAX_PLACES = 128
"""Places whose ways out are worked out, of those where an answer may be cut."""
BUSY_SECONDS = 0.05
"""Until work is tried again for a client with too much of it."""
PARAM = "max_tokens"


class Place(Struct, frozen=True):
    """Where the held chunks may be cut: after `chunks` of them, and `tokens` of the next.

    There are `left` tokens left. `text` is what follows the place before.
    """

    chunks: int
    tokens: int
    left: int
    text: str

    def cut(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """What is before this place."""
        before = [replace(chunk, finish=None) for chunk in chunks[: self.chunks]]
        if self.tokens:
            last = chunks[self.chunks]
            tokens = last.tokens[: self.tokens]
            text = "".join(token.text for token in tokens)
            before.append(replace(last, text=text, tokens=tokens, finish=None))
        return before


class ClosedGeneration:
    """One generation whose answer is closed if it is cut: a `Receiver` of the engine, and the `Work`.

    `plan`, which has `closing`, is that of the request: it applies from its `answer_start` on.
    """

    def __init__(
        self,
        engine: Engine,
        request: GenerationRequest,
        receiver: Receiver,
        plan: ConstraintPlan,
        pool: BoundedPool,
    ) -> None:
        assert plan.closing is not None
        self._engine = engine
        self._request = request
        self._receiver = receiver
        self._pool = pool
        self._context = copy_context()  # the client's: it gets its share of the pool
        self._plan: ConstraintPlan | None = plan  # from the last known place on; None: the text does not fit
        self._notation = plan.notation
        self._passed: list[Chunk] = []
        self._since: list[str] = []  # texts that were passed on after the known place
        self._held: list[Chunk] = []
        self._growth = plan.closing.growth
        self._left = request.max_tokens  # tokens left after all chunks, and how long the way out may be then
        self._bound = plan.closing.bound + FIRST
        self._next_look = request.max_tokens  # with so many tokens left
        self._task: asyncio.Task[None] | None = None
        self._work: Work | None = None
        self._over = False

    def begin(self, cut: Finish | None) -> None:
        """Have the engine generate; or, if the answer is cut here, only the way out."""
        if cut is None:
            self._work = self._engine.generate(self._request, self)
        else:
            self._start(lambda: self._close(cut))

    def cancel(self) -> None:
        self._over = True
        # Both refer to this object: no cycle is left for the garbage collector.
        work, self._work = self._work, None
        task, self._task = self._task, None
        if work is not None:
            work.cancel()
        if task is not None:
            task.cancel()

    # Called by the engine

    def push(self, chunks: list[Chunk]) -> None:
        finish = chunks[-1].finish
        if self._plan is None or (finish is not None and finish.reason is not FinishReason.LENGTH):
            self._end([*self._held, *chunks])
            return
        self._count(chunks)
        if finish is not None:
            self._held += chunks
            self._start(lambda: self._close(finish))
        elif not self._held and self._bound <= self._left:
            self._pass(chunks)
        else:
            self._held += chunks
            self._look_on()

    def fail(self, error: AntiphonError) -> None:
        if not self._over:
            self.cancel()
            self._receiver.fail(error)

    def _count(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._left -= tokens_in(chunk)
            self._bound += growth_in(self._growth, chunk.text)

    def _pass(self, chunks: list[Chunk]) -> None:
        """Pass chunks on: the answer can be closed after them."""
        self._since += [chunk.text for chunk in chunks]
        self._passed += chunks
        self._receiver.push(chunks)

    def _end(self, chunks: list[Chunk]) -> None:
        """Pass on chunks that no way out is needed for; with the last, all is over."""
        self._held = []
        if chunks and not self._over:
            self._over = chunks[-1].finish is not None
            self._receiver.push(chunks)

    # While the engine generates

    def _look_on(self) -> None:
        """Have the way out worked out, if that is not done yet, and not in vain."""
        if (self._task is None or self._task.done()) and self._left <= self._next_look:
            self._start(self._look)

    async def _look(self) -> None:
        """Pass on the held chunks if the answer can be closed after them."""
        assert self._plan is not None
        passed, self._since = "".join(self._since), []
        held, left = [*self._held], self._left
        known, text = self._plan, "".join(chunk.text for chunk in held)
        self._plan, after = await _retried(lambda: self._pool.run(PARAM, plans_after, known, passed, text))
        if self._over:
            return
        if self._plan is None or after is None or after.closing is None:
            self._plan = None  # no engine that enforces the form writes this
            self._end(self._held)
        elif after.closing.bound + FIRST > left:
            self._next_look = left // 2
        else:
            self._pass_on(len(held), after, after.closing)

    def _pass_on(self, count: int, plan: ConstraintPlan, closing: Closing) -> None:
        """Pass on the first held chunks, after which this plan holds; and the others, if there is room."""
        held, rest = self._held[:count], self._held[count:]
        self._plan, self._growth = plan, closing.growth
        self._bound = closing.bound + FIRST + sum(growth_in(self._growth, chunk.text) for chunk in rest)
        self._next_look = self._left
        self._held = rest
        self._passed += held
        self._receiver.push(held)
        # The receiver may have had enough: a call that is complete may be the last.
        if rest and not self._over and self._bound <= self._left and rest[-1].finish is None:
            self._held = []
            self._pass(rest)

    # When the answer is cut

    async def _close(self, finish: Finish) -> None:
        """Cut the held chunks where the way out fits in, and pass them on with it."""
        if self._plan is None:
            self._end(self._held)
            return
        places = _fewer([*_places(self._held, self._left)])
        passed, texts = "".join(self._since), [place.text for place in places]
        plan = self._plan
        ways = await _retried(lambda: self._pool.run(PARAM, ways_out, plan, passed, texts))
        # The answer of an engine that does not keep to the form stays as it is, as in `_look`.
        lost = len(ways) < len(places)
        chosen = None if lost else await self._chosen(places, ways)
        way = None if chosen is None else ways[chosen]
        if chosen is None or way is None or (chosen == len(places) - 1 and not way.text):
            self._end(self._held or [Chunk("", finish=finish)])
            return
        place = places[chosen]
        added: list[Chunk] = []
        if way.longer and self._notation is not None:
            added = await self._generated(plan, place, passed + "".join(texts[: chosen + 1]))
        if way.text and not added:
            added = [await text_chunk(self._engine, way.text)]
        count = sum(map(tokens_in, added))
        total = finish.completion_tokens
        if total is not None:
            total += count - (place.left - self._left)
        end = replace(finish, completion_tokens=total, closed=count, unused=place.left - count)
        # In one chunk: a call that is complete may be the last, and would end the answer before its end.
        self._end([*place.cut(self._held), merge_chunks([*added, Chunk("", finish=end)])])

    async def _chosen(self, places: Sequence[Place], ways: Sequence[WayOut | None]) -> int | None:
        """The number of the last place from which the way out fits in, with its choice if that can be."""
        fitting: int | None = None
        sizes: dict[str, int] = {}
        for number in reversed(range(len(places))):
            place, way = places[number], ways[number]
            if way is None or len(way.text) > place.left * MAX_CHARACTERS_PER_TOKEN:
                continue
            if way.text not in sizes:
                sizes[way.text] = await tokens_of(self._engine, way.text)
            if (tokens := sizes[way.text]) > place.left:
                continue
            if self._notation is None or tokens + way.longer // CHOICE_BYTES <= place.left:
                return number
            fitting = number if fitting is None else fitting
        return fitting

    async def _generated(self, plan: ConstraintPlan, place: Place, text: str) -> list[Chunk]:
        """The way out from this place, after `text`, as the engine writes it; nothing, if that fails."""
        notation = self._notation
        assert notation is not None
        constraint = await _retried(lambda: self._pool.run(PARAM, constraint_out, plan, text, notation))
        rest, _ = await continued([*self._passed, *place.cut(self._held)], self._engine, self._request)
        collector = _Collector()
        self._work = self._engine.generate(
            replace(rest, constraint=constraint, max_tokens=place.left), collector
        )
        chunks = await collector.chunks
        if not chunks or (end := chunks[-1].finish) is None or end.reason is not FinishReason.STOP:
            return []
        whole = text + "".join(chunk.text for chunk in chunks)
        fits = await _retried(lambda: self._pool.run(PARAM, is_whole, plan, whole))
        return [Chunk(chunk.text, chunk.tokens) for chunk in chunks] if fits else []

    # Work

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do this work, after that which is under way."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(work, self._task), context=self._context
        )

    async def _run(
        self, work: Callable[[], Coroutine[Any, Any, None]], before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            await work()
        except RequestError as error:  # a limit of the work: the answer stays as it is
            log.info("the way out of an answer's form was not found", why=error.message)
            self._plan = None
            self._end(self._held)
        except Exception as error:
            self.fail(failure_of(error))


async def _retried(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of work for a client, which waits its turn if there is too much of its work."""
    while True:
        try:
            return await work()
        except ClientBusyError:
            await asyncio.sleep(BUSY_SECONDS)


class _Collector:
    """Receives a whole generation: its chunks, none if it fails."""

    def __init__(self) -> None:
        self.chunks: asyncio.Future[list[Chunk]] = asyncio.get_running_loop().create_future()
        self._received: list[Chunk] = []

    def push(self, chunks: list[Chunk]) -> None:
        self._received += chunks
        if chunks[-1].finish is not None and not self.chunks.done():
            self.chunks.set_result(self._received)

    def fail(self, error: AntiphonError) -> None:
        log.info("the way out of an answer's form was not generated", why=error.message)
        if not self.chunks.done():
            self.chunks.set_result([])


async def least_tokens(engine: Engine, closing: Closing | None) -> int:
    """The tokens of the shortest way, at least; 0 if nothing is demanded."""
    if closing is None:
        return 0
    return await tokens_of(engine, closing.shortest) or -(-closing.size // MAX_CHARACTERS_PER_TOKEN)


async def tokens_of(engine: Engine, text: str) -> int:
    """How many tokens a text has that is added to an answer."""
    return len(await engine.tokenize([text])) if text else 0


async def text_chunk(engine: Engine, text: str) -> Chunk:
    """A text as the model's; its last token carries it."""
    ids = await engine.tokenize([text])
    tokens = [*(Token(id_, "") for id_ in ids[:-1]), *(Token(id_, text) for id_ in ids[-1:])]
    return Chunk(text, tuple(tokens))


def tokens_in(chunk: Chunk) -> int:
    """How many tokens a chunk has; one at least, if the engine does not tell them."""
    return len(chunk.tokens) or bool(chunk.text)


def _places(chunks: Sequence[Chunk], left: int) -> Iterator[Place]:
    """Each place after a whole character of these chunks, after which there are `left` tokens left."""
    left += sum(map(tokens_in, chunks))
    yield Place(0, 0, left, "")
    for number, chunk in enumerate(chunks):
        if "".join(token.text for token in chunk.tokens) != chunk.text:  # not all are told
            left -= tokens_in(chunk)
            yield Place(number + 1, 0, left, chunk.text)
            continue
        for count, token in enumerate(chunk.tokens, 1):
            left -= 1
            if token.text:
                whole = count == len(chunk.tokens)
                yield Place(number + whole, 0 if whole else count, left, token.text)


def _fewer(places: list[Place]) -> list[Place]:
    """The first and the last place, and some between, if there are too many."""
    step = -(-len(places) // MAX_PLACES)
    kept: list[Place] = []
    text = ""
    for number, place in enumerate(places):
        text += place.text
        if number == 0 or (len(places) - 1 - number) % step == 0:
            kept.append(replace(place, text=text))
            text = ""
    return kept
