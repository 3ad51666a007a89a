"""What every engine must do: the contract in the docstring of `antiphon.engines.engine`.

A test module inherits `EngineContract`, gives it a fixture `engine` (started), a
`prompt` that the engine answers at length, and says how many generations run at
a time. The suite watches the engine through `active` and `waiting`.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import pytest

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.constraint import Gbnf
from antiphon.core.errors import EngineNotReadyError, RequestError
from antiphon.core.turn import Sampling
from antiphon.engines.engine import Engine, Generation, Prompt

PATIENCE = 30.0
"""Seconds until a condition that must come true counts as missed."""

LONG = 200
"""More tokens than any test lets an engine produce."""

GREEDY = Sampling(temperature=0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that the engine brings about by itself."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # the engine has no event to wait for
            await asyncio.sleep(0.001)


def greedy(**options: Any) -> Sampling:
    return Sampling(temperature=0, **options)


async def generation_of(engine: Engine, text: str, max_tokens: int, **options: Any) -> Generation:
    ids = tuple(await engine.tokenize(text))
    return Generation(Prompt(text, ids), max_tokens, **{"sampling": GREEDY, **options})


async def batches_of(engine: Engine, text: str, max_tokens: int, **options: Any) -> list[list[Chunk]]:
    generation = await generation_of(engine, text, max_tokens, **options)
    return [batch async for batch in engine.generate(generation)]


async def chunks_of(engine: Engine, text: str, max_tokens: int, **options: Any) -> list[Chunk]:
    return [chunk for batch in await batches_of(engine, text, max_tokens, **options) for chunk in batch]


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def tokens_of(chunks: Sequence[Chunk]) -> list[Token]:
    return [token for chunk in chunks for token in chunk.tokens]


def finish_of(chunks: Sequence[Chunk]) -> Finish:
    """The end of a generation; the chunks before the last must have none."""
    *before, last = chunks
    assert [chunk.finish for chunk in before] == [None] * len(before)
    assert last.finish is not None
    return last.finish


@asynccontextmanager
async def reading(engine: Engine, generation: Generation) -> AsyncIterator[asyncio.Task[None]]:
    """A task that reads a generation and never gets to its end; it has read one batch."""
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in engine.generate(generation):
            begun.set()

    task = asyncio.create_task(read())
    try:
        async with asyncio.timeout(PATIENCE):
            await begun.wait()
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def holding(engine: Engine, generation: Generation) -> AsyncIterator[AsyncGenerator[list[Chunk], None]]:
    """A generation of which one batch was read; nobody reads on."""
    stream = engine.generate(generation)
    try:
        await anext(stream)
        yield stream
    finally:
        await stream.aclose()


class Watched(Engine, Protocol):
    """An engine that shows how busy it is."""

    active: int

    @property
    def waiting(self) -> int: ...


class EngineContract:
    """Inherit, and give it an `engine`."""

    prompt: str
    """Text that the engine goes on from for at least `LONG` tokens."""

    others: Sequence[str]
    """Several more prompts, the answers to which differ."""

    slots: int
    """How many generations run at a time."""

    draws: bool = True
    """The engine draws its tokens: what biases them shows."""

    async def test_only_the_last_chunk_has_the_end(self, engine: Watched) -> None:
        finish_of(await chunks_of(engine, self.prompt, 5))

    async def test_batches_are_never_empty(self, engine: Watched) -> None:
        assert all(await batches_of(engine, self.prompt, 5))

    async def test_the_texts_of_the_tokens_are_the_text_of_the_chunk(self, engine: Watched) -> None:
        for chunk in await chunks_of(engine, self.prompt, 20):
            assert not chunk.tokens or "".join(token.text for token in chunk.tokens) == chunk.text

    async def test_text_is_whole_characters(self, engine: Watched) -> None:
        for chunk in await chunks_of(engine, self.prompt, 20):
            assert "\ufffd" not in chunk.text
            chunk.text.encode()  # raises on half a surrogate pair

    @pytest.mark.parametrize("limit", [1, 2, 7])
    async def test_the_limit_is_exact(self, engine: Watched, limit: int) -> None:
        chunks = await chunks_of(engine, self.prompt, limit)
        assert finish_of(chunks).reason is FinishReason.LENGTH
        assert len(tokens_of(chunks)) == limit
        assert finish_of(chunks).completion_tokens in (None, limit)

    async def test_no_room_gives_no_tokens(self, engine: Watched) -> None:
        chunks = await chunks_of(engine, self.prompt, 0)
        assert finish_of(chunks).reason is FinishReason.LENGTH
        assert tokens_of(chunks) == []
        assert text_of(chunks) == ""

    async def test_closing_stops_the_work(self, engine: Watched) -> None:
        stream = engine.generate(await generation_of(engine, self.prompt, LONG))
        assert await anext(stream)
        assert engine.active == 1
        await stream.aclose()
        await until(lambda: engine.active == 0)

    async def test_cancelling_the_reader_stops_the_work(self, engine: Watched) -> None:
        async with reading(engine, await generation_of(engine, self.prompt, LONG)) as task:
            assert engine.active == 1
            task.cancel()
            await until(lambda: engine.active == 0)
            assert task.cancelled()

    async def test_cancelling_while_queued_is_at_once_and_leaks_no_slot(self, engine: Watched) -> None:
        generation = await generation_of(engine, self.prompt, LONG)
        async with AsyncExitStack() as readers:
            for _ in range(self.slots):
                await readers.enter_async_context(reading(engine, generation))
            queued = asyncio.create_task(anext(engine.generate(generation)))
            await until(lambda: engine.waiting == 1)
            queued.cancel()
            with pytest.raises(asyncio.CancelledError):
                await queued
            await until(lambda: engine.waiting == 0)
            assert engine.active == self.slots
        await until(lambda: engine.active == 0)
        await asyncio.gather(*(chunks_of(engine, self.prompt, 1) for _ in range(self.slots)))

    async def test_many_at_once_do_not_mix(self, engine: Watched) -> None:
        alone = [text_of(await chunks_of(engine, prompt, 6)) for prompt in self.others]
        assert len(set(alone)) == len(self.others)
        together = await asyncio.gather(*(chunks_of(engine, prompt, 6) for prompt in self.others * 3))
        assert [text_of(chunks) for chunks in together] == alone * 3

    async def test_a_slow_reader_loses_nothing(self, engine: Watched) -> None:
        expected = text_of(await chunks_of(engine, self.prompt, 12))
        chunks: list[Chunk] = []
        async for batch in engine.generate(await generation_of(engine, self.prompt, 12)):
            chunks += batch
            await asyncio.sleep(0.01)  # what a slow client costs
        assert text_of(chunks) == expected
        assert len(tokens_of(chunks)) == 12

    async def test_log_probabilities_come_only_if_asked_for(self, engine: Watched) -> None:
        for token in tokens_of(await chunks_of(engine, self.prompt, 8)):
            assert (token.logprob, token.top, token.raw) == (None, (), None)

    @pytest.mark.parametrize("most", [0, 1, 5])
    async def test_log_probabilities(self, engine: Watched, most: int) -> None:
        chunks = await chunks_of(engine, self.prompt, 20, sampling=greedy(logprobs=most))
        alone = [chunk.tokens[0] for chunk in chunks if len(chunk.tokens) == 1]
        assert len(alone) > 10
        for token in alone:
            assert token.logprob is not None
            assert token.logprob <= 0
            listed = [candidate.logprob for candidate in token.top]
            assert len(listed) == most
            assert listed == sorted(listed, reverse=True)
            assert [each.logprob for each in token.top if each.id == token.id] in ([], [token.logprob])
            assert not token.top or token.top[0].id == token.id  # greedy

    async def test_log_probabilities_change_nothing(self, engine: Watched) -> None:
        plain = await chunks_of(engine, self.prompt, 20)
        scored = await chunks_of(engine, self.prompt, 20, sampling=greedy(logprobs=3))
        assert text_of(scored) == text_of(plain)
        assert [token.id for token in tokens_of(scored)] == [token.id for token in tokens_of(plain)]

    async def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(self, engine: Watched) -> None:
        for chunk in await chunks_of(engine, self.prompt, 20, sampling=greedy(logprobs=0)):
            raws = [token.text.encode() if token.raw is None else token.raw for token in chunk.tokens]
            assert b"".join(raws) == chunk.text.encode()

    async def test_a_stop_token_is_the_last_and_hidden(self, engine: Watched) -> None:
        whole = tokens_of(await chunks_of(engine, self.prompt, 12))
        ids = [token.id for token in whole]
        stop = next(token for token in whole[4:] if token.text and ids.index(token.id) >= 4)
        place = ids.index(stop.id)
        chunks = await chunks_of(engine, self.prompt, 12, sampling=greedy(stop_token_ids=(stop.id, 0)))
        assert [token.id for token in tokens_of(chunks)] == ids[: place + 1]
        assert text_of(chunks) == "".join(token.text for token in whole[:place])
        finish = finish_of(chunks)
        assert (finish.reason, finish.stop) == (FinishReason.STOP, stop.id)
        assert finish.completion_tokens in (None, place + 1)
        await until(lambda: engine.active == 0)

    async def test_a_bias_bans_and_forces_tokens(self, engine: Watched) -> None:
        if not self.draws or "logit_bias" not in engine.card.capabilities.sampling:
            pytest.skip("tokens cannot be biased")
        first, *_ = tokens_of(await chunks_of(engine, self.prompt, 1))
        banned = await chunks_of(engine, self.prompt, 3, sampling=greedy(logit_bias={first.id: -100.0}))
        assert first.id not in [token.id for token in tokens_of(banned)]
        forced = await chunks_of(engine, self.prompt, 3, sampling=greedy(logit_bias={first.id: 100.0}))
        assert [token.id for token in tokens_of(forced)] == [first.id] * 3

    async def test_a_grammar_holds_the_answer(self, engine: Watched) -> None:
        if Gbnf not in engine.card.capabilities.constraints:
            pytest.skip("no grammars")
        grammar = Gbnf('root ::= "<" [0-9]{2,4} ">" " é"?')
        for prompt in self.others:
            chunks = await chunks_of(engine, prompt, 30, constraint=grammar)
            assert re.fullmatch("<[0-9]{2,4}>( é)?", text_of(chunks))
            assert finish_of(chunks).reason is FinishReason.STOP

    async def test_an_interrupted_answer_goes_on(self, engine: Watched) -> None:
        generation = await generation_of(engine, self.prompt, 9)
        chunks = [chunk async for batch in engine.generate(generation) for chunk in batch]
        before, after = chunks[:3], chunks[3:6]
        prompt, begun = generation.prompt, text_of(before)
        ids = prompt.ids + tuple(token.id for token in tokens_of(before))
        rest = Generation(Prompt(prompt.text + begun, ids), 9, GREEDY, begun=begun)
        resumed = [chunk async for batch in engine.generate(rest) for chunk in batch]
        assert text_of(resumed).startswith(text_of(after))

    async def test_the_lowest_priority_is_first_then_who_came_first(self, engine: Watched) -> None:
        generation = await generation_of(engine, self.prompt, LONG)
        served: list[str] = []

        async def ask(name: str, priority: int) -> None:
            await chunks_of(engine, self.prompt, 1, sampling=greedy(priority=priority))
            served.append(name)

        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            for _ in range(self.slots):
                held = await stack.enter_async_context(holding(engine, generation))
            for place, (name, priority) in enumerate([("c", 5), ("a", -1), ("d", 5), ("b", 0)], 1):
                tasks.create_task(ask(name, priority))
                await until(lambda place=place: engine.waiting == place)  # type: ignore[misc]
            await held.aclose()
        assert served == ["a", "b", "c", "d"]

    async def test_detokenizing_undoes_tokenizing(self, engine: Watched) -> None:
        for text in (
            "The weather.",
            " two  spaces\n\n",
            "Grüße 🎉 in 日本",
            "<|im_start|>user\nhi<|im_end|>",
            "",
        ):
            assert await engine.detokenize(await engine.tokenize(text)) == text

    @pytest.mark.parametrize("token", [-1, 2**33])
    async def test_an_id_that_is_no_token_is_refused(self, engine: Watched, token: int) -> None:
        with pytest.raises(RequestError) as raised:
            await engine.detokenize([*(await engine.tokenize("hi")), token])
        assert raised.value.param == "tokens"
        assert str(token) in raised.value.message

    async def test_tokenizing_is_repeatable_and_grows_with_the_text(self, engine: Watched) -> None:
        once, twice = await engine.tokenize("The weather."), await engine.tokenize("The weather." * 2)
        assert once == await engine.tokenize("The weather.")
        assert 0 < len(once) < len(twice)
        assert await engine.tokenize("The leather.") != once

    async def test_the_card_describes_the_model(self, engine: Watched) -> None:
        card = engine.card
        assert card.name
        assert card.context > 0
        assert card.capabilities.token_ids

    async def test_after_stop_nothing_runs(self, fresh: Watched) -> None:
        with pytest.raises(EngineNotReadyError):
            await chunks_of_ids(fresh)
        await fresh.start()
        stream = fresh.generate(await generation_of(fresh, self.prompt, LONG))
        assert await anext(stream)
        await fresh.stop()
        with pytest.raises(EngineNotReadyError):
            [batch async for batch in stream]
        assert fresh.active == 0
        with pytest.raises(EngineNotReadyError):
            await chunks_of_ids(fresh)


async def chunks_of_ids(engine: Engine) -> list[list[Chunk]]:
    """A generation that needs no tokenizer."""
    return [batch async for batch in engine.generate(Generation(Prompt("a", (1,)), 3))]
