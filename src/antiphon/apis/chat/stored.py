"""Stored chat completions: what is stored of a request, and how it is listed.

The forms are those of OpenAI's OpenAPI document (ChatCompletionList, ChatCompletionMessageList,
ChatCompletionDeleted).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.apis.chat.history import MEDIA
from antiphon.apis.chat.resource import CustomFragment, FunctionFragment, ToolCallFragment
from antiphon.apis.chat.schema import CalledFunction, ContentPart, RequestMessage, ToolCall
from antiphon.apis.request import Metadata
from antiphon.apis.responses.stored import StoredItem


class StoredPart(Struct, tag_field="type", tag="text"):
    """A text in a message with parts. Other parts are stored unchanged."""

    text: str


class StoredMessage(Struct):
    """A message of the request. `content_parts` is set only if it had parts."""

    id: str
    role: str
    content: str | None
    refusal: str | None = None
    name: str | None = None
    content_parts: list[Any] | None = None
    tool_calls: list[ToolCallFragment] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


class Deleted(Struct, tag_field="object", tag="chat.completion.deleted"):
    """A completion is no longer there."""

    id: str
    deleted: bool = True


class UpdateRequest(Struct):
    """POST /v1/chat/completions/{id}: metadata is all that can be changed."""

    metadata: Metadata | None


def stored_messages(completion_id: str, messages: Iterable[RequestMessage]) -> list[StoredItem]:
    """The messages of the request."""
    stored = [_message(f"{completion_id}-{index}", message) for index, message in enumerate(messages)]
    return [StoredItem(message.id, "message", msgspec.json.encode(message)) for message in stored]


def with_metadata(body: bytes, metadata: Mapping[str, str]) -> bytes:
    """The body of a stored completion, with this metadata."""
    fields = msgspec.json.decode(body, type=dict[str, Raw])
    return msgspec.json.encode(fields | {"metadata": Raw(msgspec.json.encode(metadata))})


def _message(id_: str, message: RequestMessage) -> StoredMessage:
    parts = None
    content = message.content
    if isinstance(content, list):
        parts = [_part(part) for part in content]
        content = "".join(part.text for part in parts if isinstance(part, StoredPart))
    stored = StoredMessage(id_, message.role, content, message.refusal, message.name, parts)
    if message.tool_calls:
        stored.tool_calls = [_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        stored.tool_call_id = message.tool_call_id
    return stored


def _part(part: ContentPart) -> Any:
    value = getattr(part, part.type, None)
    if part.type in MEDIA and value is not None:
        return {"type": part.type, part.type: value}
    return StoredPart(part.text or part.refusal or "")


def _call(call: ToolCall) -> ToolCallFragment:
    if call.custom is not None:
        custom = CustomFragment(call.custom.name or "", call.custom.input or "")
        return ToolCallFragment(id=call.id or "", type="custom", custom=custom)
    called = call.function or CalledFunction(None)
    arguments = called.arguments
    if isinstance(arguments, dict):
        arguments = msgspec.json.encode(arguments).decode()
    function = FunctionFragment(called.name or "", arguments or "{}")
    return ToolCallFragment(id=call.id or "", type="function", function=function)
