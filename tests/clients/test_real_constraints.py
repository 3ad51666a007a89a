"""A real model held to what requests demand: SmolLM2-135M, which would not do any of it by itself.

Every answer that was not cut must be what was asked for, whatever the seed. A few seeds here; fifty with
ANTIPHON_TEST_TEMPLATES=1, as `make test-all` sets it.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion

from antiphon.engines.llama_cpp import LlamaCppEngine
from antiphon.engines.models import resolve
from tests.server import Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

SEEDS = 50 if os.environ.get("ANTIPHON_TEST_TEMPLATES") else 3
SLOTS = 2
TOKENS = 80
MAX_CUT = 0.34
"""The share of answers that the limit may cut."""

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F", None]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
MAIL = {
    "type": "object",
    "properties": {"to": {"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}\\.com$"}},
    "required": ["to"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "get_weather": WEATHER,
    "send_mail": MAIL,
    "now": {"type": "object", "properties": {}},
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 15},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["kind", "tall", "quick"]}, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
                                              "required": ["zip"], "additionalProperties": False}]},
    },
    "required": ["name", "age", "tags", "home"],
    "additionalProperties": False,
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running]:
    engine = LlamaCppEngine(resolve(None), context=2048, parallel=SLOTS)
    async with running(engine, dialect=None) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: Running) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def model(server: Running) -> str:
    name: str = server.engine.card.name
    return name


def named(*names: str) -> list[Any]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def allowed(mode: str, *names: str) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named(*names)}}


class Ask:
    """Asks the model, streamed or not."""

    def __init__(self, client: AsyncOpenAI, model: str) -> None:
        self.client = client
        self.model = model

    async def once(self, said: str | list[Any], *, streamed: bool = False, **fields: Any) -> ChatCompletion:
        """The answer, put together by the SDK if it is streamed."""
        messages: Any = [{"role": "user", "content": said}] if isinstance(said, str) else said
        known = {"max_tokens": TOKENS, "temperature": 0.9} | fields
        create = self.client.chat.completions.create
        if not streamed:
            return await create(model=self.model, messages=messages, **known)
        state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
        async for chunk in await create(model=self.model, messages=messages, stream=True, **known):
            state.handle_chunk(chunk)
        return ChatCompletion.model_validate(state.current_completion_snapshot.model_dump())

    async def often(self, said: str | list[Any], **fields: Any) -> list[Any]:
        """The choice of an answer for each seed, every other one streamed, as many at a time as there are slots."""
        room = asyncio.Semaphore(SLOTS)

        async def one(seed: int) -> Any:
            async with room:
                answer = await self.once(said, streamed=seed % 2 == 1, seed=seed, **fields)
            return answer.choices[0]

        return await asyncio.gather(*map(one, range(SEEDS)))


@pytest.fixture
def ask(client: AsyncOpenAI, model: str) -> Ask:
    return Ask(client, model)


def calls_of(choice: Any) -> list[str]:
    """The functions called. Those of an answer that was not cut have arguments as their schemas want them."""
    calls = choice.message.tool_calls or []
    for call in calls if choice.finish_reason != "length" else calls[:-1]:
        jsonschema_rs.validator_for(SCHEMAS[call.function.name]).validate(json.loads(call.function.arguments))
    assert "unmet" not in (choice.model_extra or {})
    return [call.function.name for call in calls]


def check_cut(what: str, choices: list[Any]) -> list[Any]:
    """Those that were not cut, which are most."""
    whole = [choice for choice in choices if choice.finish_reason != "length"]
    print(f"{what}: {len(whole)} of {len(choices)} whole")  # shown by pytest -rP
    assert len(whole) >= (1 - MAX_CUT) * len(choices)
    return whole


# Tool choice

CHOICES: dict[str, tuple[Any, bool, set[str]]] = {
    "required": ("required", True, {*SCHEMAS}),
    "required, one": ("required", False, {*SCHEMAS}),
    "named": (named("send_mail")[0], False, {"send_mail"}),
    "allowed_tools, required": (allowed("required", "get_weather", "now"), False, {"get_weather", "now"}),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", CHOICES)
async def test_calls_that_must_come_come(ask: Ask, what: str) -> None:
    wanted, parallel, names = CHOICES[what]
    choices = await ask.often(
        "Tell me a joke.", tools=TOOLS, tool_choice=wanted, parallel_tool_calls=parallel
    )

    for choice in choices:
        called, said = calls_of(choice), (choice.message.content or "").strip()
        assert set(called) <= names
        assert parallel or len(called) <= 1
        if choice.finish_reason == "length":
            assert not said or said.startswith("<tool_call>")  # a call that was cut before its name
        else:
            assert (choice.finish_reason, said) == ("tool_calls", "")
            assert called
    if not parallel:
        check_cut(what, choices)


@pytest.mark.timeout(900)
async def test_calls_that_may_come_are_of_tools_that_are_allowed(ask: Ask) -> None:
    choices = await ask.often("What is 2 + 2?", tools=TOOLS, tool_choice=allowed("auto", "now"))

    for choice in choices:
        assert set(calls_of(choice)) <= {"now"}
    assert any(choice.message.content for choice in choices)


# Examples of calls that are not what the schema wants: what the model copies, and may not.
COPIED: list[Any] = []
for place, days in (("Rome", 3), ("Oslo", 4), ("Bern", 2)):
    arguments = json.dumps({"place": place, "number": days})
    call = {"id": f"c{days}", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    COPIED += [
        {"role": "user", "content": f"What is the weather in {place} for {days} days?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{days}", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
    ]
COPIED.append({"role": "user", "content": "What is the weather in Paris for 5 days?"})


async def test_a_call_is_held_to_its_schema_from_where_it_begins(ask: Ask) -> None:
    """Lazily: no call must come, but one that comes is right, though the conversation shows wrong ones."""
    loose: list[Any] = [{**tool, "function": {**tool["function"], "strict": False}} for tool in TOOLS]
    free = await ask.once(COPIED, tools=loose, temperature=0)
    held = await ask.once(COPIED, tools=TOOLS, temperature=0)

    [copied] = free.choices[0].message.tool_calls or []
    assert "place" in json.loads(copied.function.arguments)  # it does copy, if nothing holds it
    assert calls_of(held.choices[0]) == ["get_weather"]
    assert held.choices[0].finish_reason == "tool_calls"


# Formats


@pytest.mark.timeout(900)
async def test_answers_fit_their_schema(ask: Ask) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    choices = await ask.often("Who are you?", response_format=form)

    for choice in check_cut("json_schema", choices):
        assert choice.finish_reason == "stop"
        jsonschema_rs.validator_for(PERSON).validate(json.loads(choice.message.content))
    for choice in choices:
        assert choice.message.content.startswith("{")
        assert not choice.message.tool_calls


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"choice": ["red", "dark green", 'a "b"']}, r'red|dark green|a "b"'),
        ({"regex": r"[A-Z]{2}-\d{3,5}"}, r"[A-Z]{2}-\d{3,5}"),
        ({"regex": r"([a-z]{2,9} ?){2,4}\."}, r"([a-z]{2,9} ?){2,4}\."),
        ({"regex": r"(([A-Z]?){20}[a-z]){3}"}, r"([A-Z]{0,20}[a-z]){3}"),
        ({"grammar": 'root ::= (word " "?){2,5} "!"\nword ::= [a-z]{1,6}'}, r"([a-z]{1,6} ?){2,5}!"),
        ({"json_object": True}, r"\{.*\}"),
    ],
)
async def test_other_forms(ask: Ask, form: dict[str, Any], pattern: str) -> None:
    for streamed in (False, True):
        answer = await ask.once("Hello.", streamed=streamed, seed=3, extra_body={"structured_outputs": form})
        [choice] = answer.choices
        if choice.finish_reason != "length":
            assert re.fullmatch(pattern, choice.message.content or "", re.DOTALL)


async def test_an_answer_with_tools_and_a_format_is_either(ask: Ask) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    for choice in await ask.often("Who are you?", response_format=form, tools=TOOLS):
        if choice.finish_reason == "tool_calls":
            assert calls_of(choice)
        elif choice.finish_reason == "stop":
            jsonschema_rs.validator_for(PERSON).validate(json.loads(choice.message.content))


# What else is asked of an engine


async def test_log_probabilities(ask: Ask) -> None:
    for streamed in (False, True):
        answer = await ask.once(
            "Say hello. 👋", streamed=streamed, temperature=0, logprobs=True, top_logprobs=3, max_tokens=12
        )
        [choice] = answer.choices
        assert choice.logprobs is not None
        entries = choice.logprobs.content or []

        assert "".join(entry.token for entry in entries) == choice.message.content
        assert (
            bytes(byte for entry in entries for byte in entry.bytes or ()).decode() == choice.message.content
        )
        for entry in entries:
            likely = [other.logprob for other in entry.top_logprobs]
            assert likely == sorted(likely, reverse=True)
            assert (entry.top_logprobs[0].token, entry.logprob) == (entry.token, likely[0])  # greedy
            assert entry.logprob <= 0


async def test_biases_and_stop_tokens(ask: Ask, client: AsyncOpenAI, model: str) -> None:
    plain = await ask.once(
        "What is the capital of France?", temperature=0, max_tokens=12, extra_body={"return_token_ids": True}
    )
    ids = (plain.choices[0].model_extra or {})["token_ids"]
    barred = await ask.once("What is the capital of France?", temperature=0, max_tokens=12, logit_bias={str(ids[0]): -100},
                            extra_body={"return_token_ids": True})  # fmt: skip
    assert (barred.choices[0].model_extra or {})["token_ids"][0] != ids[0]

    stopped = await ask.once(
        "What is the capital of France?",
        temperature=0,
        max_tokens=12,
        extra_body={"stop_token_ids": [ids[3]]},
    )
    [choice] = stopped.choices
    assert (choice.finish_reason, (choice.model_extra or {})["stop_reason"]) == ("stop", ids[3])
    assert (plain.choices[0].message.content or "").startswith(choice.message.content or "")
    with pytest.raises(openai.BadRequestError) as raised:
        await ask.once("Hi", logit_bias={"99999999": 1})
    assert raised.value.param == "logit_bias"


async def test_completions(client: AsyncOpenAI, model: str) -> None:
    known: dict[str, Any] = {
        "model": model,
        "prompt": "The capital of France is",
        "temperature": 0,
        "max_tokens": 5,
        "seed": 1,
    }
    whole = await client.completions.create(**known, logprobs=2)
    [choice] = whole.choices
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or ()) == choice.text
    assert all(len(top) >= 2 for top in choice.logprobs.top_logprobs or ())
    streamed = [chunk async for chunk in await client.completions.create(**known, stream=True)]
    assert "".join(chunk.choices[0].text for chunk in streamed) == choice.text

    echoed = await client.completions.create(**known, echo=True)
    assert echoed.choices[0].text == known["prompt"] + choice.text
    with pytest.raises(openai.BadRequestError) as raised:  # llama.cpp tells nothing of a prompt's tokens
        await client.completions.create(**known, echo=True, logprobs=1)
    assert raised.value.param == "prompt_logprobs"
    with pytest.raises(openai.BadRequestError) as raised:
        await client.completions.create(**known, suffix="!")
    assert raised.value.param == "suffix"


async def test_a_thought_is_ended_by_its_budget(ask: Ask) -> None:
    body = {
        "response_prefix": "<think>\nLet me think about it for a very long time.",
        "thinking_token_budget": 6,
    }
    for streamed in (False, True):
        answer = await ask.once(
            "What is the capital of France?", streamed=streamed, temperature=0, max_tokens=30, extra_body=body
        )
        message = answer.choices[0].message

        assert answer.usage is None or answer.usage.completion_tokens <= 30
        assert (message.model_extra or {})["reasoning"]
        assert message.content
        assert "think>" not in message.content


async def test_the_same_seed_gives_the_same_choices(ask: Ask) -> None:
    first, second = [await ask.once("Invent a word.", n=2, seed=11, max_tokens=8) for _ in range(2)]
    texts = [choice.message.content for choice in first.choices]

    assert len(set(texts)) == 2
    assert len(second.choices) == 2
