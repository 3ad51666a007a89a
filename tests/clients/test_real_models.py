"""Several real models in one server, of which one may be loaded at a time."""

import asyncio

import httpx2 as httpx

from antiphon.engines.llama_cpp import LlamaCppEngine, Options
from antiphon.engines.models import resolve
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.loading import ServedModel
from antiphon.run.models import KeepLoaded, Models
from tests.server import NO_TLS, running, served_model


def real(name: str, **options: int) -> ServedModel:
    engine = LlamaCppEngine(resolve(None), Options(parallel=2, threads=1, **options))
    return served_model(engine, model_name=(name,), sampling={"temperature": 0, "max_tokens": 6})


async def test_real_models_are_swapped_under_requests_at_once() -> None:
    scripted = served_model(
        ScriptedEngine([{"output": "played"}]), model_name=("scripted",), dialect="hermes"
    )
    models = Models(
        [real("small", context=256), real("large", context=512), scripted], keep=KeepLoaded(models=1)
    )
    async with (
        running([], models=models) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=300) as client,
    ):

        async def asked(name: str) -> str:
            messages = [{"role": "user", "content": "What is the capital of France?"}]
            response = await client.post("/v1/chat/completions", json={"model": name, "messages": messages})
            assert response.status_code == 200, response.text
            answer = response.json()
            assert answer["model"] == name
            text: str = answer["choices"][0]["message"]["content"]
            return text

        names = ["small", "large", "scripted", "large", "small", "scripted"]
        answers = await asyncio.gather(*map(asked, names))
        loaded = models.loads.keys()
        listed = (await client.get("/v1/models")).json()["data"]

    said = {
        name: {answer for each, answer in zip(names, answers, strict=True) if each == name} for name in names
    }
    assert said["scripted"] == {"played"}
    assert said["small"] == said["large"], "they are the same model"
    assert len(said["small"]) == 1
    assert len(loaded - {"scripted"}) == 1
    assert [model["max_model_len"] for model in listed] == [256, 512, 32768]
