"""Server tools over HTTP: a model calls them, and continues with their results, in one response."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from msgspec import Struct
from structlog.testing import capture_logs

from antiphon.core.tool_result import ToolResult
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.code_interpreter.details import ProgramDetails
from antiphon.toolkits.shell.details import CommandDetails
from antiphon.toolkits.web_search.details import SearchDetails
from antiphon.toolkits.web_search.tool import WebSearch
from tests.acting import PYTHON, ActingTool
from tests.http.api import Api, ask, check_stream, client, items_of, prompt_of, text_of
from tests.http.harmony import Said
from tests.server import Running, running

RAN = ToolResult("42\n", ProgramDetails("42\n"))
FOUND = ToolResult("【0】A page", SearchDetails("cats", ("https://a.example/",)))
LISTED = ToolResult("a.txt", CommandDetails("a.txt\n", "", 0))
TYPES = ("code_interpreter", "web_search", "shell")
PROGRAMS = {"type": "code_interpreter", "container": {"type": "auto"}}
TOOLS: list[dict[str, Any]] = [PROGRAMS, {"type": "web_search"}, {"type": "shell"}]
OWN = {"type": "function", "name": "f", "parameters": {"type": "object"}}
SEARCH = Function("web_search", "Searches.", {"type": "object"}, hosted=Hosted("web_search", "search"))
SHELL = Function(
    "shell", "Runs.", {"type": "object", "properties": {"commands": {}}}, hosted=Hosted("shell", "run")
)


class Family(Struct, frozen=True):
    """How the models of a family write: `calls` of the tools of each type, and one of the client's function."""

    dialect: str
    said: str
    calls: dict[str, str]
    between: str


def _tagged(name: str, arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


HERMES = Family(
    "hermes",
    "{}",
    {
        "code_interpreter": _tagged("python", {"code": "print(6 * 7)"}),
        "web_search": _tagged("web_search", {"query": "cats"}),
        "shell": _tagged("shell", {"commands": ["ls"]}),
        "own": _tagged("f", {}),
    },
    "\n",
)
HARMONY = Family(
    "openai",
    "<|channel|>final<|message|>{}<|return|>",
    {
        "code_interpreter": "<|channel|>analysis to=python code<|message|>print(6 * 7)<|call|>",
        "web_search": '<|channel|>analysis to=browser.search code<|message|>{"query": "cats"}<|call|>',
        "shell": '<|channel|>analysis to=container.exec code<|message|>{"cmd": ["ls"]}<|call|>',
        "own": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
    },
    "<|start|>assistant",
)
ITEMS = {
    "code_interpreter": ["code_interpreter_call"],
    "web_search": ["web_search_call"],
    "shell": ["shell_call", "shell_call_output"],
}


@pytest.fixture(params=[HERMES, HARMONY], ids=lambda family: family.dialect)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture
def tools() -> dict[str, ActingTool]:
    return {
        "code_interpreter": ActingTool("code_interpreter", (PYTHON,), [RAN]),
        "web_search": ActingTool("web_search", (SEARCH,), [FOUND], aliases=WebSearch.aliases),
        "shell": ActingTool("shell", (SHELL,), [LISTED]),
    }


@pytest_asyncio.fixture
async def server(family: Family, tools: dict[str, ActingTool]) -> AsyncIterator[Running]:
    async with running(Said(), dialect=family.dialect, date="2025-06-28", tools=tools.values()) as server:
        yield server


@pytest_asyncio.fixture
async def api(server: Running) -> AsyncIterator[Api]:
    async with client(server) as api:
        yield api


class Model:
    """Writes as its family does."""

    def __init__(self, family: Family, engine: Said) -> None:
        self._family = family
        self._engine = engine

    def says(self, *answers: Sequence[str]) -> None:
        """What the next generations say: calls, by type, or a text."""
        self._engine.says(*(self._written(answer) for answer in answers), split="chars")

    def _written(self, answer: Sequence[str]) -> str:
        calls, said = self._family.calls, self._family.said
        return self._family.between.join(calls.get(each) or said.format(each) for each in answer)


@pytest.fixture
def model(family: Family, server: Running) -> Model:
    return Model(family, server.engine)


def kinds(response: Any) -> list[str]:
    return [item["type"] for item in response["output"]]


def bare(response: Any) -> list[Any]:
    """The output without what each response has of its own."""
    own = ("id", "call_id", "container_id", "environment")
    return [{name: item[name] for name in item if name not in own} for item in response["output"]]


# One response


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("store", [True, False])
async def test_a_tool_is_called_and_the_model_goes_on(
    api: Api, server: Running, model: Model, type_: str, store: bool
) -> None:
    model.says([type_], ["Done."], [type_], ["Done."])

    whole = await api.create("Hi", tools=TOOLS, store=store)
    streamed = await api.streamed("Hi", tools=TOOLS, store=store)

    assert kinds(whole) == [*ITEMS[type_], "message"]
    assert text_of(whole) == "Done."
    assert whole["status"] == "completed"
    assert bare(whole) == bare(streamed)
    assert whole["usage"] == streamed["usage"]
    first, second = [len(generation.prompt.ids) for generation in server.engine.seen][:2]
    assert whole["usage"]["input_tokens"] == first + second
    assert {"code_interpreter": "42", "web_search": "A page", "shell": "a.txt"}[type_] in prompt_of(server)
    if store:
        for response in (whole, streamed):
            assert await api.get(f"/responses/{response['id']}") == response


async def test_what_is_told_of_the_tools(api: Api, model: Model) -> None:
    model.says(["code_interpreter", "web_search", "shell"], ["Done."])

    response = await api.create("Hi", tools=TOOLS, include=["web_search_call.action.sources"])

    code, search, asked, printed, _ = bare(response)
    assert code == {
        "type": "code_interpreter_call",
        "status": "completed",
        "code": "print(6 * 7)",
        "outputs": [{"type": "logs", "logs": "42\n"}],
    }
    assert search["action"] == {
        "type": "search",
        "query": "cats",
        "queries": ["cats"],
        "sources": [{"type": "url", "url": "https://a.example/"}],
    }
    assert asked["action"]["commands"] == ["ls"]
    ended = {"stdout": "a.txt\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    assert printed["output"] == [ended]


async def test_parallel_calls_are_begun_before_the_first_is_answered(api: Api, model: Model) -> None:
    model.says(["code_interpreter", "code_interpreter"], ["Done."])

    payloads = await api.stream("Hi", tools=TOOLS)

    check_stream(payloads)
    told = [
        (event["type"].removeprefix("response.output_item."), event["output_index"])
        for event in map(json.loads, payloads)
        if event["type"].startswith("response.output_item.")
    ]
    both = [("added", 0), ("added", 1), ("done", 0), ("done", 1)]
    assert told == [*both, ("added", 2), ("done", 2)]


async def test_tools_may_be_called_again_and_again(
    api: Api, model: Model, tools: dict[str, ActingTool]
) -> None:
    model.says(["code_interpreter"], ["web_search"], ["code_interpreter"], ["Done."])

    response = await api.streamed("Hi", tools=TOOLS)

    assert kinds(response) == [
        *("code_interpreter_call", "web_search_call", "code_interpreter_call", "message"),
    ]
    # One session for all calls of an answer.
    assert [action for action, _ in tools["code_interpreter"].done] == ["open", "python", "python", "close"]


async def test_a_budget_that_is_spent_without_a_word_is_told(api: Api, model: Model) -> None:
    model.says(["code_interpreter"], ["code_interpreter"], ["code_interpreter"], ["code_interpreter"])

    with capture_logs() as logs:
        whole = await api.create("Hi", tools=TOOLS, max_tool_calls=1)
        streamed = await api.streamed("Hi", tools=TOOLS, max_tool_calls=1)

    assert [line["finish"] for line in logs if "finish" in line] == ["tool_limit"] * 2
    for response in (whole, streamed):
        assert kinds(response) == ["code_interpreter_call"]
        assert (response["status"], response["incomplete_details"]) == (
            "incomplete",
            {"reason": "max_tool_calls"},
        )
        first, last = response["generations"]
        assert (first["tool_calls"], last["tool_calls"]) == (1, 0)
        usage = response["usage"]
        assert usage["input_tokens"] == first["input_tokens"] + last["input_tokens"]
        assert usage["output_tokens"] == first["output_tokens"] + last["output_tokens"]
    refused = await api.refused("Hi", tools=TOOLS, max_tool_calls=129)
    assert (refused["param"], refused["code"]) == ("max_tool_calls", "limit_exceeded")


async def test_the_settings_of_a_tool_reach_it(api: Api, model: Model, tools: dict[str, ActingTool]) -> None:
    model.says(["code_interpreter"], ["Done."])

    await api.create("Hi", tools=[PROGRAMS])

    assert tools["code_interpreter"].done[0] == ("open", PROGRAMS)
    error = await api.refused("Hi", tools=[OWN, PROGRAMS | {"refused": True}])
    assert error["param"] == "tools[1].refused"


async def test_tools_that_are_not_asked_for_are_not_offered(api: Api, server: Running, model: Model) -> None:
    model.says(["Hi."])

    await api.create("Hi", tools=[{"type": "web_search", "external_web_access": False}])

    assert not server.engine.seen[-1].prompt.text.count("web_search")
    assert "Tools" not in prompt_of(server)
    assert "container" not in prompt_of(server)


async def test_measuring_counts_tools(api: Api, model: Model) -> None:
    model.says(["Hi."])
    counted = await api.post("/responses/input_tokens", ask("Hi", tools=TOOLS))
    body = await api.create("Hi", tools=TOOLS)

    assert body["usage"]["input_tokens"] == counted["input_tokens"]


# The client's own functions


async def test_a_call_of_the_clients_ends_the_response(api: Api, server: Running, model: Model) -> None:
    model.says(["code_interpreter", "own"], ["Done."])

    first = await api.streamed("Hi", tools=[*TOOLS, OWN])

    assert kinds(first) == ["code_interpreter_call", "function_call"]
    assert [item["status"] for item in first["output"]] == ["completed", "completed"]
    assert first["status"] == "completed"
    [called] = items_of(first, "function_call")
    result = {"type": "function_call_output", "call_id": called["call_id"], "output": "77 degrees"}
    second = await api.create([result], tools=[*TOOLS, OWN], previous_response_id=first["id"])
    assert text_of(second) == "Done."
    assert "print(6 * 7)" in prompt_of(server)
    assert "42" in prompt_of(server)
    assert "77 degrees" in prompt_of(server)


# Limits and choices


async def test_the_calls_of_a_response_are_limited(
    api: Api, model: Model, tools: dict[str, ActingTool]
) -> None:
    model.says(["code_interpreter", "code_interpreter"], ["Done."])

    response = await api.streamed("Hi", tools=TOOLS, max_tool_calls=1)

    one, two = items_of(response, "code_interpreter_call")
    assert (one["status"], two["status"]) == ("completed", "failed")
    assert response["max_tool_calls"] == 1
    assert text_of(response) == "Done."
    assert [action for action, _ in tools["code_interpreter"].done] == ["open", "python", "close"]


@pytest.mark.parametrize("type_", [*TYPES, "web_search_preview"])
async def test_a_tool_can_be_demanded_by_its_type(api: Api, model: Model, type_: str) -> None:
    called = type_.removesuffix("_preview")
    model.says([called], ["Done."])
    choice = {"type": type_}

    response = await api.create("Hi", tools=TOOLS, tool_choice=choice)

    assert kinds(response) == [*ITEMS[called], "message"]
    assert response["tool_choice"] == choice
    assert "unmet" not in response
    error = await api.refused("Hi", tools=[OWN], tool_choice=choice)
    assert error["param"] == "tool_choice.type"


async def test_tools_that_may_not_be_called(api: Api, model: Model) -> None:
    model.says(["code_interpreter"], ["Never."])

    response = await api.create("Hi", tools=TOOLS, tool_choice="none")

    assert kinds(response) == ["message"]
    assert "Never." not in text_of(response)


async def test_a_program_that_a_limit_cuts_is_not_run(
    api: Api, model: Model, tools: dict[str, ActingTool], family: Family
) -> None:
    model.says(["code_interpreter"])
    tokens = family.calls["code_interpreter"].index("6 * 7")

    response = await api.streamed("Hi", tools=TOOLS, max_output_tokens=tokens)

    assert response["status"] == "incomplete"
    [program] = response["output"]
    assert (program["status"], program["code"], program["outputs"]) == ("incomplete", "print(", [])
    assert tools["code_interpreter"].done == []


# What lasts


async def test_in_the_background(api: Api, model: Model) -> None:
    model.says(["shell", "web_search"], ["Done."])

    queued = await api.create("Hi", tools=TOOLS, background=True)
    response = await api.finished(queued["id"])

    assert kinds(response) == ["shell_call", "web_search_call", "shell_call_output", "message"]
    assert check_stream(await api.events(response["id"])) == response


async def test_later_turns_are_shown_what_was_done(api: Api, server: Running, model: Model) -> None:
    model.says(["code_interpreter"], ["shell"], ["Done."], ["More."])

    first = await api.create("Hi", tools=TOOLS)
    second = await api.create("Go on", tools=TOOLS, previous_response_id=first["id"])

    assert text_of(second) == "More."
    prompt = prompt_of(server)
    assert prompt.index("print(6 * 7)") < prompt.index("42") < prompt.index("a.txt") < prompt.index("Go on")
    assert "code_interpreter" not in prompt  # the model knows it by another name
    # It is the same for a client that sends all of it again.
    model.says(["More."])
    await api.create(
        [{"role": "user", "content": "Hi"}, *first["output"], {"role": "user", "content": "Go on"}],
        tools=TOOLS,
        store=False,
    )
    assert prompt_of(server) == prompt


async def test_a_conversation_gets_the_items(api: Api, server: Running, model: Model) -> None:
    model.says(["code_interpreter", "web_search"], ["Done."], ["More."])
    path = await api.conversation()
    named = path.rpartition("/")[2]

    first = await api.streamed("Hi", tools=TOOLS, conversation=named)
    await api.create("Go on", tools=TOOLS, conversation=named)

    items = (await api.get(f"{path}/items", order="asc"))["data"]
    assert items[1:4] == first["output"]
    assert "print(6 * 7)" in prompt_of(server)


# Leaving


@pytest.mark.parametrize(
    ("type_", "status"),
    [("code_interpreter", "incomplete"), ("web_search", "failed"), ("shell", "completed")],
)
async def test_a_response_is_cancelled_while_a_tool_runs(
    api: Api, model: Model, tools: dict[str, ActingTool], type_: str, status: str
) -> None:
    tool = tools[type_]
    tool.results[:] = [None]
    model.says([type_])
    queued = await api.create("Hi", tools=TOOLS, background=True)
    await asyncio.wait_for(tool.running.wait(), 10)

    cancelled = await api.post(f"/responses/{queued['id']}/cancel", {})

    assert cancelled["status"] == "cancelled"
    assert [item["status"] for item in cancelled["output"]] == [status]
    assert tool.done[-1] == ("close", None)
    assert check_stream(await api.events(queued["id"])) == cancelled


async def test_a_client_that_leaves_stops_the_tool(
    api: Api, model: Model, tools: dict[str, ActingTool]
) -> None:
    tool = tools["code_interpreter"]
    tool.results[:] = [None]
    model.says(["code_interpreter"])
    async with api.http.stream("POST", "/responses", json=ask("Hi", tools=TOOLS, stream=True)) as response:
        lines = response.aiter_lines()
        await anext(lines)
        created = json.loads((await anext(lines)).removeprefix("data: "))["response"]
        await asyncio.wait_for(tool.running.wait(), 10)

    ended = await api.finished(created["id"])

    assert ended["status"] == "cancelled"
    assert [item["status"] for item in ended["output"]] == ["incomplete"]
    assert tool.done[-1] == ("close", None)


# What is taken and has no effect


UNREAD = {"type": "code_interpreter", "container": {"type": "auto"}, "wibble": 1}


async def test_every_api_notes_what_of_a_tool_has_no_effect(api: Api, model: Model) -> None:
    model.says(*([["Hi."]] * 7))
    deferred = {**OWN, "defer_loading": True}
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    own = {"type": "function", "function": {"name": "f", "defer_loading": True}, "wibble": 1}
    anthropic = {**chat, "max_tokens": 99}
    custom = {"name": "f", "input_schema": {"type": "object"}, "defer_loading": True}
    messages = str(api.http.base_url).rstrip("/") + "/messages"

    whole = await api.create("Hi", tools=[UNREAD, deferred])
    streamed = await api.streamed("Hi", tools=[UNREAD, deferred])
    body = {"model": "scripted", **chat, "tools": [UNREAD, own]}
    chatted = (await api.http.post("/chat/completions", json=body)).json()
    chunks = (await api.http.post("/chat/completions", json={**body, "stream": True})).text
    body = {"model": "scripted", **anthropic, "tools": [custom]}
    message = (await api.http.post(messages, json=body)).json()
    events = (await api.http.post(messages, json={**body, "stream": True})).text
    plain = await api.create("Hi")

    params = [note["param"] for note in whole["notes"]]
    assert params == ["tools[0].wibble", "tools[1].defer_loading"]
    assert streamed["notes"] == whole["notes"]
    assert (await api.get(f"/responses/{whole['id']}"))["notes"] == whole["notes"]
    assert [note["param"] for note in chatted["notes"]] == [
        *("tools[0].wibble", "tools[1].wibble", "tools[1].function.defer_loading")
    ]
    first, *later = [json.loads(line[6:]) for line in chunks.split("\n") if line.startswith("data: {")]
    assert first["notes"] == chatted["notes"]
    assert not any("notes" in chunk for chunk in later)
    assert [note["param"] for note in message["notes"]] == ["tools[0].defer_loading"]
    [begun] = [line for line in events.split("\n") if "message_start" in line and line.startswith("data")]
    assert json.loads(begun[6:])["message"]["notes"] == message["notes"]
    assert "notes" not in plain


async def test_every_api_refuses_what_it_does_not_run_with_the_remedy(api: Api) -> None:
    tools = [{"type": "image_generation_3"}]
    chat = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "tools": tools}
    messages = str(api.http.base_url).rstrip("/") + "/messages"

    told = [
        await api.refused("Hi", tools=tools),
        (await api.http.post("/chat/completions", json=chat)).json()["error"],
        (await api.http.post(messages, json={**chat, "max_tokens": 9})).json()["error"],
    ]

    assert len({error["message"].removeprefix("tools[0].type: ") for error in told}) == 1
    assert "does not run tools of type 'image_generation_3'. It runs: code_interpreter" in told[0]["message"]
