"""The tools of a chat request, and which of them an answer may or must call."""

from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.apis.custom_tools import as_function
from antiphon.core.constraint import GrammarFormat, Regex
from antiphon.core.errors import RequestError
from antiphon.core.turn import CallMode, Function, Hosted, ToolChoice
from tests.apis.chat.requests import accepted, turn

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
F = {"type": "function", "function": {"name": "f"}}
G = {"type": "function", "function": {"name": "g"}}
SH = {"type": "custom", "custom": {"name": "sh"}}


def with_schema(schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "s", "parameters": schema}}


def grammar(syntax: str, definition: str = "a|b") -> dict[str, Any]:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": "sh", "description": "d", "format": form}}


@pytest.mark.parametrize(
    ("tool", "function"),
    [
        (F, Function("f", source="tools[0].function.parameters")),
        ({"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}},
         Function("f", "d", SCHEMA, True, "tools[0].function.parameters")),
        ({**F, "defer_loading": True}, Function("f", source="tools[0].function.parameters")),
        (SH, as_function("sh", None, None, "tools[0].custom.format")),
        ({"type": "custom", "custom": {"name": "sh", "format": {"type": "text"}}}, as_function("sh", None, None, "tools[0].custom.format")),
        (grammar("regex"), as_function("sh", "d", Regex("a|b"), "tools[0].custom.format")),
        (grammar("lark"), as_function("sh", "d", GrammarFormat("a|b", "lark"), "tools[0].custom.format")),
    ],
)  # fmt: skip
def test_a_tool_becomes_a_function(tool: dict[str, Any], function: Function) -> None:
    assert turn(tools=[tool]).tools == (function,)


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


REQUIRED = CallMode.REQUIRED


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(CallMode.NONE)),
        ("required", ToolChoice(REQUIRED)),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice(REQUIRED, frozenset({"f"}), named=True)),
        ({"type": "custom", "custom": {"name": "sh"}}, ToolChoice(REQUIRED, frozenset({"sh"}), named=True)),
        (allowed("auto", F, SH), ToolChoice(CallMode.AUTO, frozenset({"f", "sh"}))),
        (allowed("required", G), ToolChoice(REQUIRED, frozenset({"g"}))),
    ],
)
def test_a_tool_choice_says_which_calls_are_wanted(asked: Any, choice: ToolChoice) -> None:
    made = turn(tools=[F, G, SH], tool_choice=asked)

    assert made.tool_choice == choice
    assert [tool.name for tool in made.tools] == ["f", "g", "sh"]
    single = turn(tools=[F, G, SH], tool_choice=asked, parallel_tool_calls=False).tool_choice
    assert single == replace(choice, parallel=False)


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        (None, ToolChoice(parallel=False)),
        ("auto", ToolChoice(parallel=False)),
        ("none", ToolChoice(CallMode.NONE, parallel=False)),
        ({"name": "f"}, ToolChoice(REQUIRED, frozenset({"f"}), parallel=False, named=True)),
    ],
)
def test_functions_are_tools_of_which_one_is_called(asked: Any, choice: ToolChoice) -> None:
    made = accepted(functions=[{"name": "f", "parameters": SCHEMA}, {"name": "g"}], function_call=asked)

    assert made.turn.tools == (
        Function("f", None, SCHEMA, source="functions[0].parameters"),
        Function("g", source="functions[1].parameters"),
    )
    assert made.turn.tool_choice == choice
    assert made.presentation.legacy


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [F, {"type": "mcp"}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [F, {"type": "custom"}]}, "tools[1].custom"),
        ({"tools": [F, G, F]}, "tools[2].function.name"),
        ({"tools": [grammar("gbnf")]}, "tools[0].custom.format.grammar.syntax"),
        ({"tools": [grammar("lark", "")]}, "tools[0].custom.format.grammar.definition"),
        ({"tools": [{"type": "custom", "custom": {"name": "x", "format": {"type": "x"}}}]}, "tools[0].custom.format.type"),
        ({"tools": [F, with_schema({"type": 6})]}, "tools[1].function.parameters.type"),
        ({"tools": [with_schema({"properties": {"a": {"type": "no"}}})]}, "tools[0].function.parameters.properties.a.type"),
        ({"functions": [{"name": "f", "parameters": {"type": 6}}]}, "functions[0].parameters.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": F}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice.type"),
        ({"tools": [F], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [F], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"tools": [F], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [F], "tool_choice": G}, "tool_choice.function.name"),
        ({"tools": [F], "tool_choice": SH}, "tool_choice.custom.name"),
        ({"tools": [F], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tools": [F], "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [F], "tool_choice": allowed("none", F)}, "tool_choice.allowed_tools.mode"),
        ({"tools": [F], "tool_choice": allowed("auto", F, G)}, "tool_choice.allowed_tools.tools[1]"),
        ({"tools": [F], "tool_choice": allowed("auto", {"type": "mcp"})}, "tool_choice.allowed_tools.tools[0]"),
        ({"functions": [{"name": "f"}], "tools": [F]}, "tools"),
        ({"functions": [{"name": "f"}], "tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call.name"),
        ({"functions": [{"name": "f"}], "function_call": "always"}, "function_call"),
        ({"function_call": {"name": "g"}}, "function_call.name"),
    ],
)  # fmt: skip
def test_what_names_no_tool_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        turn(**more)

    assert raised.value.param == param
    assert raised.value.message.endswith(".")


# Tools that the server runs


FIND = Function("browser.find", hosted=Hosted("web_search", "find"))
SEARCH = Function("browser.search", hosted=Hosted("web_search", "search"))
PYTHON = Function("python", hosted=Hosted("code_interpreter", "python"))


OFFERS = {"web_search": (SEARCH, FIND), "code_interpreter": (PYTHON,)}
WEB = {"type": "web_search"}
CODE = {"type": "code_interpreter", "container": {"type": "auto"}}


def test_a_tool_of_the_server_is_offered_as_the_functions_that_the_model_knows() -> None:
    asked = turn(offers=OFFERS, tools=[F, WEB, CODE], max_tool_calls=3)
    assert [tool.name for tool in asked.tools] == ["f", "browser.search", "browser.find", "python"]
    assert [tool.source for tool in asked.tools][1:] == ["tools[1]", "tools[1]", "tools[2]"]
    assert asked.tools[3].hosted == Hosted("code_interpreter", "python", CODE)
    assert asked.tool_limit == 3


def test_the_older_way_to_ask_for_a_search() -> None:
    place = {"type": "approximate", "approximate": {"city": "Rome"}}
    asked = turn(offers=OFFERS, web_search_options={"search_context_size": "low", "user_location": place})
    assert asked.tools[0].hosted is not None
    assert asked.tools[0].hosted.settings == {
        "type": "web_search",
        "search_context_size": "low",
        "user_location": {
            "type": "approximate",
            "city": "Rome",
            "country": None,
            "region": None,
            "timezone": None,
        },
    }


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "web_search"}, ToolChoice(CallMode.REQUIRED, frozenset({"browser.search", "browser.find"}), named=True)),
        ({"type": "web_search_preview"}, ToolChoice(CallMode.REQUIRED, frozenset({"browser.search", "browser.find"}), named=True)),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CODE, F]}}, ToolChoice(CallMode.AUTO, frozenset({"python", "f"}))),
        ("required", ToolChoice(CallMode.REQUIRED)),
    ],
)  # fmt: skip
def test_a_tool_of_the_server_is_chosen_by_its_type(choice: Any, wanted: ToolChoice) -> None:
    assert turn(offers=OFFERS, tools=[F, WEB, CODE], tool_choice=choice).tool_choice == wanted


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "shell"}]}, "tools[0].type"),
        ({"tools": [{**WEB, "external_web_access": False}]}, "tools[0]"),
        ({"functions": [{"name": "f"}], "web_search_options": {}}, "web_search_options"),
        ({"tools": [F, {**WEB, "filters": {"allowed_domains": []}}]}, "tools[1].filters"),
        ({"tools": [CODE, CODE]}, "tools[1]"),
        ({"tools": [CODE, {"type": "function", "function": {"name": "python"}}]}, "tools[1].function.name"),
        ({"tools": [WEB], "web_search_options": {}}, "web_search_options"),
        ({"tools": [F], "tool_choice": WEB}, "tool_choice.type"),
        ({"tools": [WEB], "tool_choice": {"type": "function", "function": {"name": "browser.find"}}}, "tool_choice.function.name"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_tool_of_the_server_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        turn(offers=OFFERS, **more)
    assert refused.value.param == param


def test_a_server_without_a_search_says_so() -> None:
    with pytest.raises(RequestError, match="--web-search") as refused:
        turn(web_search_options={})
    assert refused.value.param == "web_search_options"
