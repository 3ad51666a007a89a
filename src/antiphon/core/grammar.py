"""The types of a dialect's table: how a model family writes its thoughts and calls.

A grammar is a set of named states. The decoder is in one state at a time; the
state says what the text there *is*, and which markers lead where. Most states
are a `Span`: text of one kind, ended by the first marker found in it. What has
an inner syntax of its own (JSON, say) is a state that is read by a reader of
its own, which consumes exactly one construct and hands back what follows it.

Everything between the marker that leaves plain text and the point where a
call's name is known is provisional: if it turns out to be broken, it becomes
text again and the decoder goes on where it was. That is how a marker in
ordinary prose stays prose.

Space that touches a marker belongs to the marker: templates put it there when
they render, and decoding is the inverse of rendering.
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
    """Nothing: only space may stand between these markers. Other text leads back to `start`."""


class Span(Struct, frozen=True):
    """Text of one kind, up to a marker.

    `on` maps each marker to the state that it leads to. `first` holds markers
    that count only while nothing but space was read in this state: a model
    thinks at the beginning of its answer, later `<think>` is a word like any.
    """

    kind: Kind
    on: Mapping[str, str] = {}
    first: Mapping[str, str] = {}


class JsonCalls(Struct, frozen=True):
    """One JSON value that is a call, `{"name": …, "arguments": {…}}`, or an array of calls.

    `name` and `arguments` list the keys accepted for each, in any order. `then`
    is the state after the value.
    """

    then: str
    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")


State = Span | JsonCalls


class Grammar(Struct, frozen=True):
    """States by name. Decoding begins in `start`, or where the prompt's own markers lead from there."""

    states: Mapping[str, State]
    start: str = "text"

    @property
    def markers(self) -> frozenset[str]:
        """Every marker in the table: what an engine must not hide from the decoder."""
        spans = [state for state in self.states.values() if isinstance(state, Span)]
        return frozenset(marker for span in spans for marker in (*span.on, *span.first))

    def without_calls(self) -> "Grammar":
        """The same grammar for a request that offers no tools: calls are plain text."""
        spans = {name: state for name, state in self.states.items() if isinstance(state, Span)}

        def kept(markers: Mapping[str, str]) -> dict[str, str]:
            return {marker: to for marker, to in markers.items() if to in spans}

        states = {name: Span(span.kind, kept(span.on), kept(span.first)) for name, span in spans.items()}
        return Grammar(states, self.start)
