"""The messages of a request → the items of a conversation.

Calls without ids get those of their places, and a result belongs to the oldest call without one: of the
function that it names, if it names one.
"""

from collections.abc import Iterator, Sequence

import msgspec

from antiphon.apis.ollama.schema import RequestMessage
from antiphon.core.items import (
    Attachment,
    FunctionCall,
    FunctionOutput,
    Item,
    MediaKind,
    Message,
    Part,
    Reasoning,
    Role,
    TextPart,
)


class History:
    """Reads messages, which are in the parameter `messages`; `items` are the result."""

    def __init__(self, messages: Sequence[RequestMessage]) -> None:
        self.items: list[Item] = []
        self._open: dict[str, str] = {}  # calls without a result: id → name, oldest first
        for index, message in enumerate(messages):
            self._read(message, f"messages[{index}]")

    def _read(self, message: RequestMessage, where: str) -> None:
        parts = (*parts_of(message.content, message.images, where),)
        if message.role == "tool":
            call_id = message.tool_call_id or self._unanswered(message.tool_name) or where
            self._open.pop(call_id, None)
            self.items.append(FunctionOutput(call_id, parts, message.tool_name))
        elif message.role == "assistant":
            self._read_answer(message, parts, where)
        else:
            self.items.append(Message(Role(message.role), parts))

    def _read_answer(self, message: RequestMessage, parts: tuple[Part, ...], where: str) -> None:
        """Reasoning, then text, then calls, as the model wrote them."""
        if message.thinking:
            self.items.append(Reasoning(message.thinking))
        if parts or not (message.tool_calls or message.thinking):
            self.items.append(Message(Role.ASSISTANT, parts))
        for index, call in enumerate(message.tool_calls or ()):
            call_id, name = call.id or f"{where}.tool_calls[{index}]", call.function.name
            self._open[call_id] = name
            arguments = msgspec.json.encode(call.function.arguments or {}).decode()
            self.items.append(FunctionCall(call_id, name, arguments))

    def _unanswered(self, name: str | None) -> str | None:
        """The first call without a result, of this name if it is given."""
        named = (call_id for call_id, called in self._open.items() if called == name)
        return next(named, None) or next(iter(self._open), None)


def parts_of(text: str | None, images: Sequence[str] | None, where: str = "") -> Iterator[Part]:
    """The parts of a message at `where`: images first, as Ollama puts them before the text."""
    for index, image in enumerate(images or ()):
        param = f"{where}.images[{index}]".lstrip(".")
        yield Attachment(MediaKind.IMAGE, param, data=image)
    if text:
        yield TextPart(text)
