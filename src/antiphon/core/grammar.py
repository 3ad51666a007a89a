"""The types of a dialect's table: how a model family writes its thoughts and calls.

A grammar is a set of named states. The decoder is in one state at a time; the
state says what the text there *is*, and which markers lead where. Most states
are a `Span`: text of one kind, ended by the first marker found in it. What has
an inner syntax of its own (JSON, say) is read by a `Call` state: a reader that
consumes exactly one construct and hands back what follows it.

Everything between the marker that leaves plain text and the point where a
call's name is known is provisional: if it turns out to be broken, it becomes
text again and the decoder goes on where it was. That is how a marker in
ordinary prose stays prose.
"""

from collections.abc import Mapping
from enum import Enum, auto

from msgspec import Struct


class Kind(Enum):
    """What the text of a span is."""

    TEXT = auto()
    """Said to the user."""
    REASONING = auto()
    """Thought."""
    MARKUP = auto()
    """Nothing: space between markers. Anything else there is broken markup."""


class Span(Struct, frozen=True):
    """Text of one kind, up to a marker. `on` maps each marker to the state that it leads to."""

    kind: Kind
    on: Mapping[str, str] = {}


class JsonCall(Struct, frozen=True):
    """One JSON value that is a call: `{"name": …, "arguments": {…}}`, or an array of them.

    `name` and `arguments` list the keys that are accepted for each. `then` is
    the state after the value.
    """

    then: str
    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")


State = Span | JsonCall


class Grammar(Struct, frozen=True):
    """States by name. Decoding starts in `start`, or in `thinking` if the prompt opened a thought."""

    states: Mapping[str, State]
    start: str = "text"
    thinking: str | None = None

    @property
    def markers(self) -> frozenset[str]:
        """Every marker in the table: what an engine must not hide from the decoder."""
        spans = (state for state in self.states.values() if isinstance(state, Span))
        return frozenset(marker for span in spans for marker in span.on)

    def without_calls(self) -> "Grammar":
        """The same grammar for a request that offers no tools: calls are plain text."""
        spans = {name: state for name, state in self.states.items() if isinstance(state, Span)}
        kept = {
            name: Span(span.kind, {marker: to for marker, to in span.on.items() if to in spans})
            for name, span in spans.items()
        }
        return Grammar(kept, self.start, self.thinking)
