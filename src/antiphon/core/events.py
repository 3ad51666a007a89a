"""What a model says, as it says it: the events that a decoder makes of chunks.

Every event knows the raw model text that it stands for. Three laws hold for
the events of one generation, whatever the chunking, and tests hold them:

* conservation: the `raw` of all events, joined, is the model's text, and their
  `tokens`, joined, are the model's tokens;
* split invariance: after `merge`, the events do not depend on how the text was
  cut into chunks;
* the full answer is a fold of these events (see `fold.py`), nothing else.

Items never interleave: a text, a reasoning or a call starts, gets its deltas
and ends before the next starts. So deltas carry no index.

An answer may take several generations: where the model calls tools that the
server runs, the generation ends with `Paused` and not with `Finished`, the
calls are `Answered`, and another generation follows.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import astuple, replace

from antiphon.core.chunks import FinishReason, Token
from antiphon.core.outcome import Outcome


class Usage(Struct, frozen=True, gc=False):
    """Tokens of one answer. `completion_tokens` includes `reasoning_tokens`.

    `prompt_tokens` are those of the prompts that followed the first, where the answer took several.
    """

    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0

    def __add__(self, more: "Usage") -> "Usage":
        return Usage(*(mine + its for mine, its in zip(astuple(self), astuple(more), strict=True)))


class TextStarted(Struct, frozen=True, gc=False):
    """Visible text begins. `phase` is the model's own name for this message, if it has one."""

    phase: str | None = None
    raw: str = ""
    tokens: tuple[Token, ...] = ()


class TextDelta(Struct, frozen=True, gc=False):
    """More visible text."""

    text: str
    raw: str
    tokens: tuple[Token, ...] = ()


class TextEnded(Struct, frozen=True, gc=False):
    """The visible text is over."""

    raw: str = ""
    tokens: tuple[Token, ...] = ()


class ReasoningStarted(Struct, frozen=True, gc=False):
    """The model begins to think."""

    raw: str = ""
    tokens: tuple[Token, ...] = ()


class ReasoningDelta(Struct, frozen=True, gc=False):
    """More of the model's thoughts."""

    text: str
    raw: str
    tokens: tuple[Token, ...] = ()


class ReasoningEnded(Struct, frozen=True, gc=False):
    """The model stopped thinking."""

    raw: str = ""
    tokens: tuple[Token, ...] = ()


class CallStarted(Struct, frozen=True, gc=False):
    """The model calls a function. `call_id` and `name` are final. The server answers a `hosted` call."""

    call_id: str
    name: str
    raw: str = ""
    tokens: tuple[Token, ...] = ()
    hosted: bool = False


class ArgumentsDelta(Struct, frozen=True, gc=False):
    """More of the call's arguments, as JSON text."""

    text: str
    raw: str
    tokens: tuple[Token, ...] = ()


class CallEnded(Struct, frozen=True, gc=False):
    """The call is over. `complete` is true only if its arguments are whole and valid JSON."""

    complete: bool
    raw: str = ""
    tokens: tuple[Token, ...] = ()


class Markup(Struct, frozen=True, gc=False):
    """Model text that carries no content: markers, and the space that touches them."""

    raw: str
    tokens: tuple[Token, ...] = ()


class Malformed(Struct, frozen=True, gc=False):
    """A verdict on broken markup. The text itself follows or came before, as text or arguments."""

    why: str
    raw: str = ""
    tokens: tuple[Token, ...] = ()


class Paused(Struct, frozen=True, gc=False):
    """A generation is over, and its hosted calls are being answered."""

    raw: str = ""
    tokens: tuple[Token, ...] = ()


class Answered(Struct, frozen=True):
    """The server answered a hosted call."""

    call_id: str
    outcome: Outcome
    raw: str = ""
    tokens: tuple[Token, ...] = ()


class Finished(Struct, frozen=True, gc=False):
    """The answer is over. Always the last event, and always there. `usage` counts all its generations.

    `error` says what to tell the client of an engine that failed. `unmet` says
    which demands of the request the answer does not meet, where the engine
    could not be held to them.
    """

    reason: FinishReason
    usage: Usage
    stop: str | int | None = None
    raw: str = ""
    tokens: tuple[Token, ...] = ()
    error: str | None = None
    unmet: tuple[str, ...] = ()


Event = (
    TextStarted
    | TextDelta
    | TextEnded
    | ReasoningStarted
    | ReasoningDelta
    | ReasoningEnded
    | CallStarted
    | ArgumentsDelta
    | CallEnded
    | Markup
    | Malformed
    | Paused
    | Answered
    | Finished
)

Delta = TextDelta | ReasoningDelta | ArgumentsDelta


def merge(events: Iterable[Event]) -> list[Event]:
    """Join neighbouring deltas, and neighbouring markup, of the same kind.

    What is left is the same for every chunking of the same model text.
    """
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, Delta) and type(last) is type(event):
            assert isinstance(last, Delta)
            joined = {"text": last.text + event.text}
        elif isinstance(event, Markup) and isinstance(last, Markup):
            joined = {}
        else:
            merged.append(event)
            continue
        merged[-1] = replace(last, raw=last.raw + event.raw, tokens=last.tokens + event.tokens, **joined)
    return merged


def hide_calls(events: Iterable[Event]) -> list[Event]:
    """The same events for a client that wants no calls: what the model called becomes markup."""
    return [
        Markup(event.raw, event.tokens)
        if isinstance(event, CallStarted | ArgumentsDelta | CallEnded)
        else event
        for event in events
    ]
