"""The vLLM engine with the real vLLM, on the processor: `make test-vllm`, in an environment of its own."""

import asyncio
import json
import multiprocessing.connection
import os
import re
import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from antiphon.core.chunks import Finish, FinishReason
from antiphon.core.constraint import StructuralTag
from antiphon.core.errors import EngineDiedError, EngineError, EngineNotReadyError, RequestError
from antiphon.core.turn import Adapter, Sampling
from antiphon.engines.engine import GenerationRequest, Prompt, Task
from antiphon.engines.vllm import Options, VllmEngine
from antiphon.engines.vllm_arguments import engine_args
from antiphon.engines.vllm_core import workers_of
from tests.contracts.engine import (
    NOISE,
    Collected,
    EngineContract,
    chunks_of,
    finish_of,
    generated,
    greedy,
    request_of,
    running,
    text_of,
    tokens_of,
    until,
)
from tests.contracts.vectors import VectorContract
from tests.engines import kv_connector
from tests.engines.lora import write_peft_adapter
from tests.real_engine import VLLM_ARGUMENTS, VLLM_MODEL, real_engine

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not VLLM_MODEL, reason="vLLM is not here: make test-vllm"),
    pytest.mark.timeout(600),
]

SLOTS = 3
CONTEXT = 2048


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


class One:
    """One vLLM at a time: that of all tests, stopped where a test needs its own."""

    engine: VllmEngine | None = None

    async def running(self):
        if self.engine is None:
            self.engine = real_engine(context=CONTEXT, slots=SLOTS)
            await self.engine.start()
        return self.engine

    async def stop(self):
        if self.engine is not None:
            await self.engine.stop()
            self.engine = None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one() -> AsyncIterator[One]:
    one = One()
    yield one
    await one.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(one):
    return await one.running()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("enable_lora=true", True),
        ("enable_lora=false", False),
        ("disable_custom_all_reduce=true", True),
        ("disable_custom_all_reduce=false", False),
        ("disable-sliding-window", True),
        ("enable_prefix_caching=false", False),
    ],
)
async def test_switches_are_turned_on_and_off(argument, value):
    args = engine_args(VLLM_MODEL, (argument,), {})
    assert getattr(args, argument.partition("=")[0].replace("-", "_")) is value


class TestContract(EngineContract):
    prompt = chat("Tell a long story about a fox.")
    others = tuple(chat(f"What is the capital of {country}?") for country in ("France", "Japan", "Peru"))
    slots = SLOTS
    keeps = True

    @pytest_asyncio.fixture(loop_scope="module")
    async def fresh(self, one):
        await one.stop()
        fresh = real_engine(context=CONTEXT, slots=1)
        yield fresh
        await fresh.stop()


async def test_next_tokens_and_answers_with_log_probabilities_do_not_disturb_each_other(engine):
    contract = TestContract()
    request = await contract.next_token_request(engine)
    alone = await contract.scored(engine, request, (0, 1, 2))
    asked = await request_of(
        engine, TestContract.prompt, 60, sampling=greedy(engine, logprobs=3, ignore_eos=True)
    )
    expected = await generated(engine, asked)
    answering = asyncio.create_task(generated(engine, asked))
    together = []
    while not answering.done():
        together.append(await contract.scored(engine, request, (0, 1, 2)))
    for token, other in zip(tokens_of(await answering), tokens_of(expected), strict=True):
        assert [one.id for one in token.top] == [one.id for one in other.top]
        assert token.logprob == pytest.approx(other.logprob, abs=NOISE)
    for scores in together:
        assert scores == [pytest.approx(one, abs=NOISE) for one in alone]


@pytest_asyncio.fixture(scope="class", loop_scope="module")
async def pooling(one):
    """SmolLM2, which is not for that: the mean of the vectors of its tokens."""
    await one.stop()
    more = ("runner=pooling", "convert=embed", 'pooler_config={"pooling_type":"MEAN"}')
    engine = real_engine(context=512, slots=SLOTS, more=more)
    await engine.start()
    yield engine
    await engine.stop()


class TestVectors(VectorContract):
    many = 8

    @pytest.fixture
    def engine(self, pooling):
        return pooling


def write_ranker(folder):
    """Write a small cross-encoder of random weights; what it says of pairs of texts, from 0 to 1."""
    import torch  # noqa: PLC0415 - only where vLLM is
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast  # noqa: PLC0415

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizerFast(vocab={word: place for place, word in enumerate(words)})
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        num_labels=1,
        initializer_range=0.5,
    )
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

    def scores(pairs):
        with torch.no_grad():
            given = [tokenizer(*pair, return_tensors="pt") for pair in pairs]
            return [torch.sigmoid(model(**each).logits).item() for each in given], sum(
                each["input_ids"].numel() for each in given
            )

    return scores


async def test_a_cross_encoder_ranks_as_its_reference_does(one, tmp_path):
    scores = write_ranker(tmp_path)
    await one.stop()
    engine = Options(
        str(tmp_path), context=128, parallel=2, vllm=("dtype=float32", *VLLM_ARGUMENTS[1:])
    ).build()
    await engine.start()
    try:
        assert engine.card.capabilities.tasks == {Task.RANK}
        pairs = [("where is the cat", text) for text in ("on the sofa", "no", "a dog barks at the cat", "")]
        found, (expected, tokens) = await engine.score(pairs), scores(pairs)
        assert found.scores == pytest.approx(expected, abs=1e-3)
        assert found.tokens == tokens
        assert max(expected) - min(expected) > 0.01
        with pytest.raises(RequestError) as raised:
            await engine.score([("cat", "long " * 60)])
        assert raised.value.param == "documents"
    finally:
        await engine.stop()


async def test_the_card_is_what_vllm_has_loaded(engine):
    card = engine.card
    assert card.context == CONTEXT
    assert "<|im_start|>" in card.chat_template
    assert (card.bos, card.eos) == ("<|im_start|>", "<|im_end|>")
    assert card.opening is None
    assert "LlamaForCausalLM" in card.known_as
    assert (card.defaults["temperature"], card.defaults["top_p"]) == (1, 1)


async def test_characters_of_several_tokens_come_whole_with_all_their_tokens(engine):
    prompt = chat("Repeat: 🎉🎊🎉🎊") + "🎉🎊🎉🎊🎉"
    chunks = await chunks_of(engine, prompt, 15, sampling=Sampling(temperature=0, logprobs=1))
    emoji = next(chunk for chunk in chunks if len(chunk.tokens) > 1)
    assert b"".join(token.raw for token in emoji.tokens).decode() == emoji.text
    assert (await engine.detokenize([token.id for token in tokens_of(chunks)])).startswith(text_of(chunks))


@pytest.mark.parametrize("preserve", [(), ("<|im_end|>",)])
async def test_the_end_of_turn_is_hidden_unless_preserved(engine, preserve):
    request = await request_of(
        engine, chat("What is the capital of France?"), 60, preserve=frozenset(preserve)
    )
    chunks = await generated(engine, request)
    assert finish_of(chunks) == Finish(FinishReason.STOP)
    assert text_of(chunks).endswith("<|im_end|>") == bool(preserve)


async def test_a_structural_tag_holds_the_answer(engine):
    grammar = {"type": "grammar", "grammar": 'root ::= "<" [0-9]{2,4} ">" " é"?'}
    tag = StructuralTag(json.dumps({"type": "structural_tag", "format": grammar}))
    for prompt in TestContract.others:
        chunks = await chunks_of(engine, prompt, 30, constraint=tag)
        assert re.fullmatch("<[0-9]{2,4}>( é)?", text_of(chunks))
        assert finish_of(chunks).reason is FinishReason.STOP


async def test_sampling_is_what_was_asked_for(engine):
    prompt = chat("What is the capital of France?")
    words = text_of(await chunks_of(engine, prompt, 30))
    assert "Paris" in words
    without = await chunks_of(engine, prompt, 30, sampling=Sampling(temperature=0, bad_words=("Paris",)))
    assert "Paris" not in text_of(without)
    longer = await chunks_of(engine, prompt, 60, sampling=Sampling(temperature=0, min_tokens=50))
    assert len(tokens_of(longer)) >= 50
    paris = next(token for token in tokens_of(await chunks_of(engine, prompt, 30)) if token.text == " Paris")
    banned = await chunks_of(engine, prompt, 30, sampling=Sampling(temperature=0, banned_tokens=(paris.id,)))
    assert paris.id not in {token.id for token in tokens_of(banned)}
    [first, again, other] = [
        text_of(await chunks_of(engine, prompt, 20, sampling=Sampling(temperature=1, seed=seed)))
        for seed in (-1, -1, 2)
    ]
    assert first == again != other


async def test_a_prompt_is_as_likely_as_when_it_was_written(engine):
    prompt = chat("What is the capital of France?")
    written = tokens_of(await chunks_of(engine, prompt, 12, sampling=Sampling(temperature=0, logprobs=0)))
    ids = (*await engine.tokenize([prompt]), *(token.id for token in written))
    request = GenerationRequest(Prompt("", ids), 1, Sampling(prompt_logprobs=0))
    read = (await engine.score_prompt(request))[-len(written) :]
    # It is computed otherwise, and rounds otherwise.
    assert [token.logprob for token in read] == pytest.approx([token.logprob for token in written], abs=0.3)


async def test_a_beam_search_finds_what_is_likelier_than_the_likeliest_next_token(engine):
    prompt = chat("Write a poem about the sea.")

    async def best(width):
        sampling = Sampling(beam_width=width, logprobs=0, length_penalty=0)
        beam, *_ = await engine.search(await request_of(engine, prompt, 12, sampling=sampling))
        return sum(token.logprob for token in tokens_of(beam))

    assert await best(4) >= await best(1)


async def test_the_prompt_cache_is_told_and_kept_apart_by_salt(engine):
    ids = tuple(await engine.tokenize([chat("Tell me about the sea. " * 40)]))
    requests = [
        GenerationRequest(Prompt("", ids), 2, Sampling(temperature=0, cache_salt=salt))
        for salt in ("a", "a", "b")
    ]
    cached = [sum(chunk.cached_tokens for chunk in await generated(engine, request)) for request in requests]
    assert cached[0] == cached[2] == 0
    assert cached[1] > 100


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (Sampling(temperature=3), "temperature"),
        (Sampling(logit_bias={10**6: 1}), "logit_bias"),
        (Sampling(stop_token_ids=(10**6,)), "stop_token_ids"),
        (Sampling(logprobs=21), "logprobs"),
    ],
)
async def test_what_vllm_refuses_is_an_error_of_the_request(engine, sampling, param):
    with pytest.raises(RequestError) as raised:
        await chunks_of(engine, "hi", 3, sampling=sampling)
    assert raised.value.param == param
    await until(lambda: engine.load.idle)


async def test_a_token_that_does_not_exist_is_refused(engine):
    with pytest.raises(RequestError, match="out of vocabulary"):
        await generated(engine, GenerationRequest(Prompt("", (10**6,)), 3))


def first_end(processes):
    """When a bare waiter is notified that one of these has ended."""
    multiprocessing.connection.wait([process.sentinel for process in processes])
    return time.monotonic()


@pytest.mark.parametrize("which", ["core", "workers"])
async def test_a_dead_vllm_ends_what_runs_and_refuses_what_comes(engine, one, which):
    request = await request_of(engine, TestContract.prompt, 200)
    waiting = [Collected() for _ in range(SLOTS)]
    async with running(engine, request) as (_, collected):
        for receiver in waiting:
            engine.generate(request, receiver)
        processes = multiprocessing.active_children()
        ended = asyncio.create_task(asyncio.to_thread(first_end, processes))
        await asyncio.sleep(0.1)
        ids = [process.pid for process in processes]
        if which == "workers":
            ids = [worker for process in ids for worker in workers_of(process)]
        assert ids
        killed = time.monotonic()
        for process in ids:
            os.kill(process, signal.SIGKILL)
        for receiver in (collected, *waiting):
            with pytest.raises(EngineDiedError, match="ended in the middle"):
                await receiver.whole()
        seen = time.monotonic()
        print(
            f"killed: seen after {seen - killed:.3f} s, the system tells after {await ended - killed:.3f} s"
        )
    with pytest.raises(EngineNotReadyError):
        await generated(engine, request)
    assert engine.load.idle
    await one.stop()


async def test_an_adapter_changes_what_is_written(one, tmp_path):
    write_peft_adapter(tmp_path)
    await one.stop()
    engine = real_engine(context=512, slots=2, more=("enable_lora=true", "max_lora_rank=8"))
    await engine.start()
    try:
        with pytest.raises(RequestError, match="cannot load the adapter"):
            await engine.load_adapter("none", str(tmp_path / "nowhere"))
        await engine.load_adapter("noise", str(tmp_path))
        prompt = TestContract.prompt
        [plain, again, noisy] = [
            text_of(await chunks_of(engine, prompt, 12, sampling=greedy(engine, lora=lora)))
            for lora in (None, (), (Adapter("noise"),))
        ]
        assert plain == again != noisy
        await engine.unload_adapter("noise")
        with pytest.raises(EngineError, match="no adapter 'noise'"):
            await chunks_of(engine, prompt, 3, sampling=greedy(engine, lora=(Adapter("noise"),)))
    finally:
        await engine.stop()


async def test_a_prompt_that_one_vllm_has_read_is_known_to_another(one, tmp_path):
    await one.stop()
    ids, told = (), {"do_remote_decode": True}
    for tokens, cached in ((1, 0), (5, 128)):  # whole blocks of the cache
        engine = real_engine(context=512, slots=1, more=(kv_connector.argument(str(tmp_path)),))
        await engine.start()
        try:
            ids = ids or tuple(await engine.tokenize([chat("Tell me about the sea. " * 40)]))
            sampling = Sampling(temperature=0, kv_transfer_params=told)
            chunks = await generated(engine, GenerationRequest(Prompt("", ids), tokens, sampling))
        finally:
            await engine.stop()
        told = finish_of(chunks).kv_transfer_params
        assert (len(tokens_of(chunks)), chunks[0].cached_tokens) == (tokens, cached)
        assert (told is None) == (cached > 0)
