"""Compacts a conversation: the model summarises it, and the summary replaces it.

Messages to the model are kept word for word, and so are the tools that came in the conversation. Its
reasoning, messages and calls, and the results of its tools, become a summary that the client keeps as a
sealed item, and that the model is shown when the item is sent back.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

from antiphon.apis.responses.accept import ResponseContext, conversation_turn, parse_conversation
from antiphon.apis.responses.added_tools import carried_tools
from antiphon.apis.responses.kinds import item_id
from antiphon.apis.responses.output.reasoning import Seal
from antiphon.apis.responses.resource import Compaction, usage_of
from antiphon.apis.responses.schema import CompactRequest
from antiphon.apis.summaries import summary_turn
from antiphon.core.events import Usage
from antiphon.core.items import Role
from antiphon.core.turn import Turn


class AcceptedCompaction(Struct, frozen=True):
    """A request for a compaction: the turn that summarises the conversation, and the items that are kept."""

    id: str
    turn: Turn
    kept: tuple[bytes, ...]


def accept_compact(request: CompactRequest, context: ResponseContext) -> AcceptedCompaction:
    """The request as a turn. Raises RequestError."""
    conversation = parse_conversation(request, context)
    turn = summary_turn(conversation_turn(request, context, conversation))  # also checks the items
    given = [*conversation.history, *conversation.items]
    kept = [
        item.value
        for item in given
        if item.value["type"] == "message" and item.value["role"] != Role.ASSISTANT.value
    ]
    for type_, fields in carried_tools(given):
        kept.append({"type": type_, "id": item_id(type_, context.id, f"output.{len(kept)}"), **fields})
    return AcceptedCompaction(context.id, turn, tuple(map(msgspec.json.encode, kept)))


def compaction_fields(summary: str, seal: Seal) -> Mapping[str, str]:
    """The fields of a compaction item, for `ResponseProjection.compacted`."""
    return {"encrypted_content": seal(summary)}


def compaction_body(
    accepted: AcceptedCompaction, fields: Mapping[str, str], created_at: int, prompt_tokens: int, usage: Usage
) -> bytes:
    """The body of the answer: the items that replace the conversation."""
    item = {
        "type": "compaction",
        "id": item_id("compaction", accepted.id, f"output.{len(accepted.kept)}"),
        **fields,
    }
    output = [Raw(payload) for payload in (*accepted.kept, msgspec.json.encode(item))]
    return msgspec.json.encode(Compaction(accepted.id, created_at, output, usage_of(prompt_tokens, usage)))
