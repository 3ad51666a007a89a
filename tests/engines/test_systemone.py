"""Decisions of servers that answer questions themselves: what they are sent, told, and what they get wrong.

The forms are those of System One's OpenAPI 0.2.0, and of llama.cpp's `test_systemone.py`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.decision import Decision, Option, Question, QuestionKind, Verdicts
from antiphon.core.errors import (
    AntiphonError,
    EngineBusyError,
    EngineError,
    RequestError,
    UnsupportedModelError,
)
from antiphon.core.items import MediaKind, MediaPart, Message, Role, TextPart
from antiphon.core.limits import Limits
from antiphon.core.turn import Adapter, Sampling
from antiphon.engines.engine import DecisionRequest, ModelCard
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.engines.upstreams import systemone
from antiphon.engines.upstreams.systemone import MAX_IMAGES, MAX_QUESTIONS, PATH
from antiphon.run.server_decisions import request_to_server
from tests.engines.canned import Canned, answer, canned

CARD = ModelCard("shown", 0, known_as=("served",))
MODELS = [answer(200, {"data": [{"id": "claude"}]})]
INCOMPLETE = [answer(422, {"detail": [{"loc": ["body", "state"], "msg": "Field required"}]})]
TEXT = (Message(Role.USER, (TextPart("Charged "), TextPart("twice."))),)
IMAGE = MediaPart(MediaKind.IMAGE, "digest", "image/png", b"an image")
QUESTIONS = (
    Question(
        QuestionKind.CHOICE,
        (TextPart("Which team?"),),
        (Option("billing", "payments"), Option("shipping")),
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
DECISION = Decision("m", TEXT, QUESTIONS)
ANSWERS: dict[str, Any] = {
    "q4": {"type": "noul", "noul": 0.25},
    "q3": {"type": "noul", "noul": 0.7},
    "q2": {
        "type": "score",
        "score": 1.3,
        "confidence": 0.0,
        "legend": {"0": "can wait", "1": "today: in a day", "2": "now"},
        "probabilities": {"2": 0.5, "1": 0.3, "0": 0.2},
    },
    "q1": {
        "type": "choice",
        "choice": "billing",
        "confidence": 0.8,
        "probabilities": {"shipping": 0.1, "billing": 0.9},
    },
}
BODY = {"model": "claude-real", "answers": ANSWERS, "usage": {"input_tokens": 131, "output_tokens": 0}}


def request_of(decision: Decision) -> DecisionRequest:
    return request_to_server(decision, Limits(), 0)


class Peer:
    """A server without a network: it keeps what is sent, and answers as it is told."""

    def __init__(self, *bodies: Any) -> None:
        self._bodies = iter(bodies)
        self.sent: list[Any] = []

    async def __call__(self, path: str, body: Any, form: Any = Any) -> Any:
        assert path == PATH
        self.sent.append(msgspec.json.decode(msgspec.json.encode(body)))
        return msgspec.convert(next(self._bodies), form)


async def told(body: Any, decision: Decision = DECISION) -> Verdicts:
    return await systemone.decide(Peer(body), CARD, request_of(decision))


# What is sent


async def test_every_kind_of_question() -> None:
    peer = Peer(BODY)
    await systemone.decide(peer, CARD, request_of(DECISION))
    assert peer.sent == [
        {
            "model": "served",
            "state": "Charged twice.",
            "questions": {
                "q1": {
                    "type": "choice",
                    "instructions": "Which team?",
                    "criteria": {"billing": "payments", "shipping": None},
                },
                "q2": {
                    "type": "score",
                    "instructions": "How urgent?",
                    "criteria": ["can wait", "today: in a day", "now"],
                },
                "q3": {"type": "noul", "instructions": "Angry?"},
                "q4": {"type": "noul", "criteria": {"true": "It is rude."}},
            },
        }
    ]


async def test_conversations_are_messages_with_their_images() -> None:
    items = (
        Message(Role.DEVELOPER, (TextPart("Judge."),)),
        Message(Role.USER, (TextPart("See "), IMAGE)),
        Message(Role.ASSISTANT, (TextPart("A parcel."),)),
    )
    peer = Peer(BODY)
    await systemone.decide(peer, CARD, request_of(replace(DECISION, items=items)))
    system, user, assistant = peer.sent[0]["state"]
    assert (system["role"], system["content"]) == ("system", "Judge.")
    text, image = user["content"]
    assert text == {"type": "text", "text": "See "}
    assert image == {"type": "image_url", "image_url": {"url": "data:image/png;base64,YW4gaW1hZ2U="}}
    assert (assistant["role"], assistant["content"]) == ("assistant", "A parcel.")


async def test_many_questions_are_asked_in_several_requests() -> None:
    count = MAX_QUESTIONS + 2
    question = QUESTIONS[2]
    ids = [f"q{number}" for number in range(1, count + 1)]
    bodies = [
        {"answers": {id_: {"noul": 1 / int(id_[1:])} for id_ in part}, "usage": {"input_tokens": 10}}
        for part in (ids[:MAX_QUESTIONS], ids[MAX_QUESTIONS:])
    ]
    peer = Peer(*bodies)
    decision = replace(DECISION, questions=(question,) * count)
    verdicts = await systemone.decide(peer, CARD, request_of(decision))
    assert [len(sent["questions"]) for sent in peer.sent] == [MAX_QUESTIONS, 2]
    assert [one.probabilities[0] for one in verdicts.verdicts] == [1 / n for n in range(1, count + 1)]
    assert (verdicts.prompt_tokens, verdicts.reads) == (20, count)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"sampling": Sampling(lora=(Adapter("sql"),))}, "lora"),
        ({"sampling": Sampling(cache_salt="s")}, "cache_salt"),
        ({"orders": 2}, "x_orders"),
        ({"variables": {"enable_thinking": False, "style": "brief"}}, "chat_template_kwargs"),
        ({"items": (Message(Role.USER, (IMAGE,) * (MAX_IMAGES + 1)),)}, "conversation"),
        (
            {"items": (Message(Role.USER, (MediaPart(MediaKind.AUDIO, "digest", "audio/wav", b"sound"),)),)},
            "conversation",
        ),
        ({"questions": (replace(QUESTIONS[2], instructions=(TextPart("This?"), IMAGE)),)}, "questions.angry"),
    ],
)
async def test_what_it_cannot_be_told_is_refused_before_it_is_asked(
    changes: dict[str, Any], param: str
) -> None:
    peer = Peer()
    with pytest.raises(RequestError) as error:
        await systemone.decide(peer, CARD, request_of(replace(DECISION, **changes)))
    assert error.value.param == param
    assert peer.sent == []


async def test_what_changes_nothing_is_taken() -> None:
    decision = replace(DECISION, orders=1, variables={"enable_thinking": False, "reasoning_effort": "none"})
    assert (await told(BODY, decision)).reads == 4


# What is received


async def test_the_probabilities_in_the_order_of_the_options() -> None:
    verdicts = await told(BODY)
    route, urgency, angry, rude = (one.probabilities for one in verdicts.verdicts)
    assert route == pytest.approx((0.9, 0.1))
    assert urgency == pytest.approx((0.2, 0.3, 0.5))
    assert angry == pytest.approx((0.7, 0.3))
    assert rude == pytest.approx((0.25, 0.75))
    assert {(one.label_mass, one.label_is_likeliest) for one in verdicts.verdicts} == {(None, None)}
    assert (verdicts.prompt_tokens, verdicts.reads, verdicts.prompt_version) == (131, 4, "server")


@given(st.lists(st.floats(0, 1), min_size=2, max_size=255).filter(any), st.randoms())
def test_whatever_it_tells_becomes_probabilities(weights: list[float], random: Any) -> None:
    names = [f"option {index}" for index in range(len(weights))]
    shuffled = [*zip(names, weights, strict=True)]
    random.shuffle(shuffled)
    question = Question(QuestionKind.CHOICE, (TextPart("Which?"),), (*map(Option, names),), "q")
    body = {"answers": {"q1": {"probabilities": dict(shuffled)}}}
    (verdict,) = asyncio.run(told(body, replace(DECISION, questions=(question,)))).verdicts
    assert sum(verdict.probabilities) == pytest.approx(1)
    assert verdict.probabilities == pytest.approx([weight / sum(weights) for weight in weights])


async def test_bounds_stay_bounds() -> None:
    decision = replace(DECISION, questions=QUESTIONS[2:3])
    (verdict,) = (await told({"answers": {"q1": {"noul": 0.7, "x_truncated": True}}}, decision)).verdicts
    assert verdict.truncated


@pytest.mark.parametrize(
    ("number", "wrong"),
    [
        (1, None),
        (1, {"type": "choice", "choice": "billing"}),
        (1, {"probabilities": {"billing": 1.0}}),
        (1, {"probabilities": {"billing": 0.0, "shipping": 0.0}}),
        (2, {"probabilities": {"can wait": 0.2, "today": 0.3, "now": 0.5}}),
        (3, {"type": "noul"}),
    ],
)
async def test_an_answer_that_is_none(number: int, wrong: Any) -> None:
    answers = {id_: one for id_, one in ANSWERS.items() if id_ != f"q{number}"}
    with pytest.raises(EngineError, match="as expected"):
        await told({"answers": answers if wrong is None else answers | {f"q{number}": wrong}})


# On a socket


@asynccontextmanager
async def engine_of(probed: list[bytes] = INCOMPLETE, **options: Any) -> AsyncIterator[Any]:
    """An engine whose server takes conversations, tells no log probabilities, and answers a probe so."""
    limits = options.pop("limits", Limits())
    async with canned({"/v1/models": MODELS, PATH: probed}) as server:
        engine = UpstreamEngine(Options(server.url, upstream_kind="anthropic", **options), limits)
        await engine.start()
        try:
            yield server, engine
        finally:
            await engine.stop()


def asked_of(server: Canned) -> list[Any]:
    return [request.body for request in server.asked if request.path == PATH]


@pytest.mark.parametrize(
    ("status", "served"),
    [(400, True), (422, True), (401, False), (404, False), (405, False), (501, False), (500, False)],
)
async def test_the_route_is_recognised_by_its_refusal(status: int, served: bool) -> None:
    async with engine_of([answer(status, {"detail": "no"})]) as (server, engine):
        assert engine.card.capabilities.answers_questions is served
        assert asked_of(server) == [{}]


async def test_a_server_whose_tokens_can_be_read_is_not_asked() -> None:
    async with canned({"/v1/models": MODELS, PATH: INCOMPLETE}) as server:
        engine = UpstreamEngine(Options(server.url, upstream_kind="chat"))
        await engine.start()
        assert not engine.card.capabilities.answers_questions
        assert asked_of(server) == []
        await engine.stop()


async def test_it_answers() -> None:
    async with engine_of() as (server, engine):
        server.answers[PATH] = [answer(200, BODY)]
        verdicts = await engine.decide(request_of(DECISION))
        assert verdicts.verdicts[0].probabilities == pytest.approx((0.9, 0.1))
        assert asked_of(server)[1]["model"] == "claude"


@pytest.mark.parametrize(
    ("status", "body", "kind", "what"),
    [
        (501, {"error": {"message": "no", "code": 501}}, UnsupportedModelError, "does not support decisions"),
        (404, {"detail": "Not Found"}, UnsupportedModelError, "does not support decisions"),
        (422, {"detail": [{"loc": ["body"], "msg": "At most 26"}]}, RequestError, "refuses this: At most 26"),
        (422, [], EngineError, "."),
        (400, {"error": {"message": "It is long"}}, RequestError, "refuses this: It is long"),
        (429, {"detail": {"error_type": "rate_limit", "message": "busy"}}, EngineBusyError, "."),
        (500, {"error": {"message": "/home/me"}}, EngineError, "."),
        (200, {"answers": {"q1": {"noul": 7}}}, EngineError, "as expected"),
        (200, ["answers"], EngineError, "as expected"),
    ],
)
async def test_its_errors(status: int, body: Any, kind: type[AntiphonError], what: str) -> None:
    async with engine_of() as (server, engine):
        server.answers[PATH] = [answer(status, body)]
        with pytest.raises(kind, match=what) as error:
            await engine.decide(request_of(DECISION))
        assert "/home/me" not in error.value.message


async def test_an_answer_that_is_too_large() -> None:
    async with engine_of(limits=Limits(upstream_bytes=10_000)) as (server, engine):
        server.answers[PATH] = [answer(200, BODY | {"more": "x" * 20_000})]
        with pytest.raises(EngineError):
            await engine.decide(request_of(DECISION))


async def test_who_leaves_closes_the_connection() -> None:
    async with engine_of() as (server, engine):
        server.answers[PATH] = []
        server.silent.add(PATH)
        work = asyncio.create_task(engine.decide(request_of(DECISION)))
        async with asyncio.timeout(5):
            while len(asked_of(server)) < 2:
                await asyncio.sleep(0.01)
            assert engine.load.running == 1
            opened = server.open
            work.cancel()
            await asyncio.wait((work,))
            while server.open == opened:
                await asyncio.sleep(0.01)
        assert engine.load.running == 0


async def test_another_replica_answers_if_one_fails() -> None:
    async with (
        canned({"/v1/models": MODELS, PATH: INCOMPLETE}) as first,
        canned({"/v1/models": MODELS, PATH: INCOMPLETE}) as second,
    ):
        pool: Any = Options(first.url, upstream_kind="anthropic", replica=(second.url,)).build()
        await pool.start()
        try:
            assert pool.card.capabilities.answers_questions
            first.answers[PATH] = [answer(503, {"detail": "loading"})]
            second.answers[PATH] = [answer(200, BODY)]
            assert (await pool.decide(request_of(DECISION))).prompt_tokens == 131
            assert (len(asked_of(first)), len(asked_of(second))) == (2, 2)
        finally:
            await pool.stop()
