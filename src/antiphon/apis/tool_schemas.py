"""The descriptions of functions: invalid JSON Schemas are refused before a model is shown them."""

from collections.abc import Container, Mapping
from typing import Any

from antiphon.core.errors import RequestError

MAX_MESSAGE = 300
"""The most characters of an error in a schema: it may quote the schema."""
SETTINGS = frozenset({
    "allowed_callers", "cache_control", "defer_loading", "eager_input_streaming", "strict", "type",
})  # fmt: skip
"""Members of functions that are for the server, not for the model."""
_DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def further_members(given: Mapping[str, Any], read: Container[str]) -> dict[str, Any]:
    """The members of a function that are not among those that are `read`, and that a template may show."""
    return {name: value for name, value in given.items() if name not in read and name not in SETTINGS}


def check_schema(schema: Mapping[str, Any], param: str) -> None:
    """Raise RequestError, which names the place, for a schema that is invalid today and in draft 4.

    Schemas of draft 4 are still in use, without a declaration: `"exclusiveMinimum": true`.
    """
    if not schema:
        return
    from jsonschema_rs import ValidationError, meta  # noqa: PLC0415 - only where there is something to check

    plain = {name: value for name, value in schema.items() if name != "$schema"}
    try:
        meta.validate(plain)
    except ValidationError as error:
        if meta.is_valid(plain | {"$schema": _DRAFT_4}):
            return
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        message = f"This is not a valid JSON Schema: {error.message[:MAX_MESSAGE]}."
        raise RequestError(message, param=param + place) from error
