"""The tools of a chat request, and which of them an answer may or must call."""

from typing import Any

import pytest

from antiphon.apis.custom_tools import as_function
from antiphon.core.constraint import GrammarFormat, Regex
from antiphon.core.errors import RequestError
from antiphon.core.turn import Calling, Function, ToolChoice
from tests.apis.chat.requests import accepted, turn

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
F = {"type": "function", "function": {"name": "f"}}
G = {"type": "function", "function": {"name": "g"}}
SH = {"type": "custom", "custom": {"name": "sh"}}


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


REQUIRED = Calling.REQUIRED


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("none", ToolChoice(Calling.NONE)),
        ("required", ToolChoice(REQUIRED)),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice(REQUIRED, frozenset({"f"}))),
        ({"type": "custom", "custom": {"name": "sh"}}, ToolChoice(REQUIRED, frozenset({"sh"}))),
        (allowed("auto", F, SH), ToolChoice(Calling.AUTO, frozenset({"f", "sh"}))),
        (allowed("required", G), ToolChoice(REQUIRED, frozenset({"g"}))),
    ],
)
def test_a_tool_choice_says_which_calls_are_wanted(asked: Any, choice: ToolChoice) -> None:
    made = turn(tools=[F, G, SH], tool_choice=asked)

    assert made.tool_choice == choice
    assert [tool.name for tool in made.tools] == ["f", "g", "sh"]
    single = turn(tools=[F, G, SH], tool_choice=asked, parallel_tool_calls=False).tool_choice
    assert single == ToolChoice(choice.calling, choice.names, parallel=False)


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        (None, ToolChoice(parallel=False)),
        ("auto", ToolChoice(parallel=False)),
        ("none", ToolChoice(Calling.NONE, parallel=False)),
        ({"name": "f"}, ToolChoice(REQUIRED, frozenset({"f"}), parallel=False)),
    ],
)
def test_functions_are_tools_of_which_one_is_called(asked: Any, choice: ToolChoice) -> None:
    made = accepted(functions=[{"name": "f", "parameters": SCHEMA}, {"name": "g"}], function_call=asked)

    assert made.turn.tools == (
        Function("f", None, SCHEMA, source="functions[0].parameters"),
        Function("g", source="functions[1].parameters"),
    )
    assert made.turn.tool_choice == choice
    assert made.view.legacy


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": [F, {"type": "mcp"}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [F, {"type": "custom"}]}, "tools[1].custom"),
        ({"tools": [F, G, F]}, "tools[2].function.name"),
        ({"tools": [grammar("gbnf")]}, "tools[0].custom.format.grammar.syntax"),
        ({"tools": [grammar("lark", "")]}, "tools[0].custom.format.grammar.definition"),
        ({"tools": [{"type": "custom", "custom": {"name": "x", "format": {"type": "x"}}}]}, "tools[0].custom.format.type"),
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
        ({"functions": []}, "functions"),
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
