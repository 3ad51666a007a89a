"""Custom tools: what the model is shown, and that its JSON string comes out as text however it is cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.apis.custom_tools import MAX_OPENING, InputReader, as_function, to_arguments, to_input
from antiphon.core.constraint import GrammarFormat, Regex
from tests.laws import cut, cuts

SPELLINGS = [
    "a", '\\"', "\\\\", "\\/", "\\n", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\ude00", "\\ud83dx", "é", "👋", "{", "}",
    "\\q", "\\u12", "\\uzzzz", "\n", " ", "\\u0022", "\\ud83d\\ud83d\\ude00", "\\\\u0041", "\\",
]  # fmt: skip


def read(pieces: list[str], name: str = "input") -> str:
    reader = InputReader(name)
    return "".join(reader.read(piece) for piece in pieces)


@given(text=st.text(), at=cuts)
def test_any_text_comes_back_however_its_arguments_are_cut(text: str, at: list[int]) -> None:
    for arguments in (to_arguments(text), json.dumps({"input": text}), json.dumps({"input": text}, indent=1)):
        assert read(cut(arguments, at)) == text
        assert read(list(arguments)) == text
    assert to_input(to_arguments(text)) == text


@given(
    pieces=st.lists(st.sampled_from(SPELLINGS)),
    at=cuts,
    end=st.sampled_from(["", '"', '"}', '", "more": "x"}']),
)
def test_what_models_write_never_raises_and_does_not_depend_on_the_cuts(
    pieces: list[str], at: list[int], end: str
) -> None:
    arguments = '{"input": "' + "".join(pieces) + end

    whole = to_input(arguments)

    assert read(cut(arguments, at)) == whole == read(list(arguments))
    whole.encode()  # text that can be sent: no half characters


OTHERS = (
    st.none() | st.integers() | st.text() | st.lists(st.text()) | st.dictionaries(st.text(), st.integers())
)


@given(value=OTHERS, at=cuts)
def test_arguments_of_another_form_are_passed_on(value: object, at: list[int]) -> None:
    arguments = json.dumps(value)

    assert read(cut(arguments, at)) == arguments == read(list(arguments))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\u00e9\\ud83d\\ude00\\n"}', "aé😀\n"),
        ('{"input": "x", "more": "y"}', "x"),
        (' {\n"input" : "x"}', "x"),
        ('{"input": "\\ud83d"}', "\ufffd"),
        ('{"input": "\\ud83dx\\ude00"}', "\ufffdx\ufffd"),
        ('{"input": "cut \\ud83d', "cut "),
        ('{"input": "\\q\\uzz"}', "\\q\\uzz"),
        ('{"inp', ""),
        ("", ""),
        ("{}", "{}"),
        ('{"input": 5}', '{"input": 5}'),
        ("{" + " " * MAX_OPENING + '"input": "x"}', "{" + " " * MAX_OPENING + '"input": "x"}'),
        ('{"code": "x"}', '{"code": "x"}'),
        ('{"in put": "x"}', '{"in put": "x"}'),
        ("plain text", "plain text"),
    ],
)
def test_the_input_of_known_arguments(arguments: str, text: str) -> None:
    assert to_input(arguments) == text == read(list(arguments))


@given(name=st.sampled_from(["code", "c", "the_program"]), text=st.text(), at=cuts)
def test_the_string_may_have_any_name(name: str, text: str, at: list[int]) -> None:
    for arguments in (json.dumps({name: text}), json.dumps({name: text}, indent=1), f' {{"{name}" : "x"}}'):
        wanted = json.loads(arguments)[name]
        assert read(cut(arguments, at), name) == wanted == read(list(arguments), name)
    assert read([json.dumps({"input": text})], name) == json.dumps({"input": text})


def test_models_are_shown_a_function_with_one_string() -> None:
    function = as_function("patch", "Edits files.", None, "tools[0].format")

    assert (function.name, function.description, function.strict) == ("patch", "Edits files.", None)
    assert function.parameters["required"] == ["input"]
    assert function.parameters["properties"]["input"]["type"] == "string"


def test_the_form_of_a_custom_tool_reaches_the_model() -> None:
    matched = as_function("f", None, Regex("a|b"), "tools[0].format")
    parsed = as_function("f", None, GrammarFormat("start: WORD", "lark"), "tools[0].format")

    assert matched.parameters["properties"]["input"]["pattern"] == "^(?:a|b)$"
    assert matched.strict
    assert matched.source == "tools[0].format"
    assert "start: WORD" in parsed.parameters["properties"]["input"]["description"]
    assert "lark" in parsed.parameters["properties"]["input"]["description"]
    assert not parsed.strict
