"""`previous_input_messages`: the conversation before the input, as messages instead of stored items.

They are vLLM's: messages of harmony, which have a channel and a recipient, or of Chat Completions. They
become items of the input, and are stored with it. What a system message of harmony says is written for each
prompt again, and so are the tools of a developer message: only its instructions become an item.
"""

from collections.abc import Iterator
from typing import Any

from antiphon.apis.request_object import Object, RequestObject, json_text, object_at

PARAMETER = "previous_input_messages"
_NOT_TOOLS = (None, "all", "assistant", "user")  # recipients that are no tools
_SPACE = "functions."


def previous_items(messages: list[Any] | None) -> Iterator[RequestObject]:
    """The items for these messages. Raises RequestError."""
    unanswered: list[str] = []  # ids of calls, oldest first
    for index, message in enumerate(messages or ()):
        where = object_at(message, f"{PARAMETER}[{index}]")
        for item in _items(where, f"call_previous_{index}", unanswered):
            yield RequestObject(item, where.where)


def _items(message: RequestObject, new_id: str, unanswered: list[str]) -> Iterator[Object]:
    role, text = message.text("role"), _text(message)
    recipient = message.text_or_none("recipient")
    if role == "tool":
        call_id = message.text_or_none("tool_call_id") or (unanswered[0] if unanswered else "")
        if call_id not in unanswered:
            raise message.wrong("role", "No message before it has a call with this id. Send the call, too.")
        unanswered.remove(call_id)
        yield {"type": "function_call_output", "call_id": call_id, "output": text}
    elif role == "assistant" and recipient not in _NOT_TOOLS:
        yield _call(new_id, str(recipient), text, unanswered)
    elif role == "assistant" and message.text_or_none("channel") == "analysis":
        yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}
    elif role in ("system", "developer", "user", "assistant"):
        if text:
            yield {"type": "message", "role": role, "content": text}
        for position, call in enumerate(message.objects("tool_calls")):
            function = call.object_or_none("function")
            if function is None:
                raise call.missing("function")
            id_, arguments = call.text_or_none("id"), json_text(function.value.get("arguments"))
            yield _call(id_ or f"{new_id}_{position}", function.named("name"), arguments, unanswered)
    else:
        raise message.wrong("role", "Use 'system', 'developer', 'user', 'assistant' or 'tool'.")


def _call(call_id: str, name: str, arguments: str, unanswered: list[str]) -> Object:
    unanswered.append(call_id)
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": name.removeprefix(_SPACE),
        "arguments": arguments,
    }


def _text_of(part: RequestObject) -> str:
    match part.text_or_none("type"):
        case "system_content":
            return ""
        case "developer_content":
            return part.text_or_none("instructions") or ""
    return part.text("text")


def _text(message: RequestObject) -> str:
    if isinstance(message.value.get("content"), list):
        return "".join(_text_of(part) for part in message.objects("content"))
    return message.text_or_none("content") or ""
