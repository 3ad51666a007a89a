"""Conversations without I/O: requests that are read, and bodies that are answered."""

import json
from typing import Any

import msgspec
import pytest
from openai.types.conversations import Conversation as SdkConversation
from openai.types.conversations import ConversationDeletedResource, ConversationItem, ConversationItemList
from pydantic import TypeAdapter

from antiphon.apis import wire
from antiphon.apis.conversations.accept import accept_items
from antiphon.apis.conversations.schema import (
    MAX_NEW_ITEMS,
    Conversation,
    CreateConversation,
    CreateItems,
    DeletedConversation,
    UpdateConversation,
)
from antiphon.apis.lists import encode_stored
from antiphon.apis.responses.resource import DeletedResponse, TokenCounts
from antiphon.apis.responses.stored import StoredItem
from antiphon.core.errors import RequestError
from antiphon.toolkits.registry import built_in
from tests.apis.responses.support import answering_to, streamed, unseal
from tests.apis.responses.test_input import FROM_CLIENTS, OUTPUTS
from tests.apis.responses.test_stream import CALL, CUSTOM, STOP, SUMMARISED, TEXT, THOUGHT

SDK_ITEM: TypeAdapter[ConversationItem] = TypeAdapter(ConversationItem)
HELLO = {"role": "user", "content": "Hello"}


def kept(items: list[Any], owner: str = "conv_1") -> tuple[StoredItem, ...]:
    return accept_items(items, owner, {}, unseal, built_in().presenters)


def body(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def read(type_: type[Any], **fields: Any) -> Any:
    return wire.decode(json.dumps(fields).encode(), type_)


@pytest.mark.parametrize("type_", [*FROM_CLIENTS, *OUTPUTS])
def test_items_of_every_type_can_be_put_in_and_listed(type_: str) -> None:
    [item] = kept([FROM_CLIENTS.get(type_) or OUTPUTS[type_]])

    payload = json.loads(item.payload)
    assert (item.type, item.id) == (payload["type"], payload["id"])
    if type_ not in ("program", "program_output"):  # not yet known to the SDK
        assert SDK_ITEM.validate_python(payload).type == type_  # type: ignore[union-attr]


@pytest.mark.parametrize("fields", [{}, SUMMARISED, CUSTOM])
def test_what_a_response_adds_can_be_listed(fields: dict[str, Any]) -> None:
    answering = answering_to(**fields)
    streamed(answering, [*THOUGHT, *TEXT, *CALL, STOP])

    entries = [(item.id, item.payload) for item in answering.items]
    listed = json.loads(encode_stored(entries, has_more=True))

    assert [item.type for item in ConversationItemList.model_validate(listed).data] == [
        item.type for item in answering.items
    ]
    assert (listed["first_id"], listed["last_id"]) == (answering.items[0].id, answering.items[-1].id)
    assert listed["object"] == "list"
    assert listed["has_more"] is True


def test_a_page_may_be_empty() -> None:
    assert json.loads(encode_stored([], has_more=False)) == {
        "object": "list",
        "data": [],
        "first_id": "",
        "last_id": "",
        "has_more": False,
    }


def test_ids_hang_on_what_the_items_belong_to() -> None:
    first, again, other = kept([HELLO]), kept([HELLO]), kept([HELLO], "conv_2")

    assert first == again
    assert first[0].id != other[0].id


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "telepathy"}, "items[1].type"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "items[1].content[0].image_url"),
        ({"role": "nobody", "content": "a"}, "items[1].role"),
        ({"type": "compaction", "encrypted_content": "x"}, "items[1].encrypted_content"),
        ({"type": "item_reference", "id": "x"}, "items[1].id"),
        (3, "items[1]"),
    ],
)
def test_items_that_no_model_could_be_shown_are_refused(item: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        kept([HELLO, item])

    assert caught.value.param == param


def test_nothing_need_be_put_in() -> None:
    assert read(CreateConversation).items is None
    assert accept_items(None, "conv_1", {}, unseal, built_in().presenters) == ()


def test_metadata_is_bounded() -> None:
    assert read(UpdateConversation, metadata={"a": "b"}).metadata == {"a": "b"}
    assert read(UpdateConversation, metadata=None).metadata is None
    with pytest.raises(RequestError) as caught:
        read(CreateConversation, metadata={str(key): "" for key in range(17)})
    assert caught.value.param == "metadata"


def test_items_are_bounded() -> None:
    with pytest.raises(RequestError) as caught:
        read(CreateItems, items=[HELLO] * (MAX_NEW_ITEMS + 1))
    assert caught.value.param == "items"


def test_bodies() -> None:
    conversation = body(Conversation("conv_1", 5, {"a": "b"}))
    deleted = body(DeletedConversation("conv_1"))

    assert conversation == {"object": "conversation", "id": "conv_1", "created_at": 5, "metadata": {"a": "b"}}
    assert deleted == {"object": "conversation.deleted", "id": "conv_1", "deleted": True}
    assert SdkConversation.model_validate(conversation, strict=True).id == "conv_1"
    assert ConversationDeletedResource.model_validate(deleted, strict=True).deleted
    assert body(DeletedResponse("resp_1")) == {"id": "resp_1", "object": "response", "deleted": True}
    assert body(TokenCounts(5)) == {"object": "response.input_tokens", "input_tokens": 5}
