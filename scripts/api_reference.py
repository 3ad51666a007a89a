"""The reference of the API, as two pages in Markdown: the routes, and the types of their bodies.

Made from the OpenAPI document of the server, which has every route, for `scripts/site`.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from antiphon.http.app import ROUTES
from antiphon.http.openapi import document

TYPES_PAGE = "http-types.md"
OPENING = """\
# {title}

Made from the OpenAPI document, which a server has at `/openapi.json`. Its page `/docs` shows it, too, and can
send requests. {more}
"""
MORE_OF_ROUTES = """\
[The API](api.md) says in one line what each route is for, [Parameters](parameters.md) what each field does.
A route whose answer may be a stream has a second media type, such as `text/event-stream`.
"""
MORE_OF_TYPES = "These are the types of [routes](http-routes.md).\n"
BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "minProperties": "at least {}",
    "pattern": "matching `{}`",
}

Schema = Mapping[str, Any]


def pages() -> dict[Path, bytes]:
    """By their places in the site."""
    api = document(ROUTES)
    return {Path("http-routes.md"): routes(api).encode(), Path(TYPES_PAGE): types(api).encode()}


def routes(api: Schema) -> str:
    """The page of routes, in groups by their paths."""
    groups = defaultdict(list)
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            groups[operation["tags"][0]].append((f"{method.upper()} {path}", operation))
    parts = [OPENING.format(title="Routes", more=MORE_OF_ROUTES)]
    for group in sorted(groups):
        parts.append(f"## {group}\n")
        parts += [_route(name, operation) for name, operation in groups[group]]
    return "\n".join(parts)


def types(api: Schema) -> str:
    """The page of types, in the order of their names."""
    schemas = sorted(api["components"]["schemas"].items(), key=lambda entry: _name(entry[0]).lower())
    parts = [OPENING.format(title="Types", more=MORE_OF_TYPES)]
    return "\n".join([*parts, *(_type(name, schema) for name, schema in schemas)])


def _route(name: str, operation: Schema) -> str:
    lines = [f"### `{name}` {{ #{operation['operationId']} }}", "", operation["summary"], ""]
    rows = [
        *((f"`{given['name']}`", given["in"], _shape(given["schema"])) for given in operation["parameters"]),
        *_bodies("body", operation.get("requestBody", {})),
        *_bodies("answer", operation["responses"]["200"]),
    ]
    lines += ["| | | |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows), ""]
    return "\n".join(lines)


def _bodies(place: str, body: Schema) -> Iterator[tuple[str, str, str]]:
    for media_type, content in body.get("content", {}).items():
        shape = _shape(content["schema"], TYPES_PAGE) if "schema" in content else "events"
        yield place, f"`{media_type}`", shape


def _type(name: str, schema: Schema) -> str:
    lines = [f"## {_name(name)} {{ #{_anchor(name)} }}", ""]
    if text := schema.get("description"):
        lines += [text, ""]
    if fields := schema.get("properties"):
        required = schema.get("required", ())
        lines += ["| field | | default |", "|---|---|---|"]
        lines += [
            f"| `{key}` | {_shape(field)} | {'required' if key in required else _default(field)} |"
            for key, field in fields.items()
        ]
    else:
        lines.append(f"{_shape(schema)[:1].upper()}{_shape(schema)[1:]}.")
    return "\n".join([*lines, ""])


def _shape(schema: Schema, page: str = "") -> str:
    """A schema in words."""
    if ref := schema.get("$ref"):
        name = ref.rpartition("/")[2]
        return f"[{_name(name)}]({page}#{_anchor(name)})"
    for kind, between in (("anyOf", " or "), ("allOf", " and ")):
        if kind in schema:
            return between.join(dict.fromkeys(_shape(part, page) for part in schema[kind]))
    if "enum" in schema:
        return ", ".join(f"`{_literal(value)}`" for value in schema["enum"])
    bounds = ", ".join(text.format(schema[key]) for key, text in BOUNDS.items() if key in schema)
    return _kind(schema, page) + (f" ({bounds})" if bounds else "")


def _kind(schema: Schema, page: str) -> str:
    match schema.get("type"):
        case "array":
            inner = schema.get("items")
            parts = schema.get("prefixItems", [inner] if isinstance(inner, dict) else [{}])
            return f"list of {', '.join(_shape(part, page) for part in parts)}"
        case "object":
            inner = schema.get("additionalProperties")
            return f"object of {_shape(inner, page)}" if isinstance(inner, dict) and inner else "object"
        case list() as kinds:
            return " or ".join(kinds)
        case None:
            fields = schema.get("properties", {}).items()
            return ", ".join(f"`{key}` ({field.get('format', 'any')})" for key, field in fields) or "any"
        case kind:
            return str(kind)


def _default(schema: Schema) -> str:
    return f"`{_literal(schema['default'])}`" if "default" in schema else ""


def _literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _name(name: str) -> str:
    """The name of a type: with its module, where two have the same."""
    return name.removeprefix("antiphon.").removeprefix("apis.")


def _anchor(name: str) -> str:
    return _name(name).lower().replace(".", "-")
