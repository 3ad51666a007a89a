"""What clients describe: invalid JSON Schemas are refused before a model sees them."""

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

from antiphon.core.errors import RequestError
from antiphon.core.schema_ids import without_ids

MAX_MESSAGE = 300
"""The most characters of an error in a schema: it may quote the schema."""
SETTINGS = frozenset({
    "allowed_callers", "cache_control", "defer_loading", "eager_input_streaming", "strict", "type",
})  # fmt: skip
"""Members of functions that are for the server, not for the model."""
_DRAFT_4 = "http://json-schema.org/draft-04/schema#"
_TYPES = "array, boolean, integer, null, number, object, string"


def further_members(given: Mapping[str, Any], read: Container[str]) -> dict[str, Any]:
    """The members of a function that are not among those that are `read`, and that a template may show."""
    return {name: value for name, value in given.items() if name not in read and name not in SETTINGS}


def check_schema(schema: Mapping[str, Any], source: str) -> None:
    """Raise RequestError for a schema that is invalid today and in draft 4; its `param` is the place.

    Schemas of draft 4 are still in use, without a declaration: `"exclusiveMinimum": true`.
    """
    if fault := _fault(schema):
        path, what = fault
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        raise RequestError(_message(path, what), param=source + place)


def check_format_schema(schema: Mapping[str, Any], param: str) -> None:
    """The same for the schema of a format, which errors name as a whole."""
    if fault := _fault(schema):
        raise RequestError(_message(*fault), param=param)


def _fault(schema: Mapping[str, Any]) -> tuple[Sequence[str | int], str] | None:
    """The path to what makes a schema invalid, and the reason."""
    if not schema:
        return None
    from jsonschema_rs import ValidationError, meta  # noqa: PLC0415 - only where there is something to check

    plain = {name: value for name, value in schema.items() if name != "$schema"}
    if meta.is_valid(plain):
        return None
    plain = dict(without_ids(plain))  # what is odd in a name is no reason to refuse
    try:
        meta.validate(plain)
    except ValidationError as error:
        if meta.is_valid(plain | {"$schema": _DRAFT_4}):
            return None
        what = error.message[:MAX_MESSAGE]
        if [*error.schema_path][-2:] == ["type", "anyOf"]:
            what = f"{json.dumps(error.instance)[:MAX_MESSAGE]} is no type. Use one of {_TYPES}"
        return error.instance_path, what
    return None


def _message(path: Sequence[str | int], what: str) -> str:
    place = "".join(f"/{step}" for step in path)
    return f"This is not a valid JSON Schema: {place and f'{place}: '}{what}."
