"""JSON Schemas for checking complete answers.

A client's schema may refer only to itself: no file is read for it, and no URL fetched. An invalid schema is
refused before anything is generated.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from antiphon.constrain.compile import OutputRequirements
from antiphon.core.constraint import JsonObject, JsonSchema
from antiphon.core.errors import RequestError
from antiphon.core.schema_ids import without_ids

MAX_FAULTS = 5
"""The largest number of reported faults of one text."""
MAX_MESSAGE = 300
"""Characters of each report: it may quote the text."""

_DRAFTS = "json-schema.org/draft"
_DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
"""Schemas of this draft are still in use, without a declaration: `"exclusiveMinimum": true`."""


class Schema:
    """A schema from the parameter `param`. Raises RequestError if it is invalid."""

    def __init__(self, schema: Mapping[str, Any], param: str) -> None:
        import jsonschema_rs  # noqa: PLC0415 - only where there is something to check

        plain = msgspec.to_builtins(without_ids(schema))
        if _DRAFTS not in str(plain.get("$schema")):
            plain.pop("$schema", None)  # other dialects are treated as the current one
        if not jsonschema_rs.meta.is_valid(plain) and jsonschema_rs.meta.is_valid(plain | _DRAFT_4):
            plain |= _DRAFT_4
        try:
            self._validator = jsonschema_rs.validator_for(
                plain, validate_formats=True, retriever=_refuse_other_document
            )
        except ValueError as error:
            raise RequestError(f"This is not a valid JSON Schema: {_message(error)}.", param=param) from error

    def faults(self, text: str) -> Iterator[str]:
        """The faults of `text` as JSON of this schema, each with its place if that is not the whole text."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            yield ": not valid JSON."
            return
        try:
            for error in islice(self._validator.iter_errors(value), MAX_FAULTS):
                path = "".join(f"/{step}" for step in error.instance_path)
                yield f"{path and f' at {path}'}: {_message(error)}."
        except ValueError:  # the library cannot handle a nesting of some hundred levels
            yield ": nested too deeply to be checked."


class Schemas(Struct, frozen=True):
    """The schemas for the text of an answer, and for the arguments of calls, by the function's name."""

    format: Mapping[str, Any] | None = None
    tools: Mapping[str, Mapping[str, Any]] = {}


def schemas_of(required: OutputRequirements) -> Schemas:
    """The schemas of a demand. Raises RequestError, which blames `format` or the source of a function."""
    strict = {tool.name: tool for tool in required.tools if tool.strict}
    for tool in strict.values():
        Schema(tool.parameters, tool.source)
    tools = {name: tool.parameters for name, tool in strict.items()}
    match required.format:
        case JsonSchema(schema):
            Schema(schema, "format")
            return Schemas(schema, tools)
        case JsonObject():
            return Schemas({"type": "object"}, tools)
    return Schemas(None, tools)


def _message(error: Exception) -> str:
    """The fault in a line, without a stop at its end."""
    line = str(getattr(error, "message", error)).splitlines()[0]
    return line[:MAX_MESSAGE].rstrip(".")


def _refuse_other_document(uri: str) -> NoReturn:
    raise ValueError(f"'{uri}' is not in the schema")
