"""Decisions of models whose server answers questions itself, through both APIs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest

from antiphon.core.decision import Verdict, Verdicts
from antiphon.core.errors import EngineError
from antiphon.engines.engine import Capabilities, DecisionRequest
from antiphon.engines.scripted import ScriptedEngine
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.engines.upstreams.systemone import PATH
from tests.apis.decision_requests import IMAGE, OPENAI, SYSTEMONE, Json
from tests.engines.canned import Canned, answer, canned
from tests.server import NO_TLS, running, served_model

MODELS = [answer(200, {"data": [{"id": "claude"}]})]
INCOMPLETE = [answer(422, {"detail": "state is missing"})]
ANSWERS = {
    "q1": {"type": "choice", "probabilities": {"shipping": 0.1, "billing": 0.9}},
    "q2": {"type": "score", "probabilities": {"0": 0.2, "1": 0.3, "2": 0.5}},
    "q3": {"type": "noul", "noul": 0.7},
}
BODY = {"model": "claude", "answers": ANSWERS, "usage": {"input_tokens": 131, "output_tokens": 0}}
DECISIONS, SYSTEM_ONE = "/v1/decisions", "/v1/systemone"


@asynccontextmanager
async def asking(told: list[bytes], probed: list[bytes] = INCOMPLETE, **options: Any) -> AsyncIterator[Any]:
    """A server over one that answers a probe so, and then as it is told."""
    async with canned({"/v1/models": MODELS, PATH: probed}) as behind:
        engine = UpstreamEngine(Options(behind.url, upstream_kind="anthropic", **options))
        async with (
            running(engine, dialect=None) as server,
            httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=30) as http,
        ):
            behind.answers[PATH] = told
            yield behind, http


async def post(http: httpx.AsyncClient, path: str, body: Json, status: int = 200) -> Json:
    response = await http.post(path, json=body | {"model": "jev-latest"})
    assert response.status_code == status, response.text
    return response.json()


def sent_to(behind: Canned) -> list[Json]:
    return [request.body for request in behind.asked if request.path == PATH][1:]


async def test_both_apis() -> None:
    async with asking([answer(200, BODY)]) as (behind, http):
        listed = (await http.get("/v1/models")).json()
        openai = await post(http, DECISIONS, OPENAI | {"x_diagnostics": True})
        systemone = await post(http, SYSTEM_ONE, SYSTEMONE)
        metrics = (await http.get("/metrics")).text
    assert [model["decides"] for model in listed["data"]] == [True]
    assert [model["name"] for model in listed["models"]] == ["claude"]
    route, urgency, angry = openai["answers"]
    assert (route["choice"], route["confidence"]) == ("billing", pytest.approx(0.8))
    assert (urgency["score"], urgency["confidence"]) == (pytest.approx(1.3), 0)
    assert angry["probability"] == pytest.approx(0.7)
    assert systemone == {
        "model": "claude",
        "answers": {
            "route": {
                "type": "choice",
                "choice": "billing",
                "confidence": pytest.approx(0.8),
                "probabilities": pytest.approx({"billing": 0.9, "shipping": 0.1}),
            },
            "urgency": {
                "type": "score",
                "score": pytest.approx(1.3),
                "confidence": 0,
                "legend": {"0": "can wait", "1": "today", "2": "now"},
                "probabilities": pytest.approx({"0": 0.2, "1": 0.3, "2": 0.5}),
            },
            "angry": {"type": "noul", "noul": 0.7},
        },
        "usage": {"input_tokens": 131, "output_tokens": 0},
    }
    known = openai["x_diagnostics"][0]
    assert (known["label_mass"], known["argmax_is_label"], known["prompt_version"]) == (None, None, "server")
    assert [*sent_to(behind)[0]["questions"]] == ["q1", "q2", "q3"]  # whatever their names are
    for name, value in (("reads_total", "6.0"), ("label_mass_count", "0.0"), ("unlabelled_total", "0.0")):
        [row] = [row for row in metrics.splitlines() if row.startswith(f"antiphon:decision_{name}")]
        assert row.endswith(f" {value}")  # what is not told is not counted
    counted = [row for row in metrics.splitlines() if row.startswith("antiphon:decision_questions_total")]
    assert [row.rpartition(" ")[2] for row in counted] == ["2.0"] * 3


async def test_what_is_refused_names_the_parameter_of_the_api() -> None:
    async with asking([answer(200, BODY)]) as (behind, http):
        image = {"type": "input_image", "image_url": IMAGE}
        many = [{"role": "user", "content": [image] * 9}]
        assert (await post(http, DECISIONS, OPENAI | {"input": many}, 400))["error"]["param"] == "input"
        assert (await post(http, DECISIONS, OPENAI | {"cache_salt": "s"}, 400))["error"][
            "param"
        ] == "cache_salt"
        detail = (await post(http, SYSTEM_ONE, SYSTEMONE | {"x_orders": 2}, 422))["detail"]
        assert detail[0]["loc"] == ["body", "x_orders"]
        asked = {"type": "predicate", "instructions": [{"type": "input_text", "text": "This?"}, image]}
        error = (await post(http, DECISIONS, OPENAI | {"questions": [asked]}, 400))["error"]
        assert error["param"] == "questions[0].instructions[1]"
        assert sent_to(behind) == []


@pytest.mark.parametrize(
    ("told", "status"),
    [(501, 501), (422, 422), (429, 429), (503, 503), (500, 500)],
)
async def test_its_errors(told: int, status: int) -> None:
    async with asking([answer(told, {"error": {"message": "It is not so"}})]) as (_, http):
        failure = await post(http, SYSTEM_ONE, SYSTEMONE, status)
        assert ("It is not so" in failure["error"]["message"]) is (told == 422)
        await post(http, DECISIONS, OPENAI, 400 if told == 422 else status)


async def test_a_server_without_the_route_is_refused_as_before() -> None:
    async with asking([answer(200, BODY)], [answer(404, {})]) as (behind, http):
        assert [model["decides"] for model in (await http.get("/v1/models")).json()["data"]] == [False]
        failure = await post(http, SYSTEM_ONE, SYSTEMONE | {"model": "claude"}, 501)
        assert "reports no log probabilities" in failure["error"]["message"]
        assert sent_to(behind) == []


class Answering(ScriptedEngine):
    """It continues prompts, tells no log probabilities, and answers questions itself."""

    def __init__(self) -> None:
        able = Capabilities(token_ids=True, answers_questions=True)
        super().__init__([{"output": "x"}], capabilities=able)

    async def decide(self, request: DecisionRequest) -> Verdicts:
        return Verdicts(tuple(Verdict((0.9, 0.1), None, None) for _ in request.decision.questions), 131)


async def test_a_model_that_continues_prompts() -> None:
    asked = {"questions": {"angry": SYSTEMONE["questions"]["angry"]}}
    async with (
        running(Answering(), dialect="hermes") as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=30) as http,
    ):
        assert (await post(http, SYSTEM_ONE, SYSTEMONE | asked))["answers"]["angry"]["noul"] == 0.9


async def test_a_model_that_gives_no_answers_may_have_a_server_that_decides() -> None:
    async with canned({"/v1/models": MODELS, PATH: INCOMPLETE}) as behind:
        engine = UpstreamEngine(Options(behind.url, upstream_kind="chat", task="embed"))  # type: ignore[arg-type]
        async with (
            running(engine, dialect=None) as server,
            httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=30) as http,
        ):
            behind.answers[PATH] = [answer(200, BODY)]
            assert (await post(http, SYSTEM_ONE, SYSTEMONE))["answers"]["angry"]["noul"] == 0.7


@pytest.mark.parametrize("option", ["decision_orders", "calibration"])
async def test_options_without_a_meaning_are_an_error(option: str, tmp_path: Any) -> None:
    given = 2 if option == "decision_orders" else tmp_path / "decision.json"
    async with canned({"/v1/models": MODELS, PATH: INCOMPLETE}) as behind:
        engine = UpstreamEngine(Options(behind.url, upstream_kind="anthropic"))
        with pytest.raises(EngineError, match="has no effect on it"):
            await served_model(engine, **{option: given}).load()
        await engine.stop()
