"""Tools that come in the input: they count from their place on, see `core/positions.py`.

`additional_tools` adds tools, `tool_search_output` has those that a search has found: the client's, or one of
the server's. Those at the very beginning, and those before a compaction, are listed in the prompt, as tools
of the request are. Others are described where they come.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.apis.request_object import RequestObject, object_at
from antiphon.core.errors import RequestError
from antiphon.core.items import FunctionCall, FunctionOutput, Item, TextPart
from antiphon.core.positions import FOUND_NOTHING, place_message

ADDED = "additional_tools"
SEARCH = "tool_search_call"
FOUND = "tool_search_output"
SEARCH_FUNCTION = "tool_search"
"""The model's name of a search for tools."""
EARLY_CALL = "call"
"""The argument of a search with the call that counts as one."""

_REMOTE = "mcp"
_SECRETS = ("server_url", "connector_id", "authorization", "headers")


class AddedTools(Struct, frozen=True):
    """The tools of the item at an `index`. `leading`: the prompt lists them; `found`: by a search."""

    index: int
    tools: tuple[RequestObject, ...]
    leading: bool
    found: bool


def added_tools(items: Sequence[RequestObject]) -> list[AddedTools]:
    """The tools of all items of a conversation, in order. Raises RequestError."""
    compacted = last_compaction(items)
    added, leading = [], True
    for index, item in enumerate(items):
        if item.value["type"] in (ADDED, FOUND):
            found = item.value["type"] == FOUND
            added.append(AddedTools(index, _tools_of(item), leading or index <= compacted, found))
        elif index == compacted:
            leading = True  # the prompt begins anew
        elif item.value.get("role") not in ("system", "developer") and item.value["type"] not in _SETTING:
            leading = False
    return added


_SETTING = ("configuration_update",)


def last_compaction(items: Sequence[RequestObject]) -> int:
    """The index of the last compaction, -1 if there is none: the prompt begins anew with it."""
    return max((index for index, item in enumerate(items) if item.value["type"] == "compaction"), default=-1)


def carried_tools(items: Iterable[RequestObject]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The items, as types and fields, that carry the tools of a conversation over a compaction of it."""
    tools: dict[str, dict[bytes, Any]] = {ADDED: {}, FOUND: {}}
    for item in items:
        for tool in item.value.get("tools") or () if item.value["type"] in tools else ():
            tools[item.value["type"]][msgspec.json.encode(tool, order="sorted")] = tool
    if added := [*tools[ADDED].values()]:
        yield ADDED, {"role": "developer", "tools": added}
    if found := [*tools[FOUND].values()]:
        yield FOUND, {"call_id": None, "execution": "server", "status": "completed", "tools": found}


def _tools_of(item: RequestObject) -> tuple[RequestObject, ...]:
    """The tools of an item, whose places are unique in the conversation."""
    where = item.where if item.where.endswith("]") else item.value["id"]
    tools = tuple(
        object_at(tool, f"{where}.tools[{index}]") for index, tool in enumerate(item.value.get("tools") or ())
    )
    for tool in tools:
        secret = next((name for name in _SECRETS if tool.value.get(name) is not None), None)
        if (
            tool.value.get("type") == _REMOTE and secret is not None
        ):  # it would be stored with the conversation
            message = (
                "A conversation cannot add remote servers, but for the operator's. Name them in 'tools'."
            )
            raise RequestError(message, param=tool.place("type"))
    return tools


def raw_added_tools(history: Iterable[RequestObject], input_: str | list[Any] | None) -> dict[str, Any]:
    """The tools in the items of a conversation as they are, by their places. Errors are found later.

    Those of remote servers that were found are left out: they are tools of the request.
    """
    kept = [item.value for item in history if item.value["type"] in (ADDED, FOUND)]
    items: list[tuple[str, Mapping[str, Any]]] = [(item["id"], item) for item in kept]
    if isinstance(input_, list):
        items += [(f"input[{index}]", item) for index, item in enumerate(input_) if isinstance(item, dict)]
    bringing = [(where, item) for where, item in items if item.get("type") in (ADDED, FOUND)]
    lists = [(where, item["type"], item.get("tools")) for where, item in bringing]
    return {
        f"{where}.tools[{index}]": tool
        for where, type_, tools in lists
        for index, tool in enumerate(tools if isinstance(tools, list) else ())
        if not (type_ == FOUND and is_remote(tool))
    }


def is_remote(tool: Any) -> bool:
    """Whether it is a remote server, or tools of one."""
    return isinstance(tool, dict) and tool.get("type") == _REMOTE


def search_ids(items: Sequence[RequestObject]) -> Mapping[int, str]:
    """The ids of the calls of searches, by the index of a call, or of what one has found.

    Those that a server has run have none: their results follow in the order of the calls.
    """
    ids: dict[int, str] = {}
    waiting: deque[str] = deque()  # searches of a server without their result
    for index, item in enumerate(items):
        type_ = item.value["type"]
        if type_ not in (SEARCH, FOUND):
            continue
        call_id = item.text_or_none("call_id")
        if type_ == SEARCH and not call_id:
            call_id = item.text("id")
            waiting.append(call_id)
        elif type_ == FOUND and not call_id and waiting:
            call_id = waiting.popleft()
        if call_id:
            ids[index] = call_id
    return ids


def read_search(item: RequestObject, call_id: str) -> Iterator[Item]:
    """A search; or the call that counted as one, as the model wrote it."""
    arguments = item.value.get("arguments")
    match arguments.get(EARLY_CALL) if isinstance(arguments, dict) else None:
        case {"name": str(name), "arguments": str(text)} if name:
            yield FunctionCall(call_id, name, text)
        case _:
            yield FunctionCall(call_id, SEARCH_FUNCTION, as_written(arguments))


def as_written(arguments: Any) -> str:
    """Arguments as models write JSON: with spaces."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def read_found(call_id: str | None, text: str) -> Iterator[Item]:
    """What a search has found; without its call, what there is from now on."""
    if call_id is not None:
        yield FunctionOutput(call_id, (TextPart(text or FOUND_NOTHING),))
    elif text:
        yield place_message(text)
