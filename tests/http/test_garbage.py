"""Law: what a request needed is freed when it is over, without the garbage collector.

The collector runs rarely: what is left to it is the memory of hundreds of prompts, and takes as long as an
answer when it is found.
"""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from antiphon.core.limits import DEFAULTS
from antiphon.engines.script import token_id
from antiphon.toolkits.programs.tool import Programs
from tests.acting import ActingTool
from tests.http.positions.test_tool_search import TOOLS as DEFERRED
from tests.http.test_server_tools import LISTED, SHELL
from tests.run.support import until
from tests.server import NO_TLS, Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
Json = dict[str, Any]

CONNECTION = ("antiphon.http.protocol", "antiphon.apis.fields")
"""Of a connection that is closed, some headers are left."""
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'
RUN = '<tool_call>\n{"name": "python", "arguments": {"code": "6 * 7"}}\n</tool_call>'
PRINTS = (
    '<tool_call>\n{"name": "programmatic_tool_calling", "arguments": {"code": "print(6 * 7)"}}\n</tool_call>'
)
LISTS = '<tool_call>\n{"name": "shell", "arguments": {"commands": ["ls"]}}\n</tool_call>'
FINDS = (
    '<tool_call>\n{"name": "tool_search", "arguments": {"query": "the orders of a customer"}}\n</tool_call>'
)
ASKS = PRINTS.replace("6 * 7", "f(a='b')")
SCRIPT: list[Json] = [
    {"when": "42", "output": "It is 42."},
    {"when": "run?", "output": RUN},
    {"when": "call?", "output": CALL},
    {"when": "program?", "output": PRINTS},
    {"when": "asks?", "output": ASKS},
    {"when": "<tool_response>", "output": "It is there."},
    {"when": "list?", "output": LISTS},
    {"when": "find?", "output": FINDS},
    {"when": "dies?", "output": "half of an answer", "fail_after": 2},
    {"when": "long?", "output": "and so on " * 500, "delay_ms": 5},
    {"when": "think?", "output": "<think>Well.</think>Yes."},
    {"when": "object?", "output": '{"a": "' + "b" * 200 + '"}'},
    {"output": "Hi there."},
]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTION = {"name": "f", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}
PROGRAMS = {"type": "programmatic_tool_calling"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "o", "schema": SCHEMA, "strict": True}}


def chat(said: str, **fields: Any) -> tuple[str, Json]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": said}], **fields}


def message(said: str, **fields: Any) -> tuple[str, Json]:
    return "/v1/messages", {"messages": [{"role": "user", "content": said}], "max_tokens": 90, **fields}


def response(said: str, **fields: Any) -> tuple[str, Json]:
    return "/v1/responses", {"input": said, **fields}


ASKED: dict[str, tuple[str, Json]] = {
    "chat": chat("hi"),
    "chat: choices": chat("hi", n=3, logprobs=True, top_logprobs=2),
    "chat: reasoning": chat("think?", thinking_token_budget=3),
    "chat: a call": chat("call?", tools=TOOLS, tool_choice="required"),
    "chat: a form that is cut": chat("object?", response_format=FORMAT, max_tokens=30),
    "chat: a tool of the server": chat("run?", tools=[{"type": "code_interpreter"}]),
    "chat: a stop string": chat("long?", stop=["on and"]),
    "chat: stored": chat("hi", store=True),
    "completions": ("/v1/completions", {"prompt": "Once"}),
    "completions: best of": ("/v1/completions", {"prompt": ["Once", "Twice"], "n": 1, "echo": True}),
    "responses": response("hi"),
    "responses: not stored": response("think?", store=False),
    "responses: a call": response("call?", tools=[{"type": "function", **FUNCTION}]),
    "responses: a tool of the server": response("run?", tools=[PYTHON]),
    "responses: a form that is cut": response("object?", text={"format": {"type": "json_schema", "name": "o", "schema": SCHEMA}}, max_output_tokens=30),
    "responses: a program": response("program?", tools=[PROGRAMS]),
    "responses: a program that waits for a call": response("asks?", tools=[PROGRAMS, {"type": "function", **FUNCTION, "allowed_callers": ["programmatic"]}]),
    "responses: a shell": response("list?", tools=[{"type": "shell"}]),
    "responses: a search for tools": response("find?", tools=DEFERRED),
    "messages": message("hi"),
    "messages: a call": message("call?", tools=[{"name": "f", "input_schema": SCHEMA}], tool_choice={"type": "any"}),
    "messages: reasoning": message("think?", thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000),
    "messages: no output": message("hi", max_tokens=0),
    "ollama": ("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}),
    "tokens": ("/inference/v1/generate", {"token_ids": [token_id("Hi")], "sampling_params": {}}),
}  # fmt: skip
REFUSED: dict[str, tuple[str, Json]] = {
    "too long": chat("word " * 50_000),
    "responses: too long": response("word " * 50_000),
    "messages: too long": message("word " * 50_000),
    "wrong": chat("hi", temperature="hot"),
    "tokens": ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {}}),
    "chat: an engine that fails": chat("dies?"),
    "responses: an engine that fails": response("dies?"),
    "messages: an engine that fails": message("dies?"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Running]:
    async with running(
        SCRIPT, tools=[ActingTool(), ActingTool("shell", (SHELL,), [LISTED]), Programs(DEFAULTS)]
    ) as server:
        gc.collect()
        gc.freeze()  # what is there is not looked at for each test
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(server: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http:
        yield http


@contextmanager
def found() -> Iterator[Callable[[], Counter[str]]]:
    """What the collector finds of ours, of all that is there from now on."""

    def collect() -> Counter[str]:
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            gc.collect()
            return Counter(type(each).__qualname__ for each in gc.garbage if _ours(each))
        finally:
            gc.set_debug(0)
            gc.garbage.clear()

    collect()
    gc.disable()
    try:
        yield collect
    finally:
        gc.enable()


def _ours(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.startswith("antiphon.") and not kind.__module__.startswith(CONNECTION)


async def is_over(server: Running) -> None:
    """Nothing is under way any more."""
    await until(lambda: not server.engine.playing)
    for _ in range(20):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "body"), ASKED.values(), ids=[*ASKED])
async def test_nothing_is_left_of_an_answer(
    server: Running, http: httpx.AsyncClient, path: str, body: Json, stream: bool
) -> None:
    async def ask() -> None:
        answer = await http.post(path, json={"model": "scripted", "stream": stream, **body})
        assert answer.status_code == 200
        assert '"error":{' not in answer.text

    await leaves_nothing(server, ask)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "body"), REFUSED.values(), ids=[*REFUSED])
async def test_nothing_is_left_of_an_error(
    server: Running, http: httpx.AsyncClient, path: str, body: Json, stream: bool
) -> None:
    async def ask() -> None:
        answer = await http.post(path, json={"model": "scripted", "stream": stream, **body})
        assert '"error":{' in answer.text

    await leaves_nothing(server, ask)


async def leaves_nothing(server: Running, ask: Callable[[], Awaitable[None]]) -> None:
    """What is asked for the second time leaves nothing; the first time, caches are filled."""
    await ask()
    await is_over(server)
    with found() as garbage:
        for _ in range(3):
            await ask()
        await is_over(server)
        assert garbage() == Counter()


async def test_nothing_is_left_of_a_background_response(server: Running, http: httpx.AsyncClient) -> None:
    async def ask() -> None:
        asked = {"model": "scripted", "input": "run?", "background": True, "tools": [PYTHON]}
        id_ = (await http.post("/v1/responses", json=asked)).json()["id"]
        while (await http.get(f"/v1/responses/{id_}")).json()["status"] in {"queued", "in_progress"}:
            await asyncio.sleep(0.005)

    await leaves_nothing(server, ask)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_nothing_is_left_of_an_answer_whose_client_leaves(server: Running, path: str) -> None:
    async def ask() -> None:
        _, body = {"/v1/responses": response("long?"), "/v1/messages": message("long?")}.get(
            path, chat("long?")
        )
        asked = {"model": "scripted", "stream": True, **body}
        async with (
            httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
            http.stream("POST", path, json=asked) as answer,
        ):
            async for _ in answer.aiter_raw():
                break

    await leaves_nothing(server, ask)


async def test_nothing_is_left_of_the_turns_of_a_websocket(server: Running) -> None:
    async with connect(server.url.replace("http", "ws") + "/v1/responses") as socket:

        async def ask(**fields: Any) -> str:
            await socket.send(json.dumps({"type": "response.create", "model": "scripted", **fields}))
            while (event := json.loads(await socket.recv()))["type"] != "response.completed":
                pass
            return str(event["response"]["id"])

        id_ = await ask(input="hi")
        await is_over(server)
        with found() as garbage:
            for said in ("run?", "call?", "think?"):
                id_ = await ask(
                    input=said, previous_response_id=id_, tools=[PYTHON, {"type": "function", **FUNCTION}]
                )
            await is_over(server)
            assert garbage() == Counter()
