"""Arguments, written as they come."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.grammar import ArgumentKey
from antiphon.decode.arguments.types import ORDER
from antiphon.decode.arguments.writer import MAX_VALUE, ObjectWriter
from tests.laws import cut, cuts

SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "some": {"type": ["string", "null", "object", "boolean"]},
        "value": {},
    }
}


def write(arguments: list[tuple[str | ArgumentKey, list[str]]], schema: Any = SCHEMA) -> list[str]:
    """What the writer says after each piece."""
    writer = ObjectWriter(schema)
    said = []
    for key, pieces in arguments:
        said.append(writer.key(key if isinstance(key, ArgumentKey) else ArgumentKey(key)))
        said += [writer.text(piece) for piece in pieces]
        said.append(writer.end_value())
    return [*said, writer.end()]


def whole(arguments: list[tuple[str | ArgumentKey, list[str]]], schema: Any = SCHEMA) -> Any:
    return json.loads("".join(write(arguments, schema)))


def test_no_arguments_are_an_empty_object() -> None:
    assert write([]) == ["{}"]


def test_strings_stream() -> None:
    assert write([("text", ["a", 'b"\n', "ć"])]) == ['{"text": ', '"a', 'b\\"\\n', "ć", '"', "}"]


def test_other_values_come_when_they_are_whole() -> None:
    assert write([("count", ["1", "2"])]) == ['{"count": ', "", "", "12", "}"]


def test_what_may_be_a_string_streams_as_soon_as_it_is_none_other() -> None:
    assert write([("either", ["12", "a", "b"])]) == ['{"either": ', "", '"12a', "b", '"', "}"]
    assert write([("some", ["nul", "ler"])]) == ['{"some": ', "", '"nuller', '"', "}"]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "null", "null"),
        ("text", "007", "007"),
        ("text", "", ""),
        ("some", "null", None),
        ("some", '{"a": 1}', {"a": 1}),
        ("some", "{a}", "{a}"),
        ("either", "12", 12),
        ("unknown", "12", "12"),
        ("value", "null", "null"),
        (ArgumentKey("x", "string"), "12", "12"),
        (ArgumentKey("x", "json"), "12", 12),
        (ArgumentKey("x", "json"), "Rome", "Rome"),
        (ArgumentKey("x", "literal"), "True", True),
        (ArgumentKey("x", "guess"), "[1]", [1]),
        (ArgumentKey("x", "guess"), "007", "007"),
        (ArgumentKey("text", "guess"), "1", "1"),
        (ArgumentKey("text", "literal"), "1", "1"),
    ],
)
def test_types(key: str | ArgumentKey, text: str, value: object) -> None:
    assert list(whole([(key, [text])]).values()) == [value]


@given(
    text=st.text() | st.sampled_from(["null", "nullx", "12", "12a", "tru", "true", '{"a": 1}', "[1", " 1 "]),
    types=st.lists(st.sampled_from(ORDER), min_size=1),
    filler=st.sampled_from(["", " ", "0", "a"]),
    length=st.integers(0, 90),
    at=cuts,
)
def test_the_pieces_do_not_matter(
    text: str, types: list[str], filler: str, length: int, at: list[int]
) -> None:
    schema = {"properties": {"v": {"type": types}}}
    text = filler * length + text or "-"
    for pieces in (list(text), cut(text, at)):
        assert whole([("v", pieces)], schema) == whole([("v", [text])], schema)
        # Even before the end, what was said is the same.
        before = ["".join(write([("v", each)], schema)[:-2]) for each in (pieces, [text])]
        assert before[0] == before[1]


@given(text=st.text(), at=cuts)
def test_a_string_is_what_was_written(text: str, at: list[int]) -> None:
    assert whole([("text", cut(text, at))]) == {"text": text}


def test_a_value_that_is_too_long_is_a_string() -> None:
    said = write([("count", ["1" * MAX_VALUE, "1", "1"])])

    assert said[1] == ""
    assert said[2] == '"' + "1" * (MAX_VALUE + 1)
    assert json.loads("".join(said)) == {"count": "1" * (MAX_VALUE + 2)}


def test_arguments_that_are_wrapped_once_more() -> None:
    inner = '{"text": "a", "count": 3}'

    for key in ("arguments", ArgumentKey("input", "json")):
        assert whole([(key, [inner]), ("either", ["1"])]) == {"text": "a", "count": 3, "either": 1}
    assert whole([("arguments", ["{}"])]) == {}


def test_what_only_looks_like_a_wrapper() -> None:
    wrapped = [("input", ['{"text": 1}'])]

    assert whole([("input", ['{"foo": 1}'])]) == {"input": {"foo": 1}}
    assert whole([("input", ["Rome"])]) == {"input": "Rome"}
    assert whole([("text", ["a"]), *wrapped]) == {"text": "a", "input": '{"text": 1}'}
    assert whole(wrapped, {}) == {"input": '{"text": 1}'}
    assert whole(wrapped, {"properties": {"input": {"type": "object"}, "text": {}}}) == {"input": {"text": 1}}


def test_a_value_that_nobody_ended_ends_with_the_call() -> None:
    writer = ObjectWriter(SCHEMA)

    assert writer.key(ArgumentKey("text")) + writer.text("a") + writer.end() == '{"text": "a"}'


def test_a_key_without_a_value_has_an_empty_one() -> None:
    writer = ObjectWriter({})

    text = writer.key(ArgumentKey("a")) + writer.key(ArgumentKey("b")) + writer.end()

    assert json.loads(text) == {"a": "", "b": ""}
