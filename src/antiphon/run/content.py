"""Answers without content, for clients that read nothing else: `force_nonempty_content`, as vLLM names it.

Reasoning is shown as it comes, so an answer that turns out to have nothing else gets it as its content at the
end, too.
"""

from collections.abc import Sequence
from itertools import takewhile

from antiphon.core.accumulator import PARAGRAPH
from antiphon.core.events import Event, TextDelta, TextEnded, TextStarted
from antiphon.core.items import Item, Message, Reasoning
from antiphon.core.turn import Turn

VARIABLE = "force_nonempty_content"
"""The variable of the chat template that asks for it."""


def asks_for_content(turn: Turn) -> bool:
    """Whether an answer of reasoning alone gets content."""
    return turn.variables.get(VARIABLE) is True


def content_of(items: Sequence[Item]) -> list[Event]:
    """The content of an answer with these items: nothing if it does not end with reasoning alone."""
    thoughts = [*takewhile(lambda item: isinstance(item, Reasoning), reversed(items))]
    before = items[: len(items) - len(thoughts)]
    if not thoughts or (before and isinstance(before[-1], Message)):
        return []
    text = PARAGRAPH.join(item.text for item in reversed(thoughts) if isinstance(item, Reasoning))
    return [TextStarted(), TextDelta(text, ""), TextEnded()]
