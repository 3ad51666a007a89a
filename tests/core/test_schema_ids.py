"""References by name become pointers; nothing else changes."""

from typing import Any

import pytest

from antiphon.core.schema_ids import without_ids

CASES: dict[str, tuple[Any, Any]] = {
    "no names": ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, {"$ref": "#/$defs/a", "$defs": {"a": {}}}),
    "its own": ({"$id": "a", "items": {"$ref": "a"}}, {"items": {"$ref": "#"}}),
    "its own, as a root": ({"$id": "x y", "items": {"$ref": "#"}}, {"items": {"$ref": "#"}}),
    "a part of its own": (
        {"$id": "http://h/a.json", "$defs": {"b": {}}, "items": {"$ref": "http://h/a.json#/$defs/b"}},
        {"$defs": {"b": {}}, "items": {"$ref": "#/$defs/b"}},
    ),
    "relative": (
        {"$id": "http://h/a/b", "$defs": {"c": {"$id": "c"}}, "items": {"$ref": "/a/c"}},
        {"$defs": {"c": {}}, "items": {"$ref": "#/$defs/c"}},
    ),
    "an anchor": (
        {"$defs": {"a/b": {"$anchor": "here"}}, "not": {"$ref": "#here"}},
        {"$defs": {"a/b": {}}, "not": {"$ref": "#/$defs/a~1b"}},
    ),
    "as draft 4 has it": (
        {"definitions": {"a": {"id": "#a"}}, "anyOf": [{"$ref": "#a"}]},
        {"definitions": {"a": {}}, "anyOf": [{"$ref": "#/definitions/a"}]},
    ),
    "a document in it": (
        {"$defs": {"d": {"$id": "d", "$defs": {"e": {}}, "allOf": [{"$ref": "#/$defs/e"}]}}},
        {"$defs": {"d": {"$defs": {"e": {}}, "allOf": [{"$ref": "#/$defs/d/$defs/e"}]}}},
    ),
    "properties of these names": (
        {"$id": "x", "properties": {"$id": {"const": {"$id": "y"}}, "id": {"enum": [{"id": "z"}]}}},
        {"properties": {"$id": {"const": {"$id": "y"}}, "id": {"enum": [{"id": "z"}]}}},
    ),
    "a property alone": (
        {"properties": {"$id": {"type": "string"}}},
        {"properties": {"$id": {"type": "string"}}},
    ),
    "something else": (
        {"$id": "http://[", "items": {"$ref": "http://h/x"}},
        {"items": {"$ref": "http://h/x"}},
    ),
    "wrongly typed": (
        {"$id": 5, "items": {"$ref": 3}, "properties": 7},
        {"items": {"$ref": 3}, "properties": 7},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_references_are_pointers(name: str) -> None:
    given, expected = CASES[name]
    assert without_ids(given) == expected
    assert without_ids(expected) is expected


def test_a_deep_schema_is_read() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"not": schema}
    assert without_ids(schema) is schema
