"""The tools of a request: what the model is offered, and which calls an answer may have."""

from typing import Any

import pytest

from antiphon.core.errors import RequestError
from antiphon.core.turn import CallMode, Function, ToolChoice
from tests.apis.responses.support import accepted

F = {"type": "function", "name": "f"}
G = {"type": "custom", "name": "g"}
SPACE = {"type": "namespace", "name": "ns", "description": "Some.", "tools": [F, G]}
OTHER = {"type": "namespace", "name": "other", "tools": [F, {"type": "function", "name": "h"}]}
HOSTED = [{"type": "web_search", "external_web_access": False}, {"type": "image_generation"}]


def offered(*tools: Any) -> dict[str, Function]:
    return {tool.name: tool for tool in accepted(tools=list(tools)).turn.tools}


def chosen(choice: Any, *tools: Any, **fields: Any) -> ToolChoice:
    return accepted(tools=list(tools), tool_choice=choice, **fields).turn.tool_choice


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        accepted(**fields)
    return caught.value


def allowed(*tools: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "mode": "auto", "tools": list(tools)} | fields


def test_functions_are_offered_as_they_are() -> None:
    schema = {"type": "object", "properties": {}}
    full = F | {"description": "d", "parameters": schema, "strict": True}

    assert offered(F) == {"f": Function("f", source="tools[0].parameters")}
    assert offered(full) == {"f": Function("f", "d", schema, True, "tools[0].parameters")}


def test_custom_tools_are_offered_as_functions_of_one_string() -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "a+"}
    lark = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}

    plain, regex, larked = (offered(G | {"format": form})["g"] for form in ({"type": "text"}, grammar, lark))

    assert plain.parameters["required"] == ["input"]
    assert regex.parameters["properties"]["input"]["pattern"] == "^(?:a+)$"
    assert 'start: "a"' in larked.parameters["properties"]["input"]["description"]


def test_namespaces_are_flattened() -> None:
    assert list(offered(SPACE, OTHER, F)) == ["ns__f", "ns__g", "other__f", "other__h", "f"]


def test_tools_that_clients_always_send_are_accepted_and_not_offered() -> None:
    assert list(offered(*HOSTED, F)) == ["f"]
    assert offered(*HOSTED) == offered() == {}
    notes = accepted(tools=[*HOSTED, F]).tools.notes
    assert [note.param for note in notes] == ["tools[0].type", "tools[1].type"]
    assert "--web-search" in notes[0].message


@pytest.mark.parametrize("type_", ["mcp", "file_search", "code_interpreter", "shell", "image_3", "wibble"])
def test_other_types_are_refused_by_name(type_: str) -> None:
    error = refused(tools=[F, {"type": type_}])
    assert error.param == "tools[1].type"
    assert f"'{type_}'" in error.message


SCHEMAS: list[tuple[Any, str]] = [
    ({"type": 6}, ".type"),
    ({"type": "no-such-type"}, ".type"),
    ({"type": "object", "properties": {"a": {"anyOf": [{}, {"type": "float"}]}}}, ".properties.a.anyOf[1].type"),
    ({"type": "object", "required": True}, ".required"),
    ({"properties": []}, ".properties"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "place"), SCHEMAS)
def test_what_is_no_schema_is_refused_and_its_place_named(schema: Any, place: str) -> None:
    for strict in (None, True):
        tool = F | {"parameters": schema, "strict": strict}
        assert refused(tools=[G, tool]).param == f"tools[1].parameters{place}"
        inside = {"type": "namespace", "name": "n", "tools": [tool]}
        assert refused(tools=[inside]).param == f"tools[0].tools[0].parameters{place}"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": {"minimum": 0, "exclusiveMinimum": True}}},  # draft 4
        {"$schema": "https://example.com/mine", "type": "object"},
        {"type": "object", "properties": {"a": {"type": "string", "nullable": True, "x-mine": 1}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": ["string", "null"]}}},
    ],
)  # fmt: skip
def test_what_clients_write_as_schemas_is_taken(schema: Any) -> None:
    assert offered(F | {"parameters": schema})["f"].parameters == schema


def test_schemas_may_be_deep_and_large() -> None:
    schema: Any = {"type": 6}
    for _ in range(80):
        schema = {"items": schema}
    error = refused(tools=[F | {"parameters": schema}])
    assert (error.param or "").endswith(".items.items.type")
    assert len(refused(tools=[F | {"parameters": {"type": "x" * 10_000}}]).message) < 500


def test_choices() -> None:
    assert chosen(None, F) == chosen("auto", F) == chosen("auto") == ToolChoice()
    assert chosen("none", F) == ToolChoice(CallMode.NONE)
    assert chosen("required", F) == ToolChoice(CallMode.REQUIRED)
    assert chosen("auto", F, parallel_tool_calls=False) == ToolChoice(parallel=False)


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        (F, "f"),
        (G, "g"),
        ({"type": "function", "name": "ns__f"}, "ns__f"),
        ({"type": "function", "name": "f", "namespace": "ns"}, "ns__f"),
        ({"type": "function", "name": "h"}, "other__h"),
    ],
)
def test_a_named_tool_has_to_be_called(choice: dict[str, Any], name: str) -> None:
    tools = [SPACE, OTHER, F, G]

    assert chosen(choice, *tools) == ToolChoice(CallMode.REQUIRED, frozenset({name}), named=True)
    assert chosen(allowed(choice), *tools) == ToolChoice(CallMode.AUTO, frozenset({name}))
    assert chosen(allowed(choice, mode="required"), *tools) == ToolChoice(
        CallMode.REQUIRED, frozenset({name})
    )


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("sometimes", "tool_choice"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "function", "name": "x"}, "tool_choice.name"),
        ({"type": "custom", "name": "f"}, "tool_choice.name"),
        ({"type": "web_search"}, "tool_choice.type"),
        ({"type": "mcp", "server_label": "s"}, "tool_choice.type"),
        ({}, "tool_choice.type"),
        (allowed(), "tool_choice.tools"),
        (allowed(F, mode="sometimes"), "tool_choice.mode"),
        (allowed(F, {"type": "function", "name": "x"}), "tool_choice.tools[1].name"),
        (allowed(*HOSTED), "tool_choice.tools[0].type"),
    ],
)
def test_choices_of_what_is_not_there_are_refused(choice: Any, param: str) -> None:
    assert refused(tools=[F, *HOSTED], tool_choice=choice).param == param


def test_an_ambiguous_choice_is_refused_with_what_it_may_mean() -> None:
    error = refused(tools=[SPACE, OTHER], tool_choice=F)

    assert error.param == "tool_choice.name"
    assert "ns__f, other__f" in error.message


@pytest.mark.parametrize("tools", [[], HOSTED])
def test_a_call_of_nothing_cannot_be_required(tools: list[Any]) -> None:
    assert refused(tools=tools, tool_choice="required").param == "tool_choice"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([F, F], "tools[1]"),
        ([F, {"type": "custom", "name": "f"}], "tools[1]"),
        ([SPACE, {"type": "function", "name": "ns__f"}], "tools[1]"),
        ([3], "tools[0]"),
        ([{}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].name"),
        ([{"type": "function", "function": {"name": "f"}}], "tools[0].name"),
        ([F | {"parameters": []}], "tools[0].parameters"),
        ([F | {"strict": "yes"}], "tools[0].strict"),
        ([G | {"format": {"type": "xml"}}], "tools[0].format.type"),
        ([G | {"format": {"type": "grammar", "syntax": "bnf"}}], "tools[0].format.syntax"),
        ([G | {"format": {"type": "grammar", "syntax": "lark"}}], "tools[0].format.definition"),
        ([SPACE | {"tools": [{"type": "web_search", "name": "w"}]}], "tools[0].tools[0].type"),
    ],
)
def test_tools_that_make_no_sense_are_refused_by_name(tools: list[Any], param: str) -> None:
    assert refused(tools=tools).param == param
