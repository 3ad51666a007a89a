"""The content that an MCP tool returns → the result of a call: text for the model, bounded, and media."""

import base64
import binascii
from collections.abc import Iterable, Iterator

import mcp_types as types
import msgspec

from antiphon.core.tool_result import ToolResult
from antiphon.tools.text import Excerpt

MAX_MEDIA = 16
"""Images, audio and files of one result that a model is shown."""
_EMPTY = "[The result of the tool is empty.]"


def result_of(answer: types.CallToolResult, max_characters: int) -> ToolResult:
    """The result of a call, with at most this number of characters for the model.

    Structured content is used only if there is no text, which it repeats. Other content is named, and passed
    on.
    """
    shown = Excerpt(max_characters)
    for part in answer.content:
        shown.write_line(text_of(part))
    text = str(shown)
    if not answer.content and answer.structured_content is not None:
        shown.write(msgspec.json.encode(answer.structured_content).decode())
        text = str(shown)
    media = tuple(_media(answer.content))[:MAX_MEDIA]
    return ToolResult(text.strip("\n") or _EMPTY, failed=bool(answer.is_error), media=media)


def _media(parts: Iterable[types.ContentBlock]) -> Iterator[bytes]:
    """The content that is not text. Data that are not valid base64 are only named."""
    for part in parts:
        match part:
            case types.ImageContent(data=data) | types.AudioContent(data=data):
                pass
            case types.EmbeddedResource(resource=types.BlobResourceContents(blob=data)):
                pass
            case _:
                continue
        try:
            yield base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            continue


def text_of(part: types.ContentBlock) -> str:  # noqa: PLR0911 - a table
    """The text of a part; a description of a part without text."""
    match part:
        case types.TextContent(text=text):
            return text
        case types.ImageContent(data=data, mime_type=kind):
            return _named("image", kind, data)
        case types.AudioContent(data=data, mime_type=kind):
            return _named("recording", kind, data)
        case types.ResourceLink(name=name, uri=uri):
            return f"[{name}]({uri})"
        case types.EmbeddedResource(resource=types.TextResourceContents(text=text)):
            return text
        case types.EmbeddedResource(resource=types.BlobResourceContents(uri=uri, blob=data, mime_type=kind)):
            return f"{_named('file', kind or 'unknown type', data)} {uri}"
    return "[Content that cannot be shown.]"


def _named(what: str, kind: str, data: str) -> str:
    article = "An" if what == "image" else "A"
    size = len(data.rstrip("=")) * 3 // 4
    return f"[{article} {what}, {kind}, {size} bytes.]"
