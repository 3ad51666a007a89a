"""What an answer has to look like, in the several fields that a request may use."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from antiphon.apis.request import (
    JsonObjectFormat,
    JsonSchemaFormat,
    Request,
    ResponseFormat,
    StructuralTagFormat,
    StructuredOutputs,
    TextFormat,
)
from antiphon.core.constraint import Format, GrammarFormat, JsonObject, JsonSchema, OneOf, Regex, TagFormat
from antiphon.core.errors import RequestError

Named = tuple[str, Format]
"""A format, and the parameter that requests it."""


def answer_format(request: Request) -> tuple[str, Format | None]:
    """The one format that the request requests, and its parameter. Raises RequestError for several."""
    requested = [
        *_of_response_format(request.response_format),
        *structured(request.structured_outputs),
        *_guided(request),
    ]
    return only_format(requested) or ("response_format", None)


def only_format(requested: Sequence[Named]) -> Named | None:
    """The format that is requested, if any is. Raises RequestError for several."""
    if len(requested) > 1:
        (first, _), (second, _), *_ = requested
        message = f"'{first}' already defines what the answer has to look like. Leave out '{second}'."
        raise RequestError(message, param=second)
    return requested[0] if requested else None


def _of_response_format(requested: ResponseFormat | None) -> Iterator[Named]:
    match requested:
        case JsonObjectFormat():
            yield "response_format", JsonObject()
        case JsonSchemaFormat(json_schema=named):
            schema = JsonSchema(named.schema, bool(named.strict), named.name, named.description)
            yield "response_format", schema
        case StructuralTagFormat():
            yield "response_format", TagFormat(msgspec.to_builtins(requested))
        case None | TextFormat():
            pass


def structured(requested: StructuredOutputs | None) -> Iterator[Named]:
    """The formats that are requested in vLLM's fields. Raises RequestError."""
    where = "structured_outputs"
    if requested is None:
        return
    if requested.whitespace_pattern is not None:
        message = "The engine chooses which space it allows. Leave out 'whitespace_pattern'."
        raise RequestError(message, param=f"{where}.whitespace_pattern")
    yield from _constrained(
        json=(f"{where}.json", requested.json),
        regex=(f"{where}.regex", requested.regex),
        choice=(f"{where}.choice", requested.choice),
        grammar=(f"{where}.grammar", requested.grammar),
    )
    if requested.json_object:
        yield f"{where}.json_object", JsonObject()
    if requested.structural_tag is not None:
        param = f"{where}.structural_tag"
        yield param, TagFormat(_object(requested.structural_tag, param))


def _guided(request: Request) -> Iterator[Named]:
    """The names that vLLM used before, and others still use."""
    return _constrained(
        json=("guided_json", request.guided_json),
        regex=("guided_regex", request.guided_regex),
        choice=("guided_choice", request.guided_choice),
        grammar=("guided_grammar", request.guided_grammar),
    )


def _constrained(
    *,
    json: tuple[str, Mapping[str, Any] | str | None],
    regex: tuple[str, str | None],
    choice: tuple[str, list[str] | None],
    grammar: tuple[str, str | None],
) -> Iterator[Named]:
    if json[1] is not None:
        yield json[0], JsonSchema(_object(json[1], json[0]))
    if regex[1] is not None:
        yield regex[0], Regex(regex[1])
    if choice[1] is not None:
        yield choice[0], OneOf(tuple(choice[1]))
    if grammar[1] is not None:
        yield grammar[0], GrammarFormat(grammar[1], grammar_syntax(grammar[1]))


def grammar_syntax(grammar: str) -> str:
    """Whether a grammar is written in GBNF, which defines with `::=`, or in Lark's notation."""
    return "gbnf" if "::=" in grammar else "lark"


def _object(value: Mapping[str, Any] | str, param: str) -> Mapping[str, Any]:
    """A JSON object, also if it comes as text."""
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"'{param}' must be a JSON object, or one as text.", param=param) from error
    return value
