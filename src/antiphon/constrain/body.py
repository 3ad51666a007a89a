"""A client's format → the form of the visible text."""

from antiphon.constrain.form import Form, choice
from antiphon.constrain.gbnf_reader import read_gbnf
from antiphon.constrain.json_schema import read
from antiphon.constrain.notation import Json
from antiphon.constrain.regex import matching
from antiphon.constrain.shape import ANY_OBJECT
from antiphon.constrain.tag_reader import read_tag
from antiphon.core.constraint import Format, GrammarFormat, JsonObject, JsonSchema, OneOf, Regex, TagFormat
from antiphon.core.errors import RequestError

Missed = list[tuple[str, str]]


def body_of(format_: Format, rules: dict[str, Form]) -> tuple[Form, Missed, bool]:
    """The form, what it does not hold, and whether that is an error. Raises RequestError, `TooLarge`."""
    match format_:
        case JsonSchema(schema, strict):
            shapes, missed = read(schema)
            return Json(rules, "format", shapes.named).form(shapes.shape), missed, strict
        case JsonObject():
            return Json(rules, "format", {}).form(ANY_OBJECT), [], True
        case Regex(pattern):
            return matching(pattern), [], True
        case OneOf(texts):
            return choice(*texts), [], True
        case GrammarFormat(text, syntax):
            if syntax != "gbnf":
                raise RequestError(f"Grammars in '{syntax}' are not supported: write GBNF.", param="format")
            return read_gbnf(text, rules), [], True
        case TagFormat(spec):
            form, missed = read_tag(spec, rules)
            return form, missed, True
