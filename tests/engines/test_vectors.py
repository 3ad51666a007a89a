"""Embeddings and rankings: the contract for every engine that has them, and what other servers answer.

The answers of servers are as their documents show them: vLLM's "OpenAI-Compatible Server" and "Pooling Models",
llama.cpp's `tools/server/README.md`, Ollama's `docs/api.md`, SGLang's "Rerank Model". None was recorded from a
running server; llama.cpp's own answers the contract.
"""

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from antiphon.core.errors import EngineError, EngineNotReadyError, RequestError
from antiphon.core.vectors import EmbeddingRequest, Embeddings, Scores
from antiphon.engines.engine import Task
from antiphon.engines.llama_cpp import LlamaCppEngine
from antiphon.engines.llama_cpp import Options as LlamaOptions
from antiphon.engines.pool import PoolEngine
from antiphon.engines.scripted import ScriptedEngine
from antiphon.engines.upstream import Options, UpstreamEngine
from tests.contracts.vectors import VectorContract, near
from tests.engines.canned import Canned, answer, canned
from tests.server import running

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestScripted(VectorContract):
    ranks = True

    @pytest_asyncio.fixture(loop_scope="module")
    async def engine(self):
        engine = ScriptedEngine([{"output": "x"}], parallel=3, context=200)
        await engine.start()
        return engine


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def over_http():
    async with running(ScriptedEngine([{"output": "x"}], context=200)) as server:
        engine = UpstreamEngine(Options(server.url, upstream_kind="vllm", parallel=2))
        await engine.start()
        yield engine
        await engine.stop()


class TestOverAntiphon(VectorContract):
    """Antiphon has vLLM's API, so it represents it."""

    ranks = True

    @pytest.fixture
    def engine(self, over_http):
        return over_http


class TestReplicas(VectorContract):
    ranks = True

    @pytest_asyncio.fixture(loop_scope="module")
    async def engine(self):
        engines = [ScriptedEngine([{"output": "x"}], context=200) for _ in range(2)]
        engine = PoolEngine([("one", engines[0]), ("two", engines[1])])
        await engine.start()
        yield engine
        await engine.stop()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def smollm(shallow_model):
    engine = LlamaCppEngine(shallow_model, LlamaOptions(context=64, parallel=2, threads=1, task=Task.EMBED))
    await engine.start()
    yield engine
    await engine.stop()


class TestLlamaCpp(VectorContract):
    """SmolLM2, whose file does not say that it embeds: the mean of the vectors of its tokens."""

    many = 4

    @pytest.fixture
    def engine(self, smollm):
        return smollm

    async def test_texts_of_all_lengths_at_the_same_time(self, engine: Any) -> None:
        texts = [" ".join(["word", "other", "third"][: 1 + n % 3] * (1 + n % 4)) for n in range(10)]
        alone = [(await self.embedded(engine, text)).vectors[0] for text in texts]
        for _ in range(4):
            together = await self.embedded(engine, *texts)
            assert all(map(near, alone, together.vectors))

    async def test_it_does_nothing_else(self, engine: Any) -> None:
        assert engine.card.capabilities.tasks == {Task.EMBED}

    async def test_an_id_that_is_no_tokens(self, engine: Any) -> None:
        with pytest.raises(RequestError):
            await engine.embed(EmbeddingRequest(((10**8,),)))


MODELS = answer(200, {"data": [{"id": "e5", "owned_by": "vllm", "max_model_len": 512}]})
VLLM = {
    "/v1/models": [MODELS],
    "/tokenize": [answer(200, {"tokens": [81], "count": 1, "max_model_len": 512})],
}
OLLAMA = {
    "/api/tags": [answer(200, {"models": [{"name": "all-minilm"}]})],
    "/api/show": [answer(200, {"model_info": {"general.architecture": "bert", "bert.context_length": 512}})],
}
SGLANG = {"/v1/models": [answer(200, {"data": [{"id": "bge", "owned_by": "sglang"}]})]}


async def asking(server: Canned, **options: Any) -> UpstreamEngine:
    engine = UpstreamEngine(Options(server.url, **options))
    await engine.start()
    return engine


def bodies(server: Canned, path: str) -> list[Any]:
    return [asked.body for asked in server.asked if asked.path == path]


async def test_vllm() -> None:
    embedded = {
        "id": "embd-1",
        "object": "list",
        "created": 1,
        "model": "e5",
        "data": [
            {"index": 1, "object": "embedding", "embedding": [0.0, 1.0]},
            {"index": 0, "object": "embedding", "embedding": [1.0, 0.0]},
        ],
        "usage": {"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0},
    }
    ranked = {
        "id": "rerank-1",
        "model": "e5",
        "usage": {"total_tokens": 56},
        "results": [
            {"index": 1, "document": {"text": "b"}, "relevance_score": 0.99},
            {"index": 0, "document": {"text": "a"}, "relevance_score": 0.0005},
        ],
    }
    answers = VLLM | {"/v1/embeddings": [answer(200, embedded)], "/v1/rerank": [answer(200, ranked)]}
    async with canned(answers) as server:
        engine = await asking(server, task=Task.EMBED, upstream_key="sk")
        request = EmbeddingRequest(("a", (1, 2)), dimensions=2, truncate=-1, keep_end=True)
        assert await engine.embed(request) == Embeddings(([1.0, 0.0], [0.0, 1.0]), 4)
        assert await engine.score([("q", "a"), ("q", "b")]) == Scores((0.0005, 0.99), 56)
        await engine.stop()
    assert bodies(server, "/v1/embeddings") == [
        {
            "model": "e5",
            "input": ["a", [1, 2]],
            "encoding_format": "float",
            "dimensions": 2,
            "truncate_prompt_tokens": -1,
            "truncation_side": "left",
        }
    ]
    assert bodies(server, "/v1/rerank") == [
        {"model": "e5", "query": "q", "documents": ["a", "b"], "top_n": 2}
    ]


async def test_ollama_is_told_not_to_cut() -> None:
    found = {"model": "all-minilm", "embeddings": [[0.6, 0.8]], "prompt_eval_count": 8}
    async with canned(OLLAMA | {"/api/embed": [answer(200, found)]}) as server:
        engine = await asking(server, task=Task.EMBED)
        assert await engine.embed(EmbeddingRequest(("a",))) == Embeddings(([0.6, 0.8],), 8)
        await engine.embed(EmbeddingRequest(("a",), dimensions=2, truncate=-1))
        with pytest.raises(RequestError, match="cuts texts at its own length") as error:
            await engine.embed(EmbeddingRequest(("a",), truncate=5))
        assert error.value.param == "truncate_prompt_tokens"
        await engine.stop()
    assert bodies(server, "/api/embed") == [
        {"model": "all-minilm", "input": ["a"], "truncate": False},
        {"model": "all-minilm", "input": ["a"], "truncate": True, "dimensions": 2},
    ]


async def test_ollama_does_not_rank() -> None:
    async with canned(OLLAMA) as server:
        with pytest.raises(EngineError, match="ollama has no models to rank"):
            await asking(server, task=Task.RANK)


async def test_sglang_ranks_with_a_list() -> None:
    ranked = [{"score": 0.99, "document": "b", "index": 1}, {"score": 0.0002, "document": "a", "index": 0}]
    answers = SGLANG | {"/v1/rerank": [answer(200, ranked)]}
    async with canned(answers) as server:
        engine = await asking(server, upstream_kind="chat")
        assert await engine.score([("q", "a"), ("q", "b")]) == Scores((0.0002, 0.99), 0)
        await engine.stop()


async def test_queries_are_asked_one_by_one_and_long_lists_in_parts() -> None:
    async with canned(SGLANG) as server:
        engine = await asking(server, upstream_kind="chat")
        ranked = [{"score": 0.5, "index": index} for index in range(32)]
        server.answers["/v1/rerank"] = [answer(200, {"results": ranked})]
        found = await engine.score([(query, f"{place}") for query in "ab" for place in range(32)])
        assert len(found.scores) == 64
        await engine.stop()
    assert [(body["query"], len(body["documents"])) for body in bodies(server, "/v1/rerank")] == [
        ("a", 32),
        ("b", 32),
    ]


TOO_LARGE = (
    "input (601 tokens) is too large to process. increase the physical batch size (current batch size: 512)"
)


@pytest.mark.parametrize(
    ("status", "body", "error", "says"),
    [
        (404, {"detail": "Not Found"}, RequestError, "cannot do this with it"),
        (
            501,
            {"error": {"code": 501, "message": "This server does not support embeddings."}},
            RequestError,
            "cannot do this with it",
        ),
        (400, {"error": {"message": "Too long for sk-1."}}, RequestError, "Too long for …"),
        (
            500,
            {"error": {"code": 500, "message": TOO_LARGE}},
            RequestError,
            "it has 601 tokens, and the model reads at most 512 at a time.",
        ),
        (500, {"error": {"message": "CUDA"}}, EngineError, "failed to answer"),
        (401, {}, EngineError, "refuses the key"),
        (200, {"data": []}, EngineError, "not answer as expected"),
        (200, {"data": [{"embedding": None}]}, EngineError, "not answer as expected"),
        (200, [], EngineError, "not answer as expected"),
    ],
)
async def test_what_a_server_refuses(status: int, body: Any, error: Any, says: str) -> None:
    async with canned(SGLANG | {"/v1/embeddings": [answer(status, body)]}) as server:
        engine = await asking(server, upstream_kind="chat", upstream_key="sk-1")
        with pytest.raises(error) as raised:
            await engine.embed(EmbeddingRequest(("a",)))
        assert says in raised.value.message
        if error is RequestError:
            assert raised.value.param == ("model" if status in (404, 501) else "input")
        await engine.stop()


async def test_a_document_that_is_too_long_is_blamed() -> None:
    refused = answer(500, {"error": {"code": 500, "message": TOO_LARGE}})
    async with canned(SGLANG | {"/v1/rerank": [refused]}) as server:
        engine = await asking(server, upstream_kind="chat")
        with pytest.raises(RequestError) as raised:
            await engine.score([("q", "a")])
        await engine.stop()
    assert (raised.value.param, raised.value.code) == ("documents", "context_length_exceeded")


@pytest.mark.parametrize("body", [{"results": []}, {}, {"results": [{"index": 9}]}])
async def test_scores_that_are_missing(body: Any) -> None:
    async with canned(SGLANG | {"/v1/rerank": [answer(200, body)]}) as server:
        engine = await asking(server, upstream_kind="chat")
        with pytest.raises(EngineError, match="not answer as expected"):
            await engine.score([("q", "a")])
        await engine.stop()


@pytest.mark.parametrize("body", [{"embeddings": []}, {}])
async def test_vectors_of_ollama_that_are_missing(body: Any) -> None:
    async with canned(OLLAMA | {"/api/embed": [answer(200, body)]}) as server:
        engine = await asking(server)
        with pytest.raises(EngineError, match="not answer as expected"):
            await engine.embed(EmbeddingRequest(("a",)))
        await engine.stop()


async def test_who_waits_for_a_slot_is_told_when_the_engine_stops() -> None:
    async with canned(SGLANG | {"/v1/embeddings": []}, silent={"/v1/embeddings"}) as server:
        engine = await asking(server, upstream_kind="chat", parallel=1)
        asked = [asyncio.ensure_future(engine.embed(EmbeddingRequest((text,)))) for text in "ab"]
        while not bodies(server, "/v1/embeddings"):
            await asyncio.sleep(0.001)
        assert (engine.load.running, engine.load.waiting) == (1, 1)
        await engine.stop()
        for each in asked:
            with pytest.raises(EngineNotReadyError):
                await each


async def test_who_leaves_gives_up_the_slot() -> None:
    async with canned(SGLANG | {"/v1/embeddings": []}, silent={"/v1/embeddings"}) as server:
        engine = await asking(server, upstream_kind="chat", parallel=1)
        asked = asyncio.ensure_future(engine.embed(EmbeddingRequest(("a",))))
        while not server.open or not bodies(server, "/v1/embeddings"):
            await asyncio.sleep(0.001)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (engine.load.running, engine.load.waiting) == (0, 0)
        await engine.stop()
