"""Types against the reference, for schemas of every kind, and for what is none."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from antiphon.core.errors import RequestError
from antiphon.core.turn import Function
from antiphon.render.typescript import MAX_DEPTH, declaration, type_of
from tests.harmony_vocabulary import needs_vocabulary
from tests.render.harmony_reference import reference_developer
from tests.search import examples

TEXT = st.text(max_size=8) | st.sampled_from(["null", "two\nlines", '"quoted"', "\\", "é👋"])
NUMBER = st.integers(-(2**53), 2**53) | st.decimals(-1000, 1000, places=2).map(float)
LITERAL = st.recursive(
    st.none() | st.booleans() | NUMBER | st.sampled_from([1e16, -1e-7, 1e300, -0.0]) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=3,
)
KIND = st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null", "any"])
ABOUT = {
    "description": TEXT,
    "default": LITERAL,
    "title": TEXT,
    "examples": st.lists(LITERAL, max_size=2),
    "nullable": st.booleans(),
    "enum": st.lists(TEXT | NUMBER, max_size=3),
}


def within(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas that have others in them."""
    parts = {
        "properties": st.dictionaries(TEXT, inner, max_size=3),
        "required": st.lists(TEXT, max_size=2),
        "items": inner,
        "oneOf": st.lists(inner, max_size=3),
        "anyOf": st.lists(inner, max_size=2),
    }
    kinds = KIND | st.lists(KIND, max_size=2)
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": parts["properties"]}, optional=ABOUT
    )
    return st.fixed_dictionaries({}, optional={"type": kinds, **ABOUT, **parts}) | objects


PLAIN = st.fixed_dictionaries({}, optional={"type": KIND | st.lists(KIND, max_size=2), **ABOUT})
SCHEMA = st.recursive(PLAIN, within, max_leaves=8)
NONSENSE = st.sampled_from(["type", "enum", "oneOf", "properties", "items", "required", "examples", "title"])


def as_reference(parameters: dict[str, Any]) -> str:
    developer = reference_developer({"name": "f", "description": "", "parameters": parameters})
    return developer.partition("namespace functions {\n\n")[2].partition("\n\n} // namespace functions")[0]


def parameters(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"first": {"type": "string"}, **properties}, "required": ["a"]}


@needs_vocabulary
@settings(max_examples=examples(400))
@given(schemas=st.dictionaries(st.sampled_from("abc"), SCHEMA, min_size=1))
@example({"a": {"oneOf": []}})
@example({"a": {"oneOf": [{"type": "string", "description": "x"}], "description": "x", "default": 1}})
@example({"a": {"type": "array", "items": {"oneOf": [{"type": "string", "enum": ["a"], "default": "a"}]}}})
@example({"a": {"type": "object", "description": "null", "nullable": True}})
@example({"a": {"type": "array"}, "b": {"type": [], "oneOf": 1, "default": 2, "description": "x"}})
def test_types_are_written_as_the_reference_writes_them(schemas: dict[str, Any]) -> None:
    given_parameters = parameters(schemas)
    assert declaration(Function("f", parameters=given_parameters)) == as_reference(given_parameters)


@needs_vocabulary
@settings(deadline=None)
@given(schemas=st.dictionaries(st.sampled_from("abc"), st.dictionaries(NONSENSE, LITERAL) | LITERAL))
def test_what_is_no_schema_is_written_all_the_same(schemas: dict[str, Any]) -> None:
    given_parameters = parameters(schemas)
    assert declaration(Function("f", parameters=given_parameters)) == as_reference(given_parameters)


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string"}, "string"),
        ({"type": "string", "enum": ["a", 1, "b"]}, '"a" | "b"'),
        ({"type": ["integer", "null"]}, "number | null"),
        ({"type": "array", "items": {"type": "boolean"}}, "boolean[]"),
        ({"type": "array"}, "Array<any>"),
        ({"anyOf": [{"type": "string"}]}, "any"),
        (True, "any"),
    ],
)
def test_small_types(schema: Any, written: str) -> None:
    assert type_of(schema) == written


@pytest.mark.parametrize(
    "schema", [{}, {"type": "object"}, {"type": "object", "properties": {}}, {"title": "F"}]
)
def test_a_function_without_properties_takes_nothing(schema: dict[str, Any]) -> None:
    assert declaration(Function("f", parameters=schema)) == "type f = () => any;"


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for level in range(levels):
        inner = schema
        schema = {"type": "array", "items": inner} if level % 3 else {"oneOf": [inner]}
    return schema


def test_depth_is_bounded() -> None:
    assert type_of(nested(MAX_DEPTH))
    for schema in (nested(MAX_DEPTH + 1), nested(100_000)):
        with pytest.raises(RequestError) as caught:
            type_of(schema)
        assert caught.value.param == "tools"
