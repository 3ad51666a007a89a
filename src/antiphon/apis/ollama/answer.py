"""The events of an answer → the body of the full answer, which is one line."""

from typing import cast

from msgspec import UNSET, Raw

from antiphon.apis.envelope import Envelope
from antiphon.apis.logprobs import EncodedList
from antiphon.apis.ollama.lines import Lines, Said
from antiphon.apis.projection import BodyProjection, ChoiceResult, SilentProjection, shows_tokens
from antiphon.core.accumulator import PARAGRAPH
from antiphon.core.events import Event


class LineBuilder(BodyProjection):
    """Builds the full answer."""

    def __init__(self, envelope: Envelope, lines: Lines) -> None:
        self._envelope = envelope
        self._lines = lines
        self.shows_tokens = lines.presentation.logprobs is not None
        self._shown = shows_tokens(lines.presentation)
        self._result = ChoiceResult(lines.logprobs if self.shows_tokens else None, EncodedList())

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """Process the next events. An answer has one choice."""
        self._result.push(events)
        if self.shows_tokens:
            for event in filter(self._shown, events):
                self._result.show(event.tokens)
        return []

    def body(self) -> bytes:
        """The JSON body. Raises RuntimeError before `Finished`."""
        result = self._result
        said = Said(
            result.text,
            PARAGRAPH.join(result.reasonings) or UNSET,
            result.calls,
            cast("list[Raw]", result.tokens.raw) if self.shows_tokens else UNSET,
        )
        return self._lines.last(said, result.end, self._envelope.prompt_tokens)


class ManagedLine(SilentProjection):
    """The answer to a request that says nothing: its model was loaded or unloaded, as `reason` says."""

    def __init__(self, lines: Lines, reason: str) -> None:
        self._line = lines.managed(reason)

    def set_prompts(self, prompts: object) -> None:
        """There are none."""

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """There are no events."""
        return []

    def finish(self) -> list[bytes]:
        """The only line of a stream."""
        return [self._line + b"\n"]

    def body(self) -> bytes:
        """The line."""
        return self._line
