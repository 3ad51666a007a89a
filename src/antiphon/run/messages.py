"""Conversations as messages, for servers that take no prompts."""

from collections.abc import Sequence

from antiphon.core.items import Item
from antiphon.engines.engine import Prompt
from antiphon.render.media import PLAIN, Marks, media_in
from antiphon.render.messages import TemplateMessage, gather, move_media_of_results

NO_PROMPT = Prompt("", ())
"""The prompts of a model behind such a server: they are unknown."""


def messages_of(items: Sequence[Item]) -> tuple[Prompt, tuple[TemplateMessage, ...]]:
    """The messages, and their media as those of a prompt without text, in the same order.

    Few servers take media in results of tools: these are sent in a following message of the user.
    """
    media = media_in(items)
    if not media:
        return NO_PROMPT, tuple(gather(items))
    marks = Marks(media)
    messages = move_media_of_results(gather(items, marks), marks)
    numbers = [marks.numbers(message["content"]) for message in messages]
    sent_messages = [
        {**message, "content": marks.parts(message["content"], PLAIN)} if media_numbers else message
        for message, media_numbers in zip(messages, numbers, strict=True)
    ]
    return Prompt(
        "", (), tuple(media[number] for media_numbers in numbers for number in media_numbers)
    ), tuple(sent_messages)
