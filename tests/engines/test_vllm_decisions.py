"""Decisions that vLLM's own server answers, by its `/v1/systemone`: `make test-vllm`.

The model is a small Qwen3 of random weights (`load_format=dummy`), one of the architectures with which vLLM
decides, with SmolLM2's tokenizer. What it prefers means nothing.
"""

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace

from antiphon.core.decision import Decision, Option, Question, QuestionKind
from antiphon.core.errors import RequestError
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.limits import Limits
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.engines.upstreams import systemone
from antiphon.engines.upstreams.systemone import MAX_QUESTIONS
from antiphon.run.server_decisions import request_to_server
from tests.real_engine import VLLM_MODEL, vllm_server

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not VLLM_MODEL, reason="vLLM is not here: make test-vllm"),
    pytest.mark.timeout(900),
]

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "dtype": "bfloat16",
}
QUESTIONS = (
    Question(
        QuestionKind.CHOICE,
        (TextPart("Which team?"),),
        (Option("billing", "payments"), Option("shipping"), Option("returns")),
        "questions.route",
    ),
    Question(
        QuestionKind.SCORE,
        (TextPart("How urgent?"),),
        (Option("can wait"), Option("today", "in a day"), Option("now")),
        "questions.urgency",
    ),
    Question(QuestionKind.PREDICATE, (TextPart("Angry?"),), (Option(""), Option("")), "questions.angry"),
    Question(QuestionKind.PREDICATE, (), (Option("", "It is rude."), Option("")), "questions.rude"),
)
TEXT = (Message(Role.USER, (TextPart("The parcel was charged twice."),)),)
CONVERSATION = (
    Message(Role.DEVELOPER, (TextPart("Judge the customer."),)),
    *TEXT,
    Message(Role.ASSISTANT, (TextPart("Which one?"),)),
    Message(Role.USER, (TextPart("The second!"),)),
)
DECISION = Decision("smollm2", TEXT, QUESTIONS)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("qwen3")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(Path(VLLM_MODEL) / name, folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with vllm_server(str(folder), "load_format=dummy", "max_model_len=1024", "max_num_seqs=4") as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(url: str) -> AsyncIterator[UpstreamEngine]:
    engine = UpstreamEngine(Options(url))
    await engine.start()
    yield engine
    await engine.stop()


async def decided(engine: UpstreamEngine, decision: Decision) -> list[tuple[float, ...]]:
    verdicts = await engine.decide(request_to_server(decision, Limits(), 0))
    assert verdicts.prompt_tokens > 0
    assert verdicts.reads == len(decision.questions)
    return [verdict.probabilities for verdict in verdicts.verdicts]


async def test_the_route_is_found(engine: UpstreamEngine) -> None:
    assert await systemone.is_served(engine._client)


@pytest.mark.parametrize("items", [TEXT, CONVERSATION], ids=["text", "messages"])
async def test_every_kind_of_question_is_answered(engine: UpstreamEngine, items: tuple[Message, ...]) -> None:
    decision = replace(DECISION, items=items)
    told = await decided(engine, decision)
    assert [len(one) for one in told] == [3, 3, 2, 2]
    for probabilities in told:
        assert sum(probabilities) == pytest.approx(1, abs=1e-3)
        assert all(probability > 0 for probability in probabilities)
    assert await decided(engine, decision) == told


async def test_more_questions_than_fit_a_request(engine: UpstreamEngine) -> None:
    count = MAX_QUESTIONS + 2
    told = await decided(engine, replace(DECISION, questions=(QUESTIONS[2],) * count))
    assert len(told) == count
    assert max(one[0] for one in told) - min(one[0] for one in told) < 0.02


async def test_what_the_server_refuses_is_a_refused_request(engine: UpstreamEngine) -> None:
    long = (Message(Role.USER, (TextPart("again " * 1100),)),)
    with pytest.raises(RequestError):
        await decided(engine, replace(DECISION, items=long))
