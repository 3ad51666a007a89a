"""The SDKs of OpenAI and Anthropic against Antiphon with a real model: SmolLM2-135M, see `tests/real_engine.py`."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import jsonschema_rs
import openai
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from anthropic.types import TextBlock
from openai import AsyncOpenAI
from openai.types import CompletionUsage

from tests.real_engine import VLLM_MODEL, long_suite, real_engine
from tests.server import Running, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), long_suite]

CONTEXT = 2048
SLOTS = 2
IDLE_SECONDS = 10
"""A bound for a busy machine: an answer that is not stopped takes longer."""
EMOJI = "Repeat: 🎉🚀🌍🔥👋 日本語のテキスト"
STORY = "Tell a long story about a fox."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running]:
    async with running(real_engine(context=CONTEXT, slots=SLOTS)) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: Running) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def model(server: Running) -> str:
    name: str = server.engine.card.name
    return name


def user(content: str) -> list[Any]:
    return [{"role": "user", "content": content}]


class Ask:
    """Asks one model, streamed or not."""

    def __init__(self, client: AsyncOpenAI, model: str) -> None:
        self.client = client
        self.model = model

    async def full(self, content: str, **more: Any) -> tuple[str, str, CompletionUsage]:
        """The text, the finish reason and the usage of a full answer."""
        completion = await self.client.chat.completions.create(
            model=self.model, messages=user(content), **more
        )
        [choice] = completion.choices
        return choice.message.content or "", choice.finish_reason, used(completion.usage)

    async def stream(self, content: str, **more: Any) -> tuple[str, str, CompletionUsage]:
        """The same of a stream."""
        options: Any = {"include_usage": True}
        pieces, finishes, usage = [], [], None
        async for chunk in await self.client.chat.completions.create(
            model=self.model, messages=user(content), stream=True, stream_options=options, **more
        ):
            usage = chunk.usage
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                finishes += [choice.finish_reason] if choice.finish_reason else []
        [finish] = finishes
        return "".join(pieces), finish, used(usage)


def used(usage: CompletionUsage | None) -> CompletionUsage:
    assert usage is not None
    assert usage.prompt_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return usage


@pytest.fixture
def ask(client: AsyncOpenAI, model: str) -> Ask:
    return Ask(client, model)


async def until(what: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.001)


# A seed keeps the prompt cache out of it: what is cached is computed otherwise, and rounds otherwise.
GREEDY: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 24}


@pytest.mark.parametrize("content", ["What is the capital of France?", STORY, EMOJI])
async def test_a_stream_and_a_full_answer_say_the_same(ask: Ask, content: str) -> None:
    full = await ask.full(content, **GREEDY)

    assert full == await ask.stream(content, **GREEDY)
    assert full[0].strip()


async def test_a_seed_repeats_and_another_differs(ask: Ask) -> None:
    async def invent(seed: int) -> str:
        return (await ask.full("Invent a word.", seed=seed, temperature=1, max_tokens=12))[0]

    texts = [await invent(seed) for seed in (1, 2, 3)]

    assert [await invent(seed) for seed in (1, 2, 3)] == texts
    assert len(set(texts)) == 3


async def test_max_tokens_cut_exactly(ask: Ask) -> None:
    for mode in (ask.full, ask.stream):
        for limit in (1, 7):
            _, finish, usage = await mode(STORY, temperature=0, max_tokens=limit)

            assert (finish, usage.completion_tokens) == ("length", limit)


async def test_a_stop_string_cuts(ask: Ask) -> None:
    whole, _, usage = await ask.full(STORY, **GREEDY)
    stop = whole[20:25]

    for mode in (ask.full, ask.stream):
        text, finish, cut = await mode(STORY, **GREEDY, stop=[stop])

        assert (text, finish) == (whole[: whole.index(stop)], "stop")
        assert 0 < cut.completion_tokens < usage.completion_tokens


async def test_n_answers_add_up(client: AsyncOpenAI, model: str, ask: Ask) -> None:
    options: dict[str, Any] = {"temperature": 1, "seed": 5, "max_tokens": 12}
    completion = await client.chat.completions.create(
        model=model, messages=user("Invent a word."), n=3, **options
    )

    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert all(choice.message.content for choice in completion.choices)
    assert len({choice.message.content for choice in completion.choices}) > 1  # each has its own seed
    _, _, single = await ask.full("Invent a word.", **options)
    usage = used(completion.usage)
    assert usage.prompt_tokens == single.prompt_tokens
    assert 12 < usage.completion_tokens <= 36


async def test_the_choices_of_a_stream_begin_in_order(client: AsyncOpenAI, model: str) -> None:
    seen: dict[int, str] = {}
    finishes = []
    async for chunk in await client.chat.completions.create(
        model=model, messages=user("Invent a word."), n=3, seed=5, max_tokens=12, stream=True
    ):
        [choice] = chunk.choices
        seen[choice.index] = seen.get(choice.index, "") + (choice.delta.content or "")
        finishes += [choice.index] if choice.finish_reason else []

    assert list(seen) == [0, 1, 2]  # as the SDK's accumulator needs it
    assert all(seen.values())
    assert sorted(finishes) == [0, 1, 2]


@pytest.mark.skipif(not VLLM_MODEL, reason="llama.cpp searches no beams, and scores no prompts")
async def test_beams_come_the_best_first_with_the_scores_of_the_prompt(
    client: AsyncOpenAI, model: str
) -> None:
    completion = await client.chat.completions.create(
        model=model,
        messages=user("What is the capital of France?"),
        n=3,
        max_tokens=8,
        logprobs=True,
        extra_body={"use_beam_search": True, "ignore_eos": True, "prompt_logprobs": 0},
    )

    scored = [choice.logprobs.content for choice in completion.choices if choice.logprobs]
    totals = [sum(token.logprob for token in tokens or ()) for tokens in scored]
    assert len({choice.message.content for choice in completion.choices}) == len(totals) == 3
    assert totals == sorted(totals, reverse=True)
    usage, told = used(completion.usage), completion.model_extra or {}
    assert usage.completion_tokens == 24
    assert len(told["prompt_logprobs"]) == usage.prompt_tokens


@pytest.mark.skipif(bool(VLLM_MODEL), reason="vLLM caches whole blocks, whatever the seed")
async def test_a_prompt_that_was_seen_is_cached(ask: Ask) -> None:
    prompt = "Say something about the number 4711, but not too much of it."
    await ask.full(prompt, max_tokens=2)
    for mode in (ask.full, ask.stream):
        _, _, usage = await mode(prompt, max_tokens=2)

        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1

    _, _, usage = await ask.full(prompt, max_tokens=2, seed=1)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0


async def test_a_prompt_over_the_context_is_refused_with_both_numbers(server: Running, ask: Ask) -> None:
    for mode in (ask.full, ask.stream):
        with pytest.raises(openai.BadRequestError) as raised:
            await mode("word " * 3000)

        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "messages")
        numbers = [int(word) for word in raised.value.message.split() if word.isdigit()]
        assert CONTEXT in numbers
        assert any(number > 3000 for number in numbers)
        assert server.engine.load.running == 0


async def test_any_history_is_accepted(client: AsyncOpenAI, model: str) -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    histories: list[list[Any]] = [
        [{"role": "system", "content": "Be kind."}, {"role": "system", "content": "Be brief."}, *user("Hi")],
        [{"role": "developer", "content": "Be brief."}, *user("Hi"), {"role": "system", "content": "Be kind."}],
        [*user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [call]},
         {"role": "tool", "tool_call_id": "c1", "content": "sunny, 21"}],
        [*user("Hi"), *user("Hello?"), {"role": "assistant", "content": "Yes?"}, {"role": "assistant", "content": "?"}],
    ]  # fmt: skip
    bare = await client.chat.completions.create(
        model=model, messages=[{"role": "system", "content": "Be."}, *user("Hi")], max_tokens=1
    )
    for history in histories:
        given = tools if any("tool_calls" in message for message in history) else openai.omit
        completion = await client.chat.completions.create(
            model=model, messages=history, tools=given, max_tokens=4
        )

        assert used(completion.usage).prompt_tokens > used(bare.usage).prompt_tokens
        assert completion.choices[0].finish_reason in {"stop", "length"}


@pytest.mark.skipif(bool(VLLM_MODEL), reason="the seed is one of llama.cpp's")
async def test_characters_of_several_tokens_come_whole(ask: Ask) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "seed": 1, "max_tokens": 60}
    full = await ask.full(EMOJI, **options)

    assert any(ord(char) > 0xFFF for char in full[0]), "the model wrote none: choose another seed"
    assert "\ufffd" not in full[0]
    assert full == await ask.stream(EMOJI, **options)


async def test_two_requests_at_once_both_finish(server: Running, ask: Ask) -> None:
    both = asyncio.gather(
        ask.stream(STORY, temperature=0, max_tokens=40),
        ask.full("What is the capital of France?", temperature=0, max_tokens=40),
    )
    await until(lambda: server.engine.load.running == 2)

    for text, finish, usage in await both:
        assert text
        assert finish in {"stop", "length"}
        assert usage.completion_tokens > 1


async def test_more_requests_than_slots_all_finish(server: Running, ask: Ask) -> None:
    asked = asyncio.gather(*(ask.full(f"What is {n} + {n}?", max_tokens=8) for n in range(6)))
    await until(lambda: server.engine.load.waiting > 0)

    assert len(await asked) == 6
    await until(lambda: server.engine.load.idle)


async def test_a_client_that_leaves_its_stream_frees_the_engine(
    server: Running, client: AsyncOpenAI, model: str
) -> None:
    for _ in range(3):
        stream = await client.chat.completions.create(
            model=model, messages=user(STORY), stream=True, temperature=0, presence_penalty=2
        )
        pieces = 0
        async for chunk in stream:
            pieces += bool(chunk.choices[0].delta.content)
            if pieces == 3:
                break
        assert server.engine.load.running == 1
        await stream.close()
        await until(lambda: server.engine.load.running == 0, IDLE_SECONDS)


async def test_a_client_that_leaves_a_full_answer_frees_the_engine(server: Running, ask: Ask) -> None:
    asking = asyncio.create_task(ask.full(STORY, temperature=0, presence_penalty=2))
    await until(lambda: server.engine.load.running == 1)
    await asyncio.sleep(0.1)  # into the answer, more or less
    asking.cancel()
    await until(lambda: server.engine.load.running == 0, IDLE_SECONDS)

    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_client_that_leaves_during_the_prompt_frees_the_engine(server: Running, ask: Ask) -> None:
    prompt = "Hear of a fox. " + "The quick fox jumps over it. " * 250
    asking = asyncio.create_task(ask.stream(prompt, max_tokens=1, seed=1))
    await until(lambda: server.engine.load.running == 1)
    asking.cancel()
    await until(lambda: server.engine.load.running == 0, IDLE_SECONDS)

    with pytest.raises(asyncio.CancelledError):
        await asking


KIND = "You are kind. " * 40


async def test_anthropics_sdk_gets_answers_too(server: Running, model: str) -> None:
    said: Any = {"model": model, "max_tokens": 24, "messages": user(STORY), "extra_body": {"temperature": 0}}
    async with AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        async with client.messages.stream(system=KIND, **said) as stream:
            pieces = [piece async for piece in stream.text_stream]
            first = await stream.get_final_message()
        again = await client.messages.create(system=KIND, **said)
        counted = await client.messages.count_tokens(model=model, system=KIND, messages=user(STORY))
        begun = [*user("What is the capital of France?"), {"role": "assistant", "content": "The capital of"}]
        goes_on = await client.messages.create(**(said | {"messages": begun}))

    [block] = goes_on.content
    assert isinstance(block, TextBlock)
    assert block.text.startswith(" France is Paris")
    for message in (first, again):
        [block] = message.content
        assert isinstance(block, TextBlock)
        assert block.text
        assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 24)
        whole = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
        assert whole == counted.input_tokens
    assert len(pieces) > 1
    assert (again.usage.cache_read_input_tokens or 0) > counted.input_tokens // 2


CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


async def test_a_call_that_is_demanded_has_the_arguments_of_its_schema(
    client: AsyncOpenAI, model: str
) -> None:
    weather: Any = {"name": "get_weather", "parameters": CITY, "strict": True}
    completion = await client.chat.completions.create(
        model=model,
        messages=user("What is the weather in Rome?"),
        tools=[{"type": "function", "function": weather}],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=100,
        seed=1,
    )

    [choice] = completion.choices
    [call] = choice.message.tool_calls or ()
    assert choice.finish_reason == "tool_calls"
    assert call.type == "function"
    assert call.function.name == "get_weather"
    jsonschema_rs.validate(CITY, json.loads(call.function.arguments))


async def test_a_response_says_the_same_streamed_and_whole_in_the_form_of_its_schema(
    client: AsyncOpenAI, model: str
) -> None:
    options: Any = {
        "model": model,
        "input": "Name a city, and for how many days to go there.",
        "text": {"format": {"type": "json_schema", "name": "trip", "schema": CITY, "strict": True}},
        "max_output_tokens": 60,
        "temperature": 0,
        "store": False,
        "extra_body": {"seed": 1},
    }
    response = await client.responses.create(**options)
    events = [event async for event in await client.responses.create(**options, stream=True)]

    jsonschema_rs.validate(CITY, json.loads(response.output_text))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == response.output_text
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == response.output_text


OUTPUTS: dict[str, Any] = {
    "shell_call": [{"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    "apply_patch_call": "It is made.",
}


@pytest.mark.parametrize(
    ("tool", "asked", "type_"),
    [
        ({"type": "shell", "environment": {"type": "local"}}, "List the files with ls.", "shell_call"),
        ({"type": "apply_patch"}, "Create the file a.txt with the line hello.", "apply_patch_call"),
    ],
    ids=["shell", "apply_patch"],
)
async def test_a_tool_of_the_client_s_that_is_demanded_is_called_and_answered(
    client: AsyncOpenAI, model: str, tool: Any, asked: str, type_: str
) -> None:
    options: Any = {"model": model, "tools": [tool], "temperature": 0}
    choice: Any = {"type": tool["type"]}
    response = await client.responses.create(
        input=asked, tool_choice=choice, max_output_tokens=150, extra_body={"seed": 1}, **options
    )
    [call] = [item.to_dict() for item in response.output]
    assert (call["type"], call["status"]) == (type_, "completed")
    answer: Any = {"type": f"{type_}_output", "call_id": call["call_id"], "output": OUTPUTS[type_]}
    answer |= {"status": "completed"} if type_ == "apply_patch_call" else {}
    last = await client.responses.create(
        input=[answer], previous_response_id=response.id, tool_choice="none", max_output_tokens=12, **options
    )
    assert last.output_text


ORDERS = {
    "type": "function",
    "name": "list_orders",
    "description": "Lists the orders of a customer.",
    "parameters": {
        "type": "object",
        "properties": {"customer_id": {"type": "integer"}},
        "required": ["customer_id"],
        "additionalProperties": False,
    },
    "strict": True,
    "defer_loading": True,
}
LATER: list[Any] = [
    {"type": "function", "name": f"tool_{n}", "parameters": {"type": "object"}, "defer_loading": True}
    for n in range(20)
]


async def test_tools_that_come_later_keep_the_cache(client: AsyncOpenAI, model: str) -> None:
    tools: list[Any] = [
        {"type": "tool_search"},
        {"type": "namespace", "name": "crm", "description": "Orders.", "tools": [ORDERS]},
        *LATER,
    ]
    search: Any = {"type": "tool_search"}
    first = await client.responses.create(
        model=model, input="How many orders has customer 7?", tools=tools, tool_choice=search, temperature=0
    )
    assert [item.type for item in first.output][:2] == ["tool_search_call", "tool_search_output"]
    found: Any = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{**ORDERS, "defer_loading": False}],
    }
    effort: Any = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    named: Any = {"type": "function", "name": "list_orders"}
    second = await client.responses.create(
        model=model,
        input=[found, effort, *user("Call list_orders.")],
        tools=tools,
        tool_choice=named,
        previous_response_id=first.id,
        temperature=0,
    )
    (call,) = second.output
    assert call.type == "function_call"
    jsonschema_rs.validate(ORDERS["parameters"], json.loads(call.arguments))  # type: ignore[arg-type]
    assert first.usage is not None
    assert second.usage is not None
    read_once = first.usage.input_tokens / 2  # before the search, and after it
    assert second.usage.input_tokens_details.cached_tokens > 0.8 * read_once


async def test_a_prompt_that_was_computed_before_is_not_computed_again(
    client: AsyncOpenAI, model: str
) -> None:
    rules = " ".join(f"Rule {number} is to be brief." for number in range(30))
    options: Any = {"model": model, "instructions": rules, "temperature": 0}
    warmed = await client.responses.create(input=[], extra_body={"generate": False}, **options)
    first = await client.responses.create(
        input="Name a color.", previous_response_id=warmed.id, max_output_tokens=8, **options
    )

    assert (warmed.status, warmed.output) == ("completed", [])
    assert warmed.usage is not None
    assert first.usage is not None
    assert warmed.usage.output_tokens == 0
    assert first.usage.input_tokens_details.cached_tokens > 0.9 * (warmed.usage.input_tokens - 20)
    assert first.output_text
