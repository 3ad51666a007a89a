"""The engine over HTTP, with servers that are canned, or that are Antiphon itself.

What vLLM and SGLang are made to say here was recorded from vLLM 0.32.0 (`vllm serve`) and SGLang 0.5.23, with
SmolLM2 on a CPU.
"""

import asyncio
import json
import os
import sys

import httpx2 as httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from antiphon.core.chunks import Candidate, Finish, FinishReason, PromptToken, Token
from antiphon.core.constraint import Gbnf, StructuralTag
from antiphon.core.errors import EngineBusyError, EngineError, EngineNotReadyError, RequestError
from antiphon.core.items import MediaKind, MediaPart
from antiphon.core.observation import OBSERVATION, Observation
from antiphon.core.turn import Adapter, Sampling
from antiphon.engines import samplers
from antiphon.engines.engine import GenerationRequest, Placement, Prompt
from antiphon.engines.scripted import TEMPLATE as CHATML
from antiphon.engines.scripted import ScriptedEngine
from antiphon.engines.upstream import KINDS, Options, UpstreamEngine
from antiphon.engines.upstreams import chat, completions
from antiphon.engines.upstreams.vllm_server import GENERATE, REMEDY, RENDER
from antiphon.run.inspect_upstream import Feature, inspect_upstream, lines
from tests.contracts.engine import (
    Collected,
    EngineContract,
    finish_of,
    generated,
    request_of,
    running,
    text_of,
    tokens_of,
    until,
)
from tests.engines.canned import END, HEAD, answer, canned, part, stream
from tests.server import NO_TLS
from tests.server import running as antiphon_running

STORY = [
    *({"when": word, "output": f"{word} is a letter of Greek "} for word in ("alpha", "beta", "gamma")),
    {"when": "story", "output": "Ünce upon a time, 🎉 in 日本, ", "tokens": 10**6, "delay_ms": 1},
    {"output": "again ", "tokens": 10**6, "delay_ms": 1},
]


class OverAntiphon(EngineContract):
    """Antiphon has vLLM's API, so it represents it; and any server with /v1/completions."""

    prompt = "Tell a story."
    others = ("Say alpha.", "Say beta.", "Say gamma.")
    slots = 4
    draws = False
    kind: str

    @pytest_asyncio.fixture
    async def server(self):
        async with antiphon_running(ScriptedEngine(STORY)) as server:
            yield server

    @pytest.fixture
    def url(self, server):
        return server.url

    async def test_the_text_of_each_token(self, engine):
        ids = await engine.tokenize(["Grüße, you you"])
        assert "".join(await engine.token_texts(ids)) == "Grüße, you you"

    @pytest_asyncio.fixture
    async def engine(self, url):
        engine = UpstreamEngine(Options(url, upstream_kind=self.kind, parallel=self.slots))
        await engine.start()
        yield engine
        await engine.stop()

    @pytest.fixture
    def fresh(self, url):
        return UpstreamEngine(Options(url, upstream_kind=self.kind, parallel=1))

    async def test_an_interrupted_answer_goes_on(self, engine, server):
        """A script does not go on, but the server is asked to."""
        request = await request_of(engine, self.prompt, 9)
        begun = await engine.tokenize(["Once upon"])
        rest = Prompt(request.prompt.text + "Once upon", (*request.prompt.ids, *begun))
        await generated(engine, GenerationRequest(rest, 9, answer_start="Once upon"))
        assert server.engine.seen[-1].prompt.text == rest.text


class TestTokens(OverAntiphon):
    kind = "vllm"

    @pytest.fixture(autouse=True)
    def unlike_vllm(self, request):
        missing = "prompt_is_scored", "beams_are", "wherever_it_is_cut"  # which needs a text that is enforced
        if any(name in request.node.name for name in missing):
            pytest.skip("the scripted engine behind it has none")


class TestText(OverAntiphon):
    kind = "completions"


@pytest.mark.skipif("ANTIPHON_TEST_UPSTREAM" not in os.environ, reason="needs the URL of a server")
class TestReal(EngineContract):
    """A server that runs SmolLM2 at ANTIPHON_TEST_UPSTREAM: vLLM, SGLang, llama-server."""

    prompt = "<|im_start|>user\nTell a long story about a fox.<|im_end|>\n<|im_start|>assistant\n"
    others = tuple(f"The capital of {country} is" for country in ("France", "Japan", "Peru"))
    slots = 3

    @pytest_asyncio.fixture
    async def engine(self):
        engine = UpstreamEngine(Options(os.environ["ANTIPHON_TEST_UPSTREAM"], parallel=self.slots))
        await engine.start()
        yield engine
        await engine.stop()

    @pytest.fixture
    def fresh(self):
        return UpstreamEngine(Options(os.environ["ANTIPHON_TEST_UPSTREAM"], parallel=1))


MODELS = answer(
    200, {"data": [{"id": "smol", "owned_by": "vllm", "root": "org/smol", "max_model_len": 2048}]}
)
VLLM = {
    "/v1/models": [MODELS],
    "/tokenize": [answer(200, {"count": 1, "max_model_len": 2048, "tokens": [81], "token_strs": None})],
    "/detokenize": [answer(200, {"prompt": " text"})],
}
TOKEN = {"choices": [{"index": 0, "text": "The", "finish_reason": None, "token_ids": [504]}]}
SCORES = {
    "text_offset": [0],
    "token_logprobs": [-1.6],
    "tokens": ["token_id:504"],
    "top_logprobs": [{"token_id:504": -1.6, "token_id:49": -1.2}],
}
SCORED = {
    "choices": [{"index": 0, "text": "The", "logprobs": SCORES, "finish_reason": None, "token_ids": [504]}]
}
LAST = {
    "choices": [
        {
            "index": 0,
            "text": ' phrase "The',
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": [8715, 476, 504],
        }
    ]
}
USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 10,
        "total_tokens": 14,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 7},
    },
}
DONE = b"data: [DONE]\n\n"
ERROR = {"error": {"message": "EngineCore died", "type": "InternalServerError", "param": None, "code": 500}}
REQUEST = GenerationRequest(Prompt("hi", (6004,)), 4)


def completing(*events):
    return {**VLLM, "/v1/completions": stream(*events)}


async def started(server, **options):
    engine = UpstreamEngine(Options(server.url, **options))
    await engine.start()
    return engine


async def answered(answers, request=REQUEST, **options):
    async with canned(answers, **options) as server:
        engine = await started(server)
        try:
            return await generated(engine, request)
        finally:
            await engine.stop()


async def test_tokens_and_their_text():
    chunks = await answered(completing(TOKEN, LAST, USAGE, DONE))
    assert text_of(chunks) == 'The phrase "The'
    assert [token.id for token in tokens_of(chunks)] == [504, 8715, 476, 504]
    assert finish_of(chunks).reason is FinishReason.LENGTH
    assert sum(chunk.cached_tokens for chunk in chunks) == 7


async def test_log_probabilities_name_tokens_whose_text_is_asked_for():
    request = GenerationRequest(REQUEST.prompt, 4, Sampling(logprobs=2))
    chunks = await answered(completing(SCORED, LAST, DONE), request)
    top = (Candidate(49, " text", -1.2), Candidate(504, " text", -1.6))
    assert chunks[0].tokens == (Token(504, "The", -1.6, top),)
    assert text_of(chunks) == 'The phrase "The'  # what came while it was asked is not lost


WITH_ADAPTERS = {
    "/v1/models": [
        answer(
            200,
            {
                "data": [
                    {"id": "smol", "owned_by": "vllm", "root": "/models/smol", "max_model_len": 2048},
                    {"id": "sql", "owned_by": "vllm", "root": "/loras/sql", "parent": "smol"},
                    {"id": "tone", "owned_by": "vllm", "root": "/loras/tone", "parent": "smol"},
                ]
            },
        )
    ]
}


async def test_an_adapter_of_vllm_is_asked_for_as_the_model_that_it_is_there():
    sampling = Sampling(lora=(Adapter("tone"),), beam_width=1, prompt_logprobs=0)
    adapted, plain = (replace(REQUEST, sampling=each) for each in (sampling, Sampling(lora=())))
    answers = WITH_ADAPTERS | {"/v1/completions": stream(LAST, DONE)}
    async with canned({**VLLM, **answers}) as server:
        engine = await started(server)
        assert engine.card.adapters == ("sql", "tone")
        for request in (adapted, plain):
            await generated(engine, request)
        for ask in (engine.score_prompt, engine.search):
            with pytest.raises(EngineError):  # what is answered is no such answer
                await ask(adapted)
        await engine.stop()
        other = await started(server, upstream_model="sql")
        assert other.card.adapters == ()
        await other.stop()
    asked = [each.body for each in server.asked if each.path == "/v1/completions"]
    assert [body["model"] for body in asked if body.get("prompt")] == ["tone", "smol", "tone", "tone"]
    assert not any("lora" in body for body in asked)


def scoring(*prompt_logprobs):
    return {**VLLM, "/v1/completions": [answer(200, {"choices": [{"prompt_logprobs": prompt_logprobs}]})]}


ROW = {
    "42": {"logprob": -7.5, "rank": 90, "decoded_token": " it"},
    "9": {"logprob": -0.25, "rank": 1, "decoded_token": " is"},
    "7": {"logprob": -1.5, "rank": 2, "decoded_token": " was"},
}


@pytest.mark.parametrize("most", [0, 2])
async def test_a_prompt_is_scored(most):
    sampling = Sampling(prompt_logprobs=most, cache_salt="s")
    async with canned(scoring(None, ROW if most else {"42": ROW["42"]})) as server:
        engine = await started(server)
        first, second = await engine.score_prompt(GenerationRequest(Prompt("", (6004, 42)), 4, sampling))
        await engine.stop()
    assert first == PromptToken(6004, " text")
    top = (Candidate(9, " is", -0.25), Candidate(7, " was", -1.5))
    assert second == PromptToken(42, " it", -7.5, top if most else (), rank=90)
    [asked] = [each for each in server.asked if each.path == "/v1/completions"]
    assert asked.body == {
        "model": "smol",
        "prompt": [6004, 42],
        "max_tokens": 1,
        "prompt_logprobs": most,
        "cache_salt": "s",
    }


@pytest.mark.parametrize("rows", [(None,), (None, {"9": ROW["9"]}), (None, None), (None, {"42": {}})])
async def test_scores_that_are_none_of_this_prompt_are_an_error(rows):
    async with canned(scoring(*rows)) as server:
        engine = await started(server)
        request = GenerationRequest(Prompt("", (6004, 42)), 4, Sampling(prompt_logprobs=1))
        with pytest.raises(EngineError, match="does not answer as expected"):
            await engine.score_prompt(request)
        await engine.stop()


WRITTEN = {
    "index": 0,
    "text": " text text",
    "finish_reason": "stop",
    "stop_reason": 2,
    "token_ids": [6004, 6004, 2],
    "logprobs": {
        "tokens": ["token_id:6004", "token_id:6004", "token_id:2"],
        "token_logprobs": [-1.0, -0.5, -0.25],
        "top_logprobs": [{"token_id:6004": -1.0}, {"token_id:6004": -0.5}, {"token_id:2": -0.25}],
    },
}
CUT = {"index": 1, "text": " it is", "finish_reason": "length", "token_ids": [42, 9]}


async def test_beams_are_searched_by_vllms_server():
    sampling = Sampling(beam_width=2, logprobs=0, length_penalty=0.5, ignore_eos=True, cache_salt="s")
    beams = {**VLLM, "/v1/completions": [answer(200, {"choices": [WRITTEN, CUT]})]}
    async with canned(beams) as server:
        engine = await started(server)
        request = GenerationRequest(Prompt("", (6004,)), 3, sampling)
        [[best], [other]] = await engine.search(request)
        await engine.stop()
    assert best.tokens == (Token(6004, " text", -1.0), Token(6004, " text", -0.5), Token(2, "", -0.25))
    assert (best.text, best.finish) == (" text text", Finish(FinishReason.STOP))
    # Where the texts of tokens are not those of the answer, it is the last one's.
    assert other.tokens == (Token(42, ""), Token(9, " it is"))
    assert other.finish == Finish(FinishReason.LENGTH)
    [body] = [each.body for each in server.asked if each.path == "/v1/completions"]
    expected = {"use_beam_search": True, "n": 2, "logprobs": 0, "length_penalty": 0.5, "stream": False}
    assert expected.items() <= body.items()
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"]) == ([6004], 3, True)


async def test_what_vllms_server_would_not_look_at_in_a_search_is_refused():
    async with canned({**VLLM, "/v1/completions": [answer(200, {"choices": [3]})]}) as server:
        engine = await started(server)
        stopped = Sampling(beam_width=2, stop_token_ids=(9,))
        with pytest.raises(RequestError) as raised:
            await engine.search(GenerationRequest(Prompt("", (6004,)), 3, stopped))
        assert raised.value.param == "stop_token_ids"
        with pytest.raises(EngineError, match="does not answer as expected"):
            await engine.search(GenerationRequest(Prompt("", (6004,)), 3, Sampling(beam_width=2)))
        await engine.stop()


ELSEWHERE = Sampling(kv_transfer_params={"do_remote_decode": True})
PULL = {"do_remote_prefill": True, "remote_block_ids": [4, 7]}


async def test_the_server_tells_where_another_one_finds_the_prompt():
    choice = {"index": 0, "text": "The", "finish_reason": "length", "token_ids": [504]}
    whole = {"choices": [choice], "usage": {"completion_tokens": 1}, "kv_transfer_params": PULL}
    async with canned({**VLLM, "/v1/completions": [answer(200, whole)]}) as server:
        engine = await started(server)
        chunks = await generated(engine, replace(REQUEST, sampling=ELSEWHERE))
        await engine.stop()
    assert (text_of(chunks), tokens_of(chunks)) == ("The", [Token(504, "The")])
    assert finish_of(chunks) == Finish(FinishReason.LENGTH, kv_transfer_params=PULL)
    body = server.asked[-1].body
    assert (body["stream"], body["kv_transfer_params"]) == (False, {"do_remote_decode": True})


async def test_the_candidates_of_a_whole_answer_are_looked_up():
    scores = {"tokens": ["token_id:504"], "token_logprobs": [-1.0], "top_logprobs": [{"token_id:9": -0.5}]}
    choice = {"text": "The", "finish_reason": "length", "token_ids": [504], "logprobs": scores}
    whole = {"choices": [choice], "kv_transfer_params": PULL}
    async with canned({**VLLM, "/v1/completions": [answer(200, whole)]}) as server:
        engine = await started(server)
        chunks = await generated(engine, replace(REQUEST, sampling=replace(ELSEWHERE, logprobs=1)))
        await engine.stop()
    assert tokens_of(chunks) == [Token(504, "The", -1.0, (Candidate(9, " text", -0.5),))]
    assert finish_of(chunks).kv_transfer_params == PULL


@pytest.mark.parametrize("body", [{"choices": []}, {"error": {"message": "x"}}, {"choices": [{"text": "a"}]}])
async def test_an_answer_that_is_none_is_an_error(body):
    async with canned({**VLLM, "/v1/completions": [answer(200, body)]}) as server:
        engine = await started(server)
        with pytest.raises(EngineError):
            await generated(engine, replace(REQUEST, sampling=ELSEWHERE))
        assert engine.load.idle
        await engine.stop()


async def test_a_trace_goes_on_to_the_server():
    OBSERVATION.set(Observation(trace={"traceparent": "00-1-2-01", "tracestate": "a=b"}))
    async with canned(completing(LAST, DONE)) as server:
        engine = await started(server)
        await generated(engine, REQUEST)
        await engine.stop()
    headers = server.asked[-1].headers
    assert (headers["traceparent"], headers["tracestate"]) == ("00-1-2-01", "a=b")


@pytest.mark.parametrize("rank", [0, 3])
async def test_a_rank_and_events_of_cached_blocks_are_asked_for(rank):
    sampling = Sampling(vllm_xargs={"a": 1})
    placement = Placement(rank, tell_again=True)
    request = GenerationRequest(REQUEST.prompt, 4, sampling, placement=placement)
    async with canned(completing(LAST, DONE)) as server:
        engine = await started(server)
        await generated(engine, request)
        await engine.stop()
    asked = server.asked[-1]
    assert asked.headers["x-data-parallel-rank"] == str(rank)
    assert asked.body["vllm_xargs"] == {"kv_cache_report_mode": "full", "a": 1}


async def test_what_is_asked_for():
    sampling = Sampling(temperature=0.5, top_k=3, stop_token_ids=(9,), bad_words=("x",), cache_salt="s")
    tag = StructuralTag('{"type": "structural_tag"}')
    request = GenerationRequest(REQUEST.prompt, 4, sampling, preserve=frozenset({"<think>"}), constraint=tag)
    async with canned(completing(LAST, DONE)) as server:
        engine = await started(server, upstream_key="secret")
        await generated(engine, request)
        await engine.stop()
    assert all(asked.headers["authorization"] == "Bearer secret" for asked in server.asked)
    assert server.asked[-1].body == {
        "model": "smol",
        "prompt": [6004],
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "temperature": 0.5,
        "top_k": 3,
        "stop_token_ids": [9],
        "bad_words": ["x"],
        "cache_salt": "s",
        "structured_outputs": {"structural_tag": tag.text},
    }


async def test_a_stop_token_is_named():
    stopped = {
        "choices": [{"text": "", "finish_reason": "stop", "stop_reason": 9, "token_ids": [9]}],
    }
    request = GenerationRequest(REQUEST.prompt, 4, Sampling(stop_token_ids=(9,)))
    finish = finish_of(await answered(completing(TOKEN, stopped, DONE), request))
    assert (finish.reason, finish.stop) == (FinishReason.STOP, 9)
    assert finish_of(await answered(completing(TOKEN, stopped, DONE))).stop is None  # the model's own


async def collected_of(answers, **options):
    """The chunks of a receiver, and its end."""
    collected = Collected()
    async with canned(answers, **options) as server:
        engine = await started(server, idle_seconds=0.3)
        engine.generate(REQUEST, collected)
        await until(collected.over.is_set)
        assert engine.load.idle
        await engine.stop()
    return collected


@pytest.mark.parametrize(
    ("events", "options", "says"),
    [
        (stream(TOKEN, ERROR), {}, "The model failed to answer"),
        (stream(TOKEN), {}, "stopped in the middle"),
        ([HEAD, part(b"data: {}\n\n")], {"close": {"/v1/completions"}}, "stopped in the middle"),
        (stream(TOKEN)[:-1], {"close": {"/v1/completions"}}, "stopped in the middle"),
        (stream(TOKEN)[:-1], {"silent": {"/v1/completions"}}, "stopped in the middle"),
        (stream(TOKEN, b"data: {nonsense\n\n"), {}, "The model failed to answer"),
        (stream(TOKEN, {"choices": [{"text": "", "finish_reason": "abort"}]}), {}, "The model failed"),
    ],
)
async def test_errors_in_the_middle_of_a_stream(events, options, says):
    collected = await collected_of({**VLLM, "/v1/completions": events}, **options)
    assert isinstance(collected.error, EngineError)
    assert says in collected.error.message
    assert text_of(collected.chunks) == ("The" if TOKEN_TEXT in b"".join(events) else "")


TOKEN_TEXT = b'"text": "The"'


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (
            400,
            {"error": {"message": "max_tokens is too large.", "code": 400}},
            RequestError,
            "max_tokens is too",
        ),
        (422, {"detail": "bad"}, RequestError, "bad"),
        (401, {"error": "no"}, EngineError, "refuses the key"),
        (404, {}, EngineError, "does not have this model"),
        (424, {"error": "Request failed during generation"}, EngineError, "failed to answer"),
        (429, {}, EngineBusyError, "Too many"),
        (500, {"error": {"message": "secret path"}}, EngineError, "failed to answer"),
        (503, {}, EngineNotReadyError, "not ready"),
    ],
)
async def test_answers_that_are_errors(status, body, error, says):
    collected = await collected_of({**VLLM, "/v1/completions": [answer(status, body)]})
    assert type(collected.error) is error
    assert says in collected.error.message


async def test_a_line_that_is_too_long():
    events = [HEAD, part(b"data: " + b"x" * 2**20)]
    collected = await collected_of({**VLLM, "/v1/completions": events}, silent={"/v1/completions"})
    assert "failed to answer" in collected.error.message


@pytest.mark.parametrize("found", [answer(500, {}), b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{"])
async def test_a_text_that_cannot_be_looked_up(found):
    """What was asked for cannot be answered, so the generation fails."""
    answers = {**VLLM, "/v1/completions": stream(SCORED, LAST, DONE), "/detokenize": [found]}
    collected = Collected()
    async with canned(answers) as server:
        engine = await started(server)
        engine.generate(GenerationRequest(REQUEST.prompt, 4, Sampling(logprobs=2)), collected)
        await until(collected.over.is_set)
        assert type(collected.error) is EngineError
        assert engine.load.idle
        await engine.stop()


async def test_a_server_that_is_gone():
    async with canned(VLLM) as server:
        engine = await started(server)
    collected = Collected()
    engine.generate(REQUEST, collected)
    await until(collected.over.is_set)
    assert isinstance(collected.error, EngineNotReadyError)
    assert "127.0.0.1" not in collected.error.message
    with pytest.raises(EngineNotReadyError):
        await engine.tokenize(["a"])
    await engine.stop()


async def test_cancelling_closes_the_connection():
    async with canned({**VLLM, "/v1/completions": stream(TOKEN)[:-1]}, silent={"/v1/completions"}) as server:
        engine = await started(server)
        async with running(engine, REQUEST) as (work, _):
            open_before = server.open
            work.cancel()
            await until(lambda: server.open == open_before - 1)
        await engine.stop()


async def test_the_connection_of_a_whole_answer_is_kept():
    async with canned(completing(TOKEN, LAST, USAGE, DONE)) as server:
        engine = await started(server)
        before = server.connections
        for _ in range(3):
            await generated(engine, REQUEST)
        assert server.connections == before
        await engine.stop()


async def refused(answers, **options):
    """Why the engine does not start."""
    async with canned(answers) as server:
        engine = UpstreamEngine(Options(server.url, **options))
        with pytest.raises(EngineError) as raised:
            await engine.start()
        await engine.stop()
        return raised.value.message.replace(server.url, "URL")


async def test_what_is_no_server_of_models_says_so():
    message = await refused({"/": [answer(200, "hello")]})
    assert message.startswith("The server at URL is none of the known kinds: ")
    assert "llama-server, sglang, vllm" in message
    assert "--upstream-kind" in message


async def test_a_server_of_another_kind_than_was_said():
    message = await refused(VLLM, upstream_kind="llama-server")
    assert message.startswith("The server at URL does not answer as llama-server does.")


async def test_a_server_that_answers_otherwise_than_its_kind():
    message = await refused({**VLLM, "/tokenize": [answer(200, {"ids": [1]})]})
    assert message.startswith("The server at URL answers as vllm does, but not as expected.")


async def test_a_server_that_lacks_what_its_kind_has():
    listed = {"/v1/models": [answer(200, {"data": [{"id": "m", "owned_by": "somebody"}]})]}
    message = await refused(listed, upstream_kind="sglang")
    assert message.startswith("The server at URL does not answer as sglang does. Leave out --upstream-kind")
    message = await refused({**listed, "/tokenize": [answer(200, {"tokens": []})]}, upstream_kind="vllm")
    assert message.startswith("The server at URL does not answer as vllm does.")


async def test_an_antiphon_is_asked_for_conversations():
    async with antiphon_running(ScriptedEngine(STORY)) as server:
        engine = UpstreamEngine(Options(server.url))
        await engine.start()
        assert engine.card.capabilities.chat
        await engine.stop()
        lines_of = [*lines(await asyncio.to_thread(inspect_upstream, Options(server.url)))]
    assert "kind      chat" in lines_of
    assert not any("--dialect" in line for line in lines_of)


async def test_a_model_that_the_server_does_not_have():
    assert await refused(VLLM, upstream_model="big") == "The server has no model 'big'. It has smol."


@pytest.mark.parametrize(("path", "status"), [("/v1/models", 401), ("/v1/models", 403), ("/props", 401)])
async def test_a_key_that_is_missing(path, status):
    message = await refused({**VLLM, path: [answer(status, {"error": "Unauthorized"})]})
    assert "ANTIPHON_UPSTREAM_KEY" in message


async def test_a_proxy_that_forbids_other_paths():
    async with canned(
        {
            **VLLM,
            "/props": [
                answer(403, {}),
            ],
        }
    ) as server:
        engine = await started(server)
        assert engine.card.name == "smol"
        await engine.stop()


async def test_nobody_there():
    engine = UpstreamEngine(Options("http://127.0.0.1:1"))
    with pytest.raises(EngineError, match=r"No server .* http://127\.0\.0\.1:1: .*refused"):
        await engine.start()
    await engine.stop()


def test_what_is_no_url():
    with pytest.raises(EngineError, match="not the URL"):
        Options("http://").build()


async def test_text_is_sent_to_a_server_that_takes_no_tokens():
    models = {"/v1/models": [answer(200, {"data": [{"id": "m", "owned_by": "somebody"}]})]}
    events = [
        {"choices": [{"text": "Hello "}]},
        {"choices": [{"text": "you", "finish_reason": "eos_token"}]},
    ]
    for more, count in (([], 3), ([{"choices": [], "usage": {"completion_tokens": 2}}], 2)):
        async with canned({**models, "/v1/completions": stream(*events, *more, DONE)}) as server:
            engine = await started(server, context=99)
            chunks = await generated(engine, REQUEST)
            assert engine.card.context == 99
            assert not engine.card.capabilities.token_ids
            await engine.stop()
        assert server.asked[-1].body["prompt"] == "hi"
        assert (text_of(chunks), tokens_of(chunks)) == ("Hello you", [])
        assert finish_of(chunks).completion_tokens == count  # estimated, if the server does not say


async def test_a_server_is_not_probed_while_parts_of_an_answer_come():
    part = {"choices": [{"text": "Hi", "finish_reason": None}]}
    async with canned(completing(part)) as server:
        server.silent.add("/v1/completions")
        server.answers["/v1/completions"] = server.answers["/v1/completions"][:-1]  # it goes on
        engine = await started(server)
        async with running(engine, REQUEST) as (_, collected):
            await collected.begun.wait()
            await engine.probe()
            assert "/health" not in {asked.path for asked in server.asked}
        await engine.probe()
        assert "/health" in {asked.path for asked in server.asked}
        server.answers["/health"], server.silent = [], {"/health"}
        with pytest.raises(TimeoutError):  # it accepts connections, and never answers
            async with asyncio.timeout(0.05):
                await engine.probe()
        await engine.stop()


def test_what_was_written_goes_on_in_the_last_piece_around_media():
    prompt = Prompt("a<|b", (1,), around=(("x",), ("a<|", "b"))).continued("c", (2,))
    assert (prompt.text, prompt.ids, prompt.around) == ("a<|bc", (1, 2), (("x",), ("a<|", "bc")))


TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"


@pytest.fixture
def folder(tmp_path):
    """The files of a model on the hub, with a tokenizer that knows two words."""
    import tokenizers  # noqa: PLC0415 - an optional extra

    words = tokenizers.models.WordLevel({"<s>": 0, "hello": 1, "you": 2, "a": 3}, unk_token="a")  # noqa: S106
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "response_template": {"x": 1}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


async def test_a_tokenizer_that_is_given(folder):
    async with canned({"/v1/models": [MODELS]}) as server:
        engine = await started(server, tokenizer=str(folder))
        card = engine.card
        assert (card.chat_template, card.bos, card.eos, card.opening) == (TEMPLATE, "<s>", "</s>", 0)
        assert json.loads(card.response_template) == {"x": 1}
        assert await engine.tokenize(["hello you", "you"]) == [1, 2, 2]
        assert await engine.detokenize([0, 1]) == "<s> hello"
        with pytest.raises(RequestError, match="no token 99"):
            await engine.detokenize([99])
        await engine.stop()
        assert not {"/tokenize", "/detokenize"} & {asked.path for asked in server.asked}


async def test_a_tokenizer_that_is_not_there(tmp_path):
    assert await refused(VLLM, tokenizer="./none") == (
        "There is no folder ./none. Give one with a tokenizer in it, or `org/repo`."
    )
    assert "no tokenizer that can be read in" in await refused(VLLM, tokenizer=str(tmp_path))


async def test_without_the_tokenizer_library_the_remedy_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "[tokenizer]'`" in await refused(VLLM, tokenizer=str(folder))


async def test_the_template_of_a_model_whose_files_are_here(tmp_path):
    templates = [{"name": "rag", "template": "r"}, {"name": "default", "template": TEMPLATE}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    models = {"data": [{"id": "m", "owned_by": "vllm", "root": str(tmp_path), "max_model_len": 99}]}
    async with canned({**VLLM, "/v1/models": [answer(200, models)]}) as server:
        engine = await started(server)
        assert engine.card.chat_template == TEMPLATE
        await engine.stop()


async def test_the_template_that_the_server_tells():
    told = {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "T"}
    async with canned({**VLLM, "/tokenizer_info": [answer(200, told)]}) as server:
        engine = await started(server)
        card = engine.card
        assert (card.chat_template, card.bos, card.eos) == (TEMPLATE, "<s>", "</s>")
        await engine.stop()


async def test_llama_server_needs_no_tokenizer(folder):
    props = {"default_generation_settings": {"n_ctx": 512}, "total_slots": 2}
    message = await refused({"/v1/models": [MODELS], "/props": [answer(200, props)]}, tokenizer=str(folder))
    assert "Leave --tokenizer out" in message


# vLLM with images: what `/inference/v1/generate` streams, and what `/v1/chat/completions/render` tells, was
# recorded from a LLaVA of random weights.

PICTURE = MediaPart(MediaKind.IMAGE, "digest", "image/png", b"png")
SEEN = {
    "request_id": "generate-tokens-1",
    "usage": None,
    "prompt_token_ids": [81, 49152, 49152, 49152, 278],
    "mm_placeholders": {"image": [{"offset": 1, "length": 3}]},
    "output_mode": "text",
    "choices": [
        {"index": 0, "finish_reason": None, "stop_reason": None, "token_ids": [43507], "text": "Actions"}
    ],
}
SEEN_LAST = {
    "usage": None,
    "output_mode": "text",
    "choices": [
        {"index": 0, "finish_reason": "length", "stop_reason": None, "token_ids": [11456], "text": " Script"}
    ],
}
RENDERED = {
    "token_ids": [81, 49152, 278],
    "features": {"mm_hashes": {"image": ["abc"]}, "mm_placeholders": {"image": [{"offset": 1, "length": 3}]}},
    "sampling_params": {"temperature": 0.6, "top_p": 0.9, "stop": [], "max_tokens": 999, "output_kind": 2},
}
IMAGES = {**VLLM, RENDER: [answer(200, RENDERED)]}


def with_image(**sampling):
    return GenerationRequest(Prompt("a<image>b", (81, 49152, 278), (PICTURE,)), 4, Sampling(**sampling))


async def test_vllm_is_sent_images_beside_tokens():
    tag = StructuralTag('{"type": "structural_tag"}')
    request = replace(
        with_image(top_p=0.5, cache_salt="s", vllm_xargs={"a": 1}, logit_bias={9: 1.5}), constraint=tag
    )
    async with canned({**IMAGES, GENERATE: stream(SEEN, SEEN_LAST, USAGE, DONE)}) as server:
        engine = await started(server)
        assert engine.card.capabilities.media == {MediaKind.IMAGE}
        chunks = await generated(engine, request)
        await engine.stop()
    assert text_of(chunks) == "Actions Script"
    assert [token.id for token in tokens_of(chunks)] == [43507, 11456]
    assert [chunk.media_tokens for chunk in chunks if chunk.media_tokens] == [2]  # besides the placeholder
    assert chunks[0].media_tokens == 2
    assert sum(chunk.cached_tokens for chunk in chunks) == 7
    assert finish_of(chunks).reason is FinishReason.LENGTH
    assert (server.asked[-1].path, server.asked[-1].body) == (
        GENERATE,
        {
            "model": "smol",
            "token_ids": [81, 49152, 278],
            "content_parts": [{"type": "image_url", "url": "data:image/png;base64,cG5n"}],
            "sampling_params": {
                "max_tokens": 4,
                "temperature": 0.6,  # as reported by the server
                "top_p": 0.5,
                "logit_bias": {"9": 1.5},
                "extra_args": {"a": 1},
                "structured_outputs": {"structural_tag": tag.text},
            },
            "cache_salt": "s",
            "reasoning_ended": True,
            "output_mode": "text",
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )


async def test_an_answer_to_an_image_that_ends_at_once():
    end = {**SEEN, "choices": [{"finish_reason": "stop", "stop_reason": None, "token_ids": [2], "text": ""}]}
    for more in ((DONE,), ()):
        async with canned({**IMAGES, GENERATE: stream(end, *more)}) as server:
            engine = await started(server)
            [chunk] = await generated(engine, with_image())
            await engine.stop()
        assert (chunk.media_tokens, chunk.finish.reason) == (2, FinishReason.STOP)


async def test_log_probabilities_beside_images_have_no_ids_of_alternatives():
    likely = [
        {"token": text, "logprob": score, "bytes": [*text.encode()]}
        for text, score in (("Actions", -1.0), (" sand", -2.0))
    ]
    scored = {**SEEN["choices"][0], "logprobs": {"content": [{**likely[0], "top_logprobs": likely}]}}
    for most, top in ((2, (Candidate(-1, "Actions", -1.0), Candidate(-1, " sand", -2.0))), (0, ())):
        async with canned(
            {**IMAGES, GENERATE: stream({**SEEN, "choices": [scored]}, SEEN_LAST, DONE)}
        ) as server:
            engine = await started(server)
            chunks = await generated(engine, with_image(logprobs=most))
            await engine.stop()
        assert chunks[0].tokens == (Token(43507, "Actions", -1.0, top),)


async def test_a_prompt_with_images_is_not_scored():
    async with canned(IMAGES) as server:
        engine = await started(server)
        with pytest.raises(RequestError) as raised:
            await engine.score_prompt(with_image(prompt_logprobs=1))
        await engine.stop()
    assert raised.value.param == "prompt_logprobs"


@pytest.mark.parametrize(
    ("told", "remedy"),
    [
        (answer(403, {"error": {"message": "Scale-out endpoints are disabled."}}), True),
        (answer(404, {"detail": "Not Found"}), True),
        (answer(400, {"error": {"message": "At most 0 image(s) may be provided in one prompt."}}), False),
        (answer(200, {**RENDERED, "features": None}), False),
    ],
)
async def test_a_vllm_that_takes_no_images(told, remedy):
    async with canned({**VLLM, RENDER: [told]}) as server:
        engine = await started(server)
        able = engine.card.capabilities
        report = await asyncio.to_thread(inspect_upstream, Options(server.url))
        await engine.stop()
    assert not able.media
    assert able.media_remedy == (REMEDY if remedy else "")
    assert Feature("media", "refused", able.media_remedy or "by the place of the part") in report.features
    assert "--enable-scale-out" in REMEDY
    assert "--upstream-kind chat" in REMEDY


# SGLang


SGLANG = {
    "/v1/models": [
        answer(200, {"data": [{"id": "smol", "owned_by": "sglang", "root": "smol", "max_model_len": 2048}]})
    ],
    "/api/tags": [answer(200, {"models": [{"name": "smol"}]})],  # it has some of Ollama's endpoints, too
    "/tokenize": [answer(200, {"tokens": [81], "count": 1, "max_model_len": 2048})],
    "/detokenize": [answer(200, {"text": " text"})],
}
NO_BIAS = {"error": {"message": "logit_bias must has keys in [0, 49151], got 2147483647."}}


def generating(*events):
    """The first answer of `/generate` reveals the size of the vocabulary, by refusing a token."""
    return {**SGLANG, "/generate": [answer(400, NO_BIAS)]}, {**SGLANG, "/generate": stream(*events, DONE)}


async def of_sglang(*events, **sampling):
    at_first, later = generating(*events)
    async with canned(at_first) as server:
        engine = await started(server)
        assert engine.card.name == "smol"
        server.answers.update(later)
        request = GenerationRequest(REQUEST.prompt, 40, Sampling(**sampling))
        try:
            chunks = await generated(engine, request)
            return chunks, [each.body for each in server.asked if each.path == "/generate"][-1]
        finally:
            await engine.stop()


def written(text, ids, end=None, **meta):
    facts = {"finish_reason": end, "prompt_tokens": 10, "cached_tokens": 9, "completion_tokens": len(ids)}
    return {"text": text, "output_ids": ids, "meta_info": facts | meta}


LENGTH = {"type": "length", "length": 3}


@pytest.mark.parametrize(
    "last",
    [
        written('The phrase "', [504, 8715, 476], LENGTH),  # all so far, or what is new
        written(' phrase "', [8715, 476], LENGTH, completion_tokens=3),
    ],
)
async def test_sglang_gives_tokens_and_text(last):
    chunks, body = await of_sglang(written("The", [504]), last, min_tokens=2, top_k=-1, cache_salt="s")
    assert text_of(chunks) == 'The phrase "'
    assert [token.id for token in tokens_of(chunks)] == [504, 8715, 476]
    assert finish_of(chunks).reason is FinishReason.LENGTH
    assert sum(chunk.cached_tokens for chunk in chunks) == 9
    assert body == {
        "input_ids": [6004],
        "sampling_params": {
            "max_new_tokens": 40,
            "min_new_tokens": 2,
            "skip_special_tokens": True,
            "top_k": -1,
        },
        "stream": True,
        "extra_key": "s",
    }


async def test_sglang_is_told_the_adapter():
    """It lists its adapters as models, whose parent is the model."""
    [listed] = SGLANG["/v1/models"]
    model = {"id": "smol", "owned_by": "sglang", "root": "smol", "max_model_len": 2048}
    adapter = {"id": "sql", "owned_by": "sglang", "root": "/sql", "parent": "smol"}
    at_first, later = generating(written("Hi", [504], LENGTH))
    at_first |= {"/v1/models": [answer(200, {"data": [model, adapter]})]}
    assert listed == answer(200, {"data": [model]})
    async with canned(at_first) as server:
        engine = await started(server)
        assert engine.card.adapters == ("sql",)
        server.answers |= {"/generate": later["/generate"]}
        for lora, sent in (((Adapter("sql"),), "sql"), ((), None), (None, None)):
            await generated(engine, GenerationRequest(REQUEST.prompt, 4, Sampling(lora=lora)))
            assert server.asked[-1].body.get("lora_path") == sent
        await engine.stop()


async def test_sglang_is_sent_images_beside_text():
    """What it answers was recorded from an Idefics3 of random weights, on SGLang's Transformers backend."""
    around = (("<s>a ", "<im", "age>"), (" b",))
    prompt = Prompt(
        "<s>a <image><image> b", (1, 81, 2, 3, 278), (PICTURE,), around, placeholders=("<image>",)
    )
    at_first, _ = generating()
    told = {"/model_info": [answer(200, {"has_image_understanding": True})]}
    async with canned({**at_first, **told}) as server:
        engine = await started(server)
        assert engine.card.capabilities.media == {MediaKind.IMAGE}
        events = (
            written("Actions", [43507], prompt_tokens=23),
            written("Actions Script", [43507, 11456], LENGTH, prompt_tokens=23),
        )
        server.answers["/generate"] = stream(*events, DONE)
        chunks = await generated(engine, GenerationRequest(prompt, 2))
        with pytest.raises(RequestError) as raised:
            await engine.score_prompt(GenerationRequest(prompt, 2, Sampling(prompt_logprobs=1)))
        await engine.stop()
    assert raised.value.param == "prompt_logprobs"
    assert text_of(chunks) == "Actions Script"
    assert [chunk.media_tokens for chunk in chunks] == [23 - 5, 0]
    body = server.asked[-1].body
    assert "input_ids" not in body
    assert body["text"] == "<s>a \u2060<im\u2060age><image> b"
    assert body["image_data"] == ["data:image/png;base64,cG5n"]


async def test_sglang_scores_prompts():
    scored = {"input_token_logprobs": [[None, 504, "The"], [-10.75, 8715, " phrase"]]}
    tops = {"input_top_logprobs": [None, [[-0.75, 29, "-"], [-2.5, 28, ","]]]}
    for more, most, top in ((tops, 2, (Candidate(29, "-", -0.75), Candidate(28, ",", -2.5))), ({}, 0, ())):
        whole = [answer(200, {"text": "a", "meta_info": {**scored, **more}})]
        before, after = {**SGLANG, "/generate": [answer(400, NO_BIAS)]}, {**SGLANG, "/generate": whole}
        async with canned(before) as server:
            engine = await started(server)
            server.answers = after
            sampling = Sampling(prompt_logprobs=most, cache_salt="s")
            request = GenerationRequest(Prompt("", (504, 8715)), 4, sampling)
            tokens = await engine.score_prompt(request)
            server.answers = {**SGLANG, "/generate": [answer(200, {"text": "a"})]}
            with pytest.raises(EngineError, match="does not answer as expected"):
                await engine.score_prompt(request)
            await engine.stop()
        assert tokens == (PromptToken(504, "The"), PromptToken(8715, " phrase", -10.75, top))
        body = server.asked[-1].body
        assert (body["input_ids"], body["top_logprobs_num"], body["extra_key"]) == ([504, 8715], most, "s")


async def test_sglang_scores_tokens():
    scores = {
        "output_token_logprobs": [[-1.5, 504, None], [-3.0, 8715, None]],
        "output_top_logprobs": [[[-1.5, 504, None]], [[-2.5, 57, None]]],
    }
    chunks, body = await of_sglang(
        written("The", [504], **{name: both[:1] for name, both in scores.items()}),
        written("The phrase", [504, 8715], LENGTH, **scores),
        logprobs=1,
    )
    assert [(token.logprob, token.top) for token in tokens_of(chunks)] == [
        (-1.5, (Candidate(504, " text", -1.5),)),
        (-3.0, (Candidate(57, " text", -2.5),)),
    ]
    assert (body["return_logprob"], body["top_logprobs_num"]) == (True, 1)


async def test_sglang_names_stop_tokens():
    end = {"type": "stop", "matched": 8715}
    events = written("The", [504]), written("The", [504, 8715], end)
    assert finish_of((await of_sglang(*events, stop_token_ids=(8715,)))[0]).stop == 8715
    assert finish_of((await of_sglang(*events))[0]).stop is None


async def test_what_sglang_refuses_in_the_stream():
    end = {"type": "abort", "message": "Failed to compile ebnf grammar", "status_code": 400}
    with pytest.raises(RequestError, match="Failed to compile"):
        await of_sglang(written("", [29], end))


@pytest.mark.parametrize(
    ("ids", "sampling", "param"),
    [
        ((1, 49152), {}, "prompt"),
        ((1,), {"logit_bias": {49152: 1.0}}, "logit_bias"),
        ((1,), {"stop_token_ids": (-1,)}, "stop_token_ids"),
    ],
)
async def test_sglang_never_gets_ids_that_the_model_does_not_have(ids, sampling, param):
    """They would end it."""
    async with canned(generating()[0]) as server:
        engine = await started(server)
        asked = len(server.asked)
        with pytest.raises(RequestError) as raised:
            await generated(engine, GenerationRequest(Prompt("", ids), 4, Sampling(**sampling)))
        assert raised.value.param == param
        assert len(server.asked) == asked
        await engine.stop()


async def test_an_sglang_that_does_not_tell_its_vocabulary():
    message = await refused({**SGLANG, "/generate": [answer(200, {"text": "a"})]})
    assert "--upstream-kind completions" in message


# Ollama: the exchanges of docs/api.md in its repository.

OLLAMA = {
    "/api/tags": [answer(200, {"models": [{"name": "llama3.2:latest", "size": 7365960935}]})],
    "/api/show": [
        answer(200, {"model_info": {"general.architecture": "llama", "llama.context_length": 131072}})
    ],
}


def ndjson(*pieces):
    lines = [
        json.dumps({"model": "llama3.2", "created_at": "2023-08-04T08:52:19.385406455-07:00"} | each)
        for each in pieces
    ]
    return [HEAD, *(part(line.encode() + b"\n") for line in lines), END]


async def test_ollama_gets_the_prompt_as_it_is():
    pieces = [{"response": "The", "done": False}, {"response": " sky", "done": False}]
    last = {"response": "", "done": True, "done_reason": "length", "prompt_eval_count": 26, "eval_count": 259}
    sampling = Sampling(temperature=0, top_k=-1, repetition_penalty=1.2, seed=42)
    async with canned({**OLLAMA, "/api/generate": ndjson(*pieces, last)}) as server:
        engine = await started(server)
        assert engine.card.name == "llama3.2:latest"
        assert engine.card.context == 8192
        chunks = await generated(engine, GenerationRequest(REQUEST.prompt, 9, sampling))
        await engine.stop()
    assert text_of(chunks) == "The sky"
    assert (finish_of(chunks).reason, finish_of(chunks).completion_tokens) == (FinishReason.LENGTH, 259)
    assert server.asked[-1].body == {
        "model": "llama3.2:latest",
        "prompt": "hi",
        "raw": True,
        "think": False,
        "truncate": False,
        "shift": False,
        "stream": True,
        "options": {
            "num_predict": 9,
            "num_ctx": 8192,
            "temperature": 0,
            "top_k": 0,
            "repeat_penalty": 1.2,
            "seed": 42,
        },
    }


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        ("0.34.1", {"logprobs", "typical_p", "repeat_last_n"}),
        ("0.12.11", {"logprobs"}),
        ("0.12.10", set()),
        ("dirty", set()),
    ],
)
async def test_what_versions_of_ollama_take(version, fields):
    async with canned({**OLLAMA, "/api/version": [answer(200, {"version": version})]}) as server:
        engine = await started(server)
        assert engine.card.capabilities.sampling & {"logprobs", "typical_p", "repeat_last_n"} == fields
        await engine.stop()


async def test_log_probabilities_of_ollama():
    """As api/types.go has them since 0.12.11: a character of several tokens is in one piece."""
    of_bytes = [
        {"token": "\ufffd", "logprob": -1.0, "bytes": [0xC3]},
        {"token": "\ufffd", "logprob": -2.0, "bytes": [0xBC]},
    ]
    top = [{"token": "The", "logprob": -0.5, "bytes": [84, 104, 101]}, {"token": "A", "logprob": -3.0}]
    pieces = [
        {
            "response": "The",
            "logprobs": [{"token": "The", "logprob": -0.5, "bytes": [84, 104, 101], "top_logprobs": top}],
        },
        {"response": "\u00fc", "logprobs": of_bytes},
        {"response": "", "done": True, "done_reason": "stop", "eval_count": 3},
    ]
    answers = {
        **OLLAMA,
        "/api/version": [answer(200, {"version": "0.34.0"})],
        "/api/generate": ndjson(*pieces),
    }
    async with canned(answers) as server:
        engine = await started(server)
        chunks = await generated(engine, replace(REQUEST, sampling=Sampling(logprobs=2)))
        await engine.stop()
    assert text_of(chunks) == "The\u00fc"
    assert tokens_of(chunks) == [
        Token(-1, "The", -0.5, (Candidate(-1, "The", -0.5), Candidate(-1, "A", -3.0))),
        Token(-1, "", -1.0, (), b"\xc3"),
        Token(-1, "\u00fc", -2.0, (), b"\xbc"),
    ]
    body = server.asked[-1].body
    assert (body["logprobs"], body["top_logprobs"]) == (True, 2)


async def test_images_for_ollama():
    """Marked as in llm/llama_server.go, at its commit 00f6d620; it counts their tokens at the end."""
    shown = {"model_info": {"general.architecture": "qwen25vl"}, "capabilities": ["completion", "vision"]}
    last = {
        "response": "A cat",
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 70,
        "eval_count": 2,
    }
    answers = {**OLLAMA, "/api/show": [answer(200, shown)], "/api/generate": ndjson(last)}
    parts = tuple(MediaPart(MediaKind.IMAGE, "", "image/png", data) for data in (b"one", b"two"))
    around = (("a [img-1]", "b"), ("c",), ("d",))
    async with canned(answers) as server:
        engine = await started(server)
        assert engine.card.capabilities.media == {MediaKind.IMAGE}
        prompt = Prompt("a [img-1]b<i>c<i>d", (1, 2, 3), parts, around, placeholders=("<i>", "<i>"))
        [chunk] = await generated(engine, replace(REQUEST, prompt=prompt))
        await engine.stop()
    assert (chunk.text, chunk.media_tokens) == ("A cat", 67)
    body = server.asked[-1].body
    assert body["prompt"] == "a [\u2060img-1]\u2060b[img-0]c[img-1]d"
    assert body["images"] == ["b25l", "dHdv"]
    async with canned(OLLAMA) as server:
        engine = await started(server)
        assert not engine.card.capabilities.media
        await engine.stop()


async def test_errors_of_ollama():
    collected = await collected_of({**OLLAMA, "/api/generate": ndjson({"error": "out of memory"})})
    assert type(collected.error) is EngineError
    assert "`ollama pull`" in await refused({"/api/tags": [answer(200, {"models": []})]})
    assert "no model 'x'" in await refused(OLLAMA, upstream_model="x")


async def test_ollama_knows_the_latest_of_a_name():
    async with canned(OLLAMA) as server:
        engine = UpstreamEngine(Options(server.url, upstream_model="llama3.2"))
        await engine.start()
        assert engine.card.name == "llama3.2:latest"
        await engine.stop()


# Text Generation Inference: `/info` and the events of docs/openapi.json in its repository, the errors of
# router/src/server.rs, what it refuses of router/src/validation.rs, at its commits 003eaec0 and 01067f8b.

TGI = {
    "/info": [
        answer(200, {"model_id": "bigscience/bloom", "max_total_tokens": 2048, "max_input_tokens": 1024})
    ]
}
TGI_PATH = "/generate_stream"


def of_tgi(text, reason=None, count=1, *, token=17, special=False, logprob=-0.5, top_tokens=()):
    told = {"id": token, "text": text, "logprob": logprob, "special": special}
    end = {"finish_reason": reason, "generated_tokens": count, "seed": None, "input_length": 1}
    tops = {"top_tokens": [{"id": 0, "special": False} | top for top in top_tokens]} if top_tokens else {}
    return {
        "index": count,
        "token": told,
        **tops,
        "generated_text": "Hi" if reason else None,
        "details": end if reason else None,
    }


async def test_text_generation_inference():
    events = [of_tgi("Hi"), of_tgi("</s>", "eos_token", 2, special=True)]
    request = replace(REQUEST, sampling=Sampling(top_p=1.0, temperature=0.5))
    async with canned({**TGI, TGI_PATH: stream(*events)}) as server:
        engine = await started(server)
        assert (engine.card.name, engine.card.context) == ("bigscience/bloom", 2048)
        assert "presence_penalty" not in engine.card.capabilities.sampling
        chunks = await generated(engine, request)
        await engine.stop()
    assert (text_of(chunks), finish_of(chunks).reason) == ("Hi", FinishReason.STOP)
    assert finish_of(chunks).completion_tokens == 2
    assert server.asked[-1].body == {
        "inputs": "hi",
        "parameters": {
            "max_new_tokens": 4,
            "details": True,
            "do_sample": True,
            "temperature": 0.5,  # a `top_p` of 1 is refused
        },
    }
    assert "It has bigscience/bloom" in await refused(TGI, upstream_model="poet")


@pytest.mark.parametrize(
    ("sampling", "parameters"),
    [
        ({}, {"do_sample": True}),
        # It has no temperature of 0, and samples with any of these.
        ({"temperature": 0, "top_p": 0.5, "top_k": 9, "typical_p": 0.5}, {"do_sample": False}),
        ({"top_k": -1, "typical_p": 1, "top_p": 0.5}, {"do_sample": True, "top_p": 0.5}),
        ({"logprobs": 0}, {"do_sample": True}),
        ({"logprobs": 3, "seed": -1}, {"do_sample": True, "top_n_tokens": 3, "seed": 2**64 - 1}),
    ],
)
async def test_how_text_generation_inference_is_asked_to_sample(sampling, parameters):
    request = replace(REQUEST, sampling=Sampling(**sampling))
    async with canned({**TGI, TGI_PATH: stream(of_tgi("Hi", "length"))}) as server:
        engine = await started(server)
        await generated(engine, request)
        await engine.stop()
    assert server.asked[-1].body["parameters"] == {"max_new_tokens": 4, "details": True, **parameters}


async def test_text_generation_inference_stops_at_the_tokens_that_end_an_answer():
    """It does not know them: they are found by their ids, and the connection is closed."""
    events = [of_tgi("Hi"), of_tgi("###", count=2, token=9), *(of_tgi("more", count=n) for n in range(3, 99))]
    async with canned({**TGI, TGI_PATH: stream(*events)}) as server:
        engine = await started(server)
        chunks = await generated(engine, replace(REQUEST, sampling=Sampling(stop_token_ids=(9,))))
        await engine.stop()
    assert text_of(chunks) == "Hi"
    assert finish_of(chunks) == Finish(FinishReason.STOP, 9, 2)


async def test_log_probabilities_of_text_generation_inference():
    tops = [{"text": "Ho", "logprob": -2.0}, {"text": "Hi", "logprob": -0.5}, {"text": "Ha", "logprob": -3.0}]
    events = [
        of_tgi("Hi", top_tokens=tops),
        of_tgi("<|x|>", count=2, special=True),
        of_tgi("!", "length", 3, logprob=-1.0),
    ]
    for sampling, hidden in (
        (Sampling(logprobs=2), ""),
        (Sampling(logprobs=2, skip_special_tokens=False), "<|x|>"),
    ):
        async with canned({**TGI, TGI_PATH: stream(*events)}) as server:
            engine = await started(server)
            chunks = await generated(engine, replace(REQUEST, sampling=sampling))
            await engine.stop()
        assert text_of(chunks) == f"Hi{hidden}!"
        first, special, last = tokens_of(chunks)
        assert first == Token(-1, "Hi", -0.5, (Candidate(-1, "Hi", -0.5), Candidate(-1, "Ho", -2.0)))
        assert special == Token(-1, hidden, -0.5, (), None if hidden else b"<|x|>")
        assert (last.text, last.logprob) == ("!", -1.0)


@pytest.mark.parametrize(
    ("kind", "message", "error", "code"),
    [
        (
            "validation",
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 48 and 2047",
            RequestError,
            "context_length_exceeded",
        ),
        ("validation", "Input validation error: `top_p` must be > 0.0 and < 1.0", RequestError, None),
        ("overloaded", "Model is overloaded", EngineBusyError, "engine_busy"),
        ("generation", "Request failed during generation: Server error", EngineError, "engine_error"),
        ("incomplete_generation", "Incomplete generation", EngineError, "engine_error"),
    ],
)
async def test_errors_of_text_generation_inference(kind, message, error, code):
    event = {"error": message, "error_type": kind}
    collected = await collected_of({**TGI, TGI_PATH: stream(event)})
    assert (type(collected.error), collected.error.code) == (error, code)
    assert (message in collected.error.message) == (error is RequestError)


async def test_what_follows_an_estimated_prompt_leaves_it_room():
    ids = (*range(1000),)
    async with canned({**TGI, TGI_PATH: stream(of_tgi("Hi", "length"))}) as server:
        engine = await started(server)
        for size, wanted in ((10, 2038), (1000, 1048), (1000, 100), (2000, 48)):
            await generated(engine, GenerationRequest(Prompt("hi", (*ids, *ids)[:size]), wanted))
        await engine.stop()
    asked = [each.body["parameters"]["max_new_tokens"] for each in server.asked if each.method == "POST"]
    assert asked == [2008, 524, 100, 24]


# TabbyAPI: the model card of endpoints/core/types/model.py, the parameters of common/sampling.py, the chunks of
# endpoints/OAI/utils/completion.py, as of September 2026; the ones with ExLlamaV2 at its commit 02a8d68e.

TABBY = {
    "/v1/models": [
        answer(
            200, {"data": [{"id": "other", "owned_by": "tabbyAPI"}, {"id": "qwen", "owned_by": "tabbyAPI"}]}
        )
    ],
    "/v1/model": [answer(200, {"id": "qwen", "owned_by": "tabbyAPI", "parameters": {"max_seq_len": 4096}})],
}
GRAMMARS = {"grammar_string": {"description": "A grammar in Lark or GBNF format."}}


def document(column, *, without=(), **types):
    """`/openapi.json` of a TabbyAPI that has all fields of this column."""
    names = {name for field in samplers.supported(column) for name in samplers.sent_names(column, field)}
    fields = {name: {} for name in names - {*without}} | GRAMMARS
    return {
        "/openapi.json": [
            answer(200, {"components": {"schemas": {"CompletionRequest": {"properties": fields}, **types}}})
        ]
    }


def of_tabby(text, tokens=(), finish=None, top=None):
    logprobs = None
    if tokens:
        logprobs = {
            "text_offset": [0] * len(tokens),
            "token_logprobs": [logprob for _, logprob in tokens],
            "tokens": [token for token, _ in tokens],
            "top_logprobs": top,
        }
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}
    return {"id": "cmpl-1", "object": "text_completion", "model": "qwen", "choices": [choice]}


TABBY_END = {
    **of_tabby("", finish="stop"),
    "usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4},
}


async def test_tabbyapi():
    answers = {**TABBY, "/v1/completions": stream(of_tabby("Hi"), TABBY_END, DONE)}
    request = GenerationRequest(REQUEST.prompt, 4, Sampling(top_k=-1), preserve=frozenset({"<think>"}))
    async with canned(answers) as server:
        engine = await started(server)
        assert (engine.card.name, engine.card.context) == ("qwen", 4096)
        assert "seed" not in engine.card.capabilities.sampling
        chunks = await generated(engine, request)
        await engine.stop()
    assert (text_of(chunks), finish_of(chunks).completion_tokens) == ("Hi", 3)
    body = server.asked[-1].body
    assert (body["prompt"], body["top_k"], body["skip_special_tokens"]) == ("hi", 0, False)


async def test_log_probabilities_of_tabbyapi():
    """The text of a chunk is that of all its tokens; a hidden one, and a part of a character, add nothing."""
    chunks = [
        of_tabby("Hi", [("H", -0.5), ("i", -1.0)], top=[{"A": -3.0, "H": -0.5, "B": -4.0}, {"i": -1.0}]),
        of_tabby("\u00fc!", [("\ufffd", -1.5), ("\u00fc!", -2.0)]),
        TABBY_END,
        DONE,
    ]
    answers = {**TABBY, **document("tabbyapi"), "/v1/completions": stream(*chunks)}
    async with canned(answers) as server:
        engine = await started(server)
        received = await generated(engine, replace(REQUEST, sampling=Sampling(logprobs=2)))
        await engine.stop()
    assert text_of(received) == "Hi\u00fc!"
    assert tokens_of(received) == [
        Token(-1, "H", -0.5, (Candidate(-1, "H", -0.5), Candidate(-1, "A", -3.0))),
        Token(-1, "i", -1.0, (Candidate(-1, "i", -1.0),)),
        Token(-1, "", -1.5, (), "\ufffd".encode()),
        Token(-1, "\u00fc!", -2.0),
    ]
    assert server.asked[-1].body["logprobs"] == server.asked[-1].body["top_logprobs"] == 2


async def card_of(answers, **options):
    async with canned({**TABBY, **answers}) as server:
        engine = UpstreamEngine(Options(server.url, **options))
        await engine.start()
        await engine.stop()
    return engine.card.capabilities, engine.card.chat_template


async def test_a_tabbyapi_has_the_fields_that_its_document_has():
    capabilities, _ = await card_of(document("tabbyapi"))
    assert capabilities.sampling == samplers.supported("tabbyapi")
    assert capabilities.constraints == (Gbnf,)
    older, _ = await card_of(document("tabbyapi", without=("adaptive_target", "adaptive_decay")))
    assert capabilities.sampling - older.sampling == {"adaptive_target", "adaptive_decay"}
    untold, _ = await card_of({})
    assert {"temperature", "top_k", "repeat_last_n"} <= untold.sampling
    assert not untold.sampling & {"logprobs", "dry_multiplier", "xtc_probability", "min_tokens"}
    assert not untold.constraints


@pytest.mark.parametrize("kind", [None, "tabbyapi-exllamav2"])
async def test_a_tabbyapi_that_has_only_exllamav2(kind):
    capabilities, _ = await card_of(document("tabbyapi-exllamav2"), upstream_kind=kind)
    assert capabilities.sampling == samplers.supported("tabbyapi-exllamav2")
    both = document("tabbyapi-exllamav2", ModelLoadRequest={"properties": {"backend": {}}})
    capabilities, _ = await card_of(both, upstream_kind=kind)
    assert ("cfg_scale" in capabilities.sampling) == (kind is not None)


async def test_the_newest_tabbyapi_is_no_llama_server():
    """It answers `/props`, too."""
    props = {"/props": [answer(200, {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 1})]}
    async with canned({**TABBY, **props}) as server:
        engine = await started(server)
        assert engine.card.capabilities.text_prompts
        assert engine.card.context == 4096
        await engine.stop()


@pytest.mark.parametrize(("template", "used"), [("{{ messages }}", True), ("{{ eos_token }}", False)])
async def test_the_template_that_tabbyapi_tells(template, used):
    parameters = {"max_seq_len": 4096, "prompt_template_content": template}
    _, told = await card_of({"/v1/model": [answer(200, {"id": "qwen", "parameters": parameters})]})
    assert told == (template if used else None)


async def test_a_grammar_for_tabbyapi():
    answers = {**TABBY, **document("tabbyapi"), "/v1/completions": stream(of_tabby("Hi"), TABBY_END, DONE)}
    async with canned(answers) as server:
        engine = await started(server)
        await generated(engine, replace(REQUEST, constraint=Gbnf('root ::= "Hi"')))
        await engine.stop()
    assert server.asked[-1].body["grammar_string"] == 'root ::= "Hi"'


# All of it: an Antiphon in front of an Antiphon.


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ANSWERS = [{"when": "weather", "output": CALL}, {"output": "One, two, three, four."}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


class Templated(UpstreamEngine):
    """With a chat template, which this upstream does not report."""

    @property
    def card(self):
        return replace(super().card, chat_template=CHATML)


@pytest_asyncio.fixture
async def front():
    """A client of a server whose model another server runs, and the engine of the other one."""
    async with antiphon_running(ScriptedEngine(ANSWERS)) as back:
        engine = Templated(Options(back.url, upstream_kind="completions", context=100_000))
        async with (
            antiphon_running(engine) as server,
            httpx.AsyncClient(base_url=server.url, verify=NO_TLS, timeout=30) as client,
        ):
            yield client, back.engine


async def asked(client, **body):
    response = await client.post("/v1/chat/completions", json={"model": "scripted", **body})
    return response.status_code, response.json()


async def test_a_call_is_read_out_of_what_the_server_writes(front):
    client, _ = front
    messages = [{"role": "user", "content": "The weather?"}]
    _, body = await asked(client, messages=messages, tools=[TOOL])
    [choice] = body["choices"]
    [call] = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
        "weather",
        {"city": "Rome"},
    )
    assert choice["finish_reason"] == "tool_calls"


async def test_a_stop_string_stops_the_server_behind(front):
    client, engine = front
    messages = [{"role": "user", "content": "Count."}]
    _, body = await asked(client, messages=messages, stop=", three")
    assert body["choices"][0]["message"]["content"] == "One, two"
    await until(lambda: engine.load.idle)


async def test_what_the_server_cannot_do_is_refused_before_it_is_asked(front):
    client, engine = front
    status, body = await asked(client, messages=[{"role": "user", "content": "x"}], use_beam_search=True, n=2)
    assert (status, body["error"]["param"]) == (400, "use_beam_search")
    assert not engine.seen


async def test_a_request_that_the_server_refuses(front):
    client, _ = front
    status, body = await asked(client, messages=[{"role": "user", "content": "word " * 40_000}])
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert body["error"]["message"].startswith("The server of the model refuses this: ")


def test_each_flavour_and_provider_is_recognised():
    """One that is in no list of kinds would never be chosen."""
    names = {each.name for each in (*completions.FLAVOURS, *chat.PROVIDERS)}
    assert names <= set(KINDS), f"add them to KINDS in engines/upstream.py: {names - set(KINDS)}"
