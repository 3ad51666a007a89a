"""The items of a response that is in progress, built from its wire events."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from antiphon.apis.framing import event_type

_ADDED, _DONE = b"response.output_item.added", b"response.output_item.done"
_FIELDS = {
    b"response.content_part.added": "content",
    b"response.output_text.delta": "content",
    b"response.reasoning_text.delta": "content",
    b"response.reasoning.delta": "content",
    b"response.reasoning_summary_part.added": "summary",
    b"response.reasoning_summary_text.delta": "summary",
    b"response.function_call_arguments.delta": "arguments",
    b"response.custom_tool_call_input.delta": "input",
    b"response.mcp_call_arguments.delta": "arguments",
    b"response.code_interpreter_call_code.delta": "code",
    b"response.code_interpreter_call_logs.delta": "outputs",
}
"""Events that add to an item → the field that they add to: a text, or a list of parts that have one."""


class _ItemEvent(Struct):
    """Fields of such events: one of `item`, `part` and `delta` is set. Large fields are not decoded."""

    output_index: int
    item: Raw = Raw(b"{}")
    part: dict[str, Any] | None = None
    delta: str = ""
    logprobs: list[Raw] = []


_decode = msgspec.json.Decoder(_ItemEvent).decode


def output_so_far(lines: Iterable[bytes]) -> list[Raw | dict[str, Any]]:
    """The items: complete ones in encoded form; the others are in progress."""
    done: dict[int, Raw] = {}
    items: dict[int, dict[str, Any]] = {}
    texts: dict[tuple[int, str], list[str]] = {}
    for line in lines:
        type_ = event_type(line)
        field = _FIELDS.get(type_, "")
        if not field and type_ not in (_ADDED, _DONE):
            continue
        event = _decode(line)
        index = event.output_index
        if type_ == _ADDED:
            items[index] = msgspec.json.decode(event.item)
        elif type_ == _DONE:
            done[index] = event.item
        elif event.part is not None:
            items[index][field].append(event.part)
        else:
            texts.setdefault((index, field), []).append(event.delta)
            if event.logprobs:
                items[index][field][-1]["logprobs"] += event.logprobs
    for (index, field), pieces in texts.items():
        if index not in done:
            _set_text(items[index], field, "".join(pieces))
    return [item for _, item in sorted((items | done).items())]


def _set_text(item: dict[str, Any], field: str, text: str) -> None:
    if field == "outputs":
        item[field] = [{"type": "logs", "logs": text}]
    elif isinstance(item[field], list):
        item[field][-1]["text"] = text
    else:
        item[field] = text
