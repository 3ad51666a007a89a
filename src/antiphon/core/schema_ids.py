"""JSON Schemas whose parts have names: references to a name become references to its place.

An `$id` should be a URI, but what writes schemas also writes titles, file names and numbers there. Nothing is
fetched here, so a name only has to be equal to the one in a reference.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urljoin

import msgspec

_NAMES = ("$id", "id", "$anchor", "$dynamicAnchor")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    *("items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties"),
    *("unevaluatedProperties", "propertyNames", "not", "if", "then", "else", "contentSchema"),
)


class _Part(NamedTuple):
    """A schema in a schema: its place, and that of the document that it belongs to."""

    schema: dict[str, Any]
    at: str
    document: str


def without_ids(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same schema without `$id` and `$anchor`, so that every reference is a pointer from its root."""
    if not any(name in part.schema for part in _parts(schema) for name in _NAMES):
        return schema
    copy: dict[str, Any] = msgspec.to_builtins(schema)
    parts = [*_parts(copy)]
    base = _text(copy, "$id") or _text(copy, "id")
    places = {name: part.at for part in parts for name in _names_of(part.schema, base)}
    for part in parts:
        if reference := _text(part.schema, "$ref"):
            part.schema["$ref"] = _pointer(reference, part.document, base, places, copy)
    for part in parts:
        for name in _NAMES:
            part.schema.pop(name, None)
    return copy


def resolved(reference: str, root: Any) -> Any:
    """The target of `#/a/b`; None if it is missing, or in another document."""
    if not reference.startswith("#"):
        return None
    target = root
    for part in filter(None, reference[1:].split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = target.get(key)
        elif isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        else:
            return None
    return target


def _parts(schema: Any) -> Iterator[_Part]:
    """The schema, and all that are in it."""
    todo = [_Part(schema, "", "")]
    while todo:
        part = todo.pop()
        if not isinstance(part.schema, Mapping):
            continue
        document = part.at if _text(part.schema, "$id") else part.document
        yield part._replace(document=document)
        children: list[tuple[str, Any]] = [(key, part.schema[key]) for key in _SINGLE if key in part.schema]
        for key in _BY_NAME:
            if isinstance(members := part.schema.get(key), Mapping):
                children += ((f"{key}/{_escaped(name)}", child) for name, child in members.items())
        for key in _LISTED:
            if isinstance(listed := part.schema.get(key), list):
                children += ((f"{key}/{number}", child) for number, child in enumerate(listed))
        todo += (_Part(child, f"{part.at}/{place}", document) for place, child in children)


def _names_of(schema: Mapping[str, Any], base: str) -> Iterator[str]:
    for key in ("$id", "id"):
        if name := _text(schema, key):
            yield name.removesuffix("#")
            yield _joined(base, name).removesuffix("#")
    for key in ("$anchor", "$dynamicAnchor"):
        if name := _text(schema, key):
            yield f"#{name}"


def _pointer(reference: str, document: str, base: str, places: Mapping[str, str], root: Any) -> str:
    """The pointer that a reference is meant as; the reference itself if nothing has its name."""
    if reference.startswith("#/"):
        inside = f"#{document}{reference[1:]}"
        return inside if resolved(inside, root) is not None else reference
    for name in (reference, _joined(base, reference)):
        whole, _, fragment = name.partition("#")
        if name.removesuffix("#") in places:
            return f"#{places[name.removesuffix('#')]}"
        if whole in places and fragment.startswith("/"):
            return f"#{places[whole]}{fragment}"
    return reference


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _text(schema: Mapping[str, Any], key: str) -> str:
    value = schema.get(key)
    return value if isinstance(value, str) else ""


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
