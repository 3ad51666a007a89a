"""The input of a request → items as they are stored.

Fields that the specifications require of listed items, and that clients leave out, are filled in: ids,
statuses, content as parts. All else stays unchanged, so that an item that is never shown to a model here
stays as the client sent it.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.apis.media import may_have_media, references_in
from antiphon.apis.request_object import Object, RequestObject, json_text, object_at
from antiphon.apis.responses.kinds import KINDS, REFERENCE, item_id, kind_of
from antiphon.apis.responses.stored import StoredItem
from antiphon.core.errors import NotFoundError
from antiphon.core.hosts import ListedTool, Listing

MAX_ID = 256
"""The most characters in an item id of a client: databases keep ids in an index."""

TRIGGER = "compaction_trigger"
"""Requests a compaction. It is not part of the conversation."""

_NULLS_DROPPED = frozenset(
    {
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "compaction",
    }
)
"""Types without fields that are required and may be null."""


def parse_input(input_: str | list[Any] | None, own_types: Container[str] = ()) -> list[RequestObject]:
    """The items of an input; see `parse_items`."""
    if isinstance(input_, str):
        return [RequestObject({"type": "message", "role": "user", "content": input_}, "input")]
    return parse_items(input_ or (), "input", own_types)


def parse_items(items: Sequence[Any], where: str, own_types: Container[str] = ()) -> list[RequestObject]:
    """Items, each of a type in a specification, or one of the server's own. Raises RequestError."""
    return [_typed(object_at(item, f"{where}[{index}]"), own_types) for index, item in enumerate(items)]


def _typed(item: RequestObject, own_types: Container[str]) -> RequestObject:
    """The item with its type."""
    implied = item.value.keys() & {"role", "id"}
    type_ = item.text_or_none("type") or (_implied_type(item.value) if implied else item.text("type"))
    if type_ not in KINDS and type_ not in own_types and type_ != REFERENCE:
        raise item.wrong("type", f"There are no items of type '{type_}'. Use a type of the Responses API.")
    return RequestObject({**item.value, "type": type_}, item.where)


def _implied_type(item: Mapping[str, Any]) -> str:
    """The type of an item without one: messages and references may leave it out."""
    return "message" if "role" in item else REFERENCE


def references(items: str | list[Any] | None) -> list[str]:
    """The ids of the stored items that these items refer to. Errors in them are found later."""
    named = [
        item.get("id") for item in _objects(items) if (item.get("type") or _implied_type(item)) == REFERENCE
    ]
    return [id_ for id_ in named if isinstance(id_, str) and "\0" not in id_]


def resolved(items: list[RequestObject], referenced_items: Mapping[str, bytes]) -> Iterator[RequestObject]:
    """The items, those that are referred to in the place of their references. Raises NotFoundError."""
    for item in items:
        if item.value["type"] != REFERENCE:
            yield item
            continue
        payload = referenced_items.get(item.text("id"))
        if payload is None:
            message = f"Item with id '{item.text('id')}' not found. Send the item itself."
            raise NotFoundError(message, param=item.place("id"))
        yield RequestObject(msgspec.json.decode(payload), item.where)


def known_listings(history: Iterable[RequestObject], given: str | list[Any] | None) -> Mapping[str, Listing]:
    """The listings of remote servers in a conversation, by label: these servers are not asked again."""
    items = [*(item.value for item in history), *_objects(given)]
    listings = [listing for item in items if (listing := listing_of(item, known=True)) is not None]
    return {listing.label: listing for listing in listings if listing.error is None}


def last_container(history: Iterable[RequestObject], given: str | list[Any] | None) -> str | None:
    """Where programs ran last in a conversation: the container of their items."""
    items = [*(item.value for item in history), *_objects(given)]
    calls = [item for item in items if item.get("type") == "code_interpreter_call"]
    last = calls[-1].get("container_id") if calls else None
    return last if isinstance(last, str) and len(last) <= MAX_ID else None


def _objects(items: str | list[Any] | None) -> list[Any]:
    """The objects among the items; none in a text."""
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def listing_of(item: Mapping[str, Any], *, known: bool) -> Listing | None:
    """The item as a listing, if it is a valid one."""
    if item.get("type") != "mcp_list_tools":
        return None
    try:
        listed = msgspec.convert(item, _ListedItem)
    except msgspec.ValidationError:
        return None
    return Listing(listed.server_label, tuple(listed.tools), listed.error, known)


class _ListedItem(Struct):
    server_label: str
    tools: list[ListedTool]
    error: str | None = None


def complete(items: list[RequestObject], owner: str) -> list[RequestObject]:
    """The items with all fields of stored items; `owner` is the id of the object that they belong to."""
    return [
        RequestObject(_complete(item, item_id(item.value["type"], owner, f"input.{index}")), item.where)
        for index, item in enumerate(items)
        if item.value["type"] != TRIGGER
    ]


def to_stored(items: list[RequestObject]) -> tuple[StoredItem, ...]:
    """Complete items in the form of the store."""
    return tuple(_stored(item.value, msgspec.json.encode(item.value)) for item in items)


def _stored(item: Mapping[str, Any], payload: bytes) -> StoredItem:
    blobs = references_in(item) if may_have_media(payload) else ()
    return StoredItem(item["id"], item["type"], payload, blobs=tuple(blob.digest for blob in blobs))


def _complete(item: RequestObject, new_id: str) -> Object:
    type_ = item.value["type"]
    nulls = type_ not in _NULLS_DROPPED
    there = {name: value for name, value in item.value.items() if nulls or value is not None}
    id_ = _id(item) or new_id
    whole = {"type": type_, "id": id_} | _defaults(type_) | there | {"id": id_}
    if kind_of(type_).has_status and whole.get("status") is None:
        whole["status"] = "completed"
    match type_:
        case "message":
            whole["content"] = _content(item)
        case "function_call":
            whole["arguments"] = json_text(item.value.get("arguments"))
    return whole


def _id(item: RequestObject) -> str | None:
    """The id that a client gave to an item."""
    id_ = item.text_or_none("id")
    if id_ and (len(id_) > MAX_ID or "\0" in id_):
        raise item.wrong("id", f"Use at most {MAX_ID} characters, none of them U+0000.")
    return id_


def _defaults(type_: str) -> Object:
    match type_:
        case "reasoning":
            return {"summary": []}
        case "function_call_output" | "custom_tool_call_output":
            return {"output": ""}
    return {}


def _content(message: RequestObject) -> list[Object]:
    """The content of a message as parts, with all required fields."""
    content = message.value.get("content")
    said_by_model = message.value.get("role") == "assistant"
    if isinstance(content, str):
        content = [{"type": "output_text" if said_by_model else "input_text", "text": content}]
        message = RequestObject({"content": content}, message.where)
    return [_part(part.value) for part in message.objects("content")]


def _part(part: Mapping[str, Any]) -> Object:
    if part.get("type") == "output_text":
        return {"annotations": [], "logprobs": []} | {k: v for k, v in part.items() if v is not None}
    if part.get("type") == "input_image":
        return {"detail": "auto", "image_url": None} | {k: v for k, v in part.items() if v is not None}
    return dict(part)
