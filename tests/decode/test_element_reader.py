"""Arguments as nested elements. A dialect without the prefix would be ambiguous; here it is `~`."""

import json
from typing import Any

import pytest
from hypothesis import given, settings

from antiphon.core.events import ArgumentsDelta
from antiphon.core.grammar import ElementArgument, Grammar, Name, Span, SpanKind
from antiphon.decode.arguments.elements import MAX_ELEMENTS
from antiphon.decode.call_readers import MAX_COLLECTED
from antiphon.decode.headers import plain_name
from antiphon.decode.table import Table
from tests.laws import check, cuts, decode, fold, model_text
from tests.search import examples

table = Table(
    Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"~<call ": "name"}),
            "name": Name(on={">": "arguments"}, parse=plain_name),
            "arguments": Span(SpanKind.CALL, on={"~<": "argument", "~</call>": "text"}),
            "argument": ElementArgument(then="arguments", prefix="~"),
        }
    )
)
POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "tags": {"type": "array"}}}
TOOLS = {
    "f": {
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "integer"},
            "p": POINT,
            "list": {"type": "array", "items": {"type": "integer"}},
            "points": {"type": "array", "items": POINT},
            "maybe": {"type": ["object", "null"]},
        }
    }
}


def arguments(inner: str) -> Any:
    text = f"~<call f>{inner}~</call>"
    check(table, text, tools=TOOLS)
    return json.loads(fold(decode(table, [text], tools=TOOLS)).calls[0].arguments)


@pytest.mark.parametrize(
    ("inner", "value"),
    [
        ("", {}),
        ("~<s> a\n~</s>", {"s": " a\n"}),
        ("~<s>a~<b>c~</b>~</s>", {"s": "a~<b>c~</b>"}),
        ("~<n>3~</n>", {"n": 3}),
        ("~<u>3~</u>", {"u": "3"}),
        ("~<u>a~</u>~<n>1~</n>~<u>b~</u>", {"n": 1, "u": ["a", "b"]}),
        ("~<u>~<a>1~</a>~<a>2~</a>~</u>", {"u": {"a": ["1", "2"]}}),
        ("~<u>~<item>1~</item>~</u>", {"u": ["1"]}),
        ("~<u> hm ~<a>1~</a>~</u>", {"u": {"a": "1", "$text": "hm"}}),
        ("~<p>~<x>1~</x>\n~<tags>~<item>a~</item>~</tags>~</p>", {"p": {"x": 1, "tags": ["a"]}}),
        ("~<p>~<tags>a~</tags>~</p>", {"p": {"tags": ["a"]}}),
        ("~<p>~<item>1~</item>~</p>", {"p": {"item": "1"}}),
        ('~<p>{"x": 1}~</p>', {"p": {"x": 1}}),
        ("~<p>~</p>", {"p": {}}),
        ("~<list>~</list>", {"list": []}),
        ("~<list>1~</list>", {"list": [1]}),
        ("~<list>[1, 2]~</list>", {"list": [1, 2]}),
        ("~<list>1~</list>~<list>2~</list>", {"list": [1, 2]}),
        ("~<list>~<v>1~</v>~<v>2~</v>~</list>", {"list": [1, 2]}),
        ("~<points>~<item>~<x>1~</x>~</item>~</points>", {"points": [{"x": 1}]}),
        (
            "~<list>~<v>1~</v>~</list>~<list>~<v>2~</v>~</list>~<list>~</list>~<list>3~</list>",
            {"list": [1, 2, 3]},
        ),
        ("~<list>1~</list>~<list>~<v>2~</v>~</list>", {"list": [1, 2]}),
        ("~<list>~<v>1~</v>~</list>~<n>3~</n>~<list>2~</list>", {"list": [1, 2], "n": 3}),
        ("~<list>~<v>1~</list>", {"list": [1]}),
        ("~<list>x~<v>1~</v>y~<v/>~</list>", {"list": [1, ""]}),
        (
            "~<points>~<p>~<x>1~</x>~<tags>a~</tags>~</p>~<p>~<x>2~</p>~</points>",
            {"points": [{"x": 1, "tags": ["a"]}, {"x": 2}]},
        ),
        ("~<maybe>null~</maybe>", {"maybe": None}),
        ("~<u>~<a>1~</u>", {"u": {"a": "1"}}),
        ("~<u>1~</b>~<no tag>~</u>", {"u": "1~</b>~<no tag>"}),
        ("~<u>~<a/>~</u>", {"u": {"a": ""}}),
        ("~<u>~ a < b ~~<a>1~</a>~</u>", {"u": {"$text": "~ a < b ~", "a": "1"}}),
    ],
)
def test_elements(inner: str, value: object) -> None:
    assert arguments(inner) == value


def test_elements_are_nested_up_to_a_limit() -> None:
    deep = "~<a>" * (MAX_ELEMENTS + 9) + "~</a>" * MAX_ELEMENTS

    value = arguments(deep)
    for _ in range(MAX_ELEMENTS - 1):
        value = value["a"]
    assert value["a"] == "~<a>" * 9


def test_strings_stream() -> None:
    events = decode(table, ["~<call f>~<s>", "a", "b", "~</s>"], tools=TOOLS)

    said = [event.text for event in events if isinstance(event, ArgumentsDelta) and event.text]
    assert said == ['{"s": ', '"a', "b", '"']


def said(*pieces: str) -> list[str]:
    events = decode(table, ["~<call f>", *pieces, "~</call>"], tools=TOOLS)
    return [event.text for event in events if isinstance(event, ArgumentsDelta) and event.text]


def test_values_of_an_array_go_out_one_by_one() -> None:
    assert said("~<list>", "~<v>1~</v>", "~<v>2", "~</v>", "~</list>", "~<n>3~</n>") == [
        '{"list": [1',
        ", 2",
        '], "n": 3',
        "}",
    ]


def test_what_may_be_an_array_goes_out_when_another_argument_begins() -> None:
    assert said("~<u>a~</u>", "~<u>b~</u>", "~<s>", "c~</s>") == ['{"u": ["a", "b"], "s": ', '"c', '"', "}"]


def test_an_array_that_goes_on_later_is_written_again() -> None:
    assert said("~<u>a~</u>", "~<n>1~</n>", "~<u>b~</u>") == ['{"u": "a", "n": 1', ', "u": ["a", "b"]}']


@pytest.mark.parametrize("inner", ["~<>1~</>", "~<a b>1", "~<" + "x" * 300])
def test_an_argument_without_a_name_breaks_the_call(inner: str) -> None:
    text = f"~<call f>~<s>a~</s>{inner}~</call>"
    check(table, text, tools=TOOLS)

    output = fold(decode(table, [text], tools=TOOLS))
    assert output.calls[0].status == "incomplete"
    assert output.text.endswith("~</call>")


@pytest.mark.parametrize("inner", ["~<s>a~</s>~</s>", "~</b>~<s>a~</s>", "~<s>a~</s>\n~</b>"])
def test_a_closing_tag_without_an_argument_is_skipped(inner: str) -> None:
    text = f"~<call f>{inner}~</call>"
    check(table, text, tools=TOOLS)

    (call,) = fold(decode(table, [text], tools=TOOLS)).calls
    assert (call.arguments, call.status) == ('{"s": "a"}', "completed")


@pytest.mark.parametrize("inner", ["~<>1~</>", "~<a b>1", "~<" + "x" * 300])
def test_a_call_that_breaks_before_its_first_argument_is_text(inner: str) -> None:
    text = f"~<call f>{inner}~</call>"
    check(table, text, tools=TOOLS)

    output = fold(decode(table, [text], tools=TOOLS))
    assert (output.text, output.calls) == (text, ())


def test_an_argument_that_never_ends_is_given_up() -> None:
    text = "~<call f>~<u>" + "x " * MAX_COLLECTED
    pieces = [text[at : at + 1000] for at in range(0, len(text), 1000)]

    output = fold(decode(table, pieces, tools=TOOLS))

    assert (output.text, output.calls) == (text, ())


PIECES = ["~<call f>", "~</call>", "~<s>", "~</s>", "~<u>", "~</u>", "~<a>", "~</a>", "~<", "~", "<", ">", "/", "x", "1", "\n", "~<list>", "~</list>"]  # fmt: skip


@given(text=model_text(PIECES), at=cuts)
@settings(max_examples=examples(300))
def test_keeps_the_laws(text: str, at: list[int]) -> None:
    check(table, text, at, tools=TOOLS)
    check(table, "~<call f>" + text, at, tools=TOOLS)
