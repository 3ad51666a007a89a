"""Arguments between braces, without quotes."""

import pytest
from hypothesis import given, settings

from antiphon.core.chunks import Chunk
from antiphon.core.events import ArgumentsDelta
from antiphon.core.json_scanner import MAX_DEPTH
from antiphon.decode.decoder import Decoder
from antiphon.decode.headers import MAX_HEADER
from antiphon.decode.table import Table
from antiphon.dialects.gemma import FUNCTIONGEMMA, GEMMA4
from tests.laws import check, cuts, fold, model_text
from tests.search import examples

TOOLS = {
    "f": {
        "properties": {"s": {"type": "string"}, "i": {"type": "integer"}, "u": {"type": ["null", "string"]}}
    }
}
gemma4 = Table(GEMMA4.grammar)
PIECES = [*GEMMA4.grammar.markers, *FUNCTIONGEMMA.grammar.markers, '<|"|>', "<escape>", "call:f{", ":f(", "a:", "s:",
          "i:", ",", "{", "}", "[", "]", ")", ":", "1", "007", "true", "None", "x", " ", "\n", '"', "'", '", s:', "',", "=", "\\", "\\n", "\\u00e9", "é"]  # fmt: skip


def arguments(text: str) -> tuple[str, str]:
    [call] = fold(check(gemma4, "<|tool_call>call:f" + text, tools=TOOLS)).calls
    return call.arguments, call.status.value


@pytest.mark.parametrize("table", [gemma4, Table(FUNCTIONGEMMA.grammar)])
@given(text=model_text(PIECES), at=cuts)
@settings(max_examples=examples(300))
def test_keeps_the_laws(table: Table, text: str, at: list[int]) -> None:
    check(table, text, at, tools=TOOLS)
    check(table, "<|tool_call>call:f{" + text, at, tools=TOOLS)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{}", "{}"),
        ("{s:007,i:007}", '{"s": "007", "i": 7}'),
        ('{u:<|"|>null<|"|>}', '{"u": "null"}'),
        ("{a:007,b:x y,c:True,d:None}", '{"a": 7, "b": "x y", "c": true, "d": null}'),
        ('{<|"|>a b<|"|>:1,}', '{"a b": 1}'),
        ('{ a : { b : [ 1 , <|"|>x<|"|> , ] , c : {} } }', '{"a": {"b": [1, "x"], "c": {}}}'),
        ("(a:1)", '{"a": 1}'),
        ("{a:f(1)}", '{"a": "f(1)"}'),
        ("{a:1<tool_call|>", '{"a": 1}'),
        ('{a:<|"|>},{<tool_call|><|"|>}', '{"a": "},{<tool_call|>"}'),
        ("{o:{\"m\": \"x\", 'n': 'y'},s:1}", '{"o": {"m": "x", "n": "y"}, "s": "1"}'),
        ("{l:[\"a\",'b', <|\"|>c<|\"|> 'd']}", '{"l": ["a", "b", "c", "d"]}'),
        ("{s: 'A, b: {c}', i: 3}", '{"s": "A, b: {c}", "i": 3}'),
        ("{s:'don't, or \"do\"',i:3}", '{"s": "don\'t, or \\"do\\"", "i": 3}'),
        ("(s='x', i=3)", '{"s": "x", "i": 3}'),
        ("(s=a, b=c, i=3)", '{"s": "a, b=c", "i": 3}'),
        ('{s:<|"|>x<|"|>i:3}', '{"s": "x", "i": 3}'),
        ("{o:{a:1}i:3}", '{"o": {"a": 1}, "i": 3}'),
        ("{s:\n\na {y}.\nb, c: d\n,i:3}", '{"s": "a {y}.\\nb, c: d", "i": 3}'),
        ("{s:f() }", '{"s": "f()"}'),
        ("{s:{x} {y}}", '{"s": "{x} {y}"}'),
        ('{s:{"a": 1},i:3}', '{"s": "{\\"a\\": 1}", "i": 3}'),
        ("{s:'\\s+\\b'<|\"|>,i:3}", '{"s": "\\\\s+\\\\b", "i": 3}'),
        ("{s:<|\"|>x',i:3}", '{"s": "x", "i": 3}'),
        ('{s:<|"|>x"}<tool_call|>', '{"s": "x"}'),
        ('{s:<|"|>x}<tool_call|>', '{"s": "x"}'),
        ('{s:x<|"|>,i:3}', '{"s": "x", "i": 3}'),
        ("{s:'x\"}<tool_call|>", '{"s": "x"}'),
        ('{s:"a\\n\\u00e9\\"b\\/",i:3}', '{"s": "a\\né\\"b/", "i": 3}'),
        ("{s:http://a.b/?x=1,y=2,i:3}", '{"s": "http://a.b/?x=1,y=2", "i": 3}'),
        ("(i:3}", '{"i": 3}'),
        ("{i:3)", '{"i": 3}'),
        ("{i:3}}", '{"i": 3}'),
    ],
)
@pytest.mark.parametrize("more", ["", "<tool_call|>", "\n<tool_call|>"])
def test_whole_arguments(text: str, wanted: str, more: str) -> None:
    closed = text.endswith(("}", ")"))
    assert arguments(text + more * closed) == (wanted, "completed")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("{oops}", "oops}"),
        ("{a:1", '{"a": '),
        ("{a:[1,12", '{"a": [1, 12'),
        ('{a:<|"|>Ro<|', '{"a": "Ro'),
        ("{a:[1}<tool_call|>", '{"a": ["1}"'),
        ('{a:<|"|>x<|"|>y}', '{"a": "x"y}'),
        ("{a:" + "[" * (MAX_DEPTH + 1), '{"a": ' + "[" * (MAX_DEPTH + 1)),
        ("{" + "k" * (MAX_HEADER + 1) + ":1", "k" * (MAX_HEADER + 1) + ":1"),
    ],
)
def test_broken_arguments_are_kept_and_not_whole(text: str, kept: str) -> None:
    assert arguments(text) == (kept, "incomplete")


def test_strings_stream() -> None:
    decoder = Decoder(gemma4, tools=TOOLS)
    decoder.feed(Chunk('<|tool_call>call:f{s:<|"|>'))

    assert [event.text for event in decoder.feed(Chunk("Ro")) if isinstance(event, ArgumentsDelta)] == ['"Ro']


def test_an_object_is_written_as_it_comes_even_under_the_name_of_a_wrapper() -> None:
    assert arguments("{input:{s:1}}") == ('{"input": {"s": 1}}', "completed")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<|tool_call>call:f<tool_call|>Hi", "{}"),
        ("<|tool_call>f{i:1}<tool_call|>Hi", '{"i": 1}'),
        ("<|tool_call>call: f {i:1}<tool_call|>Hi", '{"i": 1}'),
        ("<|tool_call>call:f(i=1) .<tool_call|>Hi", '{"i": 1}'),
        ('<|tool_call>call:f{s:<|"|>x<|"|>}} and so on<tool_call|>Hi', '{"s": "x"}'),
    ],
)
def test_only_the_closing_token_ends_a_call(text: str, wanted: str) -> None:
    output = fold(check(gemma4, text, tools=TOOLS))

    assert [call.arguments for call in output.calls] == [wanted]
    assert output.text == "Hi"
