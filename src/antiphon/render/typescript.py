"""JSON Schema → the TypeScript-like types in which functions are described to a model.

The models that read them were trained on the output of one program, which is
reproduced exactly: the place of comments, the indentation, and `any` for what it
does not support (`anyOf`, `$ref`, `const`). A schema comes from a client, so any
value may have any type.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from antiphon.core.errors import RequestError
from antiphon.core.turn import Function

MAX_DEPTH = 32
"""The deepest nesting of a schema. The output grows with its square, because each level is indented."""

_PRIMITIVES = {"number": "number", "integer": "number", "boolean": "boolean"}


def declaration(function: Function) -> str:
    """`type NAME = (_: …) => any;` Raises `RequestError` if the schema is nested too deeply."""
    parameter = f"_: {type_of(function.parameters)}" if _takes_any(function.parameters) else ""
    return f"type {function.name} = ({parameter}) => any;"


def _takes_any(parameters: Mapping[str, Any]) -> bool:
    """Whether there are arguments: for an object without properties none are written."""
    return bool(parameters.get("properties")) or parameters.get("type", "object") != "object"


def type_of(schema: Any, indent: str = "", depth: int = 0) -> str:
    """The type of what fits `schema`; lines after the first begin with `indent`."""
    if depth > MAX_DEPTH:
        message = f"The parameters of a function are nested deeper than {MAX_DEPTH} levels. Flatten them."
        raise RequestError(message, param="tools")
    if isinstance(variants := _get(schema, "oneOf"), list):
        return "".join(_variant(variant, indent, depth) for variant in variants)
    if names := _texts(schema, "type"):
        return " | ".join(_PRIMITIVES.get(name, name) for name in names)
    return _single(_get(schema, "type"), schema, indent, depth)


def _single(name: Any, schema: Any, indent: str, depth: int) -> str:
    """A type that has one name."""
    match name:
        case "object":
            return _object(schema, indent, depth)
        case "array":
            return f"{type_of(schema['items'], indent, depth + 1)}[]" if "items" in schema else "Array<any>"
        case "string":
            return " | ".join(f'"{value}"' for value in _texts(schema, "enum")) or "string"
        case "number" | "integer" | "boolean":
            return _PRIMITIVES[name]
    return "any"


def _variant(variant: Any, indent: str, depth: int) -> str:
    """One of several types, on a line of its own."""
    comments = [*_text(variant, "description"), *_default(variant, _json)]
    return f"\n{indent} | {_nullable(variant, indent + '   ', depth)}{_trailing(comments)}"


def _object(schema: Mapping[str, Any], indent: str, depth: int) -> str:
    above = [f"{indent}// {text}\n" for text in _text(schema, "description")]
    required = frozenset(_texts(schema, "required"))
    properties = _get(schema, "properties")
    members = properties.items() if isinstance(properties, Mapping) else ()
    lines = [
        line
        for key, value in members
        for line in _property(key if key in required else f"{key}?", value, indent, depth)
    ]
    return "".join([*above, "{\n", *lines, indent, "}"])


def _property(name: str, schema: Any, indent: str, depth: int) -> Iterator[str]:
    """The lines of one property, comments first."""
    for title in _text(schema, "title"):
        yield f"{indent}// {title}\n{indent}//\n"
    if not _has(schema, "oneOf"):
        yield from (f"{indent}// {text}\n" for text in _text(schema, "description"))
    yield from _examples(schema, indent)
    if isinstance(_get(schema, "oneOf"), list):
        yield from _union_property(name, schema, indent, depth)
    else:
        default = [] if _has(schema, "oneOf") else _default(schema)
        yield f"{indent}{name}: {_nullable(schema, indent + '    ', depth)},{_trailing(default)}\n"


def _examples(schema: Any, indent: str) -> Iterator[str]:
    examples = _get(schema, "examples")
    if isinstance(examples, list) and examples:
        yield f"{indent}// Examples:\n"
        yield from (f'{indent}// - "{text}"\n' for text in examples if isinstance(text, str))


def _union_property(name: str, schema: Mapping[str, Any], indent: str, depth: int) -> Iterator[str]:
    """A property of several types. A description equal to that of the first type is left out."""
    variants = schema["oneOf"]
    described = _text(schema, "description")
    above = [] if variants and described == _text(variants[0], "description") else described
    yield from (f"{indent}// {text}\n" for text in above)
    yield from (f"{indent}// {default}\n" for default in _default(schema))
    yield f"{indent}{name}:\n"
    for index, variant in enumerate(variants):
        hidden = index == 0 and above
        descriptions = (
            [] if hidden else [text for text in _text(variant, "description") if text not in described]
        )
        comments = _trailing([*descriptions, *_default(variant)])
        yield f"{indent} | {_nullable(variant, indent + '   ', depth)}{comments}\n"
    yield f"{indent},\n"


def _nullable(schema: Any, indent: str, depth: int) -> str:
    """The type, or null if the schema has OpenAPI's `nullable`."""
    type_ = type_of(schema, indent, depth + 1)
    return f"{type_} | null" if _get(schema, "nullable") is True and "null" not in type_ else type_


def _default(schema: Any, enum_text: Callable[[str], str] = str) -> list[str]:
    """`default: VALUE` if there is one; `enum_text` writes a text of an enumeration."""
    if not _has(schema, "default"):
        return []
    value = schema["default"]
    if not isinstance(value, str):
        return [f"default: {_json(value)}"]
    enum = _get(schema, "enum")
    return [f"default: {enum_text(value)}" if isinstance(enum, list) and enum else f'default: "{value}"']


def _trailing(comments: list[str]) -> str:
    return f" // {' '.join(comments)}" if comments else ""


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _has(schema: Any, key: str) -> bool:
    return isinstance(schema, Mapping) and key in schema


def _get(schema: Any, key: str) -> Any:
    return schema.get(key) if isinstance(schema, Mapping) else None


def _text(schema: Any, key: str) -> list[str]:
    """The text under a key, if there is one."""
    value = _get(schema, key)
    return [value] if isinstance(value, str) else []


def _texts(schema: Any, key: str) -> list[str]:
    """The texts of the list under a key, if there is one."""
    value = _get(schema, key)
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
