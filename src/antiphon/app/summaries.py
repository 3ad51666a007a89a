"""Has a model summarise a conversation, for the APIs that replace it by the summary."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from antiphon.apis.projection import SilentProjection
from antiphon.core.accumulator import output_of
from antiphon.core.events import Event, Finished, TextEnded, Usage
from antiphon.core.turn import Turn
from antiphon.run.answer_source import AnswerSource
from antiphon.run.drive import Driver
from antiphon.run.model import Model


class ConversationSummary(Struct, frozen=True):
    """The summary of a conversation, and its usage."""

    text: str
    prompt_tokens: int = 0
    usage: Usage = Usage()


class SummaryProjection(SilentProjection):
    """Keeps the answer to a turn that requests a summary. See `run.drive.Projection`."""

    def __init__(self) -> None:
        self.summary = ConversationSummary("")
        self._prompt_tokens = 0
        self._texts: list[Any] = []

    def set_prompts(self, prompts: Iterable[Any]) -> None:
        """The prompt is known."""
        self._prompt_tokens = sum(len(prompt.ids) for prompt in prompts)

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """Process the next events."""
        for event in events:
            if isinstance(event, TextEnded):
                self._texts.append(event.item)
            elif isinstance(event, Finished):
                answer = output_of(self._texts, event)
                self.summary = ConversationSummary(answer.text, self._prompt_tokens, event.usage)
        return []

    def body(self) -> bytes:
        """The text alone."""
        return self.summary.text.encode()


async def summarise(turn: Turn, model: Model) -> ConversationSummary:
    """The summary that the model writes."""
    projection = SummaryProjection()
    await Driver(AnswerSource([turn], model), projection).run()
    return projection.summary
