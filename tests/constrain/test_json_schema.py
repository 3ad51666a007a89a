"""What is written for a schema fits it; what it does not hold is said by its place."""

import json
from random import Random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.constrain.analysis import validate, without_unused_rules
from antiphon.constrain.budget import TooMuchWorkError, WorkBudget
from antiphon.constrain.grammar_ir import Expr, GrammarIR
from antiphon.constrain.json_schema import compile_schema
from antiphon.constrain.matcher import matches
from antiphon.constrain.value_syntax import JsonSyntax
from antiphon.core.errors import RequestError
from tests.constrain.language import Language
from tests.constrain.sampler import Sampler, samples
from tests.constrain.schemas import SCHEMAS
from tests.search import examples


def grammar_ir(schema: Any) -> GrammarIR:
    schema_ir, unenforced = compile_schema(schema, WorkBudget())
    assert unenforced == []
    rules: dict[str, Expr] = {}
    return without_unused_rules(
        GrammarIR(JsonSyntax(rules, "test", schema_ir.definitions).expr(schema_ir.node), rules)
    )


def unenforced(schema: Any) -> list[tuple[str, str]]:
    return compile_schema(schema, WorkBudget())[1]


LANGUAGES = {name: grammar_ir(schema) for name, schema in SCHEMAS.items()}
VALIDATORS = {
    name: jsonschema_rs.validator_for(schema, validate_formats=True) for name, schema in SCHEMAS.items()
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_text_that_fits_the_form_fits_the_schema(name: str) -> None:
    language = Language(LANGUAGES[name])
    for text in samples(LANGUAGES[name], examples(60)):
        VALIDATORS[name].validate(json.loads(text))
        assert text in language


ACCEPTED = [
    ("optional", '{"c": 3}'),
    ("optional", '{"a": 1, "c": 3, "d": 4}'),
    ("optional", '{\n    "b": 2,\n    "c": 3\n}'),
    ("all optional", "{}"),
    ("all optional", '{"b": 2}'),
    ("range", '{"a": 0}'),
    ("range", '{"a": -120}'),
    ("range", '{"a": 1345}'),
    ("map", '{"é": 1, "b": 20}'),
    ("map beside properties", '{"name": "n", "names": true, "x": false}'),
    ("enum", '{"a": "a \\"quoted\\" \\\\ word"}'),
    ("keys to escape", '{"a\\"b\\\\": 1, "ключ": 2, "tab\\t": 3}'),
    ("recursion", '{"value": 1, "children": [{"value": 2}, {"value": 3, "children": []}]}'),
    ("any", '{"a": [1, -2.5e3, "\\u00e9\\n", null, {"b": {}}]}'),
    ("string", '{"a": "\\ud83d\\ude00"}'),
]
REFUSED = [
    ("optional", "{}"),
    ("optional", '{"c": 3, "a": 1}'),
    ("optional", '{"c": 3,}'),
    ("range", '{"a": -121}'),
    ("range", '{"a": 1346}'),
    ("range", '{"a": 007}'),
    ("map", '{"b": 0}'),
    ("map beside properties", '{"name": true}'),
    ("map beside properties", '{"name": "n", "nam": true}'),
    ("map beside properties", '{"name": "n", "\\u006eam": true}'),
    ("string", '{"a": "\\ud83d"}'),
    ("string", '{"a": "a\nb"}'),
    ("boolean", '{"a": true, "b": 1}'),
    ("boolean", '{"a":' + " " * 30 + "true}"),
]


@pytest.mark.parametrize(("name", "text"), ACCEPTED)
def test_what_models_write_is_accepted(name: str, text: str) -> None:
    assert matches(LANGUAGES[name], text)


@pytest.mark.parametrize(("name", "text"), REFUSED)
def test_what_breaks_the_schema_is_refused(name: str, text: str) -> None:
    assert not matches(LANGUAGES[name], text)


UNENFORCED = [
    ({"properties": {"a": {"type": "integer", "multipleOf": 3}}}, "/properties/a", "multipleOf"),
    ({"type": "array", "uniqueItems": True}, "", "uniqueItems"),
    ({"type": "array", "contains": {"const": 1}}, "", "contains"),
    ({"type": "string", "pattern": "(?=a)b"}, "", "pattern: a group that looks around"),
    ({"type": "string", "pattern": r"(a)\1"}, "", r"pattern: '\1'"),
    ({"type": "string", "pattern": "["}, "", "pattern: a class that is not closed"),
    ({"type": "string", "format": "iri-reference"}, "", "format: 'iri-reference'"),
    ({"type": "string", "pattern": "^a.*b$", "maxLength": 5000}, "", "maxLength"),
    ({"not": {"type": "string"}}, "", "not"),
    ({"if": {}, "then": {}, "else": {}}, "", "if"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "", "dependentRequired"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "", "oneOf"),
    ({"$ref": "https://example.com/schema"}, "", "$ref"),
    ({"$ref": "#/$defs/missing"}, "", "$ref"),
    ({"type": "object", "properties": {"a~/b": {"format": "x"}}}, "/properties/a~0~1b", "format"),
    (
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
        "/$defs/a",
        "refers to itself",
    ),
    ({"frobnicate": 3}, "", "frobnicate"),
    ({"type": "object", "minProperties": 2}, "", "minProperties"),
]


@pytest.mark.parametrize(("schema", "pointer", "what"), UNENFORCED)
def test_what_cannot_be_enforced_is_said(schema: Any, pointer: str, what: str) -> None:
    assert any(place == pointer and what in said for place, said in unenforced(schema)), unenforced(schema)


CONTRADICTIONS = [
    {"type": "integer", "minimum": 3, "maximum": 2},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"enum": []},
    False,
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"type": "string", "minLength": 3, "maxLength": 2},
    {"type": "array", "items": False, "minItems": 1},
]


@pytest.mark.parametrize("schema", CONTRADICTIONS)
def test_a_schema_that_nothing_fits_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError):
        validate(grammar_ir(schema), "format")


def test_a_schema_that_refers_to_itself_at_once_is_refused() -> None:
    with pytest.raises(RequestError):
        validate(grammar_ir({"anyOf": [{"$ref": "#"}, {"type": "null"}]}), "format")


def test_alternatives_that_multiply_are_bounded() -> None:
    alternatives = [{"anyOf": [{"minimum": n}, *({"maximum": m} for m in range(20))]} for n in range(4)]
    with pytest.raises(TooMuchWorkError):
        compile_schema({"allOf": alternatives}, WorkBudget())


scalars = st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8)
names = st.sampled_from(["a", "b", "ab", "é", "$ref", 'q"'])


def schemas() -> st.SearchStrategy[Any]:
    plain = st.sampled_from(list(SCHEMAS.values())[:34]) | st.fixed_dictionaries(
        {"enum": st.lists(scalars, min_size=1)}
    )
    return st.recursive(
        plain,
        lambda inner: (
            st.builds(
                lambda properties, required, more: {
                    "type": "object",
                    "properties": properties,
                    "required": [name for name in required if name in properties],
                    **more,
                },
                st.dictionaries(names, inner, max_size=4),
                st.lists(names, unique=True),
                st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": True}]),
            )
            | st.fixed_dictionaries({"type": st.just("array"), "items": inner, "minItems": st.integers(0, 2)})
            | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)})
            | st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)})
        ),
        max_leaves=8,
    )


@given(schemas(), st.randoms(use_true_random=False))
def test_any_schema_is_held_or_what_is_missing_is_said(schema: Any, random: Random) -> None:
    schema_ir, unenforced = compile_schema(schema, WorkBudget())
    rules: dict[str, Expr] = {}
    found = without_unused_rules(
        GrammarIR(JsonSyntax(rules, "test", schema_ir.definitions).expr(schema_ir.node), rules)
    )
    try:
        validate(found, "format")
    except RequestError:
        return
    text = Sampler(found, random).draw()
    assert matches(found, text)
    if not unenforced:
        jsonschema_rs.validator_for(schema, validate_formats=True).validate(json.loads(text))


def nested_arrays(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def test_nested_arrays_grow_with_their_depth_only() -> None:
    found = grammar_ir(nested_arrays(60))
    assert matches(found, "[" * 60 + "]" * 60)
    assert not matches(found, "[" * 61 + "]" * 61)


ROOT = {"$ref": "#"}
HOSTILE = {
    "oneOf in oneOf": {"oneOf": [{"oneOf": [ROOT, {"type": "string"}]}, {"oneOf": [ROOT]}], "minLength": 1},
    "alternatives of alternatives": {"anyOf": [ROOT] * 4, "oneOf": [ROOT] * 4},
    "values": {"type": "string", "enum": [f"value {i}" for i in range(300_000)]},
    "patterns": {"properties": {f"p{i}": {"pattern": f"^([a-z]+ ?){{1,30}}{i}$"} for i in range(3900)}},
    "names and patterns": {
        "properties": {f"p{i}": True for i in range(1500)},
        "patternProperties": {f"^a{i}(b?c?){{9}}$": True for i in range(1500)},
    },
    "oneOf": {"oneOf": [{"properties": {"k": {"const": i}}, "required": ["k"]} for i in range(20_000)]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_work_is_bounded(name: str) -> None:
    with pytest.raises(TooMuchWorkError):
        compile_schema(HOSTILE[name], WorkBudget())


@pytest.mark.parametrize(
    "keyword", ["required", "prefixItems", "enum", "properties", "allOf", "oneOf", "pattern"]
)
@pytest.mark.parametrize("wrong", [True, 1, None])
def test_a_keyword_with_what_it_cannot_have_is_reported(keyword: str, wrong: Any) -> None:
    at_once = {"type": ["object", "array", "string"], keyword: wrong}
    for schema in (at_once, {"allOf": [at_once, {"minItems": 1}]}, {"oneOf": [at_once, {"required": ["a"]}]}):
        assert any(what.startswith(f"{keyword}: it must be ") for _, what in unenforced(schema))
