"""What an MCP tool answers → the result of a call: text for the model, within a limit."""

import mcp_types as types
import msgspec

from antiphon.core.tool_result import ToolResult
from antiphon.tools.text import Excerpt

_EMPTY = "[The tool answered nothing.]"


def result_of(answer: types.CallToolResult, most: int) -> ToolResult:
    """The result of a call, of which the model reads at most so many characters.

    What is structured only repeats the text, where there is any.
    """
    shown = Excerpt(most)
    for part in answer.content:
        shown.write_line(text_of(part))
    text = str(shown)
    if not answer.content and answer.structured_content is not None:
        shown.write(msgspec.json.encode(answer.structured_content).decode())
        text = str(shown)
    return ToolResult(text.strip("\n") or _EMPTY, failed=bool(answer.is_error))


def text_of(part: types.ContentBlock) -> str:  # noqa: PLR0911 - a table
    """What a model that reads text is shown of a part: what is no text is described."""
    match part:
        case types.TextContent(text=text):
            return text
        case types.ImageContent(data=data, mime_type=kind):
            return _unseen("image", kind, data)
        case types.AudioContent(data=data, mime_type=kind):
            return _unseen("recording", kind, data)
        case types.ResourceLink(name=name, uri=uri):
            return f"[{name}]({uri})"
        case types.EmbeddedResource(resource=types.TextResourceContents(text=text)):
            return text
        case types.EmbeddedResource(resource=types.BlobResourceContents(uri=uri, blob=data, mime_type=kind)):
            return f"{_unseen('file', kind or 'unknown type', data)} {uri}"
    return "[Something that cannot be shown.]"


def _unseen(what: str, kind: str, data: str) -> str:
    return f"[A {what}, {kind}, {len(data) * 3 // 4} bytes: it cannot be shown here.]"
