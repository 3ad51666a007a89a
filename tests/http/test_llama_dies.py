"""What becomes of answers, and of /health, when the process of the real llama.cpp is killed, or hangs."""

import asyncio
import os
import signal
from pathlib import Path

import httpx2 as httpx
import pytest

from antiphon.engines.llama_cpp import LlamaCppEngine, Options
from antiphon.run import loading
from tests.engines.test_llama_cpp import children
from tests.server import NO_TLS, running

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
        running(engine, dialect=None, lease=0.5) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1/", timeout=60) as client,
    ):
        whole = await asked(client, "responses")

        [child] = children() - before
        queued = await asked(client, "responses", background=True)
        foreground = asyncio.create_task(asked(client, "responses"))
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
