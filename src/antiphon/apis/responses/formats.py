"""What the text of an answer has to look like: `text.format`, or `structured_outputs`."""

from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.apis.responses.given import Given, Object
from antiphon.apis.responses.schema import StructuredOutputs, Text
from antiphon.core.constraint import Format, GrammarFormat, JsonObject, JsonSchema, OneOf, Regex, TagFormat
from antiphon.core.errors import RequestError

PLAIN: Object = {"type": "text"}


def read_format(text: Text | None, structured: StructuredOutputs | None) -> Format | None:
    """The format that a request asks for, None for plain text. Raises RequestError."""
    asked = text.format if text else None
    wanted = _format(Given(asked, "text.format")) if asked is not None else None
    other = _structured(structured) if structured is not None else None
    if wanted is not None and other is not None:
        message = "'structured_outputs' and 'text.format' cannot both be used. Leave one of them out."
        raise RequestError(message, param="structured_outputs")
    return wanted or other


def _format(asked: Given) -> Format | None:
    match asked.text("type"):
        case "text":
            return None
        case "json_object":
            return JsonObject()
        case "json_schema":
            schema = asked.object_or_none("schema")
            if schema is None:
                raise asked.missing("schema")
            strict = bool(asked.flag_or_none("strict"))
            about = asked.text_or_none("description")
            return JsonSchema(schema.value, strict, asked.named("name"), about)
    raise asked.wrong("type", "Use 'text', 'json_object' or 'json_schema'.")


def echo_format(text: Text | None) -> Object:
    """The format as the response tells it back, with every field there."""
    asked = (text.format if text else None) or PLAIN
    if asked["type"] != "json_schema":
        return asked
    return {"description": None, "strict": False} | {
        name: value for name, value in asked.items() if value is not None
    }


def _structured(asked: StructuredOutputs) -> Format | None:
    found = [name for name in asked.__struct_fields__ if getattr(asked, name) not in (None, False)]
    if len(found) > 1:
        message = f"Only one of these can be used at a time: {', '.join(found)}."
        raise RequestError(message, param="structured_outputs")
    return next((_STRUCTURED[name](getattr(asked, name)) for name in found), None)


def _object(value: Object | str, name: str) -> Object:
    """An object, which may be given as JSON text."""
    if isinstance(value, dict):
        return value
    where = f"structured_outputs.{name}"
    try:
        found: Any = msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise RequestError(f"'{where}' is not valid JSON: {error}.", param=where) from error
    if not isinstance(found, dict):
        raise RequestError(f"Invalid value for '{where}': Expected an object.", param=where)
    return found


_STRUCTURED: dict[str, Callable[[Any], Format]] = {
    "json": lambda value: JsonSchema(_object(value, "json")),
    "json_object": lambda _: JsonObject(),
    "regex": Regex,
    "choice": lambda texts: OneOf(tuple(texts)),
    "grammar": GrammarFormat,
    "structural_tag": lambda value: TagFormat(_object(value, "structural_tag")),
}
