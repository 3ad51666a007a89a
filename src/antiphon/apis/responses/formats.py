"""The required form of the text of an answer: `text.format`."""

from antiphon.apis.formats import Named
from antiphon.apis.request_object import Object, RequestObject
from antiphon.apis.responses.schema import TextOptions
from antiphon.core.constraint import Format, JsonObject, JsonSchema

PLAIN: Object = {"type": "text"}
SOURCE = "text.format"


def text_format(text: TextOptions | None) -> tuple[Named, ...]:
    """The format that `text.format` requests, none for plain text. Raises RequestError."""
    given = text.format if text else None
    wanted = _format(RequestObject(given, SOURCE)) if given is not None else None
    return () if wanted is None else ((SOURCE, wanted),)


def _format(wanted: RequestObject) -> Format | None:
    match wanted.text("type"):
        case "text":
            return None
        case "json_object":
            return JsonObject()
        case "json_schema":
            schema = wanted.object_or_none("schema")
            if schema is None:
                raise wanted.missing("schema")
            strict = bool(wanted.flag_or_none("strict"))
            about = wanted.text_or_none("description")
            return JsonSchema(schema.value, strict, wanted.named("name"), about)
    raise wanted.wrong("type", "Use 'text', 'json_object' or 'json_schema'.")


def echo_format(text: TextOptions | None) -> Object:
    """The format as the response returns it, with every field."""
    wanted = (text.format if text else None) or PLAIN
    if wanted["type"] != "json_schema":
        return wanted
    # OpenAI does not allow null here, and Open Responses requires the field: an empty text is valid in both.
    return {"description": "", "strict": False} | {
        name: value for name, value in wanted.items() if value is not None
    }
