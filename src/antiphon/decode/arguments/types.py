"""Which JSON types a schema allows, and which of them a piece of text is.

XML-like formats write every value as text. What it is, the tool's schema says,
in the order of `ORDER`: the first type that the schema allows and the text
fits. A text that fits none is a string; without a schema everything is.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

ORDER = ("null", "integer", "number", "boolean", "object", "array", "string")
"""JSON types, the most particular first."""

MAX_REFS = 32
"""How deep references and alternatives are followed. Schemas may refer to themselves."""

Schema = Mapping[str, Any]

_INTEGER = re.compile(r"[-+]?\d{1,4000}")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")

_LOOSE_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def allowed(schema: Any, root: Schema, depth: int = 0) -> frozenset[str]:
    """The types that `schema` allows; `root` is what references in it refer to."""
    if not isinstance(schema, Mapping) or depth > MAX_REFS:
        return frozenset()
    types: set[str] = set()
    given = schema.get("type")
    types.update([given] if isinstance(given, str) else [t for t in given or () if isinstance(t, str)])
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
        types = types or {_type_of(value) for value in values}
    if schema.get("nullable") is True:
        types.add("null")
    if isinstance(reference := schema.get("$ref"), str):
        types |= allowed(_resolve(reference, root), root, depth + 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(keyword)
        for alternative in alternatives if isinstance(alternatives, list) else ():
            types |= allowed(alternative, root, depth + 1)
    if not types and "properties" in schema:
        types.add("object")
    if not types and "items" in schema:
        types.add("array")
    return frozenset(types)


def coerce(text: str, types: frozenset[str]) -> str:
    """`text` as JSON of the first of `types` that it fits, else as a string."""
    for type_ in ORDER:
        if type_ in types and type_ in _READERS and (value := _READERS[type_](text.strip())) is not None:
            return value
    return json.dumps(text, ensure_ascii=False)


def as_json(text: str) -> str:
    """`text` if it is JSON, else as a string: for formats that say "this is JSON"."""
    try:
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return text.strip()


def _null(text: str) -> str | None:
    return "null" if text.lower() in ("null", "none") else None


def _integer(text: str) -> str | None:
    # Written out again: models write 007 and +5, JSON does not.
    return str(int(text)) if _INTEGER.fullmatch(text) else None


def _number(text: str) -> str | None:
    if _NUMBER.fullmatch(text):
        return text
    value = float(text) if _LOOSE_NUMBER.fullmatch(text) else math.inf
    return json.dumps(value) if math.isfinite(value) else None


def _boolean(text: str) -> str | None:
    lowered = text.lower()
    return lowered if lowered in ("true", "false") else None


def _container(opener: str) -> Callable[[str], str | None]:
    """A reader for objects or arrays: JSON, or the Python literal that models write in its place."""

    def read(text: str) -> str | None:
        if not text.startswith(opener):
            return None
        try:
            json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return _python(text)
        return text

    return read


def _python(text: str) -> str | None:
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_READERS: dict[str, Callable[[str], str | None]] = {
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _container("{"),
    "array": _container("["),
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
    """What `#/a/b` refers to in `root`; None for what is not there."""
    found: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
