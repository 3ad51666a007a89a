"""The real model, held to calls and schemas: whatever the seed, every whole answer is what was demanded."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
from msgspec.structs import replace

from antiphon.core.chunks import FinishReason
from antiphon.core.constraint import JsonSchema
from antiphon.core.fold import Fold, Output
from antiphon.core.items import Message, Role, Status, TextPart
from antiphon.core.turn import Calling, Function, Sampling, ToolChoice, Turn
from antiphon.engines.llama_cpp import LlamaCppEngine
from antiphon.engines.models import resolve
from antiphon.run.loop import start
from antiphon.run.model import Model
from antiphon.run.service import Service

pytestmark = pytest.mark.timeout(1200)

SEEDS = 50 if os.environ.get("ANTIPHON_TEST_TEMPLATES") == "1" else 3
"""Fifty take minutes: `make test-all`."""

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
SUM: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
        "kind": {"anyOf": [{"const": "x"}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "kind"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "add": SUM}
TOOLS = tuple(Function(name, None, schema, strict=True) for name, schema in SCHEMAS.items())


def turn(said: str, **demands: Any) -> Turn:
    return Turn("m", (Message(Role.USER, (TextPart(said),)),), **demands)


REQUIRED = ToolChoice(Calling.REQUIRED, parallel=False)
CALLS = {
    "required": turn("What is the weather in Rome?", tools=TOOLS, tool_choice=REQUIRED),
    "named": turn(
        "What is the weather in Rome?", tools=TOOLS, tool_choice=replace(REQUIRED, names=frozenset({"add"}))
    ),
    "allowed": turn(
        "Add 2 and 3.", tools=TOOLS, tool_choice=ToolChoice(Calling.REQUIRED, frozenset({"get_weather"}))
    ),
}


@pytest_asyncio.fixture
async def model() -> AsyncIterator[Model]:
    service = Service(LlamaCppEngine(resolve(None), parallel=4))
    await service.start()
    yield service.model(service.names[0])
    await service.stop()


async def answers(model: Model, asked: Turn) -> list[Output]:
    """The answers that the limit did not cut, of one for each seed; at least half are whole."""
    outputs = await asyncio.gather(*(_answer(model, asked, seed) for seed in range(SEEDS)))
    whole = [output for output in outputs if output.reason is not FinishReason.LENGTH]
    assert len(whole) >= SEEDS // 2
    return whole


async def _answer(model: Model, asked: Turn, seed: int) -> Output:
    sampling = Sampling(seed=seed, temperature=1.0, max_tokens=250)
    run = await start(replace(asked, sampling=sampling), model=model)
    fold = Fold()
    async for batch in run.batches:
        for _, events in batch:
            for event in events:
                fold.push(event)
    return fold.output


@pytest.mark.parametrize("name", CALLS)
async def test_calls_are_those_that_were_demanded(model: Model, name: str) -> None:
    choice = CALLS[name].tool_choice
    for output in await answers(model, CALLS[name]):
        assert output.calls
        assert output.text == ""
        assert choice.parallel or len(output.calls) == 1
        for call in output.calls:
            assert call.status is Status.COMPLETED
            assert choice.names is None or call.name in choice.names
            jsonschema_rs.validate(SCHEMAS[call.name], json.loads(call.arguments))


async def test_text_fits_its_schema(model: Model) -> None:
    asked = turn("Describe a person as JSON.", format=JsonSchema(PERSON))
    for output in await answers(model, asked):
        assert not output.calls
        jsonschema_rs.validate(PERSON, json.loads(output.text))
