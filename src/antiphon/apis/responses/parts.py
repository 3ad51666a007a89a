"""The parts of messages and of tool outputs → text. What is not text is refused by name."""

import base64
import binascii

from antiphon.apis.given import Given
from antiphon.core.errors import RequestError
from antiphon.core.items import TextPart

_TEXT_TYPES = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


def parse_parts(item: Given, name: str) -> tuple[TextPart, ...]:
    """The text of a field that is a string or an array of parts. Raises RequestError."""
    value = item.value.get(name)
    if isinstance(value, str):
        return (TextPart(value),) if value else ()
    return tuple(TextPart(_text(part)) for part in item.objects(name))


def _text(part: Given) -> str:
    type_ = part.text("type")
    if type_ in _TEXT_TYPES:
        return part.text("text")
    if type_ == "refusal":
        return part.text("refusal")
    if type_ == "input_file":
        return _file(part)
    raise part.wrong("type", f"This model reads no '{type_}'. Use 'input_text'.")


def _file(part: Given) -> str:
    """The text of a file that is sent along, under its name."""
    name, data = part.text_or_none("filename"), part.text_or_none("file_data")
    if data is None:
        raise part.wrong("type", "Send the file itself, as 'file_data': it is not fetched from elsewhere.")
    try:
        text = base64.b64decode(data.rpartition(",")[2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise _no_text(part) from error
    if "\0" in text:
        raise _no_text(part)
    return f"{name}:\n{text}" if name else text


def _no_text(part: Given) -> RequestError:
    return part.wrong("file_data", "Only text files can be read: send UTF-8 text, in base64.")
