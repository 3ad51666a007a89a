"""Schemas that can be enforced whole, by the feature that each of them is about."""

from typing import Any

TREE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": 0, "maximum": 9},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
    },
    "required": ["value"],
    "additionalProperties": False,
}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: dict[str, Any] = {
    "string": _object(a={"type": "string", "maxLength": 20}),
    "integer": _object(a={"type": "integer"}),
    "number": _object(a={"type": "number"}),
    "boolean": _object(a={"type": "boolean"}),
    "null": _object(a={"type": "null"}),
    "types": _object(a={"type": ["integer", "null"]}),
    "nullable enum": _object(a={"type": ["string", "null"], "enum": ["x", "y", None]}),
    "enum": _object(a={"enum": ["red", 'a "quoted" \\ word', 3, True, None, {"k": [1]}, 1.5]}),
    "const": _object(a={"const": "Zürich\n東京"}),
    "minimum": _object(a={"type": "integer", "minimum": 37}),
    "maximum": _object(a={"type": "integer", "maximum": -5}),
    "range": _object(a={"type": "integer", "minimum": -120, "maximum": 1345}),
    "exclusive": _object(a={"type": "integer", "exclusiveMinimum": 8, "exclusiveMaximum": 11}),
    "draft 4 exclusive": {"type": "integer", "minimum": 3, "maximum": 5},
    "number range": _object(a={"type": "number", "minimum": 0.25, "maximum": 1.75}),
    "number exclusive": _object(a={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
    "negative numbers": _object(a={"type": "number", "minimum": -3.5, "maximum": -0.125}),
    "multipleOf one": _object(a={"type": "number", "multipleOf": 1, "minimum": 2, "maximum": 30}),
    "minLength": _object(a={"type": "string", "minLength": 3, "maxLength": 5}),
    "pattern": _object(a={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    "pattern of words": _object(a={"type": "string", "pattern": r"^(cat|dog)s?\.$"}),
    "pattern somewhere": _object(a={"type": "string", "pattern": r"\d\w|^\s"}),
    "pattern that can be read in many ways": _object(a={"type": "string", "pattern": "^([a-z]+ ?){1,12}$"}),
    "pattern of what may be left out": _object(a={"type": "string", "pattern": "^(([A-Z]?){9}[0-9]?){9}$"}),
    "pattern of special characters": _object(a={"type": "string", "pattern": r'^["\\/]{1,4}\t?$'}),
    "pattern and length": _object(
        a={"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$", "minLength": 3, "maxLength": 9}
    ),
    "pattern somewhere and length": _object(
        a={"type": "string", "pattern": "a[0-9]", "minLength": 4, "maxLength": 6}
    ),
    "pattern of many readings and length": _object(
        a={"type": "string", "pattern": "^([a-z]+ ?){1,12}$", "minLength": 5, "maxLength": 24}
    ),
    "date": _object(a={"type": "string", "format": "date"}),
    "time": _object(a={"type": "string", "format": "time"}),
    "date-time": _object(a={"type": "string", "format": "date-time"}),
    "uuid": _object(a={"type": "string", "format": "uuid"}),
    "email": _object(a={"type": "string", "format": "email"}),
    "ipv4": _object(a={"type": "string", "format": "ipv4"}),
    "ipv6": _object(a={"type": "string", "format": "ipv6"}),
    "hostname": _object(a={"type": "string", "format": "hostname"}),
    "uri": _object(a={"type": "string", "format": "uri"}),
    "duration": _object(a={"type": "string", "format": "duration"}),
    "items": _object(a={"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}),
    "prefixItems": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"const": "x"}],
        "items": False,
        "minItems": 2,
    },
    "tuple and more": {
        "type": "array",
        "prefixItems": [{"const": 1}],
        "items": {"const": 2},
        "minItems": 3,
        "maxItems": 4,
    },
    "nothing more": {"type": "array", "maxItems": 0},
    "as many as may be": {
        "type": "array",
        "items": _object(a={"type": "string", "maxLength": 500}),
        "maxItems": 500,
    },
    "optional": {
        "type": "object",
        "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}, "d": {"const": 4}},
        "required": ["c"],
    },
    "all optional": {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}},
    "map": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}, "maxProperties": 3},
    "map beside properties": {
        "type": "object",
        "properties": {"name": {"const": "n"}, "nam": {"const": "m"}},
        "required": ["name"],
        "additionalProperties": {"type": "boolean"},
    },
    "required only": {"type": "object", "required": ["x"], "additionalProperties": {"type": "null"}},
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^x-[a-z]{1,3}$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "keys to escape": _object(**{'a"b\\': {"const": 1}, "ключ": {"const": 2}, "tab\t": {"const": 3}}),
    "empty object": {"type": "object", "properties": {}, "additionalProperties": False},
    "any": {},
    "true": True,
    "any object": {"type": "object"},
    "defs": {"$ref": "#/$defs/p", "$defs": {"p": _object(x={"type": "integer", "minimum": 1, "maximum": 3})}},
    "definitions": {
        "type": "array",
        "items": {"$ref": "#/definitions/p"},
        "maxItems": 2,
        "definitions": {"p": {"enum": ["u", "v"]}},
    },
    "recursion": {"$ref": "#/$defs/node", "$defs": {"node": TREE}},
    "root recursion": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"$ref": "#"}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "anyOf": _object(a={"anyOf": [{"type": "integer", "minimum": 5, "maximum": 7}, {"enum": ["p", "q"]}]}),
    "anyOf beside": {
        "type": "integer",
        "anyOf": [{"maximum": -7, "minimum": -9}, {"minimum": 7, "maximum": 9}],
    },
    "oneOf by type": _object(a={"oneOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}),
    "oneOf by discriminator": {
        "oneOf": [
            _object(kind={"const": "circle"}, r={"type": "integer", "minimum": 1, "maximum": 9}),
            _object(kind={"const": "box"}, w={"enum": [1, 2]}, h={"enum": [1, 2]}),
        ]
    },
    "oneOf by required": {"oneOf": [_object(a={"const": 1}), _object(b={"const": 1})]},
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
            {"properties": {"a": {"maximum": 5}, "b": {"enum": ["x"]}}, "required": ["b"]},
        ]
    },
    "allOf of references": {
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {"a": {"type": "integer", "minimum": 10}, "b": {"maximum": 12}},
    },
    "reference and more": {
        "$ref": "#/$defs/a",
        "maximum": 4,
        "$defs": {"a": {"type": "integer", "minimum": 2}},
    },
    "enum beside": {"enum": ["a", "bbb", 7, 99], "maxLength": 2, "maximum": 10},
    "nested": _object(
        a=_object(b=_object(c={"type": "array", "items": _object(d={"enum": [1, 2]}), "maxItems": 2}))
    ),
    "numbers at the top": {"type": "number", "minimum": 2, "maximum": 4.5},
}
