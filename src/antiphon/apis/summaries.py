"""Conversations that a summary replaces, the same for every API.

The model writes the summary, as the answer to a last message that asks for it. The client keeps it sealed,
and sends it back. In Responses the messages to the model stay, word for word; in Messages only those that
still need an answer.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.core.call_results import is_answer
from antiphon.core.items import FunctionOutput, Item, Message, Role, TextPart
from antiphon.core.positions import PlaceMessage, begun_anew
from antiphon.core.turn import PromptEnding, Sampling, ToolChoice, Turn

SUMMARY_REQUEST = """\
Our conversation is getting long, and will be continued without what was said so far. Write down what is \
needed to go on: what was asked for, what has been done and found out, with the names, paths, numbers and \
decisions that matter, and what is left to do. Write nothing else."""
"""The last message of the turn that makes the summary."""
SUMMARY_INTRODUCTION = "This is a summary of our conversation so far:\n\n"
"""The text before the summary of a compaction."""


class SummaryMessage(Message, frozen=True):
    """The summary that replaces the conversation before a compaction."""


def summary_turn(turn: Turn, request: str = SUMMARY_REQUEST) -> Turn:
    """The turn that makes the model summarise the conversation of this one."""
    return replace(
        turn,
        items=(*turn.items, Message(Role.USER, (TextPart(request),))),
        tools=(),
        tool_choice=ToolChoice(),
        format=None,
        sampling=Sampling(lora=turn.sampling.lora),  # the model that summarises is the one that answers
        stop=(),
        ending=PromptEnding.ANSWER,
    )


def turn_after(turn: Turn, summary: str) -> Turn:
    """The turn of a conversation that was summarised."""
    return begun_anew(replace(turn, items=tuple(summarized(turn.items, summary))))


def summarized(items: Sequence[Item], summary: str) -> list[Item]:
    """A conversation in which a summary replaces all but the messages to the model.

    It has the place of the last item that it replaces: the following items may still need an answer.
    """
    place = _place(items)
    return [*filter(_is_kept_verbatim, items[:place]), _message(summary), *items[place:]]


def replaced(items: Sequence[Item], summary: str) -> list[Item]:
    """A conversation that a summary replaces, but for instructions, and messages that still need an answer.

    What counted from a place on is left out anywhere: the new prompt says it at its head.
    """
    said = [item for item in items if not isinstance(item, PlaceMessage)]
    place = next((index for index in range(len(said), 0, -1) if _is_answered(said[index - 1])), 0)
    instructions = [item for item in said[:place] if isinstance(item, Message) and item.role in _INSTRUCTIONS]
    return [*instructions, _message(summary), *said[place:]]


_INSTRUCTIONS = frozenset({Role.SYSTEM, Role.DEVELOPER})


def _is_answered(item: Item) -> bool:
    """Whether it is an answer, or something that one has followed already."""
    return is_answer(item) or isinstance(item, FunctionOutput | SummaryMessage)


def _message(summary: str) -> SummaryMessage:
    return SummaryMessage(Role.USER, (TextPart(SUMMARY_INTRODUCTION + summary),))


def _place(items: Sequence[Item]) -> int:
    """The place of a summary: after the last item that it replaces."""
    stays = [*map(_is_kept_verbatim, items)]
    return len(items) if all(stays) else len(items) - stays[::-1].index(False)


def _is_kept_verbatim(item: Item) -> bool:
    """Whether a compaction keeps it word for word.

    An earlier summary becomes part of the new one. What counted from a place on is said by the new prompt.
    """
    return (
        isinstance(item, Message)
        and item.role is not Role.ASSISTANT
        and not isinstance(item, SummaryMessage | PlaceMessage)
    )
