"""The llama.cpp engine with a real model: SmolLM2-135M, with few of its layers where what it says does not matter."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.core.chunks import FinishReason
from antiphon.core.constraint import Gbnf
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.turn import Adapter, Sampling
from antiphon.engines import llama_process
from antiphon.engines.engine import GenerationRequest, NextTokenRequest, Prompt
from antiphon.engines.gguf import read_metadata
from antiphon.engines.http_client import HttpClient
from antiphon.engines.llama_cpp import PROMPT_BATCH, LlamaCppEngine, Options
from antiphon.engines.llama_process import LlamaProcess, LoadError
from antiphon.engines.llama_request import MAX_NESTING, MAX_RULES
from antiphon.engines.llama_request import request_of as llama_request
from antiphon.engines.models import resolve
from antiphon.engines.next_token import LIKELIEST
from antiphon.engines.samplers import LLAMA_ORDER
from antiphon.engines.upstreams.llama_next_token import LINGER
from antiphon.engines.upstreams.llama_server import SPARE_THREADS
from tests.contracts.engine import (
    NOISE,
    AdapterContract,
    Collected,
    EngineContract,
    chunks_of,
    finish_of,
    generated,
    request_of,
    running,
    text_of,
    tokens_of,
    until,
)
from tests.engines.lora import write_lora
from tests.search import CI

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOTS = 3
CONTEXT = 2048


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@asynccontextmanager
async def started(model):
    engine = LlamaCppEngine(model, Options(context=CONTEXT, parallel=SLOTS, threads=1))
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(shallow_model):
    async with started(shallow_model) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def able():
    """An engine whose model answers what it is asked."""
    async with started(resolve(None)) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapted(shallow_model, tmp_path_factory):
    """An engine with one slot and two adapters."""
    engine = LlamaCppEngine(shallow_model, Options(context=512, parallel=1, threads=1))
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("first", "second"), 1):
        await engine.load_adapter(name, str(write_lora(folder / f"{name}.gguf", seed, layer=0)))
    await engine.start()
    yield engine
    await engine.stop()


class TestContract(EngineContract):
    prompt = chat("Tell a long story about a fox.")
    others = tuple(chat(f"What is the capital of {country}?") for country in ("France", "Japan", "Peru"))
    slots = SLOTS
    rounding = 0.0
    keeps = True

    @pytest.fixture
    def fresh(self, shallow_model):
        return LlamaCppEngine(shallow_model, Options(context=512, parallel=1, threads=1))

    async def test_many_at_once_do_not_mix(self, able):
        await super().test_many_at_once_do_not_mix(able)


# Next tokens


STATE = "<|im_start|>user\n" + "The parcel number 7 has not come, and nobody answers the telephone. " * 20
QUESTIONS = tuple(
    f"\n\nQuestion: {question}?\nA: yes\nB: no\nLetter only.<|im_end|>\n<|im_start|>assistant\n("
    for question in ("which team", "which team should answer", "is it urgent", "who pays")
)


async def asking(engine, state=STATE, questions=QUESTIONS, **sampling):
    beginning, *ends = [Prompt(text, tuple(await engine.tokenize([text]))) for text in (state, *questions)]
    tokens = tuple([(await engine.tokenize([text]))[0] for text in ("A", "B", " A", " B", "NO")])
    return NextTokenRequest(beginning, (*ends,), (tokens,) * len(ends), Sampling(**sampling))


def among(request, *places):
    """The request for some of its ends."""
    return replace(
        request,
        ends=tuple(request.ends[place] for place in places),
        tokens=tuple(request.tokens[place] for place in places),
    )


def unscored(request):
    """The request without tokens to be scored: a rare one would have all ends computed twice."""
    return replace(request, tokens=((),) * len(request.ends))


def bits(results):
    return [[(one.id, one.logprob) for one in result.candidates] for result in results]


async def computed(engine):
    """The number of tokens of prompts that were computed so far."""
    figures = await engine.cache_figures()
    return figures.queries - figures.hits


async def test_a_next_token_has_the_same_bits_in_any_slot_after_anything(engine, shallow_model):
    request = await asking(engine)
    other = await asking(engine, STATE.replace("parcel", "letter"))
    alone = [bits(await engine.score_next(among(request, place)))[0] for place in range(len(QUESTIONS))]
    assert len({*map(str, alone)}) == len(QUESTIONS)

    async def nothing():
        pass

    async def answers():  # one takes the slot, and what it was computed with is kept in main memory
        for text in (STATE + QUESTIONS[1], *(f"{place} {STATE}" for place in range(SLOTS))):
            await chunks_of(engine, text, 2)

    async def half_of_it():
        await chunks_of(engine, STATE[: len(STATE) // 2], 2)

    for before in (nothing, answers, half_of_it, partial(engine.score_next, other)):
        for places in ((3, 1, 0, 2),) if CI else ((0, 1, 2, 3), (3, 1, 0, 2), (1, 1)):
            await before()
            assert bits(await engine.score_next(among(request, *places))) == [alone[each] for each in places]
    single = LlamaCppEngine(shallow_model, Options(context=CONTEXT, parallel=1, threads=1))
    await single.start()
    assert bits(await single.score_next(request)) == alone
    await single.stop()


async def test_no_more_connections_than_its_server_has_threads(engine):
    """A connection without a thread waits for seconds, until an idle one is closed."""
    texts = [f"{place} and some text" for place in range(64)]
    ids = await asyncio.gather(*(engine.tokenize([text]) for text in texts))
    assert await asyncio.gather(*map(engine.detokenize, ids)) == texts
    assert len(engine._running.client._client._connections) <= SLOTS + SPARE_THREADS


async def test_the_beginning_is_computed_once_and_kept(engine):
    state = "Another beginning. " + STATE
    request = unscored(await asking(engine, state))
    size, ends = len(request.beginning.ids), sum(len(end.ids) + 1 for end in request.ends)
    for cached in (0, size - 1, size - 1):
        before = await computed(engine)
        results = await engine.score_next(request)
        assert {result.cached_tokens for result in results} == {cached}
        assert await computed(engine) - before == size * (not cached) + ends
    await chunks_of(engine, "Something else.", 2)  # it may have taken the slot
    assert {result.cached_tokens for result in await engine.score_next(request)} == {0}


async def test_twenty_questions_cost_little_more_than_one(engine):
    state = STATE * 5
    request = unscored(await asking(engine, state, QUESTIONS * 5))
    size = len(request.beginning.ids)
    assert 1000 < size < CONTEXT
    costs = []
    for places in (range(1), range(20)):
        before = await computed(engine)
        await engine.score_next(among(request, *places))
        costs.append(await computed(engine) - before)
        await chunks_of(engine, "Something else.", 2)
    assert costs[1] - costs[0] == sum(len(end.ids) + 1 for end in request.ends[1:])
    assert costs[1] < 1.5 * costs[0]


async def test_a_token_that_is_hardly_ever_next_is_scored(engine):
    request = await asking(engine)
    rare = tuple(range(100, 49000, 1200))
    [result] = await engine.score_next(replace(among(request, 0), tokens=(rare,)))
    assert result.complete
    assert {*rare} <= {one.id for one in result.candidates}
    assert len(result.candidates) <= LIKELIEST + len(rare)
    with pytest.raises(RequestError):
        await engine.score_next(replace(among(request, 0), tokens=((10**6,),)))


async def test_next_tokens_beside_answers_are_the_same_but_for_rounding(engine):
    request = await asking(engine)
    alone = await engine.score_next(request)
    async with running(engine, await request_of(engine, TestContract.prompt, 200)):
        beside = await engine.score_next(request)
    for one, other in zip(alone, beside, strict=True):
        scores = {candidate.id: candidate.logprob for candidate in other.candidates}
        for candidate in one.candidates[:3]:
            assert scores[candidate.id] == pytest.approx(candidate.logprob, abs=NOISE)


async def test_next_tokens_depend_on_the_adapter(adapted):
    request = await asking(adapted, STATE[:300], QUESTIONS[:2])
    adapters = (None, (Adapter("first"),), (Adapter("second"),))
    results = [
        bits(await adapted.score_next(replace(request, sampling=Sampling(lora=lora))))
        for lora in (*adapters, *adapters)
    ]
    assert results[:3] == results[3:]
    assert len({*map(str, results)}) == 3
    with pytest.raises(EngineError, match="not loaded"):
        await adapted.score_next(replace(request, sampling=Sampling(lora=(Adapter("third"),))))


async def test_what_was_cancelled_leaves_nothing_behind(engine):
    request = await asking(engine)
    alone = bits(await engine.score_next(request))
    for pause in (0.05,) if CI else (0.01, 0.05, 0.1):
        scoring = asyncio.create_task(engine.score_next(await asking(engine, f"{pause} {STATE}")))
        await asyncio.sleep(pause)
        scoring.cancel()
        await asyncio.wait((scoring,))
        await until(lambda: engine.load.idle)
        await engine.score_next(request)  # perhaps beside what was cancelled: its beginning is not kept
        await asyncio.sleep(LINGER)
        assert bits(await engine.score_next(request)) == alone


async def test_decisions_wait_for_each_other_and_leave_slots_to_answers(engine):
    requests = [await asking(engine, f"{place} {STATE}") for place in range(SLOTS + 1)]
    scoring = [asyncio.create_task(engine.score_next(request)) for request in requests]
    await until(lambda: engine.load.running == 1)
    assert (engine.load.running, engine.load.waiting) == (1, SLOTS)
    assert text_of(await chunks_of(engine, TestContract.prompt, 1))
    assert not scoring[-1].done()
    await asyncio.gather(*scoring)


async def test_a_decision_that_waits_is_read_while_an_adapter_is_loaded(shallow_model, tmp_path):
    """The process of the model ends only after the last that was sent to it."""
    engine = LlamaCppEngine(shallow_model, Options(context=CONTEXT, parallel=2, threads=1))
    await engine.start()
    try:
        requests = [await asking(engine, f"{place} {STATE}") for place in range(4)]
        scoring = [asyncio.create_task(engine.score_next(request)) for request in requests]
        await until(lambda: engine.load.running == 1)
        await engine.load_adapter("late", str(write_lora(tmp_path / "late.gguf", 1, layer=0)))
        assert all(await asyncio.gather(*scoring))
    finally:
        await engine.stop()


class TestAdapters(AdapterContract):
    prompt = chat("Remember this: " + "the quick brown fox jumps over the lazy dog. " * 6)
    other = chat("Recipes of bread need flour and water and salt. " * 6)
    names = ("first", "second")

    @pytest.fixture
    def engine(self, adapted):
        return adapted


async def test_tokens_for_filling_in_are_those_that_the_file_names(engine, shallow_model, monkeypatch):
    assert engine.card.fill_in is None
    facts = read_metadata(shallow_model)
    for names in (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")):
        named = {f"tokenizer.ggml.{name}_token_id": token for token, name in enumerate(names)}
        monkeypatch.setattr(
            "antiphon.engines.llama_cpp.read_metadata", lambda _, named=named: {**facts, **named}
        )
        other = LlamaCppEngine(shallow_model, Options(context=64, parallel=1))
        await other.start()
        assert other.card.fill_in == ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        await other.stop()


async def test_card_comes_from_the_file(engine):
    card = engine.card
    assert card.name == "SmolLM2-135M-Instruct.Q4_1"
    assert card.context == CONTEXT
    assert "<|im_start|>" in card.chat_template
    assert (card.bos, card.eos) == ("<|im_start|>", "<|im_end|>")


async def test_special_tokens_become_their_ids_and_none_is_added(engine):
    assert await engine.tokenize(["<|im_start|>user\nhi<|im_end|>"]) == [1, 4093, 198, 6004, 2]
    assert await engine.tokenize([""]) == []


async def test_the_card_knows_what_the_engine_sets_itself(engine):
    # llama.cpp's own, which its documentation lists.
    expected = {"temperature": 0.8, "top_p": 0.95, "presence_penalty": 0, "frequency_penalty": 0}
    assert engine.card.defaults == expected


async def test_the_card_knows_the_opening_token(engine):
    assert engine.card.opening is None  # this model wants none


async def test_the_end_of_turn_is_hidden_unless_preserved(able):
    prompt = chat("What is the capital of France?")
    hidden = await chunks_of(able, prompt, 40)
    shown = await chunks_of(able, prompt, 40, preserve=frozenset({"<|im_end|>"}))
    assert text_of(shown) == text_of(hidden) + "<|im_end|>"
    for chunks, text in ((hidden, ""), (shown, "<|im_end|>")):
        assert finish_of(chunks).reason is FinishReason.STOP
        assert finish_of(chunks).stop is None
        assert tokens_of(chunks)[-1].id == 2
        assert tokens_of(chunks)[-1].text == text


async def test_special_tokens_are_shown_if_they_are_wanted(able):
    prompt = chat("What is the capital of France?")
    for wanted, text in ((None, ""), (False, "<|im_start|>" * 3)):
        forced = Sampling(logit_bias={1: 100}, skip_special_tokens=wanted)
        assert text_of(await chunks_of(able, prompt, 3, sampling=forced)) == text
    ends = Sampling(skip_special_tokens=False, logit_bias={2: 100})  # <|im_end|>, by which the model stops
    whole = await chunks_of(able, prompt, 40, sampling=ends)
    assert finish_of(whole).reason is FinishReason.STOP
    assert "<|im_end|>" not in text_of(whole)


async def test_cached_prompt_tokens_are_reported(engine):
    prompt = chat("Say something about the number 4711.")
    await chunks_of(engine, prompt, 2)
    ids = await engine.tokenize([prompt])
    first, *others = await chunks_of(engine, prompt, 2)
    assert first.cached_tokens == len(ids) - 1
    assert all(chunk.cached_tokens == 0 for chunk in others)


async def test_the_same_seed_gives_the_same_text(engine):
    prompt = chat("Invent a word. " * 60)  # more than one prompt batch: the second time it would be cached

    async def invent(seed):
        return text_of(await chunks_of(engine, prompt, 12, sampling=sampling_with(seed)))

    large = 2**40 + 7
    text = await invent(large)
    assert await invent(1) != text
    assert await invent(large) == text


def sampling_with(seed):
    return Sampling(temperature=1.5, seed=seed)


def greedy(**options):
    return Sampling(temperature=0, **options)


async def test_ids_of_characters_in_many_tokens_are_recovered(able):
    chunks = await chunks_of(able, chat("Repeat: 🎉🚀🌍🔥 日本語のテキスト"), 60, sampling=sampling_with(1))
    tokens = tokens_of(chunks)
    assert len(tokens) == 60 == finish_of(chunks).completion_tokens
    several = [chunk for chunk in chunks if len(chunk.tokens) > 1 and chunk.text]
    assert several, "the model wrote nothing that takes several tokens: choose another seed"
    for chunk in several:
        assert [token.id for token in chunk.tokens] == await able.tokenize([chunk.text])
        assert [token.text for token in chunk.tokens] == [""] * (len(chunk.tokens) - 1) + [chunk.text]


async def test_tokens_that_share_a_character_have_their_own_bytes(able):
    sampling = Sampling(temperature=1.5, seed=1, logprobs=2)
    chunks = await chunks_of(able, chat("Repeat: 🎉🚀🌍🔥 日本語のテキスト"), 40, sampling=sampling)
    shared = [token for chunk in chunks if len(chunk.tokens) > 1 and chunk.text for token in chunk.tokens]
    assert shared, "the model wrote nothing that takes several tokens: choose another seed"
    for chunk in chunks:
        raws = [token.text.encode() if token.raw is None else token.raw for token in chunk.tokens]
        assert b"".join(raws) == chunk.text.encode()
    broken = [each for token in tokens_of(chunks) for each in token.top if each.raw is not None]
    assert broken, "no candidate was part of a character"
    assert all("\ufffd" in each.text for each in broken)


async def test_special_candidates_have_their_text(able):
    chunks = await chunks_of(able, chat("What is the capital of France?"), 40, sampling=greedy(logprobs=1))
    *_, end = tokens_of(chunks)
    assert (end.id, end.text, [each.text for each in end.top]) == (2, "", ["<|im_end|>"])


async def test_a_grammar_may_wait_for_its_trigger(able):
    # Written in one token with the space before it: a trigger need not begin or end where tokens do.
    grammar = Gbnf('root ::= "capital" " "? [0-9]{3} "."', triggers=("capital",))
    chunks = await chunks_of(able, chat("What is the capital of France?"), 30, constraint=grammar)
    assert re.fullmatch(r"[^0-9]+ capital ?[0-9]{3}\.", text_of(chunks))
    assert finish_of(chunks).reason is FinishReason.STOP


async def test_special_tokens_are_written_as_their_text_in_grammars(engine):
    grammar = Gbnf('root ::= "<|im_start|>" [a-z]{3}')
    preserve = frozenset({"<|im_start|>"})
    chunks = await chunks_of(engine, chat("hi"), 30, constraint=grammar, preserve=preserve)
    assert re.fullmatch(r"<\|im_start\|>[a-z]{3}", text_of(chunks))


@pytest.mark.parametrize("text", ["root ::= (", 'root ::= root "a"', 'rot ::= "a"', "root ::= missing", ""])
async def test_a_grammar_that_cannot_be_read_is_a_bad_request(engine, text):
    with pytest.raises(RequestError, match="grammar") as raised:
        await chunks_of(engine, chat("hi"), 5, constraint=Gbnf(text))
    assert raised.value.param == "structured_outputs.grammar"
    await until(lambda: engine.load.idle)


async def test_the_largest_grammars_that_are_let_through_are_survived(engine):
    deep = "root ::= " + "(" * MAX_NESTING + '"a"' + ")" * MAX_NESTING
    chain = "\n".join(f"r{number} ::= r{number + 1}" for number in range(MAX_RULES - 2))
    long = f'root ::= r0\n{chain}\nr{MAX_RULES - 2} ::= "a"'
    for text in (deep, long):
        assert text_of(await chunks_of(engine, chat("hi"), 5, constraint=Gbnf(text))) == "a"


async def test_a_form_that_the_model_leaves_is_an_engine_error(able):
    # The token with the trigger continues with text that the grammar does not allow after it.
    grammar = Gbnf('root ::= "nsw" [0-9]', triggers=("nsw",))
    with pytest.raises(EngineError, match="matches the grammar"):
        await chunks_of(able, chat("Is the sky blue?"), 10, constraint=grammar)
    assert text_of(await chunks_of(able, chat("What is the capital of France?"), 5))


async def test_the_end_can_be_ignored(able):
    prompt = chat("What is the capital of France?")
    assert finish_of(await chunks_of(able, prompt, 60)).reason is FinishReason.STOP
    chunks = await chunks_of(able, prompt, 60, sampling=greedy(ignore_eos=True))
    assert finish_of(chunks).reason is FinishReason.LENGTH
    assert 2 not in [token.id for token in tokens_of(chunks)]


async def test_drawing_can_be_narrowed_to_the_likeliest(engine):
    prompt = chat("Tell a story.")
    likeliest = text_of(await chunks_of(engine, prompt, 12))
    alone = {"samplers": ("top_k",), "top_k": 1, "min_p": 0.0}
    for narrow in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}, alone):
        sampling = Sampling(temperature=1.5, **narrow)
        assert text_of(await chunks_of(engine, prompt, 12, sampling=sampling)) == likeliest


SAMPLERS = {
    "temperature": 1.5,
    "top_p": 0.5,
    "min_p": 0.25,
    "typical_p": 0.5,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.25,
    "xtc_threshold": 0.125,
    "dynatemp_range": 0.25,
    "dynatemp_exponent": 1.5,
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.25,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "dry_multiplier": 0.75,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 4,
    "repeat_last_n": 3,
    "top_k": 7,
    "adaptive_target": 0.5,
    "adaptive_decay": 0.75,
    "min_keep": 2,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(shallow_model):
    sizes = {"n_ctx": 64, "n_parallel": 1, "cpuparams.n_threads": 1}
    settings = {"model.path": str(shallow_model), **sizes, "port": 0, "ui": False}
    process = await LlamaProcess.start(settings, lambda stage, seconds: None)
    yield process
    await process.close()


async def asked(process, path, body, key):
    """The status and the body of an answer of llama.cpp."""
    client = HttpClient(process.url, key)
    try:
        response = await client.request("POST", path, json.loads(body))
    finally:
        client.close()
    return response.status, response.body


async def test_llama_cpp_draws_as_it_is_told(process):
    sampling = Sampling(
        **SAMPLERS, repetition_penalty=1.25, dry_sequence_breakers=("x", "\n"), banned_tokens=(5,)
    )
    body = llama_request(GenerationRequest(Prompt("a", (1, 4093, 198)), 2, sampling))
    status, answer = await asked(process, "/completion", body, process.key)
    settings = json.loads(answer.strip().rpartition(b"data: ")[2])["generation_settings"]
    assert status == 200
    assert {name: settings[name] for name in SAMPLERS} == SAMPLERS
    assert settings["repeat_penalty"] == 1.25
    assert settings["dry_sequence_breakers"] == ["x", "\n"]
    assert settings["logit_bias"] == [{"bias": None, "token": 5}]  # minus infinity
    assert settings["samplers"] == [*LLAMA_ORDER, "adaptive_p"]


async def test_llama_cpp_has_the_order_of_samplers_that_is_ours(process):
    for order in ((), ("top_k", "temperature")):
        body = llama_request(GenerationRequest(Prompt("a", (1, 4093, 198)), 2, Sampling(samplers=order)))
        _, answer = await asked(process, "/completion", body, process.key)
        settings = json.loads(answer.strip().rpartition(b"data: ")[2])["generation_settings"]
        assert settings["samplers"] == [*(order or LLAMA_ORDER)]


async def test_a_target_is_adapted_to_and_a_cut_leaves_what_it_must_keep(engine):
    prompt = chat("Tell a story.")

    async def drawn(**options):
        sampling = Sampling(temperature=1.5, seed=1, **options)
        return text_of(await chunks_of(engine, prompt, 12, sampling=sampling))

    assert await drawn(adaptive_target=0.05) != await drawn()
    assert await drawn(top_p=1e-6, min_keep=50) != await drawn(top_p=1e-6)


async def test_banned_tokens_are_never_drawn(engine):
    prompt = chat("What is the capital of France?")
    likeliest = tokens_of(await chunks_of(engine, prompt, 8, sampling=greedy()))
    banned = tuple({token.id for token in likeliest})
    others = tokens_of(await chunks_of(engine, prompt, 8, sampling=greedy(banned_tokens=banned)))
    assert others
    assert not {token.id for token in others} & set(banned)


async def test_a_top_p_of_nothing_leaves_the_likeliest(engine):
    prompt = chat("What is the capital of France?")
    likeliest = text_of(await chunks_of(engine, prompt, 8, sampling=greedy()))
    hot = Sampling(temperature=5, top_p=0)
    assert text_of(await chunks_of(engine, prompt, 8, sampling=hot)) == likeliest


async def test_repetition_can_be_punished(engine):
    prompt = chat("Write the letter a a hundred times, with spaces: a a a a a a a a a a a")
    plain = [token.id for token in tokens_of(await chunks_of(engine, prompt, 40))]
    varied = await chunks_of(engine, prompt, 40, sampling=greedy(repetition_penalty=1.8))
    assert len({token.id for token in tokens_of(varied)}) > len({*plain})


async def test_ids_beyond_the_vocabulary_are_refused_before_anything_runs(engine):
    await until(lambda: engine.load.idle)
    with pytest.raises(RequestError, match="no token 49152"):
        await chunks_of(engine, chat("hi"), 5, sampling=greedy(logit_bias={49152: 1.0}))
    assert engine.load.idle


async def test_prefill_stops_after_a_batch(able):
    request = await request_of(able, "The quick brown fox jumps. " * 90, 4)
    assert len(request.prompt.ids) > 2 * PROMPT_BATCH
    given_up = Collected()
    able.generate(request, given_up).cancel()
    await until(lambda: able.load.idle)  # its thread has ended
    [first, *_] = await generated(able, request)
    assert given_up.calls == 0
    assert first.cached_tokens < len(request.prompt.ids) - PROMPT_BATCH, "the prompt was computed to its end"


async def test_each_slot_has_the_whole_context_and_its_end_is_a_length(shallow_model):
    engine = LlamaCppEngine(shallow_model, Options(context=256, parallel=2, threads=1))
    await engine.start()
    try:
        ids = tuple((await engine.tokenize(["fox " * 256]))[:250])
        chunks = await generated(engine, GenerationRequest(Prompt("", ids), 50, greedy()))
    finally:
        await engine.stop()
    assert finish_of(chunks).reason is FinishReason.LENGTH
    assert len(tokens_of(chunks)) in (5, 6)


@pytest.mark.parametrize("ids", [(10**6,), (), (1,) * (CONTEXT + 1)])
async def test_a_refused_prompt_is_told_with_its_cause(engine, ids):
    with pytest.raises(RequestError, match="refuses this") as raised:
        await generated(engine, GenerationRequest(Prompt("", ids), 5))
    assert raised.value.__cause__ is not None
    await until(lambda: engine.load.idle)


async def test_the_context_can_be_filled_with_special_tokens(engine):
    pieces = ["<|", "a", "|>"] * 5000  # each is tokenized by itself
    assert await engine.tokenize(pieces) == await engine.tokenize(["<|", "a", "|>"]) * 5000


async def test_llama_cpp_is_quiet(capfd, engine):
    await chunks_of(engine, chat("hi"), 2)
    assert capfd.readouterr().err == ""


async def test_a_file_that_is_no_model_says_what_to_do(tmp_path):
    with pytest.raises(EngineError, match="Give the path of a GGUF file"):
        await LlamaCppEngine(tmp_path / "none.gguf").start()
    path = tmp_path / "cut.gguf"
    with resolve(None).open("rb") as whole:
        path.write_bytes(whole.read(8_000_000))
    with pytest.raises(EngineError, match=r"cannot load cut\.gguf: .*not within the file bounds"):
        await LlamaCppEngine(path).start()


EXIT = """
import asyncio
from antiphon.engines.engine import GenerationRequest, NextTokenRequest, Prompt
from antiphon.engines.llama_cpp import PROMPT_BATCH, LlamaCppEngine, Options
from antiphon.engines.models import resolve
from antiphon.engines.next_token import LIKELIEST
from antiphon.engines.upstreams.llama_next_token import LINGER
from antiphon.engines.samplers import LLAMA_ORDER

class Receiver:
    def __init__(self):
        self.begun = asyncio.Event()

    def push(self, chunks):
        self.begun.set()

async def main():
    engine = LlamaCppEngine(resolve(None), Options(context=4096, parallel=1, threads=1))
    await engine.start()
    receiver = Receiver()
    engine.generate(GenerationRequest(Prompt("", (1, 4093, 198)), 4000), receiver)
    await receiver.begun.wait()
    print("running", flush=True)
    raise SystemExit(3)

asyncio.run(main())
"""


async def test_a_process_ends_though_nobody_stopped_the_engine():
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", EXIT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(60):
        output, errors = await child.communicate()
    assert output.endswith(b"running\n")  # after the lines of its log
    assert child.returncode == 3, errors.decode()


async def test_the_port_is_for_this_server_alone(process):
    assert process.url.startswith("http://127.0.0.1:")
    for key in ("", "wrong"):
        status, _ = await asked(process, "/tokenize", b'{"content": "hi"}', key)
        assert status == 401


# Adapters, and what each of our options becomes


def lora(name):
    return None if name is None else (Adapter(name),)


async def test_adapters_are_used_by_name_and_come_and_go_beside_what_runs(tmp_path):
    first, second = (str(write_lora(tmp_path / f"{seed}.gguf", seed)) for seed in (1, 2))
    engine = LlamaCppEngine(resolve(None), Options(context=256, parallel=2, threads=1))
    await engine.load_adapter("first", first)
    await engine.start()
    try:
        prompt = chat("What is the capital of France?")
        long = await request_of(engine, prompt, 100, sampling=greedy(ignore_eos=True))
        running = Collected()
        engine.generate(long, running)
        await running.begun.wait()

        await engine.load_adapter("second", second)

        texts = {
            name: text_of(await chunks_of(engine, prompt, 8, sampling=greedy(lora=lora(name))))
            for name in (None, "first", "second")
        }
        whole = await running.whole()
        with pytest.raises(RequestError, match="no adapter file") as raised:
            await engine.load_adapter("third", str(tmp_path / "none"))
        with pytest.raises(RequestError, match=r"adapter at .*expect general\.type") as refused:
            await engine.load_adapter("third", str(resolve(None)))
        await engine.unload_adapter("first")
        with pytest.raises(EngineError, match="'first' is not loaded"):
            await chunks_of(engine, prompt, 8, sampling=greedy(lora=lora("first")))
        again = text_of(await chunks_of(engine, prompt, 8, sampling=greedy(lora=lora("second"))))
    finally:
        await engine.stop()
    assert raised.value.param == refused.value.param == "lora_path"
    assert "Paris" in texts[None]
    assert len({*texts.values()}) == 3
    assert len(tokens_of(whole)) == 100, "it was cut off"
    assert again == texts["second"]
    assert engine.adapters.keys() == {"second"}


async def test_two_prompts_that_begin_alike_are_computed_once(engine):
    beginning = chat("Remember this: " + "the quick brown fox jumps over the lazy dog. " * 12)
    shared = len(await engine.tokenize([beginning]))
    await chunks_of(engine, beginning + chat("What did I say?"), 2)
    first, *_ = await chunks_of(engine, beginning + chat("Who jumps?"), 2)
    assert first.cached_tokens >= shared


async def test_prompts_that_begin_alike_and_come_together_are_computed_once(engine):
    beginning = chat("Remember that: " + "the quick brown fox jumps over the lazy dog. " * 36)
    shared = len(await engine.tokenize([beginning]))
    ends = ("What did I say?", "Who jumps?", "How many dogs?")
    answers = await asyncio.gather(*(chunks_of(engine, beginning + chat(end), 2) for end in ends))
    cached = sorted(answer[0].cached_tokens for answer in answers)
    assert cached[0] < shared <= cached[1]


async def test_one_that_waits_for_the_prompt_of_another_can_be_cancelled(engine):
    beginning = chat("Remember those: " + "the quick brown fox jumps over the lazy dog. " * 36)
    answer = asyncio.create_task(chunks_of(engine, beginning + chat("What did I say?"), 2))
    await until(lambda: engine.load.running == 1)
    work = engine.generate(await request_of(engine, beginning, 2), Collected())
    assert engine.load.waiting == 1
    work.cancel()
    assert engine.load.waiting == 0
    await answer


def children():
    """The processes that this one has started."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(child) for each in lists for child in each.read_text().split()}


async def test_a_process_that_ends_is_started_again_and_says_so():
    engine = LlamaCppEngine(
        resolve(None), Options(context=256, parallel=1, threads=1, kv_type="q8_0", draft="ngram")
    )
    assert 90e6 < engine.memory < 120e6
    before = children()
    await engine.start()
    [child] = children() - before
    try:
        assert 90e6 < engine.memory < 150e6
        running = Collected()
        engine.generate(await request_of(engine, chat("Tell a story."), 100), running)
        await running.begun.wait()
        with capture_logs() as logs:
            os.kill(child, signal.SIGKILL)
            with pytest.raises(EngineError):
                await running.whole()
            await until(lambda: any(entry["event"] == "loaded" for entry in logs))
        assert text_of(await chunks_of(engine, chat("What is the capital of France?"), 12))
    finally:
        await engine.stop()
    assert [entry["event"] for entry in logs][:2] == ["llama.cpp has ended", "loading"]
    assert children() == before


async def test_what_is_asked_of_llama_cpp_that_it_cannot_do_is_told_in_its_words(tmp_path):
    with pytest.raises(EngineError, match=r"cannot load SmolLM2.* with none\.gguf: "):
        await LlamaCppEngine(
            resolve(None), Options(context=256, parallel=1, draft=str(tmp_path)), draft=tmp_path / "none.gguf"
        ).start()


async def test_draft_tokens_are_refused_where_nothing_guesses():
    with pytest.raises(EngineError, match="--draft-tokens requires --draft"):
        Options(draft_tokens=3).build()


async def test_the_last_line_of_a_process_that_died_says_why(monkeypatch, tmp_path):
    """Although it never got to its end."""
    program = tmp_path / "dies.py"
    program.write_text("import sys; sys.stderr.write('0.1 E load: no memory is left'); sys.exit(1)")
    monkeypatch.setattr(llama_process, "__file__", str(program))
    with pytest.raises(LoadError, match="no memory is left"):
        await LlamaProcess.start({}, lambda stage, seconds: None)


async def test_tokens_in_slots_are_counted_while_they_are_used(engine):
    cells = SLOTS * CONTEXT
    before = await engine.cache_figures()
    request = await request_of(engine, "Once upon a time there was a fox, number 4712. " * 8, 200)
    size = len(request.prompt.ids)
    async with running(engine, request) as (_, collected):
        await until(lambda: len(collected.chunks) > 5)
        during = await engine.cache_figures()
    await until(lambda: engine.load.idle)
    after = await engine.cache_figures()
    await asyncio.sleep(LINGER)  # a slot whose answer was cancelled is still taken for a moment
    async with running(engine, request):
        again = await engine.cache_figures()
    assert (before.block_size, before.blocks, before.adapters) == (1, cells, None)
    assert before.usage == after.usage == 0
    assert size + 5 < round(during.usage * cells) <= size + 200
    assert during.queries - before.queries == again.queries - during.queries == size
    assert again.hits - during.hits == size - 1  # the last token is always computed


async def test_adapters_of_generations_are_known(tmp_path):
    paths = {name: str(write_lora(tmp_path / f"{name}.gguf", seed)) for seed, name in enumerate("ab", 1)}
    engine = LlamaCppEngine(resolve(None), Options(context=256, parallel=1, threads=1))
    for name, path in paths.items():
        await engine.load_adapter(name, path)
    await engine.start()
    try:
        idle = await engine.cache_figures()
        async with running(
            engine, await request_of(engine, "Hi", 200, sampling=Sampling(lora=(Adapter("b"),)))
        ):
            engine.generate(
                await request_of(engine, "Hi", 1, sampling=Sampling(lora=(Adapter("a"),))),
                waiting := Collected(),
            )
            busy = await engine.cache_figures()
        await waiting.whole()
    finally:
        await engine.stop()
    assert (idle.adapters.running, idle.adapters.waiting, idle.adapters.maximum) == (set(), set(), 2)
    assert (busy.adapters.running, busy.adapters.waiting) == ({"b"}, {"a"})


@pytest.mark.parametrize("how", ["missing", "cut off", "no file of a model", "no draft", "too large"])
async def test_what_cannot_be_loaded_is_found_without_loading(tmp_path, shallow_model, how):
    path, options = tmp_path / "model.gguf", Options(context=64, parallel=1, threads=1)
    data, draft = shallow_model.read_bytes(), None
    match how:
        case "cut off":
            path.write_bytes(data[: len(data) // 2])
        case "no file of a model":
            path.write_bytes(b"<html>Not found</html>")
        case "no draft":
            path.write_bytes(data)
            draft = tmp_path / "draft.gguf"
        case "too large":
            path.write_bytes(data)
            options = Options(context=2**40, parallel=1, threads=1)
    engine = LlamaCppEngine(path, options, draft=draft)
    before = engine.file_state()
    with pytest.raises(EngineError, match=r"cannot be read|not a complete GGUF file|GiB of memory in all"):
        await engine.check_files()
    assert engine.file_state() == before
    path.write_bytes(data)
    assert engine.file_state() != before or how in ("no draft", "too large")


async def test_what_can_be_loaded_passes_the_check(shallow_model):
    await LlamaCppEngine(shallow_model, Options(context=64, parallel=1)).check_files()
