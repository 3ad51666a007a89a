"""`lora`: the adapters of one request, with their scales, in every API."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from msgspec import Struct

from antiphon.core.turn import Adapter
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.models import Models
from tests.http.test_keys import asking, serving
from tests.run.adapted import Adapted
from tests.server import NO_TLS, running, served_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO = [{"role": "user", "content": "Hi"}]
APIS: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/chat/completions/batch": {"messages": [HELLO, HELLO]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/v1/responses": {"input": "Hi"},
}
STREAMED = [path for path in APIS if not path.endswith("batch")]


class Served(Struct):
    """A client, and the engines of its models: `many` takes several adapters, `one` a single one."""

    client: httpx.AsyncClient
    many: Adapted
    one: Adapted

    async def asked(self, path: str, lora: Any, **more: Any) -> httpx.Response:
        """The answer of `many`, unless `more` names another model."""
        body = {"model": "many", **APIS[path], "lora": lora, **more}
        response = await self.client.post(path, json=body)
        await response.aread()
        return response


def models_of(many: Adapted, one: Adapted) -> Models:
    return Models(
        [
            served_model(many, model_name=("many",), dialect="hermes", adapters={"sql": "/s", "tone": "/t"}),
            served_model(one, model_name=("one",), dialect="hermes", adapters={"law": "/l", "tax": "/x"}),
            served_model(ScriptedEngine([{"output": "plain"}]), model_name=("none",), dialect="hermes"),
        ]
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Served]:
    many, one = Adapted("many"), Adapted("one", scales_adapters=False)
    async with (
        running([], models=models_of(many, one)) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        yield Served(client, many, one)


def lora_of(engine: Adapted) -> Any:
    """The adapters of the last generation."""
    return engine.seen[-1].sampling.lora


def adapters(**scales: float) -> tuple[Adapter, ...]:
    return tuple(Adapter(name, scale) for name, scale in scales.items())


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        ([{"id": 0, "scale": 0.5}], adapters(sql=0.5)),
        ([{"name": "tone", "scale": -2}, {"id": 0, "scale": 0.7}], adapters(sql=0.7, tone=-2.0)),
        ([{"name": "tone"}], adapters(tone=1.0)),
        ([{"id": 0, "scale": 0}, {"id": 1, "scale": 0.0}], ()),
        ([], ()),
        (None, None),
    ],
)
async def test_a_request_gets_the_adapters_that_it_names(
    served: Served, path: str, lora: Any, expected: Any
) -> None:
    for more in ({}, {"stream": True}) if path in STREAMED else ({},):
        response = await served.asked(path, lora, **more)
        assert response.status_code == 200, response.text
        assert lora_of(served.many) == expected


@pytest.mark.parametrize("path", APIS)
async def test_those_of_an_adapters_name_are_added_to_it(served: Served, path: str) -> None:
    for lora, expected in (
        (None, adapters(sql=1.0)),
        ([], adapters(sql=1.0)),
        ([{"name": "tone", "scale": 0.5}], adapters(sql=1.0, tone=0.5)),
        ([{"name": "sql", "scale": 0.25}], adapters(sql=0.25)),
        ([{"id": 0, "scale": 0}], ()),
    ):
        response = await served.asked(path, lora, model="sql")
        assert response.status_code == 200, response.text
        assert lora_of(served.many) == expected


REFUSED: Mapping[str, Any] = {
    "an unknown number": [{"id": 2}],
    "a huge number": [{"id": 2**62}],
    "more than 64 bits": [{"id": 2**70}],
    "a negative number": [{"id": -1}],
    "an unknown name": [{"name": "nobody"}],
    "the name of the model": [{"name": "many"}],
    "the adapter of another model": [{"name": "law"}],
    "a long name": [{"name": "n" * 100_000}],
    "no name": [{"scale": 1}],
    "an empty name": [{"name": ""}],
    "both": [{"id": 0, "name": "sql"}],
    "twice": [{"id": 0}, {"name": "sql", "scale": 0.5}],
    "ten thousand": [{"id": 0}] * 10_000,
    "too large": [{"id": 0, "scale": 100.5}],
    "too small": [{"id": 0, "scale": -1e30}],
    "a scale that is none": [{"id": 0, "scale": "1"}],
    "a number that is none": [{"id": "0"}],
    "a number with a fraction": [{"id": 0.5}],
    "true": [{"id": True}],
    "an object": {"id": 0},
    "a text": "sql",
    "a list of texts": ["sql"],
    "a list of null": [None],
    "a list of lists": [[0, 1]],
}


@pytest.mark.parametrize("path", APIS)
async def test_hostile_lists_are_refused_by_name_before_anything_runs(served: Served, path: str) -> None:
    before = len(served.many.seen)
    for what, lora in REFUSED.items():
        for more in ({}, {"stream": True}) if path in STREAMED else ({},):
            response = await served.asked(path, lora, **more)
            error = response.json()["error"]
            assert response.status_code == 400, (what, response.text[:200])
            assert "lora" in (error.get("param") or error["message"]), (what, error)
            assert len(response.content) < 1000, what
    for scale in ("NaN", "Infinity", "-Infinity", "1e999"):
        raw = f'{{"model": "many", "messages": [], "prompt": "", "lora": [{{"id": 0, "scale": {scale}}}]}}'
        response = await served.client.post(path, content=raw, headers={"content-type": "application/json"})
        assert response.status_code == 400
    assert len(served.many.seen) == before


@pytest.mark.parametrize("path", APIS)
async def test_engines_that_cannot_do_it_refuse_it_by_name(served: Served, path: str) -> None:
    for model, lora, status in (
        ("none", [{"name": "sql"}], 400),
        ("none", [{"id": 0, "scale": 0.5}], 400),
        ("none", [], 200),
        ("one", [{"name": "tax"}], 200),
        ("one", [{"name": "tax"}, {"id": 0, "scale": 0}], 200),
        ("one", [{"name": "tax", "scale": 0.5}], 400),
        ("one", [{"name": "tax"}, {"id": 0}], 400),
        ("law", [{"name": "tax"}], 400),
        ("law", [{"name": "tax"}, {"name": "law", "scale": 0}], 200),
    ):
        response = await served.asked(path, lora, model=model)
        assert response.status_code == status, (model, lora, response.text)
        if status == 400:
            error = response.json()["error"]
            assert "lora" in (error.get("param") or error["message"])
    assert lora_of(served.one) == adapters(tax=1.0)


async def test_a_background_response_keeps_the_adapters_that_its_numbers_meant(served: Served) -> None:
    """They are renumbered while it waits."""
    await served.asked("/v1/responses", [{"id": 0, "scale": 0.5}, {"id": 1}], model="many")  # loaded
    created = await served.asked("/v1/responses", [{"id": 1, "scale": 0.5}], background=True)
    path = served.many.adapters.pop("sql")
    try:
        while True:
            state = (await served.client.get(f"/v1/responses/{created.json()['id']}")).json()
            if state["status"] == "completed":
                break
            assert state["status"] in {"queued", "in_progress"}, state
            await asyncio.sleep(0.01)
    finally:
        served.many.adapters = {"sql": path, **served.many.adapters}
    assert lora_of(served.many) == adapters(tone=0.5)


async def test_a_summary_is_written_by_the_model_that_answers(served: Served) -> None:
    body = {"model": "many", "input": [*HELLO], "lora": [{"name": "tone", "scale": 0.5}]}
    compacted = await served.client.post("/v1/responses/compact", json=body)
    assert compacted.status_code == 200, compacted.text
    assert lora_of(served.many) == adapters(tone=0.5)


async def test_the_metrics_count_an_adapter_alone_as_the_model_that_it_is(served: Served) -> None:
    async def tokens_of(name: str) -> float:
        text = (await served.client.get("/metrics")).text
        beginning = f'vllm:prompt_tokens_total{{engine="0",model_name="{name}"}} '
        return sum(float(line[len(beginning) :]) for line in text.splitlines() if line.startswith(beginning))

    before = {name: await tokens_of(name) for name in ("sql", "many")}
    await served.asked("/v1/chat/completions", [{"name": "sql"}])
    alone = {name: await tokens_of(name) for name in ("sql", "many")}
    await served.asked("/v1/chat/completions", [{"name": "sql", "scale": 0.5}], model="sql")
    assert alone["sql"] > before["sql"]
    assert alone["many"] == before["many"]
    assert await tokens_of("many") > alone["many"]
    assert await tokens_of("sql") == alone["sql"]


@pytest.mark.parametrize(
    ("models", "allowed"),
    [
        ('"many"', {"many": [[]]}),
        ('"many", "tone"', {"many": [[], [{"id": 1}]], "tone": [[], [{"id": 1, "scale": 0.5}]]}),
        ('"sql"', {"sql": [None]}),
        ('"t*"', {"tone": [None]}),
        ('"*"', {name: [None, [], [{"id": 0}], [{"id": 1}]] for name in ("many", "sql", "tone")}),
    ],
)
async def test_a_key_reaches_no_adapter_that_is_a_model_it_may_not_use(
    tmp_path: Path, models: str, allowed: Mapping[str, list[Any]]
) -> None:
    many, one = Adapted("many"), Adapted("one", scales_adapters=False)
    lists: list[Any] = [
        None,
        [],
        [{"id": 0}],
        [{"id": 1}],
        [{"id": 1, "scale": 0.5}],
        [{"name": "sql", "scale": 0}],
    ]
    async with (
        serving(tmp_path, f"models = [{models}]", models=models_of(many, one)) as server,
        asking(server) as client,
    ):
        for name in ("many", "sql", "tone"):
            for lora in lists:
                body = {"model": name, "messages": HELLO, "lora": lora}
                response = await client.post("/v1/chat/completions", json=body)
                used = {adapter.name for adapter in lora_of(many) or ()} if response.is_success else set()
                if lora in allowed.get(name, []):
                    assert response.status_code == 200, (name, lora, response.text)
                if "sql" not in models and "*" not in models.replace("t*", ""):
                    assert "sql" not in used, (name, lora)
                if response.is_success and not used:
                    assert "many" in models or models == '"*"', (name, lora)
                if response.status_code == 400:
                    hidden = {"sql", "tone"} - set(allowed) - {name}
                    assert not any(f"({each})" in response.text for each in hidden), response.text
