"""The items of a response that is still being answered, made of its wire events: each as far as it goes."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.apis.framing import event_type

_ITEMS = frozenset({b"response.output_item.added", b"response.output_item.done"})
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


class _Event(Struct):
    """What such an event has: of `item`, `part` and `delta` one."""

    output_index: int
    item: dict[str, Any] = {}
    part: dict[str, Any] | None = None
    delta: str = ""
    logprobs: list[Any] = []


_decode = msgspec.json.Decoder(_Event).decode


def output_so_far(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The items, of which those that are not done are in progress."""
    output: dict[int, dict[str, Any]] = {}
    texts: dict[tuple[int, str], list[str]] = {}
    for line in lines:
        type_ = event_type(line)
        if type_ in _ITEMS:
            event = _decode(line)
            output[event.output_index] = event.item
        elif (field := _FIELDS.get(type_)) is not None:
            event = _decode(line)
            if event.part is not None:
                output[event.output_index][field].append(event.part)
                continue
            texts.setdefault((event.output_index, field), []).append(event.delta)
            if event.logprobs:
                output[event.output_index][field][-1]["logprobs"] += event.logprobs
    for (index, field), pieces in texts.items():
        item = output[index]
        if item["status"] == "in_progress":
            _set_text(item, field, "".join(pieces))
    return [item for _, item in sorted(output.items())]


def _set_text(item: dict[str, Any], field: str, text: str) -> None:
    if field == "outputs":
        item[field] = [{"type": "logs", "logs": text}]
    elif isinstance(item[field], list):
        item[field][-1]["text"] = text
    else:
        item[field] = text
