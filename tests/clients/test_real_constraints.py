"""The real model with constraints: with any seed, every complete answer meets its demands."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
from msgspec.structs import replace

from antiphon.apis.projection import SilentProjection
from antiphon.core.accumulator import Accumulator, Output
from antiphon.core.chunks import FinishReason
from antiphon.core.constraint import JsonSchema
from antiphon.core.errors import RequestError
from antiphon.core.events import Event
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Role, Status, TextPart
from antiphon.core.turn import CallMode, Function, Sampling, ToolChoice, Turn
from antiphon.run.answer_source import AnswerSource
from antiphon.run.drive import Driver
from antiphon.run.model import Model
from tests.real_engine import VLLM_MODEL, long_suite, real_engine
from tests.server import served_model

pytestmark = [pytest.mark.timeout(1200), pytest.mark.asyncio(loop_scope="module"), long_suite]

SEEDS = 50 if os.environ.get("ANTIPHON_TEST_TEMPLATES") == "1" else 1
"""Fifty take minutes: `make test-all`."""
MAY = 10
"""Seeds of an answer that may call, of which about half do. One after the other, until some have, and some have not."""

FREE = 6 if VLLM_MODEL else 1
"""Seeds of an answer that nothing holds, of which one at least does not fit."""

TOKENS = 100
"""A call takes half of that."""

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


REQUIRED = ToolChoice(CallMode.REQUIRED, parallel=False)
CALLS = {
    "required": turn("What is the weather in Rome?", tools=TOOLS, tool_choice=REQUIRED),
    "named": turn(
        "What is the weather in Rome?", tools=TOOLS, tool_choice=replace(REQUIRED, names=frozenset({"add"}))
    ),
    "named once": turn(
        "What is the weather in Rome?",
        tools=TOOLS,
        tool_choice=ToolChoice(CallMode.REQUIRED, frozenset({"add"}), named=True),
    ),
    "allowed": turn(
        "Add 2 and 3.", tools=TOOLS, tool_choice=ToolChoice(CallMode.REQUIRED, frozenset({"get_weather"}))
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[Model]:
    served = served_model(real_engine(context=8192, slots=4))
    yield await served.load()
    await served.unload()


def said(role: Role, text: str) -> Message:
    return Message(role, (TextPart(text),))


def looked_up(number: int, city: str) -> tuple[Item, ...]:
    """The weather, asked for as a model would that has not read the schema."""
    arguments = json.dumps({"city": city, "days": 20 + number})
    return (
        said(Role.USER, f"What is the weather in {city}?"),
        said(Role.ASSISTANT, "Let me look."),
        FunctionCall(f"call_{number}", "get_weather", arguments),
        FunctionOutput(f"call_{number}", (TextPart("Sunny."),)),
        said(Role.ASSISTANT, "It is sunny."),
    )


BEFORE = (*looked_up(0, "Rome"), *looked_up(1, "Paris"))
MAY_CALL = Turn("m", (*BEFORE, said(Role.USER, "What is the weather in Oslo?")), tools=TOOLS[:1])
LOOSE = replace(MAY_CALL, tools=tuple(replace(tool, strict=None) for tool in MAY_CALL.tools))


async def answers(model: Model, asked: Turn) -> list[Output]:
    """The answers that the limit did not cut, of one for each seed; at least half are whole."""
    outputs = await every(model, asked)
    whole = [output for output in outputs if output.reason is not FinishReason.LENGTH]
    assert len(whole) >= SEEDS // 2
    return whole


async def every(model: Model, asked: Turn, seeds: int = SEEDS) -> list[Output]:
    """An answer for each seed."""
    return await asyncio.gather(*(_answer(model, asked, seed) for seed in range(seeds)))


async def _answer(model: Model, asked: Turn, seed: int, tokens: int = TOKENS) -> Output:
    sampling = Sampling(seed=seed, temperature=1.0, max_tokens=tokens)
    return await driven(replace(asked, sampling=sampling), model)


async def driven(asked: Turn, model: Model) -> Output:
    """The answer to a turn."""
    collected = Collected()
    await Driver(AnswerSource([asked], model), collected).run()
    return collected.items.output


class Collected(SilentProjection):
    """Keeps the items of an answer."""

    def __init__(self) -> None:
        self.items = Accumulator()

    def set_prompts(self, prompts: object) -> None: ...

    def body(self) -> bytes:
        return b""

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        self.items.extend(events)
        return []


@pytest.mark.parametrize("name", CALLS)
async def test_calls_are_those_that_were_demanded(model: Model, name: str) -> None:
    choice = CALLS[name].tool_choice
    for output in await answers(model, CALLS[name]):
        assert output.calls
        assert output.text == ""
        assert choice.max_calls is None or len(output.calls) <= choice.max_calls
        for call in output.calls:
            assert call.status is Status.COMPLETED
            assert choice.names is None or call.name in choice.names
            jsonschema_rs.validate(SCHEMAS[call.name], json.loads(call.arguments))


async def test_text_fits_its_schema(model: Model) -> None:
    asked = turn("Describe a person as JSON.", format=JsonSchema(PERSON))
    for output in await answers(model, asked):
        assert not output.calls
        jsonschema_rs.validate(PERSON, json.loads(output.text))


STORY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "story": {"type": "string"},
        "mood": {"enum": ["sad", "merry"]},
        "new": {"type": "boolean"},
    },
    "required": ["story", "mood", "new"],
    "additionalProperties": False,
}
TELL = (Function("tell", None, STORY, strict=True),)
LIMITS = (30, 40, 55, 70)


async def test_what_is_cut_is_closed(model: Model) -> None:
    told = "Tell a very long story."
    asked = turn(told, format=JsonSchema(STORY)), turn(told, tools=TELL, tool_choice=REQUIRED)
    answers = [(each, _answer(model, each, limit, limit)) for each in asked for limit in LIMITS]
    outputs = await asyncio.gather(*(answer for _, answer in answers))
    for output in outputs:
        [text] = [call.arguments for call in output.calls] or [output.text]
        jsonschema_rs.validate(STORY, json.loads(text))
    cut = [output for output in outputs if output.reason is FinishReason.LENGTH]
    assert cut
    assert all(output.closed for output in cut)
    # The shortest way out is sad: the other is the model's own choice, at times or always.
    assert "merry" in {json.loads(output.text)["mood"] for output in outputs if output.text}


# A form that waits for the beginning of a call


async def test_a_call_that_may_come_is_held_once_it_begins_and_text_before_it_is_free(model: Model) -> None:
    # In sequence: in a batch with others an answer is computed otherwise, and rounded otherwise.
    misfits, spoke, called = 0, 0, 0
    for seed in range(max(SEEDS, MAY)):
        held, free = await _answer(model, MAY_CALL, seed), await _answer(model, LOOSE, seed)
        assert held.text == free.text
        assert all(fits(call) for call in held.calls if call.status is Status.COMPLETED)
        called += bool(held.calls)
        spoke += not held.calls and bool(held.text)
        misfits += not all(map(fits, free.calls))
        if misfits and spoke and called and seed >= SEEDS // 5:
            break
    assert misfits
    assert spoke
    assert called


@pytest.mark.parametrize("begun", ["<tool_call>", '<tool_call>\n{"name": "get_weather", "arguments": {"ci'])
async def test_a_call_that_the_client_begins_is_held_from_there_on(model: Model, begun: str) -> None:
    prefix = f"Let me look.\n{begun}"
    held = await every(model, replace(MAY_CALL, prefix=prefix))
    free = await every(model, replace(LOOSE, prefix=prefix), seeds=FREE)

    assert all(output.text == "" for output in held)
    assert all(fits(output.calls[0]) for output in held)
    assert not all(fits(call) for output in free for call in output.calls)


async def test_a_call_that_the_client_begins_must_fit(model: Model) -> None:
    with pytest.raises(RequestError) as raised:
        await driven(replace(MAY_CALL, prefix='<tool_call>\n{"name": "fly"'), model)
    assert raised.value.param == "prefix"


def fits(call: FunctionCall) -> bool:
    """It is a call of one of the functions, whose arguments are JSON, and valid."""
    try:
        return call.name in SCHEMAS and jsonschema_rs.is_valid(SCHEMAS[call.name], json.loads(call.arguments))
    except ValueError:
        return False
