"""The required form of an answer, from any of the fields for it."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from antiphon.apis.request import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    SamplingParams,
    StructuralTagFormat,
    StructuredOutputs,
    TextFormat,
)
from antiphon.apis.tool_schemas import check_format_schema
from antiphon.core.constraint import Format, GrammarFormat, JsonObject, JsonSchema, OneOf, Regex, TagFormat
from antiphon.core.errors import RequestError

Named = tuple[str, Format]
"""A format, and the parameter that requests it."""
NO_FORMAT = ("response_format", None)


def answer_format(request: SamplingParams, *before: Named) -> tuple[str, Format | None]:
    """The format that the request demands, and its parameter. Raises RequestError if there are several.

    `before` are formats from fields of the API.
    """
    if request.response_format is None and request.structured_outputs is None and not before:
        return NO_FORMAT
    requested = [
        *before,
        *_of_response_format(request.response_format),
        *_structured(request.structured_outputs),
    ]
    if len(requested) > 1:
        (first, _), (second, _), *_ = requested
        message = f"'{first}' already defines what the answer has to look like. Leave out '{second}'."
        raise RequestError(message, param=second)
    for param, format_ in requested:
        if isinstance(format_, JsonSchema):
            check_format_schema(format_.schema, param)
    return requested[0] if requested else NO_FORMAT


def _of_response_format(requested: ResponseFormat | None) -> Iterator[Named]:
    match requested:
        case JsonObjectFormat(schema=None):
            yield "response_format", JsonObject()
        case JsonObjectFormat(schema=dict(schema)):
            yield "response_format", JsonSchema(schema)
        case JsonSchemaFormat(json_schema=named):
            named_schema = JsonSchema(named.schema, bool(named.strict), named.name, named.description)
            yield "response_format", named_schema
        case StructuralTagFormat():
            yield "response_format", TagFormat(msgspec.to_builtins(requested))
        case None | TextFormat():
            pass


def _structured(requested: StructuredOutputs | None) -> Iterator[Named]:
    """The formats that are requested in vLLM's fields. Raises RequestError."""
    where = "structured_outputs"
    if requested is None:
        return
    if requested.whitespace_pattern is not None:
        message = "The engine chooses which space it allows. Leave out 'whitespace_pattern'."
        raise RequestError(message, param=f"{where}.whitespace_pattern")
    if requested.json is not None:
        param = f"{where}.json"  # Ollama's name, whose value may stand for any object
        any_object = requested.json == "json"
        yield param, JsonObject() if any_object else JsonSchema(_object(requested.json, param))
    if requested.regex is not None:
        yield f"{where}.regex", Regex(requested.regex)
    if requested.choice is not None:
        yield f"{where}.choice", OneOf(tuple(requested.choice))
    if requested.grammar is not None:
        grammar = requested.grammar
        yield f"{where}.grammar", GrammarFormat(grammar, grammar_syntax(grammar))
    if requested.json_object:
        yield f"{where}.json_object", JsonObject()
    if requested.structural_tag is not None:
        param = f"{where}.structural_tag"
        yield param, TagFormat(_object(requested.structural_tag, param))


def grammar_syntax(grammar: str) -> str:
    """Whether a grammar is written in GBNF, which defines with `::=`, or in Lark's notation."""
    return "gbnf" if "::=" in grammar else "lark"


def _object(value: Mapping[str, Any] | str, param: str) -> Mapping[str, Any]:
    """A JSON object, which may be given as text."""
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(
                f"'{param}' must be a JSON object, or a text with one.", param=param
            ) from error
    return value
