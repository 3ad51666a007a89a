"""Which tasks a server does, as `antiphon inspect URL` tells."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from antiphon.engines.engine import Task
from antiphon.engines.upstream import Options
from antiphon.engines.upstreams import tasks
from antiphon.run.inspect_upstream import inspect_upstream, lines
from tests.engines import llama_http
from tests.engines.canned import answer, canned
from tests.server import running

NONE, MORE = answer(404, {"detail": "Not Found"}), answer(400, {"error": {"message": "input is missing"}})
EMBED, RANK, HEARD = "/v1/embeddings", "/v1/rerank", "/v1/audio/transcriptions"


def listed(owner: str, **more: Any) -> Mapping[str, list[bytes]]:
    """A server with this owner of its models."""
    return {
        "/v1/models": [
            answer(200, {"data": [{"id": "m", "owned_by": owner, "root": "m", "max_model_len": 64, **more}]})
        ]
    }


VLLM = {
    **listed("vllm"),
    "/tokenize": [answer(200, {"tokens": [81], "count": 1, "max_model_len": 64})],
}
SGLANG = {
    **listed("sglang"),
    "/tokenize": [answer(200, {"tokens": [81], "count": 1, "max_model_len": 64})],
    "/generate": [
        answer(400, {"error": {"message": "logit_bias must has keys in [0, 49151], got 2147483647."}})
    ],
}
OLLAMA = {"/api/tags": [answer(200, {"models": [{"name": "m"}]})]}


def shown(*capabilities: str) -> Mapping[str, list[bytes]]:
    return {"/api/show": [answer(200, {"capabilities": capabilities, "model_info": {}})]}


async def told(url: str, **options: Any) -> tuple[str, list[str]]:
    """The line of the report, and its tasks."""
    report = await asyncio.to_thread(inspect_upstream, Options(url, **options))
    [line] = [line for line in lines(report) if line.startswith("tasks ")]
    return line.removeprefix("tasks").strip(), [*report.tasks]


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        ({**VLLM, "/v1/completions": [MORE]}, "generate"),
        ({**VLLM, EMBED: [MORE], RANK: [MORE]}, "embed, rank"),
        ({**VLLM, RANK: [answer(422, {})]}, "rank"),
        ({**VLLM, HEARD: [answer(415, {})]}, "transcribe"),
        (VLLM, "none"),
        ({**VLLM, "/v1/completions": [MORE], EMBED: [answer(503, {})]}, "generate, perhaps embed"),
        ({**SGLANG, "/model_info": [answer(200, {"is_generation": True})]}, "generate"),
        (
            {**SGLANG, "/get_model_info": [answer(200, {"is_generation": False})]},
            "perhaps embed, perhaps rank",
        ),
        (SGLANG, "perhaps embed, perhaps generate, perhaps rank, perhaps transcribe"),
        ({**OLLAMA, **shown("completion", "tools")}, "generate"),
        ({**OLLAMA, **shown("embedding")}, "embed"),
        ({**OLLAMA, "/api/show": [answer(200, {"model_info": {}})]}, "perhaps embed, perhaps generate"),
        ({**listed("tgi"), "/info": [answer(200, {"router": "text-generation-router"})]}, "generate"),
        ({**listed("someone"), "/v1/completions": [MORE], EMBED: [MORE]}, "generate, perhaps embed"),
    ],
)
async def test_tasks_are_those_of_the_model(answers: Mapping[str, list[bytes]], line: str) -> None:
    async with canned(answers) as server:
        assert (await told(server.url))[0] == line


async def test_no_request_computes_anything() -> None:
    async with canned({**VLLM, "/v1/completions": [MORE]}) as server:
        await told(server.url)
        sent = {asked.path: asked.body for asked in server.asked if asked.method == "POST"}
    paths = ("/v1/completions", EMBED, RANK, HEARD)
    assert [sent[path] for path in paths] == [{"model": "m"}] * 4


async def test_a_task_that_is_named_is_the_only_one() -> None:
    async with canned({**VLLM, "/v1/completions": [MORE], EMBED: [MORE]}) as server:
        assert (await told(server.url, task=Task.EMBED))[1] == ["embed"]
        assert (await told(server.url, task=Task.RANK))[0] == "none"


async def test_a_server_that_hangs_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PROBE_SECONDS", 1.0)
    async with canned({**VLLM, "/v1/completions": [MORE], EMBED: []}, silent={EMBED}) as server:
        assert (await told(server.url))[0] == "generate, perhaps embed"


async def test_llama_server_does_what_it_was_started_for(shallow_model: Any) -> None:
    with llama_http.serving(shallow_model, slots=1, context=64) as url:
        line, _ = await told(url, upstream_key=llama_http.KEY)
    assert line == "generate"


async def test_another_antiphon_generates() -> None:
    async with running([{"output": "Hi"}]) as server:
        assert (await told(server.url))[1] == ["generate"]
