"""What a model writes, while it writes it: the events that a decoder makes from chunks.

Every event has the raw model text that it was made from. Three laws hold for the events of one generation,
for any chunking. Tests check them:

* conservation: the `raw` of all events, joined, is the model's text, and their
  `tokens`, joined, are the model's tokens;
* split invariance: once neighbouring deltas of one kind are joined, and neighbouring
  markup, the events do not depend on how the text was split into chunks;
* the full answer is computed from these events alone (see `accumulator.py`).

Items never interleave: a text, a reasoning or a call starts, gets its deltas and ends before the next starts.
So deltas carry no index. The events that start and end an item carry its number in the answer, and the end
carries the item itself: both are set by the `Accumulator` (see `accumulator.py`), not by decoders.

An answer may consist of several generations: if the model calls server tools, the generation ends with
`ToolCallsPending` instead of `Finished`, each call gets a `ToolResultReceived`, and another generation
follows. The output of a program that a call runs may be reported before its result, in `ToolPrinted` events.

Events are not tracked by the garbage collector, as chunks are not.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.core.chunks import FinishReason, Token
from antiphon.core.items import FunctionCall, Message, Reasoning
from antiphon.core.tool_result import ToolResult


class Usage(Struct, frozen=True, gc=False):
    """Tokens of one answer. `completion_tokens` includes `reasoning_tokens`.

    `prompt_tokens` are those of the second prompt and later ones, if the answer has several generations.
    `media_tokens` are those of the media in all prompts: media have no tokens in the text.
    """

    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    media_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class GenerationUsage(Struct, frozen=True, gc=False):
    """Tokens of one generation of an answer that has several.

    `tool_output_tokens` are those of the results of the `tool_calls` that it ended with: counted with the
    model's tokenizer, or estimated if that is on another server. They are part of the next prompt.
    """

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    tool_calls: int = 0
    tool_output_tokens: int = 0

    @classmethod
    def of(cls, usage: Usage, prompt_tokens: int) -> "GenerationUsage":
        """The usage of a generation with this number of prompt tokens."""
        total = prompt_tokens + usage.prompt_tokens + usage.media_tokens
        return cls(total, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens)


class TextStarted(Struct, frozen=True, gc=False):
    """Visible text begins. `phase` is the model's own name for this message, if it has one."""

    phase: str | None = None
    raw: str = ""
    tokens: tuple[Token, ...] = ()
    index: int = 0


class TextDelta(Struct, frozen=True, gc=False):
    """More visible text."""

    text: str
    raw: str
    tokens: tuple[Token, ...] = ()


class TextEnded(Struct, frozen=True, gc=False):
    """The visible text is over."""

    raw: str = ""
    tokens: tuple[Token, ...] = ()
    index: int = 0
    item: Message | None = None


class ReasoningStarted(Struct, frozen=True, gc=False):
    """Reasoning begins."""

    raw: str = ""
    tokens: tuple[Token, ...] = ()
    index: int = 0


class ReasoningDelta(Struct, frozen=True, gc=False):
    """More reasoning."""

    text: str
    raw: str
    tokens: tuple[Token, ...] = ()


class ReasoningEnded(Struct, frozen=True, gc=False):
    """The reasoning is over."""

    raw: str = ""
    tokens: tuple[Token, ...] = ()
    index: int = 0
    item: Reasoning | None = None


class CallStarted(Struct, frozen=True, gc=False):
    """The model calls a function. `call_id` and `name` are final. The server runs a `hosted` call.

    `caller` is the id of the call of a program that calls it instead. A `resumed` call is one of an earlier
    answer, a program that goes on: nothing of it follows but its result.
    """

    call_id: str
    name: str
    raw: str = ""
    tokens: tuple[Token, ...] = ()
    hosted: bool = False
    index: int = 0
    caller: str = ""
    resumed: bool = False


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
    index: int = 0
    item: FunctionCall | None = None


class Markup(Struct, frozen=True, gc=False):
    """Model text that carries no content: markers, and the space that touches them."""

    raw: str
    tokens: tuple[Token, ...] = ()


class Malformed(Struct, frozen=True, gc=False):
    """A report of malformed markup. The markup itself comes before or after it, as text or arguments.

    Arguments are the beginning of a JSON object until this event says that it is the `arguments` that are
    malformed.
    """

    why: str
    arguments: bool = False
    raw: str = ""
    tokens: tuple[Token, ...] = ()


class ToolCallsPending(Struct, frozen=True, gc=False):
    """A generation is over, and the server runs the hosted calls of it."""

    raw: str = ""
    tokens: tuple[Token, ...] = ()


class ToolPrinted(Struct, frozen=True):
    """A program that a hosted call runs has printed this, since the last such event of the call."""

    call_id: str
    stdout: str = ""
    stderr: str = ""
    raw: str = ""
    tokens: tuple[Token, ...] = ()


class ToolResultReceived(Struct, frozen=True):
    """The server ran a hosted call. `index` is the number of its result, which is an item of its own."""

    call_id: str
    result: ToolResult
    raw: str = ""
    tokens: tuple[Token, ...] = ()
    index: int = 0


class Finished(Struct, frozen=True, gc=False):
    """The answer is over. Always the last event, and always there. `usage` counts all its generations.

    `error` is the public message of an engine that failed. `unmet` names
    which demands of the request the answer does not meet, where the engine
    could not enforce them. `generations` are there if there were several.
    `kv_transfer_params`, `closed` and `unused` are those of the `Finish`.
    """

    reason: FinishReason
    usage: Usage
    stop: str | int | None = None
    raw: str = ""
    tokens: tuple[Token, ...] = ()
    error: str | None = None
    unmet: tuple[str, ...] = ()
    generations: tuple[GenerationUsage, ...] = ()
    kv_transfer_params: Mapping[str, Any] | None = None
    closed: int = 0
    unused: int = 0


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
    | ToolCallsPending
    | ToolPrinted
    | ToolResultReceived
    | Finished
)

Delta = TextDelta | ReasoningDelta | ArgumentsDelta
