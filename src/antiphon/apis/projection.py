"""The common parts of the projections of OpenAI's two older APIs: `run.drive.Projection`, in two halves."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec.structs import replace

from antiphon.apis.envelope import Envelope, PresentationOptions
from antiphon.apis.errors import encode_error
from antiphon.apis.framing import DONE, untyped_event
from antiphon.core.accumulator import PARAGRAPH
from antiphon.core.chunks import Token
from antiphon.core.errors import AntiphonError
from antiphon.core.events import (
    CallEnded,
    Event,
    Finished,
    ReasoningDelta,
    ReasoningEnded,
    TextDelta,
    TextEnded,
    ToolResultReceived,
)
from antiphon.core.items import FunctionCall
from antiphon.core.tool_result import ToolResult


class Collection(Protocol):
    """Collects entries made from tokens."""

    def extend(self, values: Iterable[Any], /) -> object: ...


C = TypeVar("C", bound=Collection)


class SilentProjection:
    """The half of a projection that makes a full answer, without wire events."""

    def begin(self) -> list[bytes]:
        """There are no wire events."""
        return []

    finish = begin

    def delta_encoder(
        self, choice: int, delta: type[Event]
    ) -> Callable[[str, tuple[Token, ...]], bytes] | None:
        """Each event is folded."""
        return None

    def fail(self, error: AntiphonError) -> list[bytes]:
        """There are no wire events: the error is raised."""
        return []

    cancel = begin


class _Enveloped:
    """An answer in an envelope, which subclasses set."""

    _envelope: Envelope

    def set_prompts(self, prompts: Iterable[Any]) -> None:
        """The prompts are known, each with a `text`, `ids` and `tokens`.

        The list of their log probabilities is made here: if it is long, this runs in a thread.
        """
        self._envelope = replace(self._envelope, prompts=tuple(prompts))


class StreamProjection(_Enveloped):
    """A stream of server-sent events, which has no body."""

    def fail(self, error: AntiphonError) -> list[bytes]:
        """The last events of a stream that failed."""
        return [untyped_event(encode_error(error)), DONE]

    def cancel(self) -> list[bytes]:
        """The last events of a cancelled stream."""
        return [DONE]

    def body(self) -> bytes:
        """The body; a stream has none."""
        return b""


class BodyProjection(_Enveloped, SilentProjection):
    """A full answer, which has no events."""

    shows_tokens = False
    """The body has something of the tokens of deltas. Their texts are in the items."""

    def delta_encoder(
        self, choice: int, delta: type[Event]
    ) -> Callable[[str, tuple[Token, ...]], bytes] | None:
        return None if self.shows_tokens else _no_event


def shows_tokens(presentation: PresentationOptions) -> Callable[[Event], bool]:
    """Whether an answer shows the tokens of an event: with ids all, but those of hidden reasoning."""
    if not presentation.token_ids:
        return _is_visible_text
    return _is_shown if presentation.reasoning else _is_not_reasoning


def _is_visible_text(event: Event) -> bool:
    return type(event) is TextDelta


def _is_shown(event: Event) -> bool:
    return bool(event.tokens)


def _is_not_reasoning(event: Event) -> bool:
    return type(event) is not ReasoningDelta


def _no_event(text: str, tokens: tuple[Token, ...]) -> bytes:
    """A delta that needs no wire event."""
    return b""


class ChoiceResult(Generic[C]):
    """One choice of a full answer: its texts, its calls of the client's functions, and the tokens to show.

    `ids` are those of the tokens, and `tokens` collects them in the form that `shown` makes, if it is not
    None. `results` are those of server tools, each with the number of texts before it.
    """

    def __init__(self, shown: Callable[[Sequence[Token]], Iterable[Any]] | None, tokens: C) -> None:
        self._shown = shown
        self._end: Finished | None = None
        self.texts: list[str] = []
        self.reasonings: list[str] = []
        self.calls: list[FunctionCall] = []
        self.results: list[tuple[int, ToolResult]] = []
        self.tokens = tokens
        self.ids: list[int] = []

    def push(self, events: list[Event]) -> None:
        """Process the next events. Items are in the events that end them."""
        for event in events:
            if type(event) is TextEnded:
                assert event.item is not None
                self.texts.append(event.item.text)
            elif type(event) is Finished:
                self._end = event
            elif type(event) is ReasoningEnded:
                assert event.item is not None
                self.reasonings.append(event.item.text)
            elif type(event) is CallEnded:
                assert event.item is not None
                if not event.item.hosted:
                    self.calls.append(event.item)
            elif type(event) is ToolResultReceived:
                self.results.append((len(self.texts), event.result))

    def show(self, tokens: Sequence[Token]) -> None:
        """Show these tokens, too."""
        self.ids += [token.id for token in tokens]
        if self._shown is not None:
            self.tokens.extend(self._shown(tokens))

    @property
    def text(self) -> str:
        """All visible text: each message is a paragraph."""
        return PARAGRAPH.join(self.texts)

    @property
    def end(self) -> Finished:
        """How the choice ended. Raises RuntimeError before that."""
        if self._end is None:
            raise RuntimeError("a choice has no end before it is finished")
        return self._end
