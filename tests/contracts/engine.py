"""What every engine must do: the contract in the docstring of `antiphon.engines.engine`.

A test module inherits `EngineContract`, gives it the fixtures `engine` (started) and
`fresh` (not started, one slot), a `prompt` that the engine answers at length, and says how
many generations run at a time. What depends on a capability is skipped for an engine
that does not name it: `tests/engines/test_toy.py` has the least that passes.
"""

import asyncio
import gc
import math
import re
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from itertools import chain, product
from typing import Any

import pytest

from antiphon.constrain.compile import CompiledConstraint
from antiphon.constrain.grammar_ir import GrammarIR, sequence
from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.constraint import Gbnf
from antiphon.core.errors import AntiphonError, EngineNotReadyError, RequestError
from antiphon.core.items import MediaKind, MediaPart
from antiphon.core.turn import Adapter, Sampling
from antiphon.engines.engine import (
    BeamSearcher,
    Engine,
    GenerationRequest,
    NextTokenRequest,
    Prompt,
    PromptScorer,
    Work,
)
from antiphon.engines.figures import Measured
from antiphon.engines.next_token import score_next
from antiphon.run.bounded import BoundedPool
from antiphon.run.constraints import Demands, plan_of
from antiphon.run.replay import request_after, split_unfinished
from tests.media import png
from tests.search import CI

PATIENCE = 100.0
"""Seconds until a condition that must come true counts as missed, on a machine with much else to do."""

LONG = 200
"""More tokens than any test lets an engine produce."""

STEPS = 0.05
"""Seconds that engines take many steps in: time for calls that must not come."""

NOISE = 0.05
"""The difference of log probabilities by rounding, where prompts are computed in other batches."""

_late: list[str] = []
"""Calls of receivers after the end: what is raised in the event loop's callbacks fails no test."""


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that the engine brings about by itself."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # the engine has no event to wait for
            await asyncio.sleep(0.001)


def _busy(engine: Engine) -> tuple[int, int]:
    """How many generations it works on, and how many wait."""
    load = engine.load
    assert load.running <= load.slots
    return load.running, load.waiting


def greedy(engine: Engine, **options: Any) -> Sampling:
    """Sampling that always draws the same, of an engine that draws at all."""
    draws = "temperature" in engine.card.capabilities.sampling
    return Sampling(temperature=0 if draws else None, **options)


class Collected:
    """A receiver that keeps what it gets. `batches` are those of each call; once `over`, there must be none."""

    def __init__(self) -> None:
        self.batches: list[list[Chunk]] = []
        self.error: AntiphonError | None = None
        self.over = asyncio.Event()
        self.begun = asyncio.Event()
        self.calls = 0

    def push(self, chunks: list[Chunk]) -> None:
        self._called(f"push {chunks}")
        self.batches.append(chunks)
        self.begun.set()
        if chunks[-1].finish is not None:
            self.over.set()

    def fail(self, error: AntiphonError) -> None:
        self._called(f"fail {error!r}")
        self.error = error
        self.begun.set()
        self.over.set()

    def _called(self, call: str) -> None:
        self.calls += 1
        if self.over.is_set():
            _late.append(call)

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for batch in self.batches for chunk in batch]

    async def whole(self) -> list[Chunk]:
        """All chunks. Raises what the generation failed of."""
        async with asyncio.timeout(PATIENCE):
            await self.over.wait()
        if self.error is not None:
            raise self.error
        return self.chunks


async def request_of(engine: Engine, text: str, max_tokens: int, **options: Any) -> GenerationRequest:
    ids = tuple(await engine.tokenize([text]))
    return GenerationRequest(Prompt(text, ids), max_tokens, **{"sampling": greedy(engine), **options})


async def request_with_images(engine: Engine, text: str, images: Sequence[bytes]) -> GenerationRequest:
    """A request whose prompt has images before its text."""
    media = tuple(
        MediaPart(MediaKind.IMAGE, sha256(data).hexdigest(), "image/png", data, 64, 64, "messages[0]")
        for data in images
    )
    mark = "<image>"
    whole = mark * len(media) + text
    ids = tuple(await engine.tokenize([whole]))
    around = (*(("",) for _ in media), (text,))
    return GenerationRequest(Prompt(whole, ids, media, around), 4, greedy(engine))


async def generated(engine: Engine, request: GenerationRequest) -> list[Chunk]:
    """All chunks of a generation. Raises what it failed of."""
    collected = Collected()
    engine.generate(request, collected)
    return await collected.whole()


async def batches_of(engine: Engine, text: str, max_tokens: int, **options: Any) -> list[list[Chunk]]:
    collected = Collected()
    engine.generate(await request_of(engine, text, max_tokens, **options), collected)
    await collected.whole()
    return collected.batches


async def chunks_of(engine: Engine, text: str, max_tokens: int, **options: Any) -> list[Chunk]:
    return await generated(engine, await request_of(engine, text, max_tokens, **options))


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def tokens_of(chunks: Sequence[Chunk]) -> list[Token]:
    return [token for chunk in chunks for token in chunk.tokens]


def count_of(chunks: Sequence[Chunk]) -> int:
    """The number of tokens of a generation, as it reports it."""
    count, finish = len(tokens_of(chunks)), finish_of(chunks)
    assert finish.completion_tokens in (None, count) or not count
    return count if finish.completion_tokens is None else finish.completion_tokens


def finish_of(chunks: Sequence[Chunk]) -> Finish:
    """The end of a generation; the chunks before the last must have none."""
    *before, last = chunks
    assert [chunk.finish for chunk in before] == [None] * len(before)
    assert last.finish is not None
    return last.finish


@asynccontextmanager
async def running(engine: Engine, request: GenerationRequest) -> AsyncIterator[tuple[Work, Collected]]:
    """A generation that has pushed something, and is cancelled in the end."""
    collected = Collected()
    work = engine.generate(request, collected)
    try:
        async with asyncio.timeout(PATIENCE):
            await collected.begun.wait()
        yield work, collected
    finally:
        work.cancel()
        collected.over.set()


class NextTokenContract:
    """What `score_next` returns of an engine that returns log probabilities. `EngineContract` inherits it."""

    rounding: float = NOISE
    """The most that log probabilities of the same prompt differ in other company."""

    keeps: bool = False
    """The engine keeps what it has computed of a prompt, and says so of the next that begins alike."""

    beginning: str = "The parcel number 7 has not come, and nobody answers the telephone. " * 12
    """A text that is long enough to be kept, and fits the context."""

    ends: Sequence[str] = (" Which team?", " Which of them is it?", " How urgent is it?")
    """Two of them begin alike."""

    options: Sequence[str] = ("A", "B", " A", "yes")

    async def test_next_tokens_are_the_likeliest_and_those_that_were_asked_for(self, engine: Engine) -> None:
        request = await self.next_token_request(engine)
        results = await score_next(engine, request)
        assert len(results) == len(self.ends)
        for result, tokens in zip(results, request.tokens, strict=True):
            ids = [one.id for one in result.candidates]
            named = engine.card.capabilities.token_ids
            assert result.complete is (named and {*tokens} <= {*ids})
            assert len({*ids}) == len(ids) if named else {*ids} == {-1}
            logprobs = [one.logprob for one in result.candidates]
            assert logprobs == sorted(logprobs, reverse=True)
            assert 0 < sum(map(math.exp, logprobs)) <= 1 + NOISE

    async def test_next_tokens_are_those_that_are_generated(self, engine: Engine) -> None:
        results = await score_next(engine, await self.next_token_request(engine))
        for result, end in zip(results, self.ends, strict=True):
            pieces = await request_of(engine, self.beginning, 1), await request_of(engine, end, 1)
            prompt = pieces[0].prompt.continued(end, pieces[1].prompt.ids)
            sampling = greedy(engine, logprobs=1)
            chunks = await generated(engine, GenerationRequest(prompt, 1, sampling))
            [token] = tokens_of(chunks)
            assert token.logprob == pytest.approx(result.candidates[0].logprob, abs=4 * NOISE)

    async def test_a_next_token_does_not_depend_on_the_company(self, engine: Engine) -> None:
        request = await self.next_token_request(engine)
        count = len(self.ends)
        alone = [await self.scored(engine, request, (place,)) for place in range(count)]
        for places in ((2, 1, 0),) if CI else ((0, 1, 2), (2, 1, 0), (1, 1, 0)):
            together = await self.scored(engine, request, places)
            for place, scores in zip(places, together, strict=True):
                assert scores == pytest.approx(alone[place][0], abs=self.rounding)
        both = await asyncio.gather(*(self.scored(engine, request, places) for places in ((0,), (2, 1))))
        for place, scores in zip((0, 2, 1), chain(*both), strict=True):
            assert scores == pytest.approx(alone[place][0], abs=self.rounding)

    async def test_the_beginning_is_kept(self, engine: Engine) -> None:
        if not self.keeps:
            self.needs_logprobs(engine)
            pytest.skip("it keeps nothing, or does not tell")
        request = await self.next_token_request(engine, f"Another one. {self.beginning}")
        first, *_ = await score_next(engine, request)
        again = await score_next(engine, request)
        size = len(request.beginning.ids)
        assert first.cached_tokens < size / 2
        for result in again:
            assert size / 2 < result.cached_tokens <= size

    async def test_scoring_can_be_cancelled(self, engine: Engine) -> None:
        request = await self.next_token_request(engine)
        for pause in (0, 0.001, 0.02):
            scoring = asyncio.create_task(score_next(engine, request))
            await asyncio.sleep(pause)
            scoring.cancel()
            await asyncio.wait((scoring,))
            await until(lambda: engine.load.idle)
        assert len(await score_next(engine, request)) == len(self.ends)

    async def test_nothing_is_scored_before_start(self, fresh: Engine, engine: Engine) -> None:
        request = await self.next_token_request(engine)
        with pytest.raises(EngineNotReadyError):
            await score_next(fresh, request)

    async def next_token_request(self, engine: Engine, beginning: str = "") -> NextTokenRequest:
        self.needs_logprobs(engine)
        text = beginning or self.beginning
        begin, *ends = [Prompt(part, tuple(await engine.tokenize([part]))) for part in (text, *self.ends)]
        tokens = [(await engine.tokenize([option]))[0] for option in self.options]
        return NextTokenRequest(begin, (*ends,), (tuple(dict.fromkeys(tokens)),) * len(ends))

    def needs_logprobs(self, engine: Engine) -> None:
        """Skip the test for an engine without log probabilities."""
        if "logprobs" not in engine.card.capabilities.sampling:
            pytest.skip("no logprobs")

    async def scored(
        self, engine: Engine, request: NextTokenRequest, places: Sequence[int]
    ) -> list[dict[int | str, float]]:
        """The log probabilities of the tokens to be scored, after these of the ends, one for each."""
        ends = tuple(request.ends[place] for place in places)
        tokens = tuple(request.tokens[place] for place in places)
        results = await score_next(engine, NextTokenRequest(request.beginning, ends, tokens))
        if not engine.card.capabilities.token_ids:
            return [{one.text: one.logprob for one in result.candidates[:1]} for result in results]
        return [
            {one.id: one.logprob for one in result.candidates if one.id in request.tokens[place]}
            for result, place in zip(results, places, strict=True)
        ]


class EngineContract(NextTokenContract):
    """Inherit, and give it an `engine`."""

    prompt: str
    """A text that the engine continues for at least `LONG` tokens."""

    others: Sequence[str]
    """Several more prompts, the answers to which differ."""

    slots: int
    """How many generations run at a time."""

    draws: bool = True
    """The engine draws its tokens: what biases or constrains them shows."""

    @pytest.fixture(autouse=True)
    def no_calls_after_the_end(self) -> Iterator[None]:
        _late.clear()
        yield
        assert not _late

    async def test_only_the_last_chunk_has_the_end(self, engine: Engine) -> None:
        finish_of(await chunks_of(engine, self.prompt, 5))

    async def test_batches_are_never_empty(self, engine: Engine) -> None:
        assert all(await batches_of(engine, self.prompt, 5))

    async def test_the_texts_of_the_tokens_are_the_text_of_the_chunk(self, engine: Engine) -> None:
        for chunk in await chunks_of(engine, self.prompt, 20):
            assert not chunk.tokens or "".join(token.text for token in chunk.tokens) == chunk.text

    async def test_text_is_whole_characters(self, engine: Engine) -> None:
        for chunk in await chunks_of(engine, self.prompt, 20):
            assert "\ufffd" not in chunk.text
            chunk.text.encode()  # raises on half a surrogate pair

    async def test_a_resumable_answer_can_be_continued_after_any_chunk(self, engine: Engine) -> None:
        """What is kept of it are whole characters, and their tokens."""
        if not engine.card.capabilities.token_ids:
            pytest.skip("it is continued after its text")
        chunks = await chunks_of(engine, self.prompt, 20, resumable=True)
        for count in range(1, len(chunks), 3):
            whole, _ = split_unfinished(chunks[:count])
            ids = [token.id for token in tokens_of(whole)]
            if min(ids, default=0) >= 0:  # llama.cpp does not name all
                assert await engine.detokenize(ids) == text_of(whole)

    @pytest.mark.parametrize("limit", [1, 2, 7])
    async def test_the_limit_is_exact(self, engine: Engine, limit: int) -> None:
        chunks = await chunks_of(engine, self.prompt, limit)
        assert finish_of(chunks).reason is FinishReason.LENGTH
        assert count_of(chunks) == limit

    async def test_tokens_come_if_the_engine_says_so(self, engine: Engine) -> None:
        chunks = await chunks_of(engine, self.prompt, 5)
        assert len(tokens_of(chunks)) == (5 if engine.card.capabilities.token_ids else 0)

    async def test_no_room_gives_no_tokens(self, engine: Engine) -> None:
        chunks = await chunks_of(engine, self.prompt, 0)
        assert finish_of(chunks).reason is FinishReason.LENGTH
        assert tokens_of(chunks) == []
        assert text_of(chunks) == ""

    async def test_nothing_is_pushed_before_generate_returns(self, engine: Engine) -> None:
        collected = Collected()
        engine.generate(await request_of(engine, self.prompt, 3), collected)
        assert collected.calls == 0
        assert await collected.whole()

    async def test_load_is_what_runs_and_what_waits(self, engine: Engine) -> None:
        await until(lambda: engine.load.idle)
        request = await request_of(engine, self.prompt, LONG)
        works = []
        for number in range(1, self.slots + 3):
            works.append(engine.generate(request, Collected()))
            assert _busy(engine) == (min(number, self.slots), max(number - self.slots, 0))
        works.pop().cancel()
        assert _busy(engine) == (self.slots, 1)
        works.pop(0).cancel()
        await until(lambda: _busy(engine) == (self.slots, 0))
        for work in works:
            work.cancel()
        await until(lambda: engine.load.idle)

    async def test_cancelling_stops_the_work_and_the_calls(self, engine: Engine) -> None:
        async with running(engine, await request_of(engine, self.prompt, LONG)) as (work, collected):
            assert _busy(engine) == (1, 0)
            work.cancel()
            work.cancel()  # once more does nothing
            pushed = collected.calls
            await until(lambda: engine.load.idle)
            await asyncio.sleep(STEPS)
            assert collected.calls == pushed
            assert not collected.over.is_set()

    async def test_cancelling_at_once(self, engine: Engine) -> None:
        collected = Collected()
        engine.generate(await request_of(engine, self.prompt, LONG), collected).cancel()
        await until(lambda: engine.load.idle)
        await asyncio.sleep(STEPS)
        assert collected.calls == 0

    async def test_cancelling_from_within_push(self, engine: Engine) -> None:
        class Cancelling(Collected):
            def push(self, chunks: list[Chunk]) -> None:
                super().push(chunks)
                work.cancel()

        collected = Cancelling()
        work = engine.generate(await request_of(engine, self.prompt, LONG), collected)
        await until(collected.begun.is_set)
        await until(lambda: engine.load.idle)
        await asyncio.sleep(STEPS)
        assert collected.calls == 1

    async def test_cancelling_another_from_within_push(self, engine: Engine) -> None:
        request = await request_of(engine, self.prompt, LONG)
        calls: list[int] = []

        class Cancelling(Collected):
            def push(self, chunks: list[Chunk]) -> None:
                super().push(chunks)
                for work in works:
                    work.cancel()
                calls.append(sum(one.calls for one in both))

        both = [Cancelling(), Cancelling()]
        works = [engine.generate(request, one) for one in both]
        await until(lambda: bool(calls))
        await until(lambda: engine.load.idle)
        await asyncio.sleep(STEPS)
        assert calls == [1]

    async def test_cancelling_after_the_end_does_nothing(self, engine: Engine) -> None:
        collected = Collected()
        work = engine.generate(await request_of(engine, self.prompt, 3), collected)
        chunks = await collected.whole()
        work.cancel()
        await until(lambda: engine.load.idle)
        work.cancel()
        assert engine.load.idle
        assert count_of(chunks) == 3

    @pytest.mark.parametrize("ends", ["by itself", "cancelled", "cancelled at once"])
    async def test_nothing_is_left_of_a_generation_for_the_garbage_collector(
        self, engine: Engine, ends: str
    ) -> None:
        request = await request_of(engine, self.prompt, 3 if ends == "by itself" else LONG)
        gc.disable()
        try:
            collected = Collected()
            left = weakref.ref(collected)
            work = engine.generate(request, collected)
            if ends == "by itself":
                await collected.whole()
            elif ends == "cancelled":
                await until(collected.begun.is_set)
            work.cancel()
            del work, collected
            await until(lambda: engine.load.idle and left() is None)
        finally:
            gc.enable()

    async def test_cancelling_while_queued_is_at_once_and_leaks_no_slot(self, engine: Engine) -> None:
        await until(lambda: engine.load.idle)
        request = await request_of(engine, self.prompt, LONG)
        async with AsyncExitStack() as stack:
            for _ in range(self.slots):
                await stack.enter_async_context(running(engine, request))
            queued = Collected()
            work = engine.generate(request, queued)
            work.cancel()
            work.cancel()
            assert _busy(engine) == (self.slots, 0)
        await until(lambda: engine.load.idle)
        assert queued.calls == 0
        await asyncio.gather(*(chunks_of(engine, self.prompt, 1) for _ in range(self.slots)))

    async def test_the_figures_of_the_cache_are_those_of_what_runs(self, engine: Engine) -> None:
        if not isinstance(engine, Measured):
            pytest.skip("this engine knows nothing of its cache")
        before = await engine.cache_figures()
        request = await request_of(engine, self.prompt, LONG)
        async with running(engine, request):
            during = await engine.cache_figures()
        for figures in (before, during):
            assert figures.usage is None or 0 <= figures.usage <= 1
            assert figures.block_size is None or figures.block_size > 0
            assert figures.blocks is None or figures.blocks > 0
            assert (figures.queries is None) is (figures.hits is None)
            assert figures.adapters is None or figures.adapters.maximum >= len(figures.adapters.running)
        if before.queries is not None:
            await until(lambda: engine.load.idle)
            after = await engine.cache_figures()
            assert after.queries is not None
            assert after.hits is not None
            assert before.queries <= after.queries
            assert after.hits <= after.queries

    async def test_many_at_once_do_not_mix(self, engine: Engine) -> None:
        alone = [text_of(await chunks_of(engine, prompt, 6)) for prompt in self.others]
        assert len(set(alone)) == len(self.others)
        together = await asyncio.gather(*(chunks_of(engine, prompt, 6) for prompt in self.others * 3))
        assert [text_of(chunks) for chunks in together] == alone * 3

    async def test_log_probabilities_come_only_if_asked_for(self, engine: Engine) -> None:
        for token in tokens_of(await chunks_of(engine, self.prompt, 8)):
            assert (token.logprob, token.top, token.raw) == (None, (), None)

    @pytest.mark.parametrize("most", [0, 1, 5])
    async def test_log_probabilities(self, engine: Engine, most: int) -> None:
        self.needs(engine, "logprobs")
        chunks = await chunks_of(engine, self.prompt, 20, sampling=greedy(engine, logprobs=most))
        alone = [chunk.tokens[0] for chunk in chunks if len(chunk.tokens) == 1]
        assert len(alone) > 10
        for token in alone:
            assert token.logprob is not None
            assert token.logprob <= 0
            listed = [candidate.logprob for candidate in token.top]
            assert len(listed) == most
            assert listed == sorted(listed, reverse=True)
            assert [each.logprob for each in token.top if each.id == token.id] in ([], [token.logprob])
            # Greedy: none is likelier. Others may be as likely, to the last bit.
            assert not token.top or token.top[0].logprob == token.logprob

    async def test_log_probabilities_change_nothing(self, engine: Engine) -> None:
        self.needs(engine, "logprobs")
        plain = await chunks_of(engine, self.prompt, 20)
        scored = await chunks_of(engine, self.prompt, 20, sampling=greedy(engine, logprobs=3))
        assert text_of(scored) == text_of(plain)
        assert [token.id for token in tokens_of(scored)] == [token.id for token in tokens_of(plain)]

    async def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(self, engine: Engine) -> None:
        self.needs(engine, "logprobs")
        for chunk in await chunks_of(engine, self.prompt, 20, sampling=greedy(engine, logprobs=0)):
            raws = [token.text.encode() if token.raw is None else token.raw for token in chunk.tokens]
            assert b"".join(raws) == chunk.text.encode()

    @pytest.mark.parametrize("most", [0, 2])
    async def test_a_prompt_is_scored(self, engine: Engine, most: int) -> None:
        self.needs(engine, "prompt_logprobs")
        assert isinstance(engine, PromptScorer)
        request = await request_of(engine, self.prompt, 1, sampling=Sampling(prompt_logprobs=most))
        first, *others = await engine.score_prompt(request)
        assert [token.id for token in (first, *others)] == [*request.prompt.ids]
        assert "".join(token.text for token in (first, *others)) == self.prompt
        assert (first.logprob, first.top) == (None, ())
        for token in others:
            assert token.logprob is not None
            assert token.logprob <= 0
            assert len(token.top) == most
            logprobs = [top.logprob for top in token.top]
            assert logprobs == sorted(logprobs, reverse=True)

    async def test_beams_are_whole_answers_the_best_first(self, engine: Engine) -> None:
        self.needs(engine, "beam_width")
        assert isinstance(engine, BeamSearcher)
        sampling = Sampling(beam_width=3, logprobs=0, ignore_eos=True)
        beams = await engine.search(await request_of(engine, self.prompt, 4, sampling=sampling))
        assert len({tuple(token.id for token in tokens_of([*beam])) for beam in beams}) == len(beams) == 3
        totals = [sum(token.logprob or 0 for token in tokens_of([*beam])) for beam in beams]
        assert totals == sorted(totals, reverse=True)
        for beam in beams:
            assert finish_of([*beam]) == Finish(FinishReason.LENGTH)
            assert len(tokens_of([*beam])) == 4
        one = Sampling(beam_width=1, ignore_eos=True)
        [greedily] = await engine.search(await request_of(engine, self.prompt, 4, sampling=one))
        assert text_of([*greedily]) == text_of(await chunks_of(engine, self.prompt, 4))

    async def test_a_stop_token_is_the_last_and_hidden(self, engine: Engine) -> None:
        self.needs(engine, "stop_token_ids")
        whole = tokens_of(await chunks_of(engine, self.prompt, 12))
        ids = [token.id for token in whole]
        stop = next(token for token in whole[4:] if token.text and ids.index(token.id) >= 4)
        place = ids.index(stop.id)
        chunks = await chunks_of(
            engine, self.prompt, 12, sampling=greedy(engine, stop_token_ids=(stop.id, 0))
        )
        assert [token.id for token in tokens_of(chunks)] == ids[: place + 1]
        assert text_of(chunks) == "".join(token.text for token in whole[:place])
        finish = finish_of(chunks)
        assert (finish.reason, finish.stop) == (FinishReason.STOP, stop.id)
        assert count_of(chunks) == place + 1
        await until(lambda: engine.load.idle)

    async def test_a_bias_bans_and_forces_tokens(self, engine: Engine) -> None:
        self.needs(engine, "logit_bias")
        if not self.draws:
            pytest.skip("no token is drawn")
        first, *_ = tokens_of(await chunks_of(engine, self.prompt, 1))
        banned = await chunks_of(
            engine, self.prompt, 3, sampling=greedy(engine, logit_bias={first.id: -100.0})
        )
        assert first.id not in [token.id for token in tokens_of(banned)]
        forced = await chunks_of(
            engine, self.prompt, 3, sampling=greedy(engine, logit_bias={first.id: 100.0})
        )
        assert [token.id for token in tokens_of(forced)] == [first.id] * 3

    async def test_a_grammar_holds_the_answer(self, engine: Engine) -> None:
        if Gbnf not in engine.card.capabilities.constraints:
            pytest.skip("no grammars")
        grammar = Gbnf('root ::= "<" [0-9]{2,4} ">" " é"?')
        for prompt in self.others:
            chunks = await chunks_of(engine, prompt, 30, constraint=grammar)
            assert re.fullmatch("<[0-9]{2,4}>( é)?", text_of(chunks))
            assert finish_of(chunks).reason is FinishReason.STOP

    async def test_an_answer_is_the_same_wherever_it_is_cut(self, engine: Engine) -> None:
        """Its text is enforced: it has characters of several tokens."""
        able = engine.card.capabilities
        if not (able.constraints and able.token_ids and self.draws):
            pytest.skip("it does not enforce a text")
        text = "Ok \U0001f389\U0001f389 日本 👩\u200d👧!"
        demands = Demands(CompiledConstraint(GrammarIR(sequence(text))))
        plan, pool = plan_of(demands, able.constraints[0]), BoundedPool()
        request = await request_of(engine, self.prompt, 99, constraint=plan.constraint, resumable=True)
        chunks = await generated(engine, request)
        assert text_of(chunks) == text
        for count in range(2, len(chunks), 4):
            whole, _ = split_unfinished(chunks[:count])
            if whole:
                rest, _, _ = await request_after(whole, engine, request, plan, pool)
                assert text_of(whole) + text_of(await generated(engine, rest)) == text

    async def test_an_interrupted_answer_goes_on(self, engine: Engine) -> None:
        request = await request_of(engine, self.prompt, 9)
        chunks = await generated(engine, request)
        begun = text_of(chunks[:3])
        ids = [token.id for token in tokens_of(chunks[:3])] or await engine.tokenize([begun])
        prompt = Prompt(request.prompt.text + begun, (*request.prompt.ids, *ids))
        rest = GenerationRequest(prompt, 9, request.sampling, answer_start=begun)
        assert text_of(await generated(engine, rest)).startswith(text_of(chunks[3:6]))

    async def test_who_came_first_is_served_first(self, engine: Engine) -> None:
        assert await self._served(engine, {"a": None, "b": None, "c": None}) == ["a", "b", "c"]

    async def test_the_lowest_priority_is_first_then_who_came_first(self, engine: Engine) -> None:
        self.needs(engine, "priority")
        assert await self._served(engine, {"c": 5, "a": -1, "d": 5, "b": 0}) == ["a", "b", "c", "d"]

    async def _served(self, engine: Engine, queued: Mapping[str, int | None]) -> list[str]:
        """The order in which requests with these priorities are served, one slot after the other."""
        request = await request_of(engine, self.prompt, LONG)
        served: list[str] = []

        class Named(Collected):
            def __init__(self, name: str) -> None:
                super().__init__()
                self.name = name

            def push(self, chunks: list[Chunk]) -> None:
                super().push(chunks)
                if self.over.is_set():
                    served.append(self.name)

        async with AsyncExitStack() as stack:
            for _ in range(self.slots):
                held, _ = await stack.enter_async_context(running(engine, request))
            waiting = [Named(name) for name in queued]
            for receiver, priority in zip(waiting, queued.values(), strict=True):
                one = await request_of(engine, self.prompt, 1, sampling=greedy(engine, priority=priority))
                engine.generate(one, receiver)
            held.cancel()
            for receiver in waiting:
                await receiver.whole()
        return served

    def needs(self, engine: Engine, parameter: str) -> None:
        """Skip the test for an engine that does not claim this parameter of sampling."""
        if parameter not in engine.card.capabilities.sampling:
            pytest.skip(f"no {parameter}")

    async def test_detokenizing_undoes_tokenizing(self, engine: Engine) -> None:
        for text in (
            "The weather.",
            " two  spaces\n\n",
            "Grüße 🎉 in 日本",
            "<|im_start|>user\nhi<|im_end|>",
            "",
        ):
            ids = await engine.tokenize([text])
            assert await engine.detokenize(ids) == text
            assert len(texts := await engine.token_texts(ids)) == len(ids)
            assert "\ufffd" in "".join(texts) or "".join(texts) == text

    @pytest.mark.parametrize("token", [-1, 2**33])
    async def test_an_id_that_is_no_token_is_refused(self, engine: Engine, token: int) -> None:
        with pytest.raises(RequestError) as raised:
            await engine.detokenize([*(await engine.tokenize(["hi"])), token])
        assert raised.value.param == "tokens"
        assert str(token) in raised.value.message

    async def test_tokenizing_is_repeatable_and_grows_with_the_text(self, engine: Engine) -> None:
        once, twice = await engine.tokenize(["The weather."]), await engine.tokenize(["The weather." * 2])
        assert once == await engine.tokenize(["The weather."])
        assert 0 < len(once) < len(twice)
        assert await engine.tokenize(["The leather."]) != once

    async def test_pieces_are_tokenized_each_by_itself(self, engine: Engine) -> None:
        pieces = ["The wea", "ther.", "", " Sunny"]
        alone = [await engine.tokenize([piece]) for piece in pieces]
        assert await engine.tokenize(pieces) == [token for ids in alone for token in ids]
        assert await engine.tokenize([]) == []

    async def test_the_card_describes_the_model(self, engine: Engine) -> None:
        card = engine.card
        assert card.name
        assert card.context > 0
        assert "max_tokens" in card.capabilities.sampling

    async def test_a_prompt_may_have_media_between_its_texts(self, engine: Engine) -> None:
        if MediaKind.IMAGE not in engine.card.capabilities.media:
            pytest.skip("its model takes no images")
        counts = []
        for pictures in ((png(64, 64),), (png(64, 64), png(32, 32, (0, 0, 255)))):
            request = await request_with_images(engine, self.prompt, pictures)
            chunks = await generated(engine, request)
            finish_of(chunks)
            counts.append(chunks[0].media_tokens)
            assert sum(chunk.media_tokens for chunk in chunks) == chunks[0].media_tokens
        assert 0 < counts[0] < counts[1]

    async def test_an_image_that_is_none_is_refused(self, engine: Engine) -> None:
        if MediaKind.IMAGE not in engine.card.capabilities.media or not self.draws:
            pytest.skip("it decodes no images")
        with pytest.raises(RequestError):
            await generated(engine, await request_with_images(engine, self.prompt, (b"no image",)))
        assert text_of(await chunks_of(engine, self.prompt, 3))  # it continues

    async def test_what_runs_and_what_waits_fails_at_stop(self, fresh: Engine) -> None:
        await fresh.start()
        request = await request_of(fresh, self.prompt, LONG)
        waiting = Collected()
        async with running(fresh, request) as (_, collected):
            work = fresh.generate(request, waiting)
            await fresh.stop()
            for each in (collected, waiting):
                with pytest.raises(EngineNotReadyError):
                    await each.whole()
            assert fresh.load.idle
            work.cancel()  # too late: does nothing
        await self.is_stopped(fresh)

    async def test_stop_tells_nobody_who_was_cancelled(self, fresh: Engine) -> None:
        class Cancelling(Collected):
            def fail(self, error: AntiphonError) -> None:
                super().fail(error)
                for work in works:
                    work.cancel()

        await fresh.start()
        request = await request_of(fresh, self.prompt, LONG)
        receivers = [Cancelling(), Cancelling(), Cancelling()]
        works = [fresh.generate(request, receiver) for receiver in receivers]
        await fresh.stop()
        assert sum(receiver.error is not None for receiver in receivers) == 1

    async def test_stopping_while_it_loads(self, fresh: Engine) -> None:
        loading = asyncio.create_task(fresh.start())
        await asyncio.sleep(0)
        await fresh.stop()
        await loading
        await self.is_stopped(fresh)

    async def test_loading_can_be_given_up(self, fresh: Engine) -> None:
        loading = asyncio.create_task(fresh.start())
        await asyncio.sleep(0)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await fresh.stop()
        await self.is_stopped(fresh)

    async def test_it_is_not_ready_before_start_and_may_be_stopped(self, fresh: Engine) -> None:
        await self.is_stopped(fresh)
        await fresh.stop()
        await self.is_stopped(fresh)

    async def is_stopped(self, engine: Engine) -> None:
        """A stopped engine refuses all requests, and nothing runs."""
        collected = Collected()
        work = engine.generate(GenerationRequest(Prompt("a", (1,)), 3), collected)
        assert collected.calls == 0
        with pytest.raises(EngineNotReadyError):
            await collected.whole()
        work.cancel()
        unheard = Collected()
        engine.generate(GenerationRequest(Prompt("a", (1,)), 3), unheard).cancel()
        await asyncio.sleep(0)
        assert unheard.calls == 0
        assert engine.load.idle


class AdapterContract:
    """Inherit, and give it an `engine` with two adapters, and one slot.

    They change what the model says. What was computed with other adapters, or without any, must not be used.
    """

    prompt: str
    """A text that the engine continues, long enough that its engine keeps what it has computed of it."""

    other: str
    """Another one, which begins otherwise."""

    names: tuple[str, str]

    async def said(self, engine: Engine, lora: tuple[Adapter, ...] | None, prompt: str = "") -> str:
        return (await self.measured(engine, lora, prompt))[0]

    async def measured(
        self, engine: Engine, lora: tuple[Adapter, ...] | None, prompt: str = ""
    ) -> tuple[str, list[float | None]]:
        """The text, and how likely its tokens were, which changes even if the text stays the same."""
        sampling = greedy(engine, lora=lora, logprobs=0)
        chunks = await chunks_of(engine, prompt or self.prompt, 8, sampling=sampling)
        return text_of(chunks), [token.logprob for token in tokens_of(chunks)]

    async def test_an_answer_depends_on_its_own_adapters_only(self, engine: Engine) -> None:
        first, second = self.names
        sets = (None, (Adapter(first),), (Adapter(second),))
        alone = [await self.measured(engine, lora) for lora in sets]
        assert len({text for text, _ in alone}) == 3
        assert await self.said(engine, ()) == alone[0][0], "no adapters are the model itself"
        for before, (now, (text, likely)) in product(sets, zip(sets, alone, strict=True)):
            if before != now:
                await self.said(engine, before)
                measured = [await self.measured(engine, now)]
                await self.said(engine, before)
                await self.said(
                    engine, now, self.other
                )  # it takes the slot; the prompt may be kept elsewhere
                measured.append(await self.measured(engine, now))
                assert measured == [(text, pytest.approx(likely, abs=NOISE))] * 2, (before, now)

    async def test_several_are_applied_each_with_its_scale(self, engine: Engine) -> None:
        if not engine.card.capabilities.scales_adapters:
            pytest.skip("one, as it is")
        first, second = self.names
        itself = await self.said(engine, ())
        scaled = {
            scales: await self.said(engine, (Adapter(first, scales[0]), Adapter(second, scales[1])))
            for scales in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (-1.0, 0.0))
        }
        assert len({*scaled.values(), itself}) == 5
        assert await self.said(engine, (Adapter(first),)) == scaled[1.0, 0.0]
        assert await self.said(engine, (Adapter(second), Adapter(first))) == scaled[1.0, 1.0]
        assert await self.said(engine, (Adapter(first, 1e-6),)) == itself
