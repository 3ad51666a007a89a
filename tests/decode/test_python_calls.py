"""Calls written as Python: literals become JSON, with any chunking."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.events import ArgumentsDelta
from antiphon.core.json_scanner import MAX_DEPTH
from antiphon.decode.decoder import Decoder
from antiphon.decode.headers import MAX_NAME
from antiphon.decode.table import Table
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.lfm2 import LFM2
from antiphon.dialects.olmo3 import OLMO3
from antiphon.dialects.pythonic import LLAMA4_PYTHONIC, PYTHONIC
from tests.laws import check, cuts, decode, fold, model_text
from tests.search import examples

TOOLS = {"f": {}, "g": {}}
tables = [Table(each.grammar) for each in (PYTHONIC, LLAMA4_PYTHONIC, OLMO3, LFM2)]
pythonic = tables[0]
PIECES = ["[", "]", "(", ")", "{", "}", ",", "=", ":", "f(", "g()", "a=", '"', "'", '"""', "\\", "\\n", "\\x4",
          "\\ud83d", "\\777", "1", "-0.5", "None", "true", "Rome", " ", "\n", "é", "x",
          *OLMO3.grammar.markers, *LFM2.grammar.markers]  # fmt: skip


def calls(text: str) -> list[tuple[str, str, str]]:
    items = fold(check(pythonic, text, tools=TOOLS)).calls
    return [(call.name, call.arguments, call.status.value) for call in items]


@pytest.mark.parametrize("table", tables)
@given(text=model_text(PIECES), at=cuts)
@settings(max_examples=examples(200))
def test_keeps_the_laws(table: Table, text: str, at: list[int]) -> None:
    check(table, text, at, tools=TOOLS)
    check(table, "[f(a=" + text, at, tools=TOOLS)


literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=12,
)


@given(value=literals)
@settings(max_examples=examples(300))
def test_what_python_writes_is_read_as_json(value: object) -> None:
    [(_, arguments, status)] = calls(f"[f(a={value!r})]")

    assert status == "completed"
    assert json.loads(arguments) == {"a": json.loads(json.dumps(value))}


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"'\x41\u00e9\U0001F600\101\0'", "Aé😀A\0"),
        (r"'\ud83d\ude00'", "😀"),
        (r"'\d\''", "\\d'"),
        ("'a\\\nb'", "ab"),
        ("'a\nb'", "a\nb"),
        ('"""a "b" \n\'c\'"""', "a \"b\" \n'c'"),
        ("''", ""),
        ("''''''", ""),
        ('"He said "hi" to me"', 'He said "hi" to me'),
        ("007", 7),
        ("+5", 5),
        (".5", 0.5),
        ("[1, (2,), {'a': null, 1: true},]", [1, [2], {"a": None, "1": True}]),
        ("()", []),
    ],
)
def test_literals(literal: str, value: object) -> None:
    [(_, arguments, status)] = calls(f"[f(a={literal})]")

    assert (json.loads(arguments), status) == ({"a": value}, "completed")


@pytest.mark.parametrize(
    "literal", ["Rome", "1 + 2", "g()", "{1, 2}", "{'a'}", "[" * (MAX_DEPTH + 1), "nan", "*b"]
)
def test_what_is_no_literal_breaks_the_call(literal: str) -> None:
    [(name, arguments, status)] = calls(f"[f(a={literal})]")

    assert (name, status) == ("f", "incomplete")
    assert arguments.endswith(")]")


@pytest.mark.parametrize(
    "text",
    [
        "[f('Rome')]",
        "[h(a=1)]",
        "[1]",
        "[f]",
        "[]",
        "[f(a",
        "[see](f(a=1))",
        "f(a=1)",
        "[" + "f" * 2 * MAX_NAME + "()",
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    assert fold(check(pythonic, text, tools=TOOLS)).text == text


@pytest.mark.parametrize(
    ("dialect", "text", "shown"),
    [
        (PYTHONIC, "[f(", []),
        (PYTHONIC, "[f(a", []),
        (LLAMA4_PYTHONIC, "[f(a", []),
        (LLAMA4_PYTHONIC, "<|python_start|>[f(a", []),
        (OLMO3, "<function_calls>\nf(a", []),
        (LFM2, "<|tool_call_start|>[f(a", []),
        (PYTHONIC, "[f(a=1), g", [("f", '{"a": 1}')]),
        (PYTHONIC, "[f(a=1), g(b", [("f", '{"a": 1}')]),
        (PYTHONIC, "[f(a=1, b", [("f", '{"a": 1')]),
        (PYTHONIC, "[f(a=1, b=Tr", [("f", '{"a": 1, "b": ')]),
        (PYTHONIC, "[f(a=1, b=True", [("f", '{"a": 1, "b": true')]),
        (PYTHONIC, "[f(a=1, b=-0", [("f", '{"a": 1, "b": ')]),
    ],
)
def test_the_markup_of_a_call_that_is_cut_is_not_shown(
    dialect: Dialect, text: str, shown: list[tuple[str, str]]
) -> None:
    output = fold(decode(Table(dialect.grammar), [text], Finish(FinishReason.LENGTH), tools=TOOLS))

    assert output.text == ""
    assert [(call.name, call.arguments) for call in output.calls] == shown


RUN = {"run": {"properties": {"command": {"type": "string"}, "cwd": {"type": "string"}}}}


@pytest.mark.parametrize(
    "command",
    [
        "draw(a, b, 'red', label='')",
        "echo 'hi' there",
        "f('a'), g('b')",
        "a = [f('x'), 'y']",
        "it's (not, closed",
        "grep -F \"]\" 'x'",
        "print('a')\nprint('b', end='')\n",
    ],
)
@pytest.mark.parametrize("rest", ["", ", cwd='/srv'", " , other=1"])
@pytest.mark.parametrize("more", ["", ", run(command='b')"])
def test_unescaped_quotes_end_a_string_only_where_a_value_may_end(command: str, rest: str, more: str) -> None:
    if "(not" in command and (more or "other" in rest):
        return  # what is inside parentheses that stay open cannot be told from arguments nobody declares
    text = f"<|tool_call_start|>[run(command='{command}'{rest}){more}]<|tool_call_end|>"
    found = fold(check(tables[3], text, tools=RUN)).calls

    assert json.loads(found[0].arguments)["command"] == command
    assert len(json.loads(found[0].arguments)) == 1 + bool(rest)
    assert len(found) == 1 + bool(more)


@pytest.mark.parametrize("table", tables[:2])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I call:\n\n[f(a=1), g()]", "I call:"),
        ("I call:\n[f(a=1)]\n[g()]", "I call:"),
        ("See [f(a=1)] here.", None),
        ("See\n[f] and\n[1] and\n[h(a=1)].", None),
    ],
)
def test_a_list_on_a_line_of_its_own_is_one_of_calls(table: Table, text: str, said: str | None) -> None:
    output = fold(check(table, text, tools=TOOLS))

    assert output.text == (text if said is None else said)
    assert [call.name for call in output.calls] == ([] if said is None else ["f", "g"][: len(output.calls)])
    assert bool(output.calls) == (said is not None)


@pytest.mark.parametrize(
    ("table", "start", "end"),
    [
        (tables[1], "<|python_start|>", "<|python_end|>"),
        (tables[2], "<function_calls>", "</function_calls>"),
        (tables[3], "<|tool_call_start|>", "<|tool_call_end|>"),
    ],
)
def test_calls_between_markers_may_be_json(table: Table, start: str, end: str) -> None:
    one, two = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "parameters": {}}'
    found = fold(check(table, f"{start}\n[{one}, {two}]\n{end}", tools=TOOLS))
    assert [(call.name, call.arguments) for call in found.calls] == [("f", '{"a": 1}'), ("g", "{}")]
    assert fold(check(table, f"{start}{two}{end}", tools=TOOLS)).calls[0].name == "g"
    assert not found.text


def test_strings_stream() -> None:
    decoder = Decoder(pythonic, tools=TOOLS)
    decoder.feed(Chunk("[f(a='"))

    assert [event.text for event in decoder.feed(Chunk("Ro")) if isinstance(event, ArgumentsDelta)] == ['"Ro']


def test_an_echo_is_dropped_and_a_list_in_brackets_is_not() -> None:
    call = '<|tool_call_start|>[f(from="x")]<|tool_call_end|>'

    assert fold(decode(tables[3], [call, '[f(from="x")]<|tool_call_end|>'])).text == ""
    assert fold(decode(tables[3], [call, "[1] is a note"])).text == "[1] is a note"
