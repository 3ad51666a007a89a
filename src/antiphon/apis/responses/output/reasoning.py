"""Reasoning items, and where in them a client finds the reasoning."""

from collections.abc import Callable
from typing import NamedTuple

from antiphon.apis.responses import events as wire
from antiphon.apis.responses.output.item import IN_PROGRESS, ItemPosition, OpenItem, frame
from antiphon.apis.responses.resource import ReasoningItem, ReasoningText, SummaryText
from antiphon.core.items import Item, Reasoning
from antiphon.core.plain_tokens import SequenceNumbers

Seal = Callable[[str], str]
"""Encrypts a text, so that only this server can read it."""


class ReasoningForm(NamedTuple):
    """How reasoning is shown: the field of the item, the part in it, and the events about the part."""

    field: str
    part: type[ReasoningText] | type[SummaryText]
    added: wire.Event
    delta: wire.Event
    done: wire.Event
    part_done: wire.Event


RAW = ReasoningForm(
    "content",
    ReasoningText,
    wire.ContentPartAdded,
    wire.ReasoningTextDelta,
    wire.ReasoningTextDone,
    wire.ContentPartDone,
)
"""Raw reasoning, in OpenAI's events, for its clients."""

RAW_OPEN_RESPONSES = RAW._replace(delta=wire.ReasoningDelta, done=wire.ReasoningDone)
"""Raw reasoning, in the events of Open Responses. The two specifications have different names for them."""

REASONING_FORMS = {"openai": RAW, "open-responses": RAW_OPEN_RESPONSES}
"""How raw reasoning is shown, by the option --reasoning-events."""

SUMMARY = ReasoningForm(
    "summary",
    SummaryText,
    wire.SummaryPartAdded,
    wire.SummaryTextDelta,
    wire.SummaryTextDone,
    wire.SummaryPartDone,
)
"""Reasoning as the summary that the client requested.

An open model hides nothing, so its reasoning is its own summary: many clients show a summary and nothing
else. It is not sent twice: an item with a summary has no content.
"""


class OpenReasoning(OpenItem):
    """A reasoning item. With `seal`, it ends with its text in a form that the client may send back."""

    def __init__(
        self, numbers: SequenceNumbers, position: ItemPosition, form: ReasoningForm, seal: Seal | None
    ) -> None:
        super().__init__(numbers, position)
        self.frame = frame(form.delta, *position, 0)
        self._form = form
        self._seal = seal

    def item(self, status: str) -> ReasoningItem:
        """The item; without a part if it has only begun."""
        item = ReasoningItem(self.position.id, status)
        setattr(item, self._form.field, () if status == IN_PROGRESS else (self._part(),))
        return item

    def last(self, status: str) -> ReasoningItem:
        """The item with its text sealed, if that was requested."""
        item = self.item(status)
        if self._seal is not None:
            item.encrypted_content = self._seal(self.text)
        return item

    def start(self) -> list[bytes]:
        """The item, then its part."""
        return [self.added(), self.numbers.encode(self._form.added, *self.position, 0, self._part())]

    def end(self, item: Item) -> list[bytes]:
        """The whole text, then its part."""
        assert isinstance(item, Reasoning)
        self.text = item.text
        return [
            self.numbers.encode(self._form.done, *self.position, 0, self.text),
            self.numbers.encode(self._form.part_done, *self.position, 0, self._part()),
        ]

    def _part(self) -> ReasoningText | SummaryText:
        return self._form.part(self.text)
