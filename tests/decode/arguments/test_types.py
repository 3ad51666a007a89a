"""What a schema allows, and what a text is by it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.decode.arguments.types import ORDER, allowed, argument, argument_names, as_json, coerce, members

TREE = {
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
    "properties": {"head": {"$ref": "#/$defs/node"}},
}
KNOTS = {"a": {"anyOf": [{"$ref": "#/a"}, {"$ref": "#/b"}] * 9}, "b": {"oneOf": [{"$ref": "#/a"}] * 9}}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, set()),
        (True, set()),
        (None, set()),
        ({"description": "?"}, set()),
        ({"type": "integer"}, {"integer"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "integer", "nullable": True}, {"integer", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"anyOf": [{"type": "number"}]}, {"const": "auto"}]}, {"number", "string"}),
        ({"allOf": [{"$ref": "#/$defs/node"}], "description": "?"}, {"object"}),
        ({"$ref": "#/$defs/node"}, {"object"}),
        ({"$ref": "#/$defs/nothing"}, set()),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": [1, None, True]}, {"integer", "null", "boolean"}),
        ({"type": "string", "enum": [1]}, {"string"}),
        ({"const": 1.5}, {"number"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"type": {"no": "type"}, "anyOf": 1, "enum": 2, "$ref": 3}, set()),
    ],
)
def test_allowed(schema: object, types: set[str]) -> None:
    assert allowed(schema, TREE) == types


def test_what_schemas_refer_to_is_looked_up_once() -> None:
    looked_up = []

    class Root(dict[str, object]):
        def get(self, key: str, default: object = None) -> object:
            looked_up.append(key)
            return super().get(key, default)

    assert allowed({"$ref": "#/a"}, Root(KNOTS)) == set()
    assert sorted(looked_up) == ["a", "b"]


def test_an_argument_is_found_wherever_the_schema_lists_it() -> None:
    combined = {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"$ref": "#/more"}]}
    root = {**combined, "more": {"properties": {"b": {"type": "boolean"}}}}

    assert allowed(argument(root, "a"), root) == {"integer"}
    assert allowed(argument(root, "b"), root) == {"boolean"}
    assert argument(root, "c") is None
    assert argument({"additionalProperties": {"type": "number"}}, "c") == {"type": "number"}
    assert argument({"additionalProperties": False, "properties": []}, "c") is None
    assert argument_names(root) == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("null", "string", '"null"'),
        ("null", "string null", "null"),
        ("None", "null integer", "null"),
        ("007", "string", '"007"'),
        ("007", "integer", "7"),
        ("+5", "integer", "5"),
        ("3.0", "integer", "3"),
        ("3.5", "integer", '"3.5"'),
        ("3.5", "integer number", "3.5"),
        ("1e5", "number", "1e5"),
        (".5", "number", "0.5"),
        ("5.", "number", "5.0"),
        ("NaN", "number", '"NaN"'),
        ("1e999x", "number", '"1e999x"'),
        ("١٢", "integer", '"١٢"'),
        ("9" * 30, "integer", "9" * 30),
        ("9" * 5000, "integer number", json.dumps("9" * 5000)),
        ("True", "boolean", "true"),
        ("yes", "boolean", '"yes"'),
        (" 12\n", "integer", "12"),
        (" a ", "string", '" a "'),
        ('{"a": [1, {}]}', "object", '{"a": [1, {}]}'),
        ('{"a": "x\ny"}', "object", '{"a": "x\\ny"}'),
        ("{'a': True, 'b': None}", "object", '{"a": true, "b": null}'),
        ("{'a': '\\d'}", "object", '{"a": "\\\\d"}'),
        ("{1, 2}", "object", '"{1, 2}"'),
        ("{}, 1", "object", '"{}, 1"'),
        ("['\\ud800']", "array", "\"['\\\\ud800']\""),
        ("[1, 2", "array", '"[1, 2"'),
        ("(1, 2)", "array", '"(1, 2)"'),
        ("[(1, 2)]", "array", "[[1, 2]]"),
        ("[" * 9000, "array", json.dumps("[" * 9000)),
        ("12", "string integer", "12"),
        ("a12", "string integer", '"a12"'),
    ],
)
def test_coerce(text: str, types: str, value: str) -> None:
    assert coerce(text, frozenset(types.split())) == value


@given(text=st.text(), types=st.sets(st.sampled_from(ORDER)))
def test_whatever_a_text_is_it_is_json(text: str, types: set[str]) -> None:
    value = json.loads(coerce(text, frozenset(types)))

    if types <= {"string"}:
        assert value == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(value=json_values)
def test_json_stays_as_it_is(value: object) -> None:
    text = json.dumps(value)

    assert as_json(text) == text
    if isinstance(value, dict | list):
        assert coerce(text, frozenset({"object", "array"})) == text


@given(value=st.dictionaries(st.text(max_size=3), st.none() | st.booleans() | st.lists(st.integers())))
def test_what_python_writes_is_what_json_would_say(value: dict[str, object]) -> None:
    assert json.loads(coerce(repr(value), frozenset({"object"}))) == value


def test_members_keep_their_text() -> None:
    assert members('{"a": 1.0, "b": [1,2]}') == {"a": "1.0", "b": "[1,2]"}
    assert members("[1]") is members("{") is members("") is None
