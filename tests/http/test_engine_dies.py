"""What becomes of answers, and of /health, when an engine dies, or hangs: the real llama.cpp, and a server by URL."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from antiphon.app.worker import FatalAnswerError
from antiphon.engines.llama_cpp import LlamaCppEngine, Options
from antiphon.engines.upstream import Options as Upstream
from antiphon.engines.upstream import UpstreamEngine
from antiphon.run import loading
from antiphon.run.models import Models
from tests.engines.canned import END, answer, canned, stream
from tests.engines.test_llama_cpp import children
from tests.render.templates import CHATML
from tests.server import NO_TLS, running, served_model

ASK = {"model": "m", "input": "Tell a story.", "temperature": 0, "max_output_tokens": 200}


async def asked(client, path, **fields):
    response = await client.post(path, json={**ASK, **fields})
    return response.json()


async def ended(client, response_id):
    while (body := (await client.get(f"responses/{response_id}")).json())["status"] in (
        "queued",
        "in_progress",
    ):
        await asyncio.sleep(0.02)
    return body


async def test_a_killed_process_ends_no_background_response_and_a_stopped_one_is_noticed(
    shallow_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "STATE_SECONDS", 0.05)
    monkeypatch.setattr(loading, "HUNG_SECONDS", 0.2)
    monkeypatch.setattr(loading, "FRESH_SECONDS", 0.0)
    engine = LlamaCppEngine(shallow_model, Options(context=512, parallel=2, threads=1), name="m")
    before = children()
    async with (
        running(engine, dialect=None, lease_seconds=0.5) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1/", timeout=60) as client,
    ):
        whole = await asked(client, "responses")

        [child] = children() - before
        queued = await asked(client, "responses", background=True)
        # Long enough not to end before the kill on a busy machine.
        foreground = asyncio.create_task(asked(client, "responses", max_output_tokens=450))
        while not (await client.get(f"responses/{queued['id']}")).json()["output"]:
            await asyncio.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        assert (await foreground)["error"]["code"] == "engine_error"
        continued = await ended(client, queued["id"])
        assert continued["status"] == whole["status"]
        assert continued["output"][0]["content"] == whole["output"][0]["content"]
        assert continued["usage"]["output_tokens"] == whole["usage"]["output_tokens"]

        [child] = children() - before
        os.kill(child, signal.SIGSTOP)
        try:
            await until_health(client, 503)
        finally:
            os.kill(child, signal.SIGCONT)
        await until_health(client, 200)
        assert (await asked(client, "responses"))["status"] == whole["status"]


async def until_health(client, status):
    for path in ("/ready", "/health"):
        while (found := await client.get(client.base_url.join(path))).status_code != status:
            await asyncio.sleep(0.02)
        assert found.json()["models"] == {"m": {"status": "ready" if status == 200 else "failed"}}


COMPLETIONS = "/v1/completions"
DONE = b"data: [DONE]\n\n"


def said(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": finish}]}


async def test_a_server_that_breaks_off_and_comes_back_ends_no_background_response() -> None:
    listed = {"data": [{"id": "m", "owned_by": "tabbyAPI"}]}
    broken = [piece for piece in stream(said("Hel"), said("lo ")) if piece != END]
    answers = {"/v1/models": [answer(200, listed)], COMPLETIONS: broken}
    async with canned(answers, close={COMPLETIONS}) as upstream:
        engine = UpstreamEngine(Upstream(upstream.url))
        model = served_model(engine, dialect="hermes", template=CHATML)
        async with (
            running(engine, models=Models([model]), lease_seconds=0.2) as server,
            httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1/", timeout=60) as client,
        ):
            foreground = await client.post("responses", json=ASK)
            assert (foreground.status_code, foreground.json()["error"]["code"]) == (500, "engine_error")
            asked_before = len(upstream.asked)
            queued = await asked(client, "responses", background=True)
            while len(upstream.asked) == asked_before:
                await asyncio.sleep(0.01)
            upstream.answers[COMPLETIONS] = [answer(503, {"error": "loading"})]
            while len(upstream.asked) == asked_before + 1:
                await asyncio.sleep(0.01)
            upstream.answers[COMPLETIONS] = stream(said("there", "stop"), DONE)
            continued = await ended(client, queued["id"])
    assert continued["status"] == "completed"
    first, *_, last = [each.body["prompt"] for each in upstream.asked[asked_before:]]
    begun = last.removeprefix(first)
    assert continued["output"][0]["content"][0]["text"] == begun + "there"
    assert "Hello ".startswith(begun)


async def test_a_server_that_always_breaks_off_ends_the_response() -> None:
    listed = {"data": [{"id": "m", "owned_by": "tabbyAPI"}]}
    broken = [piece for piece in stream(said("Hel")) if piece != END]
    answers = {"/v1/models": [answer(200, listed)], COMPLETIONS: broken}
    async with canned(answers, close={COMPLETIONS}) as upstream:
        engine = UpstreamEngine(Upstream(upstream.url))
        model = served_model(engine, dialect="hermes", template=CHATML)
        async with (
            running(engine, models=Models([model]), lease_seconds=0.2) as server,
            httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1/", timeout=60) as client,
        ):
            queued = await asked(client, "responses", background=True)
            body = await ended(client, queued["id"])
    assert (body["status"], body["error"]["message"]) == ("failed", str(FatalAnswerError()))
    assert (
        sum(each.path == COMPLETIONS and each.body.get("prompt") is not None for each in upstream.asked) == 3
    )
