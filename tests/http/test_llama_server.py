"""What llama-server's clients read beside answers, over HTTP."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.models import Models
from tests.http.chat_api import CHAT, ChatApi, chat, chatting
from tests.server import served_model

SCRIPT: list[dict[str, Any]] = [
    {"when": "slow", "output": "one two", "delay_ms": 200},
    {"output": "Hello there!"},
]
HI = [{"role": "user", "content": "Hi"}]


async def listed(api: ChatApi, **query: Any) -> list[dict[str, Any]]:
    """The slots."""
    response = await api.http.get("/slots", params=query)
    assert response.status_code == 200, response.text
    return response.json()


async def test_the_context_and_the_slots() -> None:
    async with chatting(ScriptedEngine(SCRIPT, parallel=2, context=4096)) as api:
        props = await api.get("/props")
        assert props["default_generation_settings"]["n_ctx"] == 4096
        assert (props["total_slots"], props["model_alias"]) == (2, "scripted")
        assert props["modalities"]["vision"] is True
        assert "messages" in props["chat_template"]
        slots = await listed(api, fail_on_no_slot=1)
        assert [(slot["id"], slot["n_ctx"], slot["is_processing"]) for slot in slots] == [
            (0, 4096, False),
            (1, 4096, False),
        ]


async def test_slots_that_are_busy() -> None:
    async with chatting(ScriptedEngine(SCRIPT, parallel=1)) as api:
        slow = asyncio.create_task(api.post(CHAT, chat("slow")))
        while not api.server.models.loads["scripted"].running:
            await asyncio.sleep(0.01)
        assert [slot["is_processing"] for slot in await listed(api)] == [True]
        assert "slots" in (await api.get("/slots", 503, fail_on_no_slot=1))["error"]["message"]
        await slow


async def test_one_of_several_models() -> None:
    served = [
        served_model(ScriptedEngine(SCRIPT, name=name, context=context), dialect="hermes", model_name=(name,))
        for name, context in (("small", 1024), ("large", 4096))
    ]
    async with chatting([], models=Models(served)) as api:
        for query, context in (({}, 1024), ({"model": "small"}, 1024), ({"model": "large"}, 4096)):
            assert (await api.get("/props", **query))["default_generation_settings"]["n_ctx"] == context
            assert {slot["n_ctx"] for slot in await listed(api, **query)} == {context}
        assert (await api.get("/props", 404, model="nobody"))["error"]["param"] == "model"


@pytest.mark.parametrize("model", [{}, {"model": "scripted"}])
async def test_a_template_and_tokens_by_its_names(model: dict[str, str]) -> None:
    async with chatting(SCRIPT) as api:
        prompt = (await api.post("/apply-template", {"messages": HI, **model}))["prompt"]
        assert prompt == (await api.post(f"{CHAT}/render", chat("Hi")))["prompt"]
        tokens = (await api.post("/tokenize", {"content": "Hello there!", **model}))["tokens"]
        known = await api.post("/tokenize", {"prompt": "Hello there!", "model": "scripted"})
        assert tokens == known["tokens"]
        pieces = (await api.post("/tokenize", {"content": "Hello there!", "with_pieces": True, **model}))[
            "tokens"
        ]
        assert [piece["id"] for piece in pieces] == tokens
        assert "".join(piece["piece"] for piece in pieces) == "Hello there!"
        text = await api.post("/detokenize", {"tokens": tokens, **model})
        assert text == {"prompt": "Hello there!", "content": "Hello there!"}
        assert await api.post("/tokenize", {"content": "", **model}) == {"tokens": []}
        refused = await api.post("/tokenize", {"content": "a", "parse_special": False, **model}, 400)
        assert refused["error"]["param"] == "parse_special"


@pytest.mark.parametrize(("add", "first"), [(None, []), (False, []), (True, [7])])
async def test_the_token_that_prompts_begin_with(add: bool | None, first: list[int]) -> None:
    engine = ScriptedEngine(SCRIPT)
    engine.card = replace(engine.card, opening=7)
    async with chatting(engine) as api:
        [_, *whole] = (await api.post("/tokenize", {"prompt": "Hello", "model": "scripted"}))["tokens"]
        tokens = (await api.post("/tokenize", {"content": "Hello", "add_special": add}))["tokens"]
        assert tokens == [*first, *whole]
