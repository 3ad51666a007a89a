"""The wire types of Conversations.

Names and meanings are those of OpenAI's OpenAPI document (CreateConversationBody,
UpdateConversationBody, ConversationResource, DeletedConversationResource). Items
are those of the Responses API, and so are pages of them.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from antiphon.apis.request import Metadata

MAX_NEW_ITEMS = 20
"""The most items in one request, as in OpenAI's API."""

NewItems = Annotated[list[Any], Meta(max_length=MAX_NEW_ITEMS)]


class CreateConversation(Struct):
    """POST /v1/conversations."""

    items: NewItems | None = None
    metadata: Metadata | None = None


class UpdateConversation(Struct):
    """POST /v1/conversations/{id}. The metadata before is replaced."""

    metadata: Metadata | None


class CreateItems(Struct):
    """POST /v1/conversations/{id}/items."""

    items: NewItems


class Conversation(Struct, tag_field="object", tag="conversation"):
    """A conversation. Its items are listed on a path of their own."""

    id: str
    created_at: int
    metadata: dict[str, str] = {}


class DeletedConversation(Struct, tag_field="object", tag="conversation.deleted"):
    """The answer after a conversation was deleted."""

    id: str
    deleted: bool = True
