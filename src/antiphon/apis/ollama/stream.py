"""A turn's events → lines of JSON.

A line has the next text or reasoning; calls come whole, each in a line of its own. If an answer has several
messages, they are paragraphs.
"""

from collections.abc import Callable

from antiphon.apis.envelope import Envelope
from antiphon.apis.ollama.errors import encode_error
from antiphon.apis.ollama.lines import NOTHING_SAID, Lines, Said
from antiphon.apis.projection import StreamProjection
from antiphon.core.accumulator import PARAGRAPH
from antiphon.core.chunks import Token
from antiphon.core.errors import AntiphonError
from antiphon.core.events import (
    CallEnded,
    Event,
    Finished,
    ReasoningDelta,
    ReasoningStarted,
    TextDelta,
    TextStarted,
)
from antiphon.core.plain_tokens import TextFrame

Piece = Callable[[str, tuple[Token, ...]], bytes]


class LineStream(StreamProjection):
    """Projects the events of an answer to lines."""

    def __init__(self, envelope: Envelope, lines: Lines) -> None:
        self._envelope = envelope
        self._lines = lines
        scored = lines.presentation.logprobs is not None
        self._text: Piece = self._scored if scored else TextFrame(lambda text: lines.part(Said(text)))
        self._reasoning: Piece = TextFrame(lambda text: lines.part(Said(thinking=text)))
        self._messages = 0
        self._reasonings = 0
        self._calls = 0
        self._end: Finished | None = None

    def begin(self) -> list[bytes]:
        """There is nothing before the first part."""
        return []

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """The lines for the next events. An answer has one choice."""
        out: list[bytes] = []
        for event in events:
            if type(event) is TextDelta:
                out.append(self._text(event.text, event.tokens))
            elif type(event) is ReasoningDelta:
                out.append(self._reasoning(event.text, event.tokens))
            else:
                self._push_rare(event, out)
        return out

    def delta_encoder(self, choice: int, delta: type[Event]) -> Piece:
        return self._reasoning if delta is ReasoningDelta else self._text

    def _push_rare(self, event: Event, out: list[bytes]) -> None:
        match event:
            case TextStarted():
                if self._messages:
                    out.append(self._text(PARAGRAPH, ()))
                self._messages += 1
            case ReasoningStarted():
                if self._reasonings:
                    out.append(self._reasoning(PARAGRAPH, ()))
                self._reasonings += 1
            case CallEnded(item=item) if item is not None and not item.hosted:
                out.append(self._lines.part(Said(calls=[item]), self._calls))
                self._calls += 1
            case Finished():
                self._end = event

    def _scored(self, text: str, tokens: tuple[Token, ...]) -> bytes:
        """A text with the log probabilities of its tokens."""
        return self._lines.part(Said(text, logprobs=self._lines.logprobs(tokens)))

    def finish(self) -> list[bytes]:
        """The last line."""
        if self._end is None:
            raise RuntimeError("an answer has no end before it is finished")
        return [self._lines.last(NOTHING_SAID, self._end, self._envelope.prompt_tokens) + b"\n"]

    def fail(self, error: AntiphonError) -> list[bytes]:
        """The last line of a stream that failed."""
        return [encode_error(error) + b"\n"]

    def cancel(self) -> list[bytes]:
        """Nothing: an answer is only cancelled by disconnecting."""
        return []
