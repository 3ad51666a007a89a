"""The JSON types that a schema allows, and the conversion of text to one of them.

XML-like formats write every value as text. Its type is the first one in `ORDER` that
the tool's schema allows and the text fits. A text that fits none is a string, and so is
every text without a schema.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from antiphon.core.json_scanner import JsonScanner
from antiphon.core.python_code import parsed

ORDER = ("null", "integer", "number", "boolean", "object", "array", "string")
"""JSON types, the most specific first."""

SCALARS = frozenset({"null", "integer", "number", "boolean"})
LITERALS = SCALARS | {"string"}
"""The possible types of a bare word if the schema states none."""

MAX_SCHEMAS = 1000
"""Alternatives and references that are followed for one type: schemas may be recursive."""

MAX_NUMBER = 4000
"""Characters of the longest number; Python refuses to parse integers beyond 4300 digits."""

Schema = Mapping[str, Any]

_INTEGER = re.compile(r"([-+]?[0-9]+)(?:\.0*)?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_LOOSE_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def argument(schema: Any, key: str, root: Schema | None = None) -> Any:
    """The schema of the argument or member `key`; None if `schema` has none."""
    for part in _subschemas(schema, schema if root is None else root):
        properties, additional = part.get("properties"), part.get("additionalProperties")
        if isinstance(properties, Mapping) and key in properties:
            return properties[key]
        if isinstance(additional, Mapping):
            return additional
    return None


def items(schema: Any, root: Schema) -> Any:
    """The schema of an array's values, None if `schema` has none."""
    return next((part["items"] for part in _subschemas(schema, root) if "items" in part), None)


def argument_names(schema: Schema) -> frozenset[str]:
    """The names of all arguments that `schema` lists."""
    listed = [part.get("properties") for part in _subschemas(schema, schema)]
    return frozenset(key for properties in listed if isinstance(properties, Mapping) for key in properties)


def allowed(schema: Any, root: Schema) -> frozenset[str]:
    """The types that `schema` allows; `root` is the schema that its references point into."""
    return frozenset[str]().union(*(_own_types(part) for part in _subschemas(schema, root)))


def _subschemas(schema: Any, root: Schema) -> Iterator[Schema]:
    """The schema, and all that it refers to or combines."""
    parts, seen = [schema], set[str]()
    for _ in range(MAX_SCHEMAS):
        if not parts:
            break
        part = parts.pop()
        if not isinstance(part, Mapping):
            continue
        yield part
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            parts.append(_resolve(reference, root))
        for keyword in ("anyOf", "oneOf", "allOf"):
            more = part.get(keyword)
            parts += more if isinstance(more, list) else ()


def _own_types(schema: Schema) -> set[str]:
    """The types that this schema states itself."""
    declared = schema.get("type")
    listed = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    types = {type_ for type_ in listed if isinstance(type_, str)}
    if not types and isinstance(schema.get("enum"), list):
        types = {_type_of(value) for value in schema["enum"]}
    if not types and "const" in schema:
        types = {_type_of(schema["const"])}
    if not types and "properties" in schema:
        types = {"object"}
    if not types and "items" in schema:
        types = {"array"}
    return types | ({"null"} if schema.get("nullable") is True else set())


def coerce(text: str, types: frozenset[str]) -> str:
    """`text` as JSON of the first of `types` that it fits, in `ORDER`, else as a string."""
    for type_ in ORDER:
        if type_ in types and type_ in _PARSERS and (value := _PARSERS[type_](text.strip())) is not None:
            return value
    return json.dumps(text, ensure_ascii=False)


def as_json(text: str) -> str:
    """`text` if it is JSON, else as a string: for formats that mark values as JSON."""
    value = _json(text.strip())
    return json.dumps(text, ensure_ascii=False) if value is None else value


def members(text: str) -> dict[str, str] | None:
    """The members of an object, values as JSON text; None if the text is not an object."""
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return {key: bytes(value).decode() for key, value in raw.items()}
    except (ValueError, RecursionError):
        return None


def _json(text: str) -> str | None:
    """The text if it is JSON; raw line breaks in strings, which models write, are escaped."""
    scanner, out = JsonScanner(), list[str]()
    end = scanner.feed(text, 0, out)
    return "".join(out) if end == len(text) and scanner.finish() else None


def _null(text: str) -> str | None:
    return "null" if text.lower() in ("null", "none") else None


def _integer(text: str) -> str | None:
    match = _INTEGER.fullmatch(text) if len(text) <= MAX_NUMBER else None
    # Normalized, because models write 007, +5 and 3.0.
    return str(int(match[1])) if match else None


def _number(text: str) -> str | None:
    if len(text) > MAX_NUMBER:
        return None
    if _NUMBER.fullmatch(text):
        return text
    value = float(text) if _LOOSE_NUMBER.fullmatch(text) else math.inf
    return json.dumps(value) if math.isfinite(value) else None


def _boolean(text: str) -> str | None:
    lowered = text.lower()
    return lowered if lowered in ("true", "false") else None


def _container(opener: str, types: tuple[type, ...]) -> Callable[[str], str | None]:
    """A parser of objects or arrays: JSON, or the Python literal that models write instead."""

    def parse(text: str) -> str | None:
        if not text.startswith(opener):
            return None
        value = _json(text)
        return _python(text, types) if value is None else value

    return parse


def _python(text: str, types: tuple[type, ...]) -> str | None:
    tree = parsed(text, "eval")
    if tree is None:
        return None
    try:
        value = ast.literal_eval(tree)
        encoded = json.dumps(value, ensure_ascii=False, allow_nan=False)
        encoded.encode()  # raises on a lone surrogate
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None  # `literal_eval` raises any of these
    return encoded if isinstance(value, types) else None


_PARSERS: dict[str, Callable[[str], str | None]] = {
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _container("{", (dict,)),
    "array": _container("[", (list,)),
}


def _type_of(value: Any) -> str:
    names: dict[type, str] = {
        type(None): "null",
        bool: "boolean",
        int: "integer",
        float: "number",
        dict: "object",
        list: "array",
    }
    return names.get(type(value), "string")


def _resolve(reference: str, root: Schema) -> Any:
    """The schema that `#/a/b` refers to in `root`; None if there is none."""
    target: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, Mapping) else None
    return target
