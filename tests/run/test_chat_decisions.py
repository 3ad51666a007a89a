"""Decisions of models behind servers of conversations: labels as texts, bounds, and what is refused."""

import math

import pytest
from msgspec.structs import replace

from antiphon.core.chunks import Candidate
from antiphon.core.decision import Decision, Option, Question, QuestionKind
from antiphon.core.errors import EngineError, RequestError, UnsupportedModelError
from antiphon.core.items import FunctionCall, FunctionOutput, Message, Role, TextPart
from antiphon.engines.engine import NextToken
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.run import chat_decisions
from tests.engines.canned import answer, canned
from tests.run.test_model_kinds import chats
from tests.server import served_model

ASKED = Question(
    QuestionKind.CHOICE, (TextPart("Which team?"),), tuple(map(Option, ("billing", "shipping", "sales"))), "q"
)
DECISION = Decision("m", (Message(Role.USER, (TextPart("Charged twice."),)),), (ASKED,), orders=1)


async def test_a_label_that_is_not_told_is_bounded():
    async with chats([{"output": "A"}], upstream_model="scripted") as served:
        (verdict,) = (await served.model.decide(DECISION)).verdicts
        (seen,) = served.engine.seen
    assert verdict.truncated
    assert verdict.label_is_likeliest
    assert sum(verdict.probabilities) == pytest.approx(1)
    assert verdict.probabilities[0] == max(verdict.probabilities)
    assert seen.prompt.text == (
        "<|im_start|>user\nCharged twice.\n\nQuestion: Which team?\nA: billing\nB: shipping\nC: sales\n"
        "Answer with the letter only.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (seen.max_tokens, seen.sampling.temperature) == (1, 0)


async def test_without_a_label_there_is_no_answer():
    async with chats([{"output": "You"}], upstream_model="scripted") as served:
        with pytest.raises(EngineError, match="reported no probability"):
            await served.model.decide(DECISION)


async def test_the_numbers(monkeypatch):
    told = {"A": 0.5, " A": 0.1, "B": 0.2, "You": 0.15}

    async def score(_, requests):
        candidates = tuple(Candidate(-1, text, math.log(value)) for text, value in told.items())
        return [NextToken(tuple(sorted(candidates, key=lambda one: -one.logprob)))] * len(requests)

    monkeypatch.setattr(chat_decisions, "score_answers", score)
    async with chats([{"output": "A"}], upstream_model="scripted") as served:
        verdicts = await served.model.decide(DECISION)
    (verdict,) = verdicts.verdicts
    assert verdict.probabilities == pytest.approx((0.6 / 0.85, 0.2 / 0.85, 0.05 / 0.85))
    assert verdict.label_mass == pytest.approx(0.8)
    assert verdicts.prompt_version == "1-chat"
    assert verdicts.prompt_tokens > 0


async def test_what_it_cannot_do_is_refused():
    async with canned({"/v1/models": [answer(200, {"data": [{"id": "claude"}]})]}) as server:
        served_by_url = served_model(UpstreamEngine(Options(server.url, upstream_kind="anthropic")))
        model = await served_by_url.load()
        with pytest.raises(UnsupportedModelError, match="reports no log probabilities"):
            await model.decide(DECISION)
        await served_by_url.unload()
    async with chats([{"output": "A"}], upstream_model="scripted", context=10) as served:
        long = replace(DECISION, items=(Message(Role.USER, (TextPart("word " * 1000),)),))
        with pytest.raises(RequestError, match="too long"):
            await served.model.decide(long)


async def test_a_server_that_answers_questions_itself():
    """Another Antiphon, whose answers are not read, but which decides."""
    script = [{"output": "A", "next": {"A": math.log(0.6), "B": math.log(0.3), "C": math.log(0.1)}}]
    async with chats(script, kind="anthropic") as served:
        called = (
            *DECISION.items,
            FunctionCall("a", "look", "{}"),
            FunctionOutput("a", (TextPart("Two payments."),)),
            Message(Role.USER, (TextPart("Decide."),)),
        )
        verdicts = await served.model.decide(replace(DECISION, items=called, orders=None))
        seen = served.engine.seen[-1]
    assert verdicts.prompt_version == "server"
    assert verdicts.prompt_tokens > 0
    assert sum(verdicts.verdicts[0].probabilities) == pytest.approx(1)
    assert "Two payments." in seen.prompt.text
    assert "Decide.\n\nQuestion: Which team?" in seen.prompt.text
