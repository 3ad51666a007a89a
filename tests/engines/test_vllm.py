"""The vLLM engine with a fake vLLM, see `fake_vllm.py`: what must be exact, and how it fails."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from math import sqrt
from pathlib import Path
from types import SimpleNamespace

import httpx2 as httpx
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tokenizers import decoders

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.constraint import StructuralTag
from antiphon.core.errors import EngineDiedError, EngineError, EngineNotReadyError, RequestError
from antiphon.core.items import MediaKind, MediaPart
from antiphon.core.observation import OBSERVATION, Observation
from antiphon.core.turn import Adapter, Sampling
from antiphon.core.vectors import EmbeddingRequest, Embeddings
from antiphon.engines import vllm
from antiphon.engines.engine import Adapters, GenerationRequest, NextTokenRequest, Prompt, Task
from antiphon.engines.vllm import SILENT_SECONDS, Options
from antiphon.engines.vllm_arguments import engine_args
from antiphon.engines.vllm_next_token import MAX_NAMED
from antiphon.engines.vllm_stream import MOST_OF_A_CHARACTER, OutputReader, Vocabulary
from antiphon.engines.vllm_tokenizers import HuggingFaceCodec
from tests.contracts.engine import (
    PATIENCE,
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
from tests.engines import fake_vllm
from tests.engines.fake_vllm import EngineCoreOutput, FakeTokenizer
from tests.server import NO_TLS
from tests.server import running as antiphon_running

PLAYED = ("dtype=bfloat16", "enforce-eager=true")
CORE = """
import os, signal
if not os.fork():
    with open("/proc/self/comm", "w") as name:
        name.write("VLLM::Worker_TP0")
    print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ})
    fake_vllm.install(monkeypatch)


def made(*given, **options):
    return Options("org/model", vllm=(*PLAYED, *given), **options).build()


@pytest_asyncio.fixture
async def engine():
    engine = made(context=512, parallel=3)
    await engine.start()
    yield engine
    await engine.stop()


def llm_of(engine):
    """What the engine has begun, after which no other was."""
    llm = fake_vllm.AsyncLLM.last
    assert llm.args.model == engine.card.name
    return llm


class TestContract(EngineContract):
    prompt = "Tell a story: a"
    others = ("one c", "one h", "one q")
    slots = 3
    draws = False

    @pytest.fixture
    def fresh(self):
        return made(context=64, parallel=1)


# Next tokens


async def next_tokens(engine, beginning="x" * 200, tokens=(1, 2), ends=("a", "b")):
    prompts = [Prompt(text, tuple(await engine.tokenize([text]))) for text in (beginning, *ends)]
    return NextTokenRequest(prompts[0], (*prompts[1:],), (tokens,) * len(ends), Sampling(cache_salt="s"))


def sent_to(engine):
    return llm_of(engine).input_processor.seen


async def test_more_tokens_than_a_request_may_name_take_several(engine):
    tokens = tuple(range(MAX_NAMED + 2))
    results = await engine.score_next(await next_tokens(engine, tokens=tokens))
    assert all(result.complete and {*tokens} <= {one.id for one in result.candidates} for result in results)
    params = [request.sampling_params for request in sent_to(engine)]
    assert sorted(len(one.logprob_token_ids) for one in params) == [2, 2, MAX_NAMED, MAX_NAMED]
    assert {(one.max_tokens, one.temperature) for one in params} == {(1, 0)}
    assert {request.cache_salt for request in sent_to(engine)} == {"s"}


@pytest.mark.parametrize(("model", "requests"), [("org/model", 2), ("org/hybrid", 3)])
async def test_a_hybrid_model_computes_the_beginning_first(model, requests):
    engine = Options(model, vllm=PLAYED, context=512).build()
    await engine.start()
    await engine.score_next(await next_tokens(engine))
    sizes = [len(request.prompt_token_ids) for request in sent_to(engine)]
    await engine.stop()
    assert len(sizes) == requests
    assert (sizes[0] < sizes[1]) is (requests == 3)


async def test_logits_are_no_log_probabilities():
    engine = made("logprobs_mode=raw_logits")
    await engine.start()
    with pytest.raises(EngineError, match="logprobs_mode=raw_logprobs"):
        await engine.score_next(await next_tokens(engine))
    await engine.stop()


# Arguments


def arguments(*given):
    return engine_args("org/model", given, {})


async def test_arguments_are_read_by_vllms_own_parser():
    engine = made("tensor-parallel-size=2", "allowed_media_domains=a.org,b.org", context=99, parallel=5)
    await engine.start()
    args = llm_of(engine).args
    await engine.stop()
    assert (args.model, args.dtype, args.tensor_parallel_size) == ("org/model", "bfloat16", 2)
    assert (args.max_model_len, args.max_num_seqs) == (99, 5)
    assert args.allowed_media_domains == ["a.org", "b.org"]
    assert (args.enforce_eager, args.disable_log_stats) == (True, True)
    assert arguments('allowed_media_domains=["c,d"]', "enforce_eager=false").allowed_media_domains == ["c,d"]
    assert arguments("enforce_eager=false").enforce_eager is False
    assert arguments("enforce_eager").enforce_eager is True
    read = arguments('structured_outputs_config={"backend": "xgrammar"}')
    assert read.structured_outputs_config.backend == "xgrammar"
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "tensor_paralel_size=2",
            "no engine argument 'tensor_paralel_size'. Did you mean tensor_parallel_size?",
        ),
        ("xyz=1", "vLLM has no engine argument 'xyz'."),
        (
            "tensor_parallel_size=two",
            "--vllm: argument --tensor-parallel-size/-tp: invalid int value: 'two'.",
        ),
        ("dtype=int3", "invalid choice"),
        ("enforce_eager=maybe", "enforce_eager is true or false, not 'maybe'"),
        ("model=org/other", "--vllm model is not supported: the model is the argument of `antiphon serve`"),
        ("enable_log_requests=true", "is not supported"),
        ('structured_outputs_config={"backend": "outlines"}', "the backend outlines is not supported"),
        ("max_model_len=9", "'max_model_len' is given by an option of Antiphon and by --vllm"),
    ],
)
def test_arguments_that_vllm_does_not_have_or_cannot_read_are_refused(given, message):
    with pytest.raises(EngineError) as raised:
        made(given, context=512)
    assert message in raised.value.message


async def test_what_vllm_cannot_load_is_said():
    with pytest.raises(
        EngineError, match=r"vLLM cannot load org/nothing: There is no repository org/nothing\.$"
    ):
        Options("org/nothing").build()
    engine = Options("org/broken").build()
    with pytest.raises(EngineError, match="vLLM cannot load org/broken: Engine core initialization failed"):
        await engine.start()
    await engine.stop()
    assert engine.load.idle


def test_without_vllm_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "vllm.engine.arg_utils", None)
    with pytest.raises(EngineError, match=r"pip install .*\[vllm\]'"):
        made()


# The card


async def test_the_card_is_what_vllm_has_loaded(engine):
    card = engine.card
    assert (card.name, card.context, card.eos, card.bos) == ("org/model", 512, "<|im_end|>", "")
    assert card.known_as == ("LlamaForCausalLM", "llama", "org/model")
    assert card.chat_template == FakeTokenizer.chat_template
    assert card.opening is None
    # Of the model's generation_config: what says how tokens are drawn.
    assert card.defaults == {"temperature": 0.6, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0}


async def test_of_several_templates_the_default_is_taken(monkeypatch):
    monkeypatch.setattr(FakeTokenizer, "chat_template", {"default": "A", "tool_use": "B"})
    engine = made()
    await engine.start()
    assert engine.card.chat_template == "A"
    await engine.stop()


# Requests


async def asked(engine, sampling=Sampling(), **more):  # noqa: B008 (frozen)
    """What vLLM got for a request with this sampling."""
    request = await request_of(engine, "a", 3, sampling=sampling, **more)
    await generated(engine, request)
    return llm_of(engine).input_processor.seen[-1]


async def test_sampling_becomes_vllms_own(engine):
    sampling = Sampling(
        top_p=0,
        top_k=-1,
        min_p=0.1,
        repetition_penalty=1.2,
        logit_bias={5: 1.5},
        banned_tokens=(7,),
        seed=-1,
        min_tokens=2,
        stop_token_ids=(200,),
        ignore_eos=True,
        bad_words=("bad",),
        logprobs=2,
        priority=4,
        cache_salt="salt",
        allowed_token_ids=(1, 2),
        vllm_xargs={"window": 3},
        data_parallel_rank=1,
    )
    request = await asked(engine, sampling)
    assert vars(request.sampling_params) == {
        "max_tokens": 3,
        "skip_clone": True,
        "temperature": 0.6,  # the model's own
        "top_p": 1e-9,
        "top_k": -1,
        "min_p": 0.1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "repetition_penalty": 1.2,
        "logit_bias": {5: 1.5, 7: float("-inf")},
        "seed": 2**63 - 1,
        "min_tokens": 2,
        "stop_token_ids": [200],
        "ignore_eos": True,
        "bad_words": ["bad"],
        "allowed_token_ids": [1, 2],
        "extra_args": {"window": 3},
        "logprobs": 2,
    }
    assert (request.priority, request.cache_salt, request.data_parallel_rank) == (4, "salt", 1)
    assert request.external_req_id == request.request_id


async def test_a_kv_connector_is_told_what_it_can_act_on(engine):
    pulled = Sampling(kv_transfer_params={"do_remote_prefill": True})
    with pytest.raises(RequestError, match="no KV connector") as raised:
        await asked(engine, pulled)
    assert raised.value.param == "kv_transfer_params"
    llm_of(engine).vllm_config.kv_transfer_config = object()
    extra = (await asked(engine, pulled)).sampling_params.extra_args
    assert extra == {"kv_transfer_params": {"do_remote_prefill": True}}


# Of what vLLM's NixlConnector says, in `distributed/kv_transfer/kv_connector/v1/nixl`
PULL = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [4, 7], "remote_host": "a"}
DECODED_ELSEWHERE = {"kv_transfer_params": {"do_remote_decode": True}, "max_tokens": 1}
ASKED = {
    "chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "completions": {"prompt": "a"},
    "responses": {"input": "a"},
}


@asynccontextmanager
async def connected():
    """A vLLM with a KV connector, and a client of a server with it."""
    engine = made(context=512, parallel=3)
    async with (
        antiphon_running(engine, model_name=("m",)) as server,
        httpx.AsyncClient(base_url=server.url, verify=NO_TLS, timeout=30) as client,
    ):
        llm_of(engine).vllm_config.kv_transfer_config = object()

        async def post(api, **more):
            response = await client.post(f"/v1/{api}", json={"model": "m", **ASKED[api], **more})
            return response.status_code, response.json()

        yield llm_of(engine).engine_core, post


@pytest.mark.parametrize("api", ["chat/completions", "completions"])
async def test_an_answer_tells_what_the_vllm_needs_that_goes_on(api):
    async with connected() as (core, post):
        core.script = [EngineCoreOutput(new_token_ids=[97], finish_reason="length", kv_transfer_params=PULL)]
        status, body = await post(api, **DECODED_ELSEWHERE)
        assert (status, body["kv_transfer_params"]) == (200, PULL)
        _, body = await post(api, max_tokens=1)
        assert "kv_transfer_params" not in body


@pytest.mark.parametrize(
    ("api", "more"),
    [
        ("chat/completions", {"stream": True}),
        ("chat/completions", {"n": 2}),
        ("completions", {"prompt": ["a", "b"]}),
        ("completions", {"best_of": 2}),
        ("responses", {"max_tokens": None}),
    ],
)
async def test_who_cannot_be_told_does_not_have_it_computed(api, more):
    async with connected() as (_, post):
        status, body = await post(api, **DECODED_ELSEWHERE | more)
        assert (status, body["error"]["param"]) == (400, "kv_transfer_params")
        assert "do_remote_decode" in body["error"]["message"]


async def test_vllm_does_not_look_at_each_token_of_a_prompt_that_fits(engine, monkeypatch):
    processor, lengths = llm_of(engine).input_processor, []
    process = processor.process_inputs

    def counted(request_id, prompt, *given, **named):
        lengths.append(len(prompt["prompt_token_ids"]))
        return process(request_id, prompt, *given, **named)

    monkeypatch.setattr(processor, "process_inputs", counted)
    for size in (5, 511, 512):  # the last one does not fit: vLLM says so
        request = GenerationRequest(Prompt("x" * size, (1,) * size), max_tokens=1)
        await generated(engine, request)
        assert [*sent_to(engine)[-1].prompt_token_ids] == [1] * size
    assert lengths == [1, 1, 512]


async def test_a_constraint_holds_from_the_first_token_on(engine):
    request = await asked(engine, constraint=StructuralTag("{}"))
    assert request.sampling_params.structured_outputs.structural_tag == "{}"
    assert request.reasoning_ended is True
    assert (await asked(engine)).reasoning_ended is None
    with pytest.raises(RequestError) as raised:
        await asked(engine, Sampling(ignore_eos=True), constraint=StructuralTag("{}"))
    assert raised.value.param == "ignore_eos"


async def test_images_are_given_at_their_placeholders(engine):
    assert engine.card.capabilities.media == frozenset()
    with_images = Options("org/images", vllm=PLAYED, context=512).build()
    await with_images.start()
    assert with_images.card.capabilities.media == {MediaKind.IMAGE}
    media = tuple(MediaPart(MediaKind.IMAGE, each, "image/png", each.encode()) for each in ("cat", "house"))
    text = "a*b*a"
    prompt = Prompt(text, tuple(await with_images.tokenize([text])), media)
    request = GenerationRequest(prompt, 3, Sampling())
    chunks = await generated(with_images, request)
    assert text_of(chunks) == "bcd"
    assert [chunk.media_tokens for chunk in chunks] == [len("cat") + len("house") - 2, 0, 0]
    [given] = llm_of(with_images).renderer.seen
    assert given["multi_modal_uuids"] == {"image": ["cat", "house"]}
    [made] = llm_of(with_images).input_processor.seen
    assert len(made.prompt_token_ids) == len(prompt.ids) + 6

    lost = replace(request, prompt=replace(prompt, ids=prompt.ids[:2]))
    with pytest.raises(RequestError, match="more images than placeholders"):
        await generated(with_images, lost)
    for param, sampling, ask in (
        ("prompt_logprobs", Sampling(prompt_logprobs=1), with_images.score_prompt),
        ("use_beam_search", Sampling(beam_width=2), with_images.search),
    ):
        with pytest.raises(RequestError) as error:
            await ask(replace(request, sampling=sampling))
        assert error.value.param == param
    await with_images.stop()


async def test_prompts_with_images_get_the_adapter_for_images():
    paths = 'default_mm_loras={"image": "/eyes", "audio": "/ears"}'
    engine = Options("org/images", vllm=(*PLAYED, paths), context=512).build()
    await engine.start()
    await engine.load_adapter("poet", "/poet")
    media = (MediaPart(MediaKind.IMAGE, "cat", "image/png", b"cat"),)
    seen = Prompt("a*b", tuple(await engine.tokenize(["a*b"])), media)
    unseen = Prompt("ab", tuple(await engine.tokenize(["ab"])))
    for prompt, adapter, path in (
        (seen, None, "/eyes"),
        (seen, "poet", "/poet"),
        (unseen, None, None),
        (unseen, "poet", "/poet"),
    ):
        await generated(engine, GenerationRequest(prompt, 1, Sampling(lora=adapter and (Adapter(adapter),))))
        chosen = llm_of(engine).input_processor.seen[-1].lora_request
        assert (chosen and chosen.lora_path) == path
    await engine.stop()


async def test_a_model_that_pools_makes_vectors(engine):
    assert engine.card.capabilities.tasks == {Task.GENERATE}
    pooling = Options("org/embeds", vllm=PLAYED, context=20, parallel=2).build()
    await pooling.start()
    assert pooling.card.capabilities.tasks == {Task.EMBED}
    ids = tuple(await pooling.tokenize(["zzz"]))
    found = await pooling.embed(EmbeddingRequest(("aaa", "aaazzz", ids)))
    assert found == Embeddings(([1, 0], [sqrt(0.5)] * 2, [0, 1]), 12)
    long = "a" * 10 + "z" * 20
    ends = [
        await pooling.embed(EmbeddingRequest((long,), truncate=most, keep_end=keep_end))
        for most, keep_end in ((10, False), (10, True), (-1, False))
    ]
    half = [pytest.approx(sqrt(0.5))] * 2
    assert [each.vectors for each in ends] == [([1, 0],), ([0, 1],), (half,)]
    assert [each.tokens for each in ends] == [10, 10, 20]
    for bad, param in (
        (EmbeddingRequest((long,)), "input"),
        (EmbeddingRequest(("a",), dimensions=1), "dimensions"),
        (EmbeddingRequest(((10**8,),)), "tokens"),
    ):
        with pytest.raises(RequestError) as error:
            await pooling.embed(bad)
        assert error.value.param == param
    assert pooling.load.idle
    await pooling.stop()


@pytest.mark.parametrize(("model", "last"), [("org/ranks", 0.5), ("org/ranks-untyped", 1 / 6)])
async def test_a_model_that_compares_texts_ranks(model, last):
    ranking = Options(model, vllm=PLAYED, context=20, parallel=2).build()
    await ranking.start()
    assert ranking.card.capabilities.tasks == {Task.RANK}
    found = await ranking.score([("abc", "abc"), ("ab", "abyz")])
    assert (found.scores[-1], found.tokens) == (last, 7 + 7)
    for long in (30, 20 * 128):
        with pytest.raises(RequestError) as error:
            await ranking.score([("abc", "a" * long)])
        assert error.value.code == "context_length_exceeded"
    assert ranking.load.idle
    await ranking.stop()


async def test_a_model_that_tells_classes_apart_does_nothing_here():
    telling = Options("org/classifies", vllm=PLAYED).build()
    await telling.start()
    assert not telling.card.capabilities.tasks
    await telling.stop()


async def test_what_vllm_refuses_names_the_parameter(engine):
    with pytest.raises(RequestError) as raised:
        await asked(engine, Sampling(temperature=3))
    assert raised.value.param == "temperature"
    assert raised.value.message == "vLLM refuses this: temperature must be in [0, 2], got 3."
    await until(lambda: engine.load.idle)


async def test_what_is_not_wanted_any_more_is_ended_in_vllm(engine):
    async with running(engine, await request_of(engine, "a", 200)) as (work, _):
        work.cancel()
    await until(lambda: bool(llm_of(engine).engine_core.aborted))
    await chunks_of(engine, "a", 2)
    assert len(llm_of(engine).engine_core.aborted) == 1  # not what vLLM ended itself


async def test_the_trace_of_a_request_goes_on(engine):
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    token = OBSERVATION.set(Observation(trace=headers))
    assert (await asked(engine)).trace_headers == headers
    await engine.score_prompt(await request_of(engine, "ab", 3, sampling=Sampling(prompt_logprobs=0)))
    OBSERVATION.reset(token)
    assert llm_of(engine).input_processor.seen[-1].trace_headers == headers
    assert (await asked(engine)).trace_headers is None


# Prompts and beams


@pytest.mark.parametrize(("most", "alternatives"), [(None, 20), (50, 50), (-1, 258)])
async def test_it_gives_as_many_alternatives_as_it_was_started_for(most, alternatives):
    engine = made(*([] if most is None else [f"max_logprobs={most}"]))
    await engine.start()
    assert engine.card.capabilities.alternatives == alternatives
    await engine.stop()


async def test_the_tokens_of_a_prompt_are_scored_with_their_bytes(engine):
    request = await request_of(engine, "a<|im_end|>é", 3, sampling=Sampling(prompt_logprobs=1))
    tokens = await engine.score_prompt(request)
    assert [token.id for token in tokens] == [*request.prompt.ids]
    assert [token.text for token in tokens] == ["a", "<|im_end|>", "", "é"]
    assert [token.raw for token in tokens] == [None, None, *(bytes([byte]) for byte in "é".encode())]
    assert [(token.logprob, token.rank) for token in tokens] == [(None, None), (0, 7), (0, 8), (0, 9)]
    assert [[top.text for top in token.top] for token in tokens] == [[], ["a"], ["a"], ["a"]]


async def test_beams_are_the_likeliest_answers_the_best_first(engine):
    request = await request_of(engine, "a", 3, sampling=Sampling(beam_width=3, logprobs=1))
    beams = await engine.search(request)
    # The next letter is the likeliest, then the first ones of the alphabet.
    assert [text_of(beam) for beam in beams] == ["bcd", "bca", "bab"]
    assert finish_of(beams[0]) == Finish(FinishReason.LENGTH)
    assert [token.logprob for token in tokens_of(beams[1])] == [-0.5, -0.5, -1.5]
    assert [len(token.top) for token in tokens_of(beams[1])] == [1, 1, 1]
    asked_for = llm_of(engine).input_processor.seen[-1].sampling_params
    assert (asked_for.max_tokens, asked_for.logprobs) == (1, 6)
    assert engine.load.idle


async def test_a_token_of_the_client_ends_a_beam(engine):
    [stop] = await engine.tokenize(["c"])
    request = await request_of(engine, "a", 9, sampling=Sampling(beam_width=1, stop_token_ids=(stop,)))
    [beam] = await engine.search(request)
    assert (text_of(beam), finish_of(beam)) == ("b", Finish(FinishReason.STOP, stop))
    assert [token.logprob for token in tokens_of(beam)] == [None, None]


async def test_more_beams_than_vllm_gives_log_probabilities_for_are_refused(engine):
    request = await request_of(engine, "a", 3, sampling=Sampling(beam_width=11))
    with pytest.raises(RequestError, match="at most 10 beams") as raised:
        await engine.search(request)
    assert raised.value.param == "n"


async def test_a_search_ends_with_vllm(engine):
    work = asyncio.create_task(
        engine.search(await request_of(engine, "a", 400, sampling=Sampling(beam_width=2)))
    )
    await until(lambda: engine.load.running == 1)
    llm_of(engine).engine_core.dies = True
    with pytest.raises(EngineError):
        await work
    assert engine.load.idle


async def test_a_search_that_is_not_wanted_any_more_is_ended_in_vllm(engine):
    llm_of(engine).engine_core.held = True
    work = asyncio.create_task(
        engine.search(await request_of(engine, "a", 400, sampling=Sampling(beam_width=2)))
    )
    await until(lambda: engine.load.running == 1)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await until(lambda: len(llm_of(engine).engine_core.aborted) == 1)
    assert engine.load.idle


@pytest.mark.parametrize("method", ["search", "score_prompt"])
async def test_a_search_that_vllm_gives_up_fails(engine, method):
    llm_of(engine).engine_core.script = [EngineCoreOutput(new_token_ids=[], finish_reason="error")]
    with pytest.raises(EngineError):
        await getattr(engine, method)(await request_of(engine, "a", 3, sampling=Sampling(beam_width=1)))


# Adapters


async def test_adapters_are_loaded_by_name_and_stay_when_it_is_started_again(engine):
    assert isinstance(engine, Adapters)
    with pytest.raises(RequestError, match="enable_lora") as raised:
        await engine.load_adapter("poet", "/poet")
    assert (raised.value.param, engine.adapters) == ("lora_path", {})
    llm_of(engine).vllm_config.lora_config = SimpleNamespace(default_mm_loras=None, max_loras=4)
    await engine.load_adapter("poet", "/poet")
    assert engine.adapters == {"poet": "/poet"}
    await engine.load_adapter("poet", "/poet")  # once more: it may have changed
    assert [*llm_of(engine).engine_core.adapters.values()] == ["poet"]
    assert (await asked(engine, Sampling(lora=(Adapter("poet"),)))).lora_request.lora_path == "/poet"
    assert (await asked(engine)).lora_request is None
    with pytest.raises(RequestError, match="No adapter found") as raised:
        await engine.load_adapter("other", "nowhere")
    assert raised.value.param == "lora_path"
    await engine.unload_adapter("poet")
    assert (engine.adapters, llm_of(engine).engine_core.adapters) == ({}, {})
    with pytest.raises(EngineError, match="no adapter 'poet'"):
        await asked(engine, Sampling(lora=(Adapter("poet"),)))


async def test_the_figures_of_the_cache_are_those_of_the_schedulers(engine):
    core = llm_of(engine).engine_core
    assert (await engine.cache_figures()).usage == 0.0
    core.held = True
    llm_of(engine).vllm_config.lora_config = SimpleNamespace(default_mm_loras=None, max_loras=4)
    await engine.load_adapter("poet", "/poet")
    works = [
        engine.generate(
            await request_of(engine, "a", 400, sampling=Sampling(lora=adapter and (Adapter(adapter),))),
            Collected(),
        )
        for adapter in ("poet", None, None, "poet")  # the last waits
    ]
    core.held = False
    async with asyncio.timeout(PATIENCE):
        while (figures := await engine.cache_figures()).usage != 3 / 16:
            await asyncio.sleep(0)  # about a step: none ends before
    core.held = True
    assert (figures.block_size, figures.blocks) == (16, 100)
    assert figures.config == {"cache_dtype": "auto"}
    assert figures.hits / figures.queries == 0.4
    assert figures.adapters is not None
    assert (figures.adapters.running, figures.adapters.waiting) == ({"poet"}, {"poet"})
    assert figures.adapters.maximum == 4
    for work in works:
        work.cancel()
    assert (await engine.cache_figures()).usage == 0.0
    core.held = False
    await engine.stop()
    assert (await engine.cache_figures()).usage is None


async def test_adapters_may_be_loaded_before_it_starts(monkeypatch):
    engine = made()
    await engine.load_adapter("poet", "/poet")
    with pytest.raises(RequestError, match="enable_lora"):
        await engine.start()
    await engine.stop()


# Messages of the core


async def test_outputs_are_read_without_vllms_task_and_other_messages_by_it(engine):
    core = llm_of(engine).engine_core
    assert text_of(await chunks_of(engine, "a", 3)) == "bcd"
    assert core.read_by_task == []
    result = SimpleNamespace(outputs=[], utility_output="the result of a call")
    core.resources.output_socket.arrive(result)
    await until(lambda: core.read_by_task)
    assert core.read_by_task == [result]
    assert text_of(await chunks_of(engine, "a", 3)) == "bcd"


async def test_a_message_of_several_parts_is_one_message(engine):
    core = llm_of(engine).engine_core
    core.held = True
    receiver = Collected()
    engine.generate(await request_of(engine, "a", 1), receiver)
    await until(lambda: core.requests)
    [request_id] = core.requests
    ids = await engine.tokenize(["a"])
    output = EngineCoreOutput(request_id=request_id, new_token_ids=ids, finish_reason="length")
    core.resources.output_socket.arrive(
        SimpleNamespace(outputs=[output], utility_output=None, scheduler_stats=None), more=2
    )
    assert text_of(await receiver.whole()) == "a"


async def test_vllms_task_reads_all_messages_if_it_counts_outputs(monkeypatch):
    monkeypatch.setattr(fake_vllm.EngineCore, "process_engine_outputs", True, raising=False)
    engine = made(context=512, parallel=3)
    await engine.start()
    assert text_of(await chunks_of(engine, "a", 3)) == "bcd"
    assert len(llm_of(engine).engine_core.read_by_task) == 3
    await engine.stop()


async def test_a_socket_that_fails_is_the_end_of_vllm(engine):
    core = llm_of(engine).engine_core
    core.held = True
    receiver = Collected()
    engine.generate(await request_of(engine, "a", 1), receiver)
    core.resources.output_socket.plain.broken = True
    core.resources.output_socket.arrive("anything")
    with pytest.raises(EngineDiedError, match="ended in the middle"):
        await receiver.whole()


# Failures


@pytest.mark.parametrize("seen", ["reading", "sending", "process"])
async def test_a_dead_vllm_ends_what_runs_and_refuses_what_comes(engine, seen):
    receivers = [Collected() for _ in range(5)]
    last = engine.generate(await request_of(engine, "a", 200), Collected())
    for receiver in receivers:
        engine.generate(await request_of(engine, "a", 200), receiver)
    await until(receivers[0].begun.is_set)
    core = llm_of(engine).engine_core
    if seen == "reading":
        core.dies = True
    elif seen == "sending":
        core.unreachable = True
        last.cancel()
    else:
        os.write(core.end[1], b"x")
    for receiver in receivers:
        with pytest.raises(EngineDiedError, match="ended in the middle"):
            await receiver.whole()
    assert engine.load.idle
    with pytest.raises(EngineNotReadyError):
        await engine.tokenize(["a"])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell")
@pytest.mark.parametrize("which", ["core", "worker"])
async def test_a_vllm_that_is_killed_is_dead_before_its_memory_is_free(monkeypatch, which):
    core = subprocess.Popen([sys.executable, "-S", "-c", CORE], stdout=subprocess.PIPE)  # noqa: ASYNC220, S603
    worker = int(await asyncio.to_thread(core.stdout.readline))
    monkeypatch.setattr(fake_vllm.EngineCore, "processes", [core])  # what is its sentinel says nothing
    engine = made(context=512, parallel=3)
    await engine.start()
    try:
        llm_of(engine).engine_core.held = True
        receiver = Collected()
        engine.generate(await request_of(engine, "a", 200), receiver)
        await asyncio.sleep(2.5 * SILENT_SECONDS)
        assert engine.load.running == 1  # it is silent, but alive
        assert engine.up
        monkeypatch.setattr(vllm, "HUNG_CHECKS", 1)  # for long
        assert not engine.up
        os.kill(worker if which == "worker" else core.pid, signal.SIGKILL)
        with pytest.raises(EngineDiedError, match="ended in the middle"):
            await receiver.whole()
        with pytest.raises(EngineNotReadyError):
            await engine.tokenize(["a"])
    finally:
        os.kill(worker, signal.SIGKILL)
        core.kill()
        core.communicate()
        await engine.stop()


async def test_an_answer_that_vllm_gives_up_fails_alone(engine):
    llm_of(engine).engine_core.script = [EngineCoreOutput(new_token_ids=[], finish_reason="error")]
    with pytest.raises(EngineError):
        await chunks_of(engine, "a", 3)
    assert text_of(await chunks_of(engine, "a", 3)) == "bcd"


async def test_a_receiver_that_raises_does_not_stop_the_others(engine):
    class Raising(Collected):
        def push(self, chunks):
            super().push(chunks)
            raise ValueError

    raising, other = Raising(), Collected()
    for receiver in (raising, other):
        engine.generate(await request_of(engine, "a", 3), receiver)
    assert text_of(await other.whole()) == "bcd"


# Text of tokens


def output(*ids, **more):
    return EngineCoreOutput(request_id="", new_token_ids=[*ids], **more)


class Reading:
    """A reader of outputs, and the tokenizer whose ids they have."""

    def __init__(self, tokenizer=None, before="", **options):
        self.tokenizer = tokenizer or FakeTokenizer()
        self.vocabulary = Vocabulary(HuggingFaceCodec(self.tokenizer))
        ids = tuple(self.vocabulary.encode(before))
        self.reader = OutputReader(self.vocabulary, GenerationRequest(Prompt(before, ids), 9, **options))

    def ids(self, text):
        return self.vocabulary.encode(text)

    def read(self, *ids, **more):
        return self.reader.read(output(*ids, **more))


class PlainTokenizer(FakeTokenizer):
    """One that is not Hugging Face's."""

    def __init__(self):
        super().__init__()
        self.inner, self._tokenizer = self._tokenizer, None
        self.added_tokens_decoder = {}
        self.all_special_tokens = ["<|im_start|>", "<|im_end|>"]
        self.all_special_ids = [256, 257]

    def __getattribute__(self, name):
        if name in ("encode", "decode", "convert_ids_to_tokens", "__len__"):
            real = FakeTokenizer()
            return getattr(real, name)
        return super().__getattribute__(name)

    def __len__(self):
        return 258


@pytest.mark.parametrize("tokenizer", [FakeTokenizer, PlainTokenizer])
def test_the_tokens_of_a_character_come_together(tokenizer):
    reading = Reading(tokenizer(), before="Say: ")
    ids = reading.ids("aé🎉b")
    chunks = [chunk for token in ids if (chunk := reading.read(token))]
    assert [chunk.text for chunk in chunks] == ["a", "é", "🎉", "b"]
    assert [token.id for token in tokens_of(chunks)] == ids
    assert [token.text for token in chunks[2].tokens] == ["", "", "", "🎉"]


class WritingTokenizer(FakeTokenizer):
    """One with these decoders, and tokens of any names."""

    def __init__(self, decoder):
        super().__init__()
        self._tokenizer.decoder = decoder

    def ids(self, names):
        self._tokenizer.add_tokens(names)
        return [self._tokenizer.token_to_id(name) for name in names]


def llama_decoder():
    """What writes the text of Llama 2, Mistral and Gemma, where "▁" is a space, of which the first is none."""
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(parts)


@pytest.mark.parametrize(
    "decoder",
    [decoders.ByteLevel, llama_decoder, decoders.Metaspace, decoders.WordPiece, decoders.BPEDecoder],
)
@given(st.lists(st.sampled_from(["a", "▁b", "Ġc", "##d", "e</w>", "'s", ".", "<0x41>", "fĠ", "▁"])))
def test_one_by_one_tokens_write_what_they_write_together(decoder, names):
    tokenizer = WritingTokenizer(decoder())
    first, *ids = tokenizer.ids(["x", *names])
    reader = OutputReader(Vocabulary(HuggingFaceCodec(tokenizer)), GenerationRequest(Prompt("", (first,)), 9))
    chunks = [chunk for token in ids if (chunk := reader.read(output(token)))]
    whole, before = (tokenizer.decode(each, skip_special_tokens=False) for each in ([first, *ids], [first]))
    assert before + text_of(chunks) == whole


def test_several_tokens_of_a_step_are_one_chunk():
    reading = Reading()
    chunk = reading.read(*reading.ids("aé")[:2])
    assert [token.text for token in chunk.tokens] == ["a"]
    chunk = reading.read(*reading.ids("éb")[1:])
    assert [token.text for token in chunk.tokens] == ["", "é", "b"]


def test_cached_tokens_are_told_with_the_first_output():
    reading = Reading()
    assert (
        reading.read(*reading.ids("a"), prefill_stats=SimpleNamespace(num_cached_tokens=7)).cached_tokens == 7
    )
    begun = reading.ids("é")[0]
    assert reading.read(begun, prefill_stats=SimpleNamespace(num_cached_tokens=7)) == Chunk("", (), None, 7)


def test_special_tokens_are_hidden_unless_preserved():
    reading = Reading(preserve=frozenset({"<|im_start|>"}))
    start, end = reading.ids("<|im_start|><|im_end|>")
    assert reading.read(start) == Chunk("<|im_start|>", (Token(start, "<|im_start|>"),))
    assert reading.read(end) == Chunk("", (Token(end, ""),))


def test_all_special_tokens_are_shown_if_they_are_wanted_but_the_end():
    reading = Reading(sampling=Sampling(skip_special_tokens=False))
    start, end = reading.ids("<|im_start|><|im_end|>")
    assert reading.read(start) == Chunk("<|im_start|>", (Token(start, "<|im_start|>"),))
    assert reading.read(start, end).text == "<|im_start|><|im_end|>"
    assert reading.read(end, finish_reason="stop").text == ""


@pytest.mark.parametrize(("preserve", "shown"), [((), ""), (("<|im_end|>",), "<|im_end|>")])
def test_the_end_of_turn_is_shown_if_it_is_a_marker(preserve, shown):
    reading = Reading(preserve=frozenset(preserve))
    [end] = reading.ids("<|im_end|>")
    finish = Finish(FinishReason.STOP)
    assert reading.read(end, finish_reason="stop") == Chunk(shown, (Token(end, shown),), finish)


def test_a_token_that_the_client_stops_at_is_hidden():
    reading = Reading(
        sampling=Sampling(stop_token_ids=(FakeTokenizer().encode("b", add_special_tokens=False)[0],))
    )
    [stop] = reading.ids("b")
    chunk = reading.read(stop, finish_reason="stop", stop_reason=stop)
    assert chunk == Chunk("", (Token(stop, ""),), Finish(FinishReason.STOP, stop))


def test_half_a_character_at_the_end_is_counted():
    reading = Reading()
    begun, *_ = reading.ids("é")
    assert reading.read(begun) is None
    assert reading.read(begun, finish_reason="length").tokens == (Token(begun, ""), Token(begun, ""))


def test_bytes_that_are_no_character_do_not_wait_for_ever():
    reading = Reading()
    begun, *_ = reading.ids("é")
    chunks = [reading.read(begun) for _ in range(MOST_OF_A_CHARACTER)]
    assert chunks[:-1] == [None] * (MOST_OF_A_CHARACTER - 1)
    assert set(chunks[-1].text) == {"\ufffd"}
    assert len(chunks[-1].tokens) == MOST_OF_A_CHARACTER
    assert reading.read(*reading.ids("a")).text == "a"


def test_a_prompt_that_ends_within_a_character_is_no_part_of_the_answer():
    tokenizer = FakeTokenizer()
    reading = Reading(tokenizer)
    ids = tuple(reading.ids("ab é")[:-1])
    reader = OutputReader(reading.vocabulary, GenerationRequest(Prompt("", ids), 9))
    assert reader.read(output(*reading.ids("x"))).text == "x"


def test_the_bytes_of_scored_tokens_are_told():
    reading = Reading(sampling=Sampling(logprobs=1))
    ids = reading.ids("é")

    def scores(token, other):
        lists = fake_vllm.LogprobsLists(fake_vllm.Array([[token, other]]), fake_vllm.Array([[-0.5, -0.25]]))
        return {"new_logprobs": lists}

    assert reading.read(ids[0], **scores(ids[0], ids[1])) is None
    chunk = reading.read(ids[1], **scores(ids[1], *reading.ids("a")))
    first, last = chunk.tokens
    assert (first.text, first.raw, last.text, last.raw) == ("", "é".encode()[:1], "é", "é".encode()[1:])
    assert (first.logprob, last.logprob) == (-0.5, -0.5)
    [candidate] = first.top
    assert (candidate.id, candidate.text, candidate.logprob) == (ids[1], "\ufffd", -0.25)
    assert candidate.raw == "é".encode()[1:]
    assert (last.top[0].text, last.top[0].raw) == ("a", None)


async def test_the_whole_of_an_answer_is_its_tokens(engine):
    chunks = await chunks_of(engine, "Tell: a", 4)
    assert finish_of(chunks) == Finish(FinishReason.LENGTH)
    assert text_of(chunks) == "bcde"
