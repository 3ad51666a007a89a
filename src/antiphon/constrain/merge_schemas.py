"""Merges schemas: references are followed and `allOf` combined, keyword by keyword.

Properties and items of two schemas become `allOf` again, which is merged when it is compiled. Only keywords
that cannot be combined are conflicts.
"""

from collections.abc import Callable, Mapping
from itertools import combinations, product
from typing import Any

from antiphon.constrain.budget import TooMuchWorkError, WorkBudget
from antiphon.constrain.json_values import wide_type_of, within
from antiphon.core.schema_ids import resolved

Schema = Mapping[str, Any]

ANNOTATIONS = frozenset(
    {"$schema", "$id", "$defs", "definitions", "$comment", "$anchor", "title", "description", "default"}
    | {"examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator", "contentMediaType"}
    | {"contentEncoding", "contentSchema", "$vocabulary", "externalDocs", "xml", "id"}
)
"""Keywords that allow every value."""

MAX_ALTERNATIVES = 256
"""Alternatives of two schemas multiplied out."""
MAX_COMPARED = 256
"""The most alternatives of a oneOf that are compared with each other."""


def types_of(schema: Schema) -> frozenset[str] | None:
    """The types that a schema names; None if it names none."""
    types = schema.get("type")
    if isinstance(types, str):
        return frozenset({types})
    return frozenset(name for name in types if isinstance(name, str)) if isinstance(types, list) else None


def merged(schema: Schema, root: Any, budget: WorkBudget) -> tuple[Any, list[str]]:
    """One schema without `$ref` and `allOf`, or False if nothing matches; and the conflicts."""
    merger = _Merger(root, budget)
    return merger.flat(schema, frozenset()), merger.conflicts


def disjoint(options: list[Any], root: Any, budget: WorkBudget) -> bool:
    """Whether no value for one of the schemas matches another, as far as that is checked."""
    if len(options) > MAX_COMPARED:
        return False
    budget.spend(len(options) ** 2 // 2)
    plain = [merged(option, root, budget)[0] if isinstance(option, Mapping) else option for option in options]
    return all(_excludes(a, b) and _excludes(b, a) for a, b in combinations(plain, 2))


class _Merger:
    """Merges schemas. `conflicts` lists the keywords that were left out."""

    def __init__(self, root: Any, budget: WorkBudget) -> None:
        self._root = root
        self._budget = budget
        self.conflicts: list[str] = []

    def flat(self, schema: Any, seen: frozenset[str]) -> Any:
        """The schema with all that it refers to and combines."""
        if not isinstance(schema, Mapping):
            return schema
        self._budget.spend(1 + len(schema) // 4)
        self.conflicts += (f"{key}: it must be {what}" for key, what in _wrongly_typed(schema))
        result: Any = _normal({key: value for key, value in schema.items() if key not in ("$ref", "allOf")})
        reference = schema.get("$ref")
        if isinstance(reference, str):
            result = self._intersection(result, self._target(reference, seen))
        combined = schema.get("allOf")
        for part in combined if isinstance(combined, list) else ():
            result = self._intersection(result, self.flat(part, seen))
        return result

    def _target(self, reference: str, seen: frozenset[str]) -> Any:
        target = resolved(reference, self._root)
        if target is None or reference in seen:
            why = "refers to itself" if reference in seen else "is not in the schema"
            self.conflicts.append(f"$ref: '{reference}' {why}")
            return True
        return self.flat(target, seen | {reference})

    def _intersection(self, some: Any, other: Any) -> Any:
        """The schema of values that match both."""
        if some is False or other is False:
            return False
        if not isinstance(some, Mapping) or not some:
            return other
        if not isinstance(other, Mapping) or not other:
            return some
        result = {**some, **other}
        self._budget.spend(
            1 + sum(len(schema.get("enum") or ()) + len(_listed(schema)) for schema in (some, other))
        )
        for key in some.keys() & other.keys() - ANNOTATIONS:
            if some[key] != other[key]:
                result[key] = self._merge(key, some[key], other[key])
        if some.keys() & _OBJECT and other.keys() & _OBJECT:
            result.update(self._members(some, other))
        return False if result.get("type") == [] else result

    def _merge(self, key: str, some: Any, other: Any) -> Any:
        """One keyword that both have."""
        if key in _MERGERS:
            self._budget.spend(_size(some) * _size(other) if key == "enum" else _size(some) + _size(other))
            try:
                return _MERGERS[key](some, other)
            except TypeError:
                pass
        self.conflicts.append(f"{key}: two values in schemas that are combined")
        return some

    def _members(self, some: Schema, other: Schema) -> dict[str, Any]:
        """The properties of both: each also obeys the other's keywords for it."""
        names = dict.fromkeys([*_listed(some), *_listed(other)])
        merged_members = {name: _all(_member(some, name), _member(other, name)) for name in names}
        result: dict[str, Any] = {"properties": merged_members} if names else {}
        extra = [part["additionalProperties"] for part in (some, other) if "additionalProperties" in part]
        if extra:
            result["additionalProperties"] = _all(*extra)
            if "patternProperties" in some or "patternProperties" in other:
                self.conflicts.append(
                    "patternProperties: together with additionalProperties in schemas that are combined"
                )
        return result


_OBJECT = frozenset({"properties", "additionalProperties", "patternProperties"})


def _listed(schema: Schema) -> Schema:
    listed = schema.get("properties")
    return listed if isinstance(listed, Mapping) else {}


def _member(schema: Schema, name: str) -> Any:
    listed = _listed(schema)
    return listed[name] if name in listed else schema.get("additionalProperties", True)


_REQUIRED_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(("enum", "required", "prefixItems", "allOf", "anyOf", "oneOf"), (list, "a list")),
    **dict.fromkeys(("properties", "patternProperties"), (Mapping, "an object")),
    **dict.fromkeys(("pattern", "format", "$ref"), (str, "a text")),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), ((int, float), "a whole number")),
    **dict.fromkeys(("minProperties", "maxProperties"), ((int, float), "a whole number")),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), ((int, float), "a number")
    ),
}
"""The required types of these keywords. If a schema has another type, the keyword is left out."""


def _wrongly_typed(schema: Schema) -> list[tuple[str, str]]:
    """The keywords with a wrong type, with the reason."""
    return [
        (key, what)
        for key, (type_, what) in _REQUIRED_TYPES.items()
        if key in schema and not isinstance(schema[key], type_)
    ]


def _normal(schema: dict[str, Any]) -> dict[str, Any]:
    """`const` as `enum`, `type` as a list, with null in it if the schema is nullable."""
    for key, _ in _wrongly_typed(schema):
        del schema[key]
    if "const" in schema:
        schema["enum"] = _shared(schema.get("enum", [schema["const"]]), [schema.pop("const")])
    types = types_of(schema)
    if types is not None:
        schema["type"] = sorted(types | {"null"} if schema.pop("nullable", None) is True else types)
    return schema


def _all(*schemas: Any) -> Any:
    """A schema that combines all of these."""
    parts = [schema for schema in schemas if schema is not True and schema != {}]
    if any(schema is False for schema in parts):
        return False
    return {"allOf": parts} if len(parts) > 1 else parts[0] if parts else True


def _types(some: list[str], other: list[str]) -> list[str]:
    wide = [{*types, "integer"} if "number" in types else set(types) for types in (some, other)]
    shared = wide[0] & wide[1]
    return sorted(shared - {"integer"} if "number" in shared else shared)


def _shared(some: list[Any], other: list[Any]) -> list[Any]:
    """The values in both."""
    return [value for value in some if within(value, other)]


def _alternatives(some: list[Any], other: list[Any]) -> list[Any]:
    if len(some) * len(other) > MAX_ALTERNATIVES:
        raise TooMuchWorkError
    return [_all(a, b) for a, b in product(some, other)]


def _prefix(some: list[Any], other: list[Any]) -> list[Any]:
    if len(some) != len(other):
        raise TypeError
    return [_all(a, b) for a, b in zip(some, other, strict=True)]


def _patterns(some: Schema, other: Schema) -> dict[str, Any]:
    return {key: _all(some.get(key, True), other.get(key, True)) for key in {**some, **other}}


_MERGERS: dict[str, Callable[[Any, Any], Any]] = {
    "type": _types,
    "enum": _shared,
    "required": lambda a, b: [*a, *b],
    "items": _all,
    "prefixItems": _prefix,
    "uniqueItems": lambda a, b: a or b,
    "properties": lambda a, b: a,  # made of both afterwards
    "additionalProperties": lambda a, b: a,
    "patternProperties": _patterns,
    "anyOf": _alternatives,
    "oneOf": _alternatives,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}


def _excludes(some: Any, other: Any) -> bool:
    """Whether values for `some`, restricted to its listed members, cannot match `other`."""
    if some is False or other is False:
        return True
    if not isinstance(some, Mapping) or not isinstance(other, Mapping):
        return False
    if _disjoint(some, other):
        return True
    if _kind(some) != frozenset({"object"}) or _kind(other) != frozenset({"object"}):
        return False
    members, other_members = _listed(some), _listed(other)
    required, other_required = set(some.get("required") or ()), set(other.get("required") or ())
    shared = required & other_required & members.keys() & other_members.keys()
    if any(_disjoint(_flat(members[name]), _flat(other_members[name])) for name in shared):
        return True
    closed = "additionalProperties" not in some or some["additionalProperties"] is False
    lacks = other_required - members.keys()
    barred = other.get("additionalProperties") is False and required - other_members.keys()
    return bool((closed and members and lacks) or barred)


def _disjoint(some: Schema, other: Schema) -> bool:
    """Whether the types or listed values have nothing in common."""
    if "enum" in some and "enum" in other:
        return not _shared(some["enum"], other["enum"])
    a, b = _kind(some), _kind(other)
    return a is not None and b is not None and not _types(sorted(a), sorted(b))


def _kind(schema: Schema) -> frozenset[str] | None:
    """The types of a schema; those of its values, if it lists them."""
    if "type" not in schema and isinstance(schema.get("enum"), list):
        return frozenset(map(wide_type_of, schema["enum"]))
    if "type" not in schema and "properties" in schema:
        return frozenset({"object"})
    return types_of(schema)


def _flat(schema: Any) -> Schema:
    return _normal(dict(schema)) if isinstance(schema, Mapping) else {}


def _size(value: Any) -> int:
    return len(value) if isinstance(value, list | Mapping) else 1
