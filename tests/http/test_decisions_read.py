"""Decisions over a real socket, from the body of a request to the next token of an engine, and back."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from antiphon.engines.engine import Capabilities, NextToken, NextTokenRequest, Task
from antiphon.engines.llama_cpp import LlamaCppEngine, Options
from antiphon.engines.models import resolve
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.models import Models
from tests.apis.decision_requests import OPENAI, SYSTEMONE, Json
from tests.decide.engines import DecidingEngine
from tests.search import CI
from tests.server import NO_TLS, running, served_model

DECISIONS, SYSTEM_ONE = "/v1/decisions", "/v1/systemone"
LABELS = {"A": 0.4, "B": 0.3, "0": 0.1, "1": 0.05, "2": 0.04, "yes": 0.05, "Yes": 0.02, "no": 0.03}


def logs(_: str) -> dict[str, float]:
    return {text: math.log(probability) for text, probability in LABELS.items()}


@asynccontextmanager
async def asking(engine: Any) -> AsyncIterator[httpx.AsyncClient]:
    models = Models(
        [served_model(engine, model_name=("m",), dialect="hermes", decision_prefill="(", decision_orders=1)]
    )
    async with (
        running([], models=models) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=120) as http,
    ):
        yield http


async def answer(http: httpx.AsyncClient, path: str, body: Json, status: int = 200) -> Json:
    response = await http.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


async def test_the_numbers_of_both_apis() -> None:
    engine = DecidingEngine(logs)
    async with asking(engine) as http:
        openai = await answer(http, DECISIONS, OPENAI | {"x_diagnostics": True})
        systemone = await answer(http, SYSTEM_ONE, SYSTEMONE)
    route, urgency, angry = openai["answers"]
    assert [each["probability"] for each in route["probabilities"]] == pytest.approx([4 / 7, 3 / 7])
    assert route["confidence"] == pytest.approx(1 / 7)
    assert urgency["score"] == pytest.approx((5 + 8) / 19)
    assert angry["probability"] == pytest.approx(0.7)  # both ways of writing yes
    masses = [known["label_mass"] for known in openai["x_diagnostics"]]
    assert masses == pytest.approx([0.7, 0.19, 0.1])
    assert [known["argmax_is_label"] for known in openai["x_diagnostics"]] == [True, False, False]
    assert systemone["answers"]["angry"]["noul"] == angry["probability"]
    assert {len(request.ends) for request in engine.requests} == {3}
    assert openai["usage"]["input_tokens"] > 0


async def test_ids_are_not_shown_and_change_nothing() -> None:
    engine = DecidingEngine(logs)
    async with asking(engine) as http:
        first = await answer(http, SYSTEM_ONE, SYSTEMONE)
        renamed = {f"secret {id_}": question for id_, question in SYSTEMONE["questions"].items()}
        second = await answer(http, SYSTEM_ONE, SYSTEMONE | {"questions": renamed})
    assert [*first["answers"].values()] == [*second["answers"].values()]
    assert engine.requests[0].ends == engine.requests[1].ends
    assert "secret" not in engine.requests[1].beginning.text


async def test_a_model_that_does_not_generate() -> None:
    async with asking(ScriptedEngine([], capabilities=Capabilities(tasks=frozenset({Task.EMBED})))) as http:
        assert (await answer(http, SYSTEM_ONE, SYSTEMONE, 501))["error"]["type"] == "not_supported_error"
        error = (await answer(http, DECISIONS, OPENAI, 501))["error"]
        assert (error["param"], error["code"]) == ("model", "unsupported_model")
        assert (await http.get("/v1/models")).json()["models"] == []


async def test_too_long_a_text_has_the_error_of_its_api() -> None:
    long = "word " * 5000
    engine = DecidingEngine(logs, context=400)
    async with asking(engine) as http:
        error = (await answer(http, SYSTEM_ONE, SYSTEMONE | {"state": long}, 400))["error"]
        assert error["type"] == "exceed_context_size_error"
        error = (await answer(http, DECISIONS, OPENAI | {"input": long}, 400))["error"]
        assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
    assert engine.requests == []


class Endless(DecidingEngine):
    """It never has the next token, and notices when nobody wants it any more."""

    def __init__(self) -> None:
        super().__init__(logs)
        self.begun, self.left = asyncio.Event(), asyncio.Event()

    async def score_next(self, request: NextTokenRequest) -> tuple[NextToken, ...]:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        raise AssertionError


@pytest.mark.parametrize(("path", "body"), [(DECISIONS, OPENAI), (SYSTEM_ONE, SYSTEMONE)])
async def test_a_client_that_leaves_frees_the_engine(path: str, body: Json) -> None:
    engine = Endless()
    async with asking(engine) as http:
        waiting = asyncio.ensure_future(http.post(path, json=body))
        await asyncio.wait_for(engine.begun.wait(), 10)
        waiting.cancel()
        await asyncio.wait_for(engine.left.wait(), 10)


# The small model


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small() -> AsyncIterator[httpx.AsyncClient]:
    engine = LlamaCppEngine(resolve(None), Options(context=4096, parallel=2, threads=1))
    models = Models([served_model(engine, model_name=("smollm2",))])
    async with (
        running([], models=models) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=300) as http,
    ):
        yield http


@pytest.mark.asyncio(loop_scope="module")
async def test_the_same_answer_in_any_company(small: httpx.AsyncClient) -> None:
    """To the bit: alone, with others before and after it, under another id, cold and warm."""
    questions = SYSTEMONE["questions"]
    state = {"ticket": "Charged twice for order 4471, and nobody answers my letters. " * (2 if CI else 8)}
    body = SYSTEMONE | {"model": "smollm2", "state": state}
    alone = await answer(small, SYSTEM_ONE, body | {"questions": {"q": questions["route"]}})
    together = await answer(small, SYSTEM_ONE, body)
    reversed_ = await answer(small, SYSTEM_ONE, body | {"questions": dict(reversed(questions.items()))})
    again = await answer(small, SYSTEM_ONE, body)
    assert alone["answers"]["q"] == together["answers"]["route"] == reversed_["answers"]["route"]
    assert reversed_["answers"] == together["answers"] == again["answers"]
    assert again["usage"] == together["usage"]


@pytest.mark.asyncio(loop_scope="module")
async def test_probabilities_add_up(small: httpx.AsyncClient) -> None:
    body = await answer(small, DECISIONS, OPENAI | {"model": "smollm2", "x_diagnostics": True})
    route, urgency, angry = body["answers"]
    for shown in (route, urgency):
        assert math.fsum(each["probability"] for each in shown["probabilities"]) == pytest.approx(
            1, abs=1e-12
        )
    assert 0 < angry["probability"] < 1
    assert all(0.1 < known["label_mass"] <= 1 for known in body["x_diagnostics"])
    assert body["x_diagnostics"][0]["orders"] == 2
