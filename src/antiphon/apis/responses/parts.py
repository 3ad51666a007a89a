"""The parts of messages and of tool outputs: texts, and media that are not looked at here."""

from antiphon.apis.media import at_url, file_of, stored
from antiphon.apis.request_object import RequestObject
from antiphon.core.items import Attachment, MediaKind, Part, TextPart

_TEXT_TYPES = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})
_OTHERS = ("input_image", "input_file")


def parse_parts(item: RequestObject, name: str) -> tuple[Part, ...]:
    """The parts of a field that is a string or an array of them. Raises RequestError."""
    value = item.value.get(name)
    if isinstance(value, str):
        return (TextPart(value),) if value else ()
    return tuple(_part(part) for part in item.objects(name))


def _part(part: RequestObject) -> Part:
    type_ = part.text("type")
    if type_ in _TEXT_TYPES:
        return TextPart(part.text("text"))
    if type_ == "refusal":
        return TextPart(part.text("refusal"))
    if type_ == "input_file":
        return file_of(part, part.where, "file_data", "file_url")
    if type_ == "input_image":
        return _image(part)
    raise part.wrong("type", f"There are no '{type_}' parts here. Use 'input_text', {', '.join(_OTHERS)}.")


def _image(part: RequestObject) -> Attachment:
    if part.value.get("file_id") is not None:
        return stored(MediaKind.IMAGE, part, part.where)
    return at_url(MediaKind.IMAGE, part, part.where, "image_url")
