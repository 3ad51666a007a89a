"""Embeddings, rankings and scores over a real socket, with the official client where it has them."""

import asyncio
import math
from array import array
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from structlog.testing import capture_logs

from antiphon.apis.vectors import EmbeddingsRequest, RerankRequest
from antiphon.app import vectors
from antiphon.core.accounts import Account, Permissions
from antiphon.core.errors import RateLimitError, RequestError
from antiphon.core.limits import Limits
from antiphon.core.observation import OBSERVATION, Observation
from antiphon.core.vectors import EmbeddingRequest, Embeddings
from antiphon.engines.engine import Capabilities, Task
from antiphon.engines.scripted import DIMENSIONS, ScriptedEngine
from antiphon.run.models import Models
from tests.http.chat_api import ChatApi, chatting
from tests.openai_schema import validate
from tests.server import composed, served_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

EMBEDDINGS, RERANK, SCORE = "/v1/embeddings", "/v1/rerank", "/score"
LIMITS = Limits(inputs=40, input_tokens=5000)
CAT, TRADE = "the cat sleeps", "parliament votes today"


def engine(*tasks: Task, name: str, embedding: tuple[str, ...] = ()) -> ScriptedEngine:
    able = Capabilities(
        token_ids=True,
        sampling=frozenset({"max_tokens"}),
        tasks=frozenset(tasks),
        embedding=frozenset(embedding),
    )
    return ScriptedEngine([{"output": "Hello."}], name=name, context=400, capabilities=able)


class Waiting(ScriptedEngine):
    """It never returns a vector, and notices when none is wanted any more."""

    def __init__(self) -> None:
        able = Capabilities(tasks=frozenset({Task.EMBED}))
        super().__init__([{"output": "x"}], name="waiting", capabilities=able)
        self.begun, self.left = asyncio.Event(), asyncio.Event()

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        raise AssertionError


WAITING: list[Waiting] = []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[ChatApi]:
    waiting = Waiting()
    WAITING[:] = [waiting]
    engines = [
        engine(*Task, name="all", embedding=("ids", "dimensions", "truncate")),
        engine(Task.EMBED, name="plain"),
        engine(Task.GENERATE, name="talker"),
        engine(Task.RANK, name="ranker"),
        waiting,
    ]
    models = Models([served_model(each, dialect="hermes", limits=LIMITS) for each in engines])
    async with chatting(engines[0], models=models, limit=LIMITS) as api:
        yield api


async def embeddings(api: ChatApi, given: Any, model: str = "all", **fields: Any) -> Any:
    body = await api.post(EMBEDDINGS, {"model": model, "input": given, **fields})
    if fields.get("encoding_format") != "base64":
        validate("CreateEmbeddingResponse", body)
    assert [each["index"] for each in body["data"]] == [*range(len(body["data"]))]
    return body


async def refused(api: ChatApi, path: str, **body: Any) -> Any:
    return (await api.post(path, {"model": "all", **body}, 400))["error"]


async def test_one_text(api: ChatApi) -> None:
    body = await embeddings(api, CAT)
    [datum] = body["data"]
    assert math.isclose(math.hypot(*datum["embedding"]), 1.0)
    assert body["model"] == "all"
    assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


async def test_texts_and_ids_in_all_their_forms(api: ChatApi) -> None:
    ids = (await api.post("/tokenize", {"model": "all", "prompt": CAT}))["tokens"]
    [expected] = (await embeddings(api, CAT))["data"]
    for given in ([CAT], ids, [ids]):
        [datum] = (await embeddings(api, given))["data"]
        assert datum == expected
    several = (await embeddings(api, [CAT, TRADE, ids]))["data"]
    assert [each["embedding"] for each in (several[0], several[2])] == [expected["embedding"]] * 2
    assert several[1]["embedding"] != expected["embedding"]


async def test_packed_vectors(api: ChatApi) -> None:
    [plain] = (await embeddings(api, CAT))["data"]
    [packed] = (await embeddings(api, CAT, encoding_format="base64"))["data"]
    assert array("f", b64decode(packed["embedding"])).tolist() == pytest.approx(plain["embedding"], abs=1e-6)


async def test_fewer_dimensions(api: ChatApi) -> None:
    [datum] = (await embeddings(api, CAT, dimensions=8))["data"]
    assert len(datum["embedding"]) == 8
    assert math.isclose(math.hypot(*datum["embedding"]), 1.0)


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_the_official_client(api: ChatApi, encoding: Any) -> None:
    async with AsyncOpenAI(base_url=f"{api.server.url}/v1", api_key="none", http_client=None) as client:
        found = await client.embeddings.create(
            model="all", input=[CAT, TRADE], encoding_format=encoding, dimensions=16
        )
        default = await client.embeddings.create(model="all", input=CAT)
    assert len(default.data[0].embedding) == DIMENSIONS
    assert found.usage.prompt_tokens == 6
    vectors: list[Any] = [each.embedding for each in found.data]
    if encoding == "base64":
        vectors = [array("f", b64decode(each)).tolist() for each in vectors]
    assert [len(each) for each in vectors] == [16, 16]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 2}, "the cat"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, "cat sleeps"),
        ({"truncate_prompt_tokens": -1}, CAT),
        ({"truncate": True}, CAT),
        ({"truncate": "END"}, CAT),
        ({"truncate": "NONE"}, CAT),
        ({"truncate": False}, CAT),
        ({"truncate": "START", "truncate_prompt_tokens": 2}, "cat sleeps"),
    ],
)
async def test_inputs_are_cut(api: ChatApi, fields: dict[str, Any], kept: str) -> None:
    found = await embeddings(api, CAT, **fields)
    assert found["usage"]["prompt_tokens"] == len(kept.split())


@pytest.mark.parametrize(
    "fields", [{"truncate": True}, {"truncate": "START"}, {"truncate_prompt_tokens": -1}]
)
async def test_an_input_longer_than_the_context(api: ChatApi, fields: dict[str, Any]) -> None:
    long = "word " * 500
    error = await refused(api, EMBEDDINGS, input=long)
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
    assert (await embeddings(api, long, **fields))["usage"]["prompt_tokens"] == 400


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"input": ""}, "input", "is empty"),
        ({"input": ["a", ""]}, "input[1]", "is empty"),
        ({"input": [[1], []]}, "input[1]", "is empty"),
        ({"input": []}, "input", "length"),
        ({"input": ["a", 1]}, "input", "holds texts and lists of token ids"),
        ({"input": {"a": 1}}, "input", "Expected"),
        ({"input": ["a"] * 41}, "input", "'inputs'"),
        ({"input": "a" * 20_004}, "input", "'input_tokens'"),
        ({"input": [[1] * 5001]}, "input", "'input_tokens'"),
        ({}, "input", "Missing"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "Invalid"),
        ({"input": "a", "dimensions": 0}, "dimensions", ">= 1"),
        ({"input": "a", "dimensions": 65}, "dimensions", "at most 64"),
        ({"input": "a", "normalize": False}, "normalize", "length 1"),
        ({"input": "a", "normalized": False}, "normalized", "length 1"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "At least 1"),
        ({"input": "a", "truncate": False, "truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "nothing"),
        ({"input": "a", "truncate": "MIDDLE"}, "truncate", "Invalid"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, "messages", "not supported"),
    ],
)
async def test_what_is_refused(api: ChatApi, fields: dict[str, Any], param: str, says: str) -> None:
    error = await refused(api, EMBEDDINGS, **fields)
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [1, 2]}, "input"),
        ({"input": "a", "dimensions": 8}, "dimensions"),
        ({"input": "a", "truncate": True}, "truncate_prompt_tokens"),
    ],
)
async def test_what_an_engine_cannot_do(api: ChatApi, fields: dict[str, Any], param: str) -> None:
    error = await refused(api, EMBEDDINGS, **fields | {"model": "plain"})
    assert error["param"] == param
    assert "'plain' does not support" in error["message"]


@pytest.mark.parametrize(
    ("path", "model", "body", "says"),
    [
        (EMBEDDINGS, "talker", {"input": "a"}, "does not compute embeddings"),
        (EMBEDDINGS, "ranker", {"input": "a"}, "does not compute embeddings"),
        (RERANK, "talker", {"query": "a", "documents": ["b"]}, "does not rank"),
        (SCORE, "talker", {"text_1": "a", "text_2": "b"}, "does not rank"),
        ("/v1/completions", "plain", {"prompt": "a"}, "does not generate text"),
        (
            "/v1/chat/completions",
            "ranker",
            {"messages": [{"role": "user", "content": "a"}]},
            "does not generate text",
        ),
        ("/v1/responses", "plain", {"input": "a", "store": False}, "does not generate text"),
    ],
)
async def test_a_model_that_cannot_is_refused_by_name(
    api: ChatApi, path: str, model: str, body: Any, says: str
) -> None:
    error = await refused(api, path, **body | {"model": model})
    assert (error["param"], error["code"]) == ("model", "unsupported_model")
    assert f"The model '{model}' {says}" in error["message"]


async def test_a_model_that_nobody_has(api: ChatApi) -> None:
    error = (await api.post(EMBEDDINGS, {"model": "none", "input": "a"}, 404))["error"]
    assert error["code"] == "model_not_found"


async def test_a_model_that_only_embeds_still_tokenizes(api: ChatApi) -> None:
    tokens = (await api.post("/tokenize", {"model": "plain", "prompt": CAT}))["tokens"]
    assert (await api.post("/detokenize", {"model": "plain", "tokens": tokens}))["prompt"] == CAT


@pytest.mark.parametrize("path", [RERANK, "/v2/rerank", "/rerank"])
@pytest.mark.parametrize("model", ["all", "ranker", "plain"])
async def test_a_ranking(api: ChatApi, path: str, model: str) -> None:
    documents = [TRADE, {"text": CAT}, "my cat"]
    body = await api.post(path, {"model": model, "query": "the cat", "documents": documents})
    assert body["model"] == model
    assert [each["index"] for each in body["results"]] == [1, 2, 0]
    scores = [each["relevance_score"] for each in body["results"]]
    assert scores == sorted(scores, reverse=True)
    assert "document" not in body["results"][0]
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize("shown", [True, False])
async def test_a_ranking_in_the_form_of_tei(api: ChatApi, shown: bool) -> None:
    body = {"query": "the cat", "texts": [TRADE, CAT, "my cat"], "return_text": shown, "truncate": True}
    body |= {"model": "all"}
    best, second, last = (await api.http.post("/rerank", json=body)).json()
    assert [each["index"] for each in (best, second, last)] == [1, 2, 0]
    assert best["score"] >= second["score"] >= last["score"]
    assert best.get("text") == (CAT if shown else None)
    assert len((await api.http.post("/rerank", json=body | {"top_n": 1})).json()) == 1


async def test_the_best_documents_with_their_texts(api: ChatApi) -> None:
    body = await api.post(
        RERANK,
        {"model": "all", "query": "cat", "documents": [TRADE, CAT], "top_n": 1, "return_documents": True},
    )
    [best] = body["results"]
    assert (best["index"], best["document"]) == (1, {"text": CAT})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "documents": ["b"] * 41}, "documents"),
        ({"query": "a" * 3000, "documents": ["b"] * 7}, "documents"),
        ({"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
        ({"query": "a", "documents": ["b"], "texts": ["b"]}, "texts"),
        ({"query": "a", "texts": ["b"], "raw_scores": True}, "raw_scores"),
        ({"query": "a", "texts": []}, "texts"),
    ],
)
async def test_rankings_that_are_refused(api: ChatApi, fields: dict[str, Any], param: str) -> None:
    assert (await refused(api, RERANK, **fields))["param"] == param


@pytest.mark.parametrize("path", [SCORE, "/v1/score"])
async def test_scores_of_pairs(api: ChatApi, path: str) -> None:
    one = await api.post(path, {"model": "all", "text_1": "cat", "text_2": [CAT, TRADE]})
    assert [each["score"] for each in one["data"]] == [1.0, 0.0]
    assert [each["object"] for each in one["data"]] == ["score", "score"]
    each = await api.post(path, {"model": "all", "text_1": ["cat", "today"], "text_2": [TRADE, TRADE]})
    assert [each["score"] for each in each["data"]] == [0.0, 1.0]
    alone = await api.post(path, {"model": "all", "text_1": "cat", "text_2": {"text": CAT}})
    assert [each["score"] for each in alone["data"]] == [1.0]


async def test_scores_of_lists_that_do_not_fit(api: ChatApi) -> None:
    error = await refused(api, SCORE, text_1=["a", "b"], text_2=["c"])
    assert error["param"] == "text_1"


async def test_what_is_read_is_counted_for_the_operator(api: ChatApi) -> None:
    async def read() -> float:
        lines = (await api.http.get("/metrics")).text.splitlines()
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:prompt_tokens_total")
        )

    before = await read()
    with capture_logs() as logs:
        embedded = await api.post(EMBEDDINGS, {"model": "plain", "input": [CAT, TRADE]})
        ranked = await api.post(RERANK, {"model": "ranker", "query": CAT, "documents": [TRADE]})
    used = [embedded["usage"]["prompt_tokens"], ranked["usage"]["total_tokens"]]
    assert await read() - before == sum(used)
    assert [line["prompt_tokens"] for line in logs if line["event"] == "request"] == used


async def test_who_leaves_is_not_worked_for(api: ChatApi) -> None:
    [waiting] = WAITING
    asking = asyncio.ensure_future(api.http.post(EMBEDDINGS, json={"model": "waiting", "input": "a"}))
    await asyncio.wait_for(waiting.begun.wait(), 20)
    asking.cancel()
    await asyncio.wait_for(waiting.left.wait(), 20)


async def test_the_tokens_of_a_key_are_counted() -> None:
    permissions = Permissions(tokens_per_minute=12)
    account = Account("ann", "ann", permissions)
    OBSERVATION.set(Observation(account=account))
    served = served_model(engine(Task.EMBED, name="plain"), dialect="hermes")
    models = Models([served])
    await models.start()
    _, runtime = composed([], models=models)
    await vectors.embeddings(runtime.app, EmbeddingsRequest(model="plain", input=CAT))
    assert account.tokens is not None
    assert 9 <= account.tokens.left < 9.5  # three of twelve are used
    with pytest.raises(RequestError) as never:
        await vectors.embeddings(runtime.app, EmbeddingsRequest(model="plain", input="a" * 60))
    assert never.value.param == "input"
    with pytest.raises(RateLimitError):
        await vectors.ranking(runtime.app, RerankRequest(model="plain", query="a" * 20, documents=["b" * 20]))
    await models.stop()
