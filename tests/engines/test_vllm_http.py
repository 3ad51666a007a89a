"""vLLM's own server as an upstream, on a loopback port: `make test-vllm`."""

import asyncio
import json
import re

import pytest
import pytest_asyncio

from antiphon.core.chunks import FinishReason
from antiphon.core.constraint import StructuralTag
from antiphon.core.turn import Sampling
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.engines.upstreams import metrics
from antiphon.run.inspect_upstream import inspect_upstream
from tests.contracts.engine import (
    EngineContract,
    chunks_of,
    finish_of,
    request_of,
    running,
    text_of,
    tokens_of,
)
from tests.engines import kv_connector
from tests.real_engine import VLLM_MODEL, vllm_server

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not VLLM_MODEL, reason="vLLM is not here: make test-vllm"),
    pytest.mark.timeout(900),
]

SLOTS = 3
CONTEXT = 2048


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    connector = kv_connector.config(str(tmp_path_factory.mktemp("prompts")))
    arguments = f"max_num_seqs={SLOTS}", f"max_model_len={CONTEXT}", f"kv_transfer_config={connector}"
    with vllm_server(VLLM_MODEL, *arguments) as address:
        yield address


def engine_at(url, parallel):
    return UpstreamEngine(Options(url, parallel=parallel))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(url):
    engine = engine_at(url, SLOTS)
    await engine.start()
    yield engine
    await engine.stop()


class TestContract(EngineContract):
    prompt = chat("Tell a long story about a fox.")
    others = tuple(chat(f"What is the capital of {country}?") for country in ("France", "Japan", "Peru"))
    slots = SLOTS

    @pytest.fixture
    def fresh(self, url):
        return engine_at(url, 1)


async def test_it_is_recognised_and_described(engine):
    assert engine.card.name == "smollm2"
    assert engine.card.context == CONTEXT
    assert "<|im_start|>" in (engine.card.chat_template or "")
    assert "--enable-scale-out" in engine.card.capabilities.media_remedy


async def test_a_structural_tag_holds_the_answer(engine):
    grammar = {"type": "grammar", "grammar": 'root ::= "<" [0-9]{2,4} ">" " é"?'}
    tag = StructuralTag(json.dumps({"type": "structural_tag", "format": grammar}))
    for prompt in TestContract.others:
        chunks = await chunks_of(engine, prompt, 30, constraint=tag)
        assert re.fullmatch("<[0-9]{2,4}>( é)?", text_of(chunks))
        assert finish_of(chunks).reason is FinishReason.STOP


async def test_beams_are_searched(engine):
    prompt = chat("Write a poem about the sea.")

    async def searched(width):
        sampling = Sampling(beam_width=width, logprobs=0, length_penalty=0)
        return await engine.search(await request_of(engine, prompt, 12, sampling=sampling))

    beams = await searched(4)
    totals = [sum(token.logprob for token in tokens_of(beam)) for beam in beams]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] >= sum(token.logprob for token in tokens_of((await searched(1))[0])) - 0.3
    for beam in beams:
        assert finish_of(beam).reason in {FinishReason.LENGTH, FinishReason.STOP}
    assert len({text_of(beam) for beam in beams}) == 4


async def test_it_tells_what_another_vllm_needs(engine):
    sampling = Sampling(temperature=0, kv_transfer_params={"do_remote_decode": True})
    chunks = await chunks_of(engine, chat("Tell me about the sea."), 1, sampling=sampling)
    assert len(tokens_of(chunks)) == 1
    told = finish_of(chunks).kv_transfer_params
    assert told["do_remote_prefill"] is True


async def test_its_cache_is_read_from_its_metrics(engine):
    before = await engine.cache_figures()
    request = await request_of(engine, chat("Tell a very long story about a wolf. " * 40), 200)
    async with running(engine, request):
        await asyncio.sleep(metrics.READ_SECONDS)
        during = await engine.cache_figures()
    await asyncio.sleep(metrics.READ_SECONDS)
    after = await engine.cache_figures()
    assert before.block_size > 0
    assert before.blocks > 0
    assert before.config["cache_dtype"]
    assert before.usage == 0 < during.usage < 1
    assert after.queries - before.queries >= len(request.prompt.ids)  # and those of tests before
    assert 0 <= after.hits <= after.queries


async def test_its_tasks_are_those_of_its_model(url):
    report = await asyncio.to_thread(inspect_upstream, Options(url))
    assert (report.tasks, report.possible_tasks) == (("generate",), ())
