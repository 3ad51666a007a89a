"""Tools that come in the input: they count from their place on, and are derived from the items alone.

`additional_tools` adds tools, `tool_search_output` has those that a search of the client's has found. Those
at the very beginning, and those before a compaction, are listed in the prompt, as tools of the request are.
Others are described where they come, so the prompt before them stays as it was, and so does an engine's cache
of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.apis.announced_tools import describe
from antiphon.apis.request_object import RequestObject, json_text, object_at
from antiphon.core.errors import RequestError
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Role, TextPart
from antiphon.core.turn import Function

ADDED = "additional_tools"
SEARCH = "tool_search_call"
FOUND = "tool_search_output"
_MARKS = (ADDED.encode(), FOUND.encode())
SEARCH_FUNCTION = "tool_search"
"""The model's name of a search that the client runs."""

_FOUND = "Found these functions. Call them like your others:"
_FOUND_NOTHING = "Found no functions."


class AddedTools(Struct, frozen=True):
    """The tools of one item. `announced`: the conversation describes them at the place of the item."""

    item: str
    tools: tuple[RequestObject, ...]
    announced: bool


def added_tools(items: Sequence[RequestObject]) -> list[AddedTools]:
    """The tools of all items of a conversation, in order. Raises RequestError."""
    compacted = max((i for i, item in enumerate(items) if item.value["type"] == "compaction"), default=-1)
    added, leading = [], True
    for index, item in enumerate(items):
        if item.value["type"] in (ADDED, FOUND):
            announced = not leading and index > compacted
            added.append(AddedTools(item.value["id"], _tools_of(item), announced))
        elif item.value.get("role") not in ("system", "developer"):
            leading = False
    return added


def _tools_of(item: RequestObject) -> tuple[RequestObject, ...]:
    """The tools of an item, whose places are unique in the conversation."""
    where = item.where if item.where.endswith("]") else item.value["id"]
    tools = tuple(
        object_at(tool, f"{where}.tools[{index}]") for index, tool in enumerate(item.value.get("tools") or ())
    )
    for tool in tools:
        if tool.value.get("type") == "mcp":  # its secrets would be stored with the conversation
            message = "A conversation cannot add remote servers. Name them in 'tools'."
            raise RequestError(message, param=tool.place("type"))
    return tools


def raw_added_tools(history: Iterable[bytes], input_: str | list[Any] | None) -> dict[str, Any]:
    """The tools in the items of a conversation as they are, by their places. Errors are found later."""
    decoded = [msgspec.json.decode(payload) for payload in history if any(mark in payload for mark in _MARKS)]
    items = [(item["id"], item) for item in decoded]
    if isinstance(input_, list):
        items += [(f"input[{index}]", item) for index, item in enumerate(input_) if isinstance(item, dict)]
    lists = [(where, item.get("tools")) for where, item in items if item.get("type") in (ADDED, FOUND)]
    return {
        f"{where}.tools[{index}]": tool
        for where, tools in lists
        for index, tool in enumerate(tools if isinstance(tools, list) else ())
    }


def read_added(item: RequestObject, announced: Sequence[Function]) -> Iterator[Item]:
    """What the model is shown of added tools: those that are not listed in its prompt."""
    if announced:
        yield Message(Role.DEVELOPER, (TextPart(describe(announced)),))


def read_search(item: RequestObject) -> Iterator[Item]:
    """A search of the client's. Those of other servers have no id: only what they found is shown."""
    call_id = item.text_or_none("call_id")
    if call_id:
        yield FunctionCall(call_id, SEARCH_FUNCTION, json_text(item.value.get("arguments")))


def read_found(item: RequestObject, announced: Sequence[Function]) -> Iterator[Item]:
    """What a search has found."""
    call_id = item.text_or_none("call_id")
    text = describe(announced, _FOUND) if announced else _FOUND_NOTHING
    if not announced and item.value.get("tools"):
        text = "The functions that were found are listed with your others."
    if call_id:
        yield FunctionOutput(call_id, (TextPart(text),))
    elif announced:
        yield Message(Role.DEVELOPER, (TextPart(text),))
