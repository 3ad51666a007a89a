"""What the text of an answer has to look like: `text.format`, or `structured_outputs`."""

from antiphon.apis.formats import structured, the_one
from antiphon.apis.request import StructuredOutputs
from antiphon.apis.responses.given import Given, Object
from antiphon.apis.responses.schema import Text
from antiphon.core.constraint import Format, JsonObject, JsonSchema

PLAIN: Object = {"type": "text"}
SOURCE = "text.format"


def read_format(text: Text | None, asked: StructuredOutputs | None) -> tuple[str, Format | None]:
    """The format that a request asks for, None for plain text, and its parameter. Raises RequestError."""
    given = text.format if text else None
    wanted = _format(Given(given, SOURCE)) if given is not None else None
    named = [] if wanted is None else [(SOURCE, wanted)]
    return the_one([*named, *structured(asked)]) or (SOURCE, None)


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
