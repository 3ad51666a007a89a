"""The openai SDK as a client: what it accumulates of a stream, and the exceptions that it makes of errors."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion

from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Function, Hosted
from antiphon.engines.engine import GenerationRequest, Receiver, Work
from antiphon.engines.scripted import ScriptedEngine
from antiphon.toolkits.shell.details import CommandDetails
from antiphon.toolkits.web_search.details import SearchDetails
from tests.acting import ActingTool, TakingTurns
from tests.server import Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": [1, 2]}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
MODEL = "scripted"
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get_weather", "now")
]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("Hello there, friend!", {}),
    "thoughts and text": ("<think>\nLet me see.\n</think>\n\nIt is so.", {}),
    "only thoughts": ("<think>\nLet me see.", {}),
    "text and a call": (f"Let me look.\n{CALL}", {}),
    "thoughts, text and a call": (f"<think>\nHm.\n</think>\nLet me look.\n{CALL}", {}),
    "several calls": (f"{CALL}\n{OTHER}\n{CALL}", {}),
    "calls in an array": ('<tool_call>[{"name": "now"}, {"name": "now", "arguments": {"a": 1}}]</tool_call>', {}),
    "only a call": (CALL, {}),
    "text between calls": (f"First.\n{CALL}\nThen.\n{OTHER}\nDone.", {}),
    "a call that is cut": (f"Look.\n{CALL}", {"max_tokens": 25}),
    "a text that is cut": ("one two three four five", {"max_tokens": 3}),
    "a stop string": ("one two three four five", {"stop": [" fo", "e f"]}),
    "nothing": ("", {}),
    "a marker in prose": ("Write <tool_call> and </tool_call>, or <think>.", {}),
    "a call that is no call": ('<tool_call>{"nam": 3}</tool_call> so', {}),
    "a call that breaks": ('<tool_call>{"name": "now", "arguments": {"a": tru}}</tool_call> so', {}),
    "a call without an end": ('<tool_call>{"name": "now", "arguments": {"a": "b', {}),
    "unicode": ("Grüße 👋🏽 an 日本語, “ja” \\ \"quoted\"\tand\u2028line\nend 🏴󠁧󠁢󠁥󠁮󠁧󠁿", {}),
    "a call in unicode": ('<tool_call>{"name": "get_weather", "arguments": {"city": "東京 🌍 \\u00e9 \\"x\\""}}</tool_call>', {}),
    "three answers": (f"<think>Hm.</think>Look.\n{CALL}", {"n": 3}),
    "tools that must not be called": (f"Look.\n{CALL}", {"tool_choice": "none"}),
}  # fmt: skip
SPLITS: list[str | int | None] = ["whole", "chars", 3, None]

OTHERS: list[dict[str, Any]] = [
    {"when": "sunny, 21", "output": "It is sunny in Rome, 21 degrees."},
    {"when": "weather?", "output": f"<think>\nI need it.\n</think>\nLet me look.\n{CALL}"},
    {"when": "never starts", "output": "abc", "fail_after": 0},
    {"when": "breaks off", "output": "one two three four", "fail_after": 3},
    {"when": "slow", "output": "word ", "tokens": 100_000, "delay_ms": 5},
    {"when": "Hi", "output": "Hello there, friend!"},
]


def mark(case: str, split: str | int | None) -> str:
    """What a user says to get this answer in these pieces."""
    return f"[{case} | {split}]"


SCRIPT = [
    {"when": mark(case, split), "output": output, "split": split}
    for case, (output, _) in CASES.items()
    for split in SPLITS
] + OTHERS


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running]:
    async with running(SCRIPT) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(server: Running) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(server) as client:
        yield client


def client_of(server: Running, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=20)


def ask(content: str, **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}


async def full(client: AsyncOpenAI, request: dict[str, Any]) -> ChatCompletion:
    completion = await client.chat.completions.create(**request)
    assert isinstance(completion, ChatCompletion)
    return completion


async def accumulate(client: AsyncOpenAI, request: dict[str, Any]) -> ChatCompletion:
    """The answer that the SDK makes of the stream, with its usage."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    options: Any = {"include_usage": True}
    async with await client.chat.completions.create(**request, stream=True, stream_options=options) as stream:
        async for chunk in stream:
            state.handle_chunk(chunk)
    return state.current_completion_snapshot  # not `get_final_completion`: it raises if an answer was cut


def choices_of(completion: ChatCompletion) -> list[dict[str, Any]]:
    """All that must be the same in both modes. Ids are drawn: they are only checked."""
    ids = [call.id for choice in completion.choices for call in choice.message.tool_calls or ()]
    assert all(re.fullmatch(r"call_\w{8,}", call_id) for call_id in ids)
    assert len(set(ids)) == len(ids)
    return [
        {
            "index": choice.index,
            "finish_reason": choice.finish_reason,
            "logprobs": choice.logprobs,
            "role": choice.message.role,
            "content": choice.message.content,
            "refusal": choice.message.refusal,
            "reasoning": (choice.message.model_extra or {}).get("reasoning_content"),
            "calls": [
                (call.type, call.function.name, call.function.arguments)
                for call in choice.message.tool_calls or ()
                if call.type == "function"
            ],
        }
        for choice in completion.choices
    ]


# A stream and a full answer


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("case", CASES)
async def test_a_stream_adds_up_to_the_full_answer(
    client: AsyncOpenAI, case: str, split: str | int | None
) -> None:
    request = ask(mark(case, split), tools=TOOLS, **CASES[case][1])

    whole, summed = await full(client, request), await accumulate(client, request)

    expected = choices_of(whole)
    if expected[0]["content"] is None:
        expected[0]["content"] = ""  # the first chunk of a stream has an empty one
    assert choices_of(summed) == expected
    assert whole.usage is not None
    assert summed.usage == whole.usage
    assert (summed.object, summed.model) == (whole.object, whole.model) == ("chat.completion", MODEL)
    assert summed.id.startswith("chatcmpl-")


@pytest.mark.parametrize(
    ("case", "said", "finish"),
    [
        ("plain", ("Hello there, friend!", None, []), "stop"),
        ("thoughts and text", ("It is so.", "Let me see.", []), "stop"),
        ("text and a call", ("Let me look.", None, ["get_weather"]), "tool_calls"),
        ("several calls", (None, None, ["get_weather", "now", "get_weather"]), "tool_calls"),
        ("only a call", (None, None, ["get_weather"]), "tool_calls"),
        ("a call that is cut", ("Look.", None, ["get_weather"]), "length"),
        ("a text that is cut", ("one two three", None, []), "length"),
        ("a stop string", ("one two thre", None, []), "stop"),
        ("nothing", ("", None, []), "stop"),
        ("a marker in prose", ("Write <tool_call> and </tool_call>, or <think>.", None, []), "stop"),
        ("tools that must not be called", (f"Look.\n{CALL}", None, []), "stop"),
    ],
)
async def test_the_sdk_reads_what_the_model_said(
    client: AsyncOpenAI, case: str, said: tuple[str | None, str | None, list[str]], finish: str
) -> None:
    [choice] = choices_of(await full(client, ask(mark(case, None), tools=TOOLS, **CASES[case][1])))

    calls = [name for _, name, _ in choice["calls"]]
    assert (choice["content"], choice["reasoning"], calls) == said
    assert choice["finish_reason"] == finish


async def test_arguments_come_as_the_model_wrote_them(client: AsyncOpenAI) -> None:
    [choice] = choices_of(await accumulate(client, ask(mark("a call in unicode", "chars"), tools=TOOLS)))

    assert choice["calls"] == [("function", "get_weather", r'{"city": "東京 🌍 \u00e9 \"x\""}')]


async def test_the_stream_helper_tells_what_happens(client: AsyncOpenAI) -> None:
    strict = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    request = ask(mark("thoughts, text and a call", None), tools=strict)
    seen: dict[str, list[Any]] = {}
    async with client.chat.completions.stream(**request) as stream:
        async for event in stream:
            seen.setdefault(event.type, []).append(event)
        completion = await stream.get_final_completion()

    assert "".join(event.delta for event in seen["content.delta"]) == "Let me look."
    assert [event.content for event in seen["content.done"]] == ["Let me look."]
    [done] = seen["tool_calls.function.arguments.done"]
    assert (done.name, done.parsed_arguments) == ("get_weather", {"city": "Rome", "days": [1, 2]})
    deltas = seen["tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in deltas) == done.arguments
    assert completion.choices[0].finish_reason == "tool_calls"


class LastFirst(ScriptedEngine):
    """The higher the seed, the sooner an answer begins: so the last choice begins first."""

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        return Later(0.2 - 0.05 * (request.sampling.seed or 0), partial(super().generate, request, receiver))


class Later:
    """Work that begins after a number of seconds."""

    def __init__(self, seconds: float, begin: Callable[[], Work]) -> None:
        self._work: Work = asyncio.get_running_loop().call_later(seconds, self._begin)
        self._start = begin

    def _begin(self) -> None:
        self._work = self._start()

    def cancel(self) -> None:
        self._work.cancel()


async def test_choices_that_begin_in_any_order_add_up() -> None:
    # The SDK puts a choice where it first sees it: what it gets must begin in the order of the choices.
    script = [{"output": f"<think>Hm.</think>Look.\n{CALL}"}]
    async with running(LastFirst(script)) as server, client_of(server) as client:
        request = ask("Hi", n=3, seed=1, tools=TOOLS)

        assert choices_of(await accumulate(client, request)) == choices_of(await full(client, request))


async def test_a_tool_round_trip(client: AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    request: dict[str, Any] = {"model": MODEL, "tools": TOOLS}

    for ask_model in (full, accumulate):
        asked = (await ask_model(client, {**request, "messages": messages})).choices[0]
        assert asked.finish_reason == "tool_calls"
        [call] = asked.message.tool_calls or []
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21"}
        history = [*messages, asked.message.to_dict(), result]
        told = (await ask_model(client, {**request, "messages": history})).choices[0]

        assert (told.message.content, told.finish_reason) == ("It is sunny in Rome, 21 degrees.", "stop")
        assert not told.message.tool_calls


# Models


async def test_models(client: AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]

    assert [(model.id, model.object, model.owned_by) for model in models] == [(MODEL, "model", "antiphon")]
    assert await client.models.retrieve(MODEL) == models[0]
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-9")


# Errors


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("request_", "error", "param", "code"),
    [
        (ask("Hi", temperature=-1), openai.BadRequestError, "temperature", None),
        (ask("Hi", tools=[{"type": "magic"}]), openai.BadRequestError, "tools[0].type", None),
        ({"model": MODEL, "messages": []}, openai.BadRequestError, "messages", None),
        (ask("word " * 40_000), openai.BadRequestError, "messages", "context_length_exceeded"),
        ({**ask("Hi"), "model": "gpt-9"}, openai.NotFoundError, "model", "model_not_found"),
        (ask("never starts"), openai.InternalServerError, None, "engine_error"),
    ],
)
async def test_errors_are_the_exceptions_of_the_sdk(
    client: AsyncOpenAI,
    request_: dict[str, Any],
    error: type[openai.APIStatusError],
    param: str | None,
    code: str | None,
    *,
    streamed: bool,
) -> None:
    with pytest.raises(error) as raised:
        await client.chat.completions.create(**request_, stream=streamed)

    assert (raised.value.param, raised.value.code) == (param, code)
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["message"]
    assert raised.value.body["type"] == raised.value.type


async def test_a_wrong_key_is_an_authentication_error() -> None:
    async with running(SCRIPT, api_key=["secret"]) as server:
        async with client_of(server, "wrong") as client:
            with pytest.raises(openai.AuthenticationError) as raised:
                await full(client, ask("Hi"))
            assert raised.value.code == "invalid_api_key"
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with client_of(server, "secret") as client:
            assert (await full(client, ask("Hi"))).choices[0].message.content == "Hello there, friend!"


async def test_a_stream_that_breaks_off_raises(client: AsyncOpenAI) -> None:
    said: list[str] = []

    async def read() -> None:
        async for chunk in await client.chat.completions.create(**ask("breaks off"), stream=True):
            said.append(chunk.choices[0].delta.content or "")
            assert chunk.choices[0].finish_reason is None

    with pytest.raises(openai.APIError, match="fail after 3 chunks") as raised:
        await read()
    assert "".join(said) == "one two three"
    assert raised.value.code == "engine_error"


async def test_a_client_that_closes_its_stream_stops_the_engine(server: Running, client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(**ask("slow"), stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    assert server.engine.load.running == 1
    await stream.close()

    async with asyncio.timeout(1):
        while server.engine.load.running:
            await asyncio.sleep(0.001)


# Tools that the server runs


def tagged(name: str, arguments: dict[str, Any]) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


async def test_calls_of_the_server_s_tools_are_typed_items_and_events() -> None:
    """What the SDK accumulates of a stream is the response that it retrieves, with types for all of it."""
    search = Function("web_search", "Searches.", {"type": "object"}, hosted=Hosted("web_search", "search"))
    shell = Function("shell", "Runs.", {"type": "object"}, hosted=Hosted("shell", "exec"))
    tools = [
        ActingTool(),
        ActingTool(
            "web_search", (search,), [ToolResult("Cats.", SearchDetails("cats", ("https://a.example/",)))]
        ),
        ActingTool("shell", (shell,), [ToolResult("a.txt", CommandDetails("a.txt\n", "", 0))]),
    ]
    engine = TakingTurns(
        f"Let me see.{tagged('python', {'code': 'print(42)'})}\n{tagged('web_search', {'query': 'cats'})}",
        tagged("shell", {"commands": ["ls"]}),
        "It is 42.",
    )
    offered: list[Any] = [
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "web_search"},
        {"type": "shell"},
    ]
    async with running(engine, tools=tools) as server:
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        async with client.responses.stream(model=MODEL, input="Hi", tools=offered) as stream:
            seen = {event.type async for event in stream}
            final = await stream.get_final_response()
        stored = await client.responses.retrieve(final.id)
        await client.close()
    assert [item.type for item in final.output] == [
        "message",
        "code_interpreter_call",
        "web_search_call",
        "shell_call",
        "shell_call_output",
        "message",
    ]
    assert final.output_text == "Let me see.It is 42."
    assert final.output[1].code == "print(42)"
    assert final.output[2].action.query == "cats"
    assert final.output[4].output[0].stdout == "a.txt\n"
    assert stored.output[1:5] == final.output[1:5]  # the SDK gives messages of a stream a type of their own
    assert {
        "response.code_interpreter_call.interpreting",
        "response.code_interpreter_call_code.delta",
        "response.web_search_call.searching",
    } <= seen


async def test_the_events_of_logs_that_were_asked_for_pass_through_the_sdk() -> None:
    """It does not know them: it hands them on with the fields that they have."""
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "print(42)"}}\n</tool_call>'
    engine = TakingTurns(call, "It is 42.")
    asked: Any = {
        "model": MODEL,
        "input": "Hi",
        "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
        "include": ["code_interpreter_call.logs"],
    }
    async with running(engine, tools=[ActingTool()]) as server:
        client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        async with client.responses.stream(**asked) as stream:
            helped = [event async for event in stream]
            final = await stream.get_final_response()
        plain = [event async for event in await client.responses.create(**asked, stream=True)]
        await client.close()
    assert final.output_text == "It is 42."
    for events in (helped, plain):
        told: list[Any] = [event for event in events if "call_logs" in event.type]
        assert [event.type.rpartition(".")[2] for event in told] == ["delta", "done"]
        assert (told[0].delta, told[1].logs) == ("42\n", "42\n")
        assert told[0].item_id == told[1].item_id


async def test_a_batch(server: Running, client: AsyncOpenAI) -> None:
    requests = [
        {"custom_id": said, "method": "POST", "url": "/v1/chat/completions", "body": ask(said)}
        for said in ("Hi", "breaks off")
    ]
    content = "\n".join(map(json.dumps, requests)).encode()
    file = await client.files.create(file=("lines.jsonl", content), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
    )
    async with asyncio.timeout(20):
        while batch.status != "completed":
            batch = await client.batches.retrieve(batch.id)
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    answers, errors = [
        [json.loads(line) for line in (await client.files.content(file_id)).text.splitlines()]
        for file_id in (batch.output_file_id, batch.error_file_id)
    ]
    listed = [each.id async for each in client.batches.list(limit=1)]
    completion = ChatCompletion.model_validate(answers[0]["response"]["body"])

    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.metadata, batch.model) == (2, {"a": "b"}, MODEL)
    assert completion.choices[0].message.content == "Hello there, friend!"
    assert [each["custom_id"] for each in (*answers, *errors)] == ["Hi", "breaks off"]
    assert errors[0]["response"]["status_code"] == 500
    assert batch.id in listed


async def test_a_batch_of_a_wrong_file(client: AsyncOpenAI) -> None:
    file = await client.files.create(file=("lines.jsonl", b"{"), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [each.line for each in batch.errors.data] == [1]
    with pytest.raises(openai.BadRequestError, match="'failed'"):
        await client.batches.cancel(batch.id)
