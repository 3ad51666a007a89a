"""Makes a conversation short: the model sums it up, and the summary stands for it.

What was said to the model is kept word for word. What it thought, said and
called, and what its tools answered, becomes a summary that the client carries
as a sealed item, and that the model is shown when the item comes back.
"""

import msgspec
from msgspec import Raw, Struct

from antiphon.apis.responses.accept import Context, prompting, read_conversation
from antiphon.apis.responses.conversation import summed_up
from antiphon.apis.responses.kinds import item_id
from antiphon.apis.responses.output.thoughts import Seal
from antiphon.apis.responses.resource import Compaction
from antiphon.apis.responses.schema import CompactRequest
from antiphon.apis.responses.usage import Tally
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Ending, Sampling, ToolChoice, Turn

SUMMARY_REQUEST = """\
Our conversation is getting long, and will be continued without what was said so far. Write down what is \
needed to go on: what was asked for, what has been done and found out, with the names, paths, numbers and \
decisions that matter, and what is left to do. Write nothing else."""
"""What the model is asked, behind the conversation."""


class Compacting(Struct, frozen=True):
    """A request to make a conversation short: the turn that sums it up, and the items that are kept."""

    id: str
    turn: Turn
    kept: tuple[bytes, ...]


def accept_compact(request: CompactRequest, context: Context) -> Compacting:
    """What the request asks for. Raises RequestError."""
    turn = summarising(prompting(request, context))  # which finds what is wrong with the items
    history, items, _ = read_conversation(request, context)
    kept = tuple(
        msgspec.json.encode(item.value)
        for item in (*history, *items)
        if item.value["type"] == "message" and item.value["role"] != Role.ASSISTANT.value
    )
    return Compacting(context.id, turn, kept)


def summarising(turn: Turn) -> Turn:
    """The turn that has the model sum up the conversation of this one."""
    asked = Message(Role.USER, (TextPart(SUMMARY_REQUEST),))
    return msgspec.structs.replace(
        turn,
        items=(*turn.items, asked),
        tools=(),
        tool_choice=ToolChoice(),
        format=None,
        sampling=Sampling(),
        stop=(),
        ending=Ending.ANSWER,
    )


def after(turn: Turn, summary: str) -> Turn:
    """The turn of a conversation that was summed up."""
    return msgspec.structs.replace(turn, items=tuple(summed_up(turn.items, summary)))


def compaction(summary: str, seal: Seal) -> dict[str, str]:
    """The fields of a compaction item, for `Responder.add`."""
    return {"encrypted_content": seal(summary)}


def compacted(compacting: Compacting, summary: str, seal: Seal, created_at: int, tally: Tally) -> bytes:
    """The body of the answer: what to send in the place of the conversation."""
    assert tally.usage is not None
    place = item_id("compaction", compacting.id, f"output.{len(compacting.kept)}")
    item = msgspec.json.encode({"type": "compaction", "id": place, **compaction(summary, seal)})
    output = [Raw(payload) for payload in (*compacting.kept, item)]
    return msgspec.json.encode(Compaction(compacting.id, created_at, output, tally.usage))
