"""Messages: text, with or without the log probabilities of its tokens."""

from msgspec import UNSET, Raw, UnsetType

from antiphon.apis.responses.events import ContentPartAdded, ContentPartDone, TextDelta, TextDone
from antiphon.apis.responses.output.logprobs import to_logprobs
from antiphon.apis.responses.output.open_item import IN_PROGRESS, Numbers, OpenItem, Place, frame
from antiphon.apis.responses.resource import OutputMessage, OutputText
from antiphon.core.events import Delta


class TextItem(OpenItem):
    """A message of one part. `phase` is the model's name for it, if it has one."""

    def __init__(self, numbers: Numbers, place: Place, phase: str | None) -> None:
        super().__init__(numbers, place, frame(TextDelta, *place, 0))
        self._phase: str | UnsetType = UNSET if phase is None else phase
        self._logprobs: list[Raw] = []

    def item(self, status: str) -> OutputMessage:
        """The message; one that has only begun has no part yet."""
        begun = status == IN_PROGRESS and not self._pieces
        return OutputMessage(self.place.id, status, () if begun else (self._part(),), phase=self._phase)

    def opening(self) -> list[bytes]:
        """The message, then its part."""
        return [*super().opening(), self.numbers.encode(ContentPartAdded, *self.place, 0, self._part())]

    def done(self) -> list[bytes]:
        """The whole text, then its part."""
        return [
            self.numbers.encode(TextDone, *self.place, 0, self.text, self._logprobs),
            self.numbers.encode(ContentPartDone, *self.place, 0, self._part()),
        ]

    def _part(self) -> OutputText:
        return OutputText(self.text, logprobs=self._logprobs)


class ScoredTextItem(TextItem):
    """A message with the log probabilities of its tokens."""

    def add(self, event: Delta, out: list[bytes]) -> None:
        """Append a delta with the tokens that begin in it."""
        logprobs = to_logprobs(event.tokens)
        self._pieces.append(event.text)
        self._logprobs += logprobs
        out.append(self.numbers.encode(TextDelta, *self.place, 0, event.text, logprobs))
