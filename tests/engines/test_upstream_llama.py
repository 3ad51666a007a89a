"""llama-server as an upstream: llama.cpp's own HTTP server with a real model, in its own process."""

import pytest
import pytest_asyncio

from antiphon.core.chunks import FinishReason
from antiphon.core.errors import RequestError
from antiphon.core.turn import Adapter, Sampling
from antiphon.engines import llama_cpp
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.llama_cpp import LlamaCppEngine
from antiphon.engines.models import resolve
from antiphon.engines.upstream import Options, UpstreamEngine
from tests.contracts.engine import (
    AdapterContract,
    EngineContract,
    chunks_of,
    finish_of,
    generated,
    greedy,
    request_of,
    text_of,
    tokens_of,
    until,
)
from tests.engines import llama_http
from tests.engines.lora import write_lora

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOTS = 3
CONTEXT = 512


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


EMOJIS = chat("Repeat: 🎉🎊🎉🎊") + "🎉🎊🎉🎊🎉"
"""Characters of several tokens each, which the model continues."""


@pytest.fixture(scope="module")
def url():
    with llama_http.serving(resolve(None), slots=SLOTS, context=CONTEXT) as url:
        yield url


def engine_at(url, **options):
    return UpstreamEngine(Options(url, upstream_key=llama_http.KEY, **options))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(url):
    engine = engine_at(url)
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
    def fresh(self, url):
        return engine_at(url, parallel=1)


class TestAdapters(AdapterContract):
    prompt = chat("Remember this: " + "the quick brown fox jumps over the lazy dog. " * 6)
    other = chat("Recipes of bread need flour and water and salt. " * 6)
    names = ("first", "second")

    @pytest.fixture
    def engine(self, adapted):
        return adapted


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapted(shallow_model, tmp_path_factory):
    """A server with one slot and two adapters, which it does not apply by itself."""
    folder = tmp_path_factory.mktemp("adapters")
    files = [
        write_lora(folder / f"{name}.gguf", seed, layer=0) for seed, name in enumerate(TestAdapters.names, 1)
    ]
    with llama_http.running(shallow_model, slots=1, context=CONTEXT, adapters=files) as (url, _):
        engine = engine_at(url)
        await engine.start()
        yield engine
        await engine.stop()


async def test_adapters_have_the_names_of_their_files_and_prompts_are_cached_until_one_is_named(adapted):
    assert adapted.card.adapters == TestAdapters.names
    again = engine_at(adapted._options.model)  # one that has sent nothing yet
    await again.start()
    cached = []
    for lora in (None, None, (Adapter("first"),), (Adapter("first"),), None):
        chunks = await chunks_of(again, TestAdapters.prompt, 1, sampling=greedy(again, lora=lora))
        cached.append(sum(chunk.cached_tokens for chunk in chunks) > 0)
    await again.stop()
    assert cached[1:] == [True, False, False, False]


async def test_the_card_is_what_the_server_says(engine):
    card = engine.card
    assert card.name == "SmolLM2-135M-Instruct.Q4_1"
    assert card.context == CONTEXT
    assert "<|im_start|>" in card.chat_template
    assert (card.bos, card.eos) == ("<|im_start|>", "<|im_end|>")
    assert card.opening is None
    assert (card.defaults["temperature"], card.defaults["top_p"]) == (0.8, 0.95)


async def test_it_answers_as_the_embedded_engine_does(engine):
    embedded = LlamaCppEngine(resolve(None), llama_cpp.Options(context=CONTEXT, parallel=1, threads=1))
    await embedded.start()
    try:
        sampling = Sampling(temperature=0, logprobs=2)
        over_http, inside = [
            await chunks_of(each, EMOJIS, 16, sampling=sampling) for each in (engine, embedded)
        ]
    finally:
        await embedded.stop()
    assert text_of(over_http) == text_of(inside)
    for field in ("id", "text", "raw"):
        assert [getattr(each, field) for each in tokens_of(over_http)] == [
            getattr(each, field) for each in tokens_of(inside)
        ]


async def test_ids_of_characters_in_several_tokens_are_recovered(engine):
    chunks = await chunks_of(engine, EMOJIS, 15)
    assert any(len(chunk.tokens) > 1 for chunk in chunks)
    ids = [token.id for token in tokens_of(chunks)]
    assert -1 not in ids
    assert (await engine.detokenize(ids)).startswith(text_of(chunks))


async def test_the_end_of_turn_is_hidden_unless_preserved(engine):
    prompt = chat("What is the capital of France?")
    request = await request_of(engine, prompt, 60)
    chunks = await generated(engine, request)
    assert "<|im_end|>" not in text_of(chunks)
    assert finish_of(chunks).reason is FinishReason.STOP


async def test_a_prompt_that_is_too_long_is_refused(engine):
    ids = tuple(await engine.tokenize(["word " * (CONTEXT + 10)]))
    with pytest.raises(RequestError, match="context"):
        await generated(engine, GenerationRequest(Prompt("", ids), 3))
    await until(lambda: engine.load.idle)


async def test_the_prompt_cache_is_told(engine):
    request = await request_of(engine, chat("Tell me about the sea. " * 20), 2)
    await generated(engine, request)
    again = await generated(engine, request)
    assert sum(chunk.cached_tokens for chunk in again) > 50


async def test_a_connection_that_the_server_closed_is_replaced(engine):
    for _ in range(120):  # the server closes a connection after 100 requests
        await engine.tokenize(["hi"])
