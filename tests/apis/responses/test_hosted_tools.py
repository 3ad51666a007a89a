"""Tools that the server runs, in a request: which of them the model is offered, and what it is shown of their calls."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.apis import wire
from antiphon.apis.responses.accept import ResponseContext, prompt_turn
from antiphon.apis.responses.schema import CountTokens
from antiphon.apis.responses.tools import requested_tools
from antiphon.core.errors import RequestError
from antiphon.core.events import Event, ToolCallsPending, ToolResultReceived
from antiphon.core.items import FunctionCall, FunctionOutput, Item, TextPart
from antiphon.core.turn import CallMode, Function, ToolChoice, Turn
from antiphon.toolkits.registry import built_in
from tests.acting import Offers, hosts_for
from tests.apis.responses.hosted import EXEC, HOSTED, OWN, PRINTED, PYTHON, RAN, SHELL, TOOLS, call
from tests.apis.responses.support import ID, OWNER, accepted, answering_to, streamed
from tests.apis.responses.test_stream import STOP

SEARCHES = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
WEB = frozenset({"browser.search", "browser.open", "browser.find"})
LOCAL = {"type": "shell", "environment": {"type": "local"}}


def turn(context: Mapping[str, Any] | None = None, *, offers: Offers = HOSTED, **fields: Any) -> Turn:
    return accepted(context, offers=offers, **fields).turn


def offered(*tools: Any) -> dict[str, Function]:
    return {tool.name: tool for tool in turn(tools=[*tools]).tools}


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        turn(**fields)
    assert caught.value.status == 400
    return caught.value


# What is offered


def test_a_tool_is_offered_as_the_functions_that_the_model_knows() -> None:
    web = {"type": "web_search", "search_context_size": "low"}

    found = offered(OWN, web, *TOOLS[::2])

    assert list(found) == ["f", "browser.search", "browser.open", "browser.find", "python", "container.exec"]
    for function, settings in ((found["browser.open"], web), (found["python"], TOOLS[0])):
        assert function.hosted is not None
        assert function.hosted.settings == settings
    assert found["python"] == replace(
        PYTHON, source="tools[2]", hosted=replace(PYTHON.hosted, settings=TOOLS[0])
    )


@pytest.mark.parametrize("type_", SEARCHES)
def test_a_web_search_has_several_names(type_: str) -> None:
    assert offered({"type": type_}).keys() == WEB


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search", "external_web_access": False},
        {"type": "image_generation"},
    ],
)
def test_what_the_server_does_not_run_is_told_back_and_not_offered(tool: Any) -> None:
    answering = answering_to(offers=HOSTED, tools=[tool])

    assert offered(tool) == {}
    assert json.loads(answering.body())["tools"] == [tool]


def test_a_server_without_tools_offers_none() -> None:
    assert turn(offers={}, tools=[{"type": "web_search"}]).tools == ()
    for tool in TOOLS:
        if tool["type"] != "web_search":
            assert refused(offers={}, tools=[tool]).param == "tools[0].type"


def test_a_shell_on_the_clients_machine_is_the_clients() -> None:
    found = offered(OWN, LOCAL)
    assert list(found) == ["f", "shell"]
    assert found["shell"].hosted is None


def test_a_prompt_that_is_measured_is_offered_the_same() -> None:
    body = json.dumps({"model": "m", "input": "Hello", "tools": TOOLS}).encode()
    requested = wire.decode(body, CountTokens)
    context = ResponseContext(
        ID, OWNER, hosts=hosts_for(HOSTED, requested_tools(requested.tools)), presenters=built_in().presenters
    )

    assert prompt_turn(requested, context).tools == turn(tools=TOOLS).tools


def test_a_tool_may_be_refused() -> None:
    assert refused(tools=[OWN, {"type": "web_search_preview", "filters": {}}]).param == "tools[1].filters"


@pytest.mark.parametrize(
    ("tools", "param", "remedy"),
    [
        ([TOOLS[0], {"type": "function", "name": "python"}], "tools[1]", "Rename the function"),
        ([{"type": "custom", "name": "python"}, TOOLS[0]], "tools[1]", "Rename the function"),
        ([{"type": "web_search"}, {"type": "web_search_preview"}], "tools[1]", "Leave one out"),
        ([TOOLS[0], OWN, TOOLS[0]], "tools[2]", "Leave one out"),
    ],
)
def test_tools_that_make_no_sense_are_refused_by_name(tools: list[Any], param: str, remedy: str) -> None:
    error = refused(tools=tools)

    assert error.param == param
    assert remedy in error.message


# What may be called


@pytest.mark.parametrize("type_", SEARCHES)
def test_a_choice_of_a_tool_is_that_of_its_functions(type_: str) -> None:
    tools = [*TOOLS, OWN]
    several = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": type_}, OWN, {"type": "shell"}]}

    named = ToolChoice(CallMode.REQUIRED, WEB, named=True)
    assert turn(tools=tools, tool_choice={"type": type_}).tool_choice == named
    assert turn(tools=tools, tool_choice={"type": "code_interpreter"}).tool_choice.names == {"python"}
    assert turn(tools=tools, tool_choice=several).tool_choice == ToolChoice(
        CallMode.AUTO, WEB | {"f", "container.exec"}
    )


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "code_interpreter"}, "tool_choice.type"),
        ({"type": "file_search"}, "tool_choice.type"),
        ({"type": "function", "name": "browser.open"}, "tool_choice.name"),
    ],
)
def test_a_choice_of_what_is_not_offered_is_refused(tool: Any, param: str) -> None:
    tools = [{"type": "web_search"}, OWN]
    several = {"type": "allowed_tools", "tools": [OWN, tool]}

    assert refused(tools=tools, tool_choice=tool).param == param
    assert refused(tools=tools, tool_choice=several).param == param.replace(".", ".tools[1].", 1)


def test_how_many_calls_the_server_answers() -> None:
    assert turn(tools=TOOLS, max_tool_calls=3).tool_limit == 3
    assert turn(tools=TOOLS).tool_limit is None


# What the model is shown again


def items_of(name: str, answered: Event, hosted: Mapping[str, Any]) -> tuple[Item, ...]:
    """What a model with these tools is shown of a call that was answered."""
    answering = answering_to(offers=HOSTED, tools=TOOLS)
    streamed(answering, [*call("call_1", name), ToolCallsPending(), answered, STOP])
    history = [item.payload for item in answering.items]
    tools = [{"type": type_} for type_ in hosted]
    return turn({"history": history}, offers=hosted, input=[], tools=tools).items


@pytest.mark.parametrize(
    ("hosted", "name"), [(HOSTED, "python"), ({"web_search": HOSTED["web_search"]}, "code_interpreter")]
)
def test_a_program_is_shown_under_the_name_that_the_model_knows(hosted: Mapping[str, Any], name: str) -> None:
    asked, answer = items_of("python", ToolResultReceived("call_1", PRINTED), hosted)

    assert isinstance(asked, FunctionCall)
    assert (asked.name, asked.arguments) == (name, '{"code":"print(6 * 7)"}')
    assert answer == FunctionOutput(asked.call_id, (TextPart("42\n"),))


@pytest.mark.parametrize(
    ("hosted", "name", "arguments"),
    [
        ({"shell": (EXEC,)}, "container.exec", {"cmd": ["bash", "-lc", "ls | wc"], "timeout": 1000}),
        ({"shell": (SHELL,)}, "shell", {"commands": ["ls | wc"], "timeout_ms": 1000}),
        (
            {"web_search": HOSTED["web_search"]},
            "shell",
            {"commands": ["ls | wc"], "timeout_ms": 1000, "max_output_length": None},
        ),
    ],
)
def test_commands_are_shown_as_the_model_writes_them(
    hosted: Mapping[str, Any], name: str, arguments: dict[str, Any]
) -> None:
    asked, answer = items_of("container.exec", ToolResultReceived("call_1", RAN), hosted)

    assert isinstance(asked, FunctionCall)
    assert (asked.call_id, asked.name, json.loads(asked.arguments)) == ("call_1", name, arguments)
    assert isinstance(answer, FunctionOutput)
    assert json.loads(answer.text)[0]["stdout"] == "a\n"


def test_commands_without_a_limit_have_none() -> None:
    action = {"commands": ["cd /", "ls"], "timeout_ms": None, "max_output_length": None}
    item = {"type": "shell_call", "call_id": "c", "action": action}

    [asked] = turn(input=[item], tools=TOOLS).items

    assert isinstance(asked, FunctionCall)
    assert json.loads(asked.arguments) == {"cmd": ["bash", "-lc", "cd /\nls"]}


def test_searches_are_not_shown() -> None:
    search = {"type": "web_search_call", "action": {"type": "search", "query": "q"}}

    assert len(turn(input=[{"role": "user", "content": "Hi"}, search], tools=TOOLS).items) == 1
