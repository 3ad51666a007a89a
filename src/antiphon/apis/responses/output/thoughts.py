"""Reasoning items: thoughts, and where in the item a client finds them."""

from collections.abc import Callable
from typing import NamedTuple

from antiphon.apis.responses import events as wire
from antiphon.apis.responses.output.open_item import IN_PROGRESS, Numbers, OpenItem, Place, frame
from antiphon.apis.responses.resource import ReasoningItem, ReasoningText, SummaryText

Seal = Callable[[str], str]
"""Makes of a text one that only this server can read."""


class ThoughtForm(NamedTuple):
    """How thoughts are shown: the field of the item, the part in it, and the events about the part."""

    field: str
    part: type[ReasoningText] | type[SummaryText]
    added: type[wire.Event]
    delta: type[wire.Event]
    done: type[wire.Event]
    part_done: type[wire.Event]


RAW = ThoughtForm(
    "content",
    ReasoningText,
    wire.ContentPartAdded,
    wire.ReasoningTextDelta,
    wire.ReasoningTextDone,
    wire.ContentPartDone,
)
"""As they are, in the events of OpenAI, which its clients know."""

RAW_OPEN_RESPONSES = RAW._replace(delta=wire.ReasoningDelta, done=wire.ReasoningDone)
"""As they are, in the events of Open Responses. Neither specification knows the names of the other."""

SUMMARY = ThoughtForm(
    "summary",
    SummaryText,
    wire.SummaryPartAdded,
    wire.SummaryTextDelta,
    wire.SummaryTextDone,
    wire.SummaryPartDone,
)
"""As the summary that the client asked for.

An open model hides nothing, so its thoughts are their own summary: many
clients show a summary and nothing else. They are not given twice: an item that
has a summary has no content.
"""


class ThoughtItem(OpenItem):
    """A reasoning item. With `seal`, it ends with its thoughts in a form that the client may send back."""

    def __init__(self, numbers: Numbers, place: Place, form: ThoughtForm, seal: Seal | None) -> None:
        super().__init__(numbers, place, frame(form.delta, *place, 0))
        self._form = form
        self._seal = seal

    def item(self, status: str) -> ReasoningItem:
        """The item; one that has only begun has no part yet."""
        item = ReasoningItem(self.place.id, status)
        begun = status == IN_PROGRESS and not self._pieces
        setattr(item, self._form.field, () if begun else (self._part(),))
        return item

    def last(self, status: str) -> ReasoningItem:
        """The item with its thoughts sealed, if that is wanted."""
        item = self.item(status)
        if self._seal is not None:
            item.encrypted_content = self._seal(self.text)
        return item

    def opening(self) -> list[bytes]:
        """The item, then its part."""
        return [*super().opening(), self.numbers.encode(self._form.added, *self.place, 0, self._part())]

    def done(self) -> list[bytes]:
        """The whole thought, then its part."""
        return [
            self.numbers.encode(self._form.done, *self.place, 0, self.text),
            self.numbers.encode(self._form.part_done, *self.place, 0, self._part()),
        ]

    def _part(self) -> ReasoningText | SummaryText:
        return self._form.part(self.text)
