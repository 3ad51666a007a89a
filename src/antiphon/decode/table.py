"""A compiled grammar, shared by all decoders that use it: lexers, and a reader per state."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, Self

from antiphon.core.events import ReasoningDelta, TextDelta
from antiphon.core.grammar import (
    BraceArguments,
    CallStart,
    ElementArgument,
    Grammar,
    Header,
    JsonArguments,
    JsonCalls,
    Key,
    KeyedCalls,
    Name,
    PythonCalls,
    Space,
    Span,
    SpanKind,
    State,
    TextArguments,
    Value,
)
from antiphon.decode.arguments.braces import BraceArgumentsReader
from antiphon.decode.call_readers import (
    JsonArgumentsReader,
    KeyReader,
    NameReader,
    TextArgumentsReader,
    ValueReader,
)
from antiphon.decode.element_reader import ElementReader
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.header_reader import HeaderReader
from antiphon.decode.json_calls import JsonCallsReader, KeyedCallsReader
from antiphon.decode.lexer import Lexer
from antiphon.decode.python_calls import PythonCallsReader
from antiphon.decode.readers import SpanReader, SpanTable, StateReader
from antiphon.decode.spaced_reader import SpacedSpanReader


class CompiledState:
    """A compiled state: its type, and a factory of readers for it."""

    __slots__ = ("delta", "make", "outside_calls", "starts_call", "state", "visible", "visible_kind")

    def __init__(self, state: State, make: Callable[[EventBuilder], StateReader]) -> None:
        span = state if isinstance(state, Span) else None
        kind = None if span is None else span.kind
        self.state = state
        self.make = make
        self.starts_call = kind is SpanKind.OPENING or isinstance(state, CallStart)
        """A call may start here."""
        self.visible = kind in (SpanKind.TEXT, SpanKind.REASONING)
        """The text is content or reasoning."""
        self.visible_kind = kind if self.visible else None
        self.delta = ReasoningDelta if kind is SpanKind.REASONING else TextDelta
        self.outside_calls = span if self.visible or kind is SpanKind.MARKUP else None
        """The span, if no call is open here."""


class Table(dict[str, CompiledState]):
    """Makes readers for the states of a grammar: name → state.

    A state is compiled when it is first used: to detect a dialect, all are tried, on few states each.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar

    def __missing__(self, name: str) -> CompiledState:
        state = self.grammar.states[name]
        compiled = self[name] = CompiledState(state, self._maker(name, state))
        return compiled

    @cached_property
    def header_tokens(self) -> frozenset[str]:
        """The special tokens that begin headers of messages: without a message they are hidden."""
        states = self.grammar.states
        spans = [state for state in states.values() if isinstance(state, Span)]
        leads = {marker for span in spans for marker, to in span.on.items() if isinstance(states[to], Header)}
        return self.grammar.special_tokens & leads

    def compile(self) -> Self:
        """Compile all states now, so that no answer waits for it."""
        for name in self.grammar.states:
            self[name]
        return self

    def _maker(self, name: str, state: State) -> Callable[[EventBuilder], StateReader]:
        if isinstance(state, Span):
            first, reader = SpanTable(state, name), _SPAN_READERS[state.space]
            again = SpanTable(state, name, reasoned=True) if state.again or state.closes else first
            return lambda builder: reader(again if builder.reasoned else first, builder)
        lexer = Lexer(_markers(state, self.grammar.states))
        if isinstance(state, Header):
            return partial(HeaderReader, state, lexer, self.grammar)
        return partial(_READERS[type(state)], state, lexer)


_SPAN_READERS = {Space.MARKUP: SpanReader, Space.TEXT: SpacedSpanReader}

_READERS: dict[type[State], Callable[[Any, Lexer, EventBuilder], StateReader]] = {
    BraceArguments: BraceArgumentsReader,
    JsonArguments: lambda state, lexer, builder: JsonArgumentsReader(state.then, lexer, builder),
    JsonCalls: JsonCallsReader,
    Key: KeyReader,
    KeyedCalls: KeyedCallsReader,
    Name: NameReader,
    PythonCalls: PythonCallsReader,
    TextArguments: TextArgumentsReader,
    ElementArgument: ElementReader,
    Value: ValueReader,
}
"""The readers of states other than spans and headers."""


def _markers(state: State, states: Mapping[str, State]) -> Iterable[str]:
    """The markers that end the text of a state, or that may follow it, for JSON and the like."""
    if isinstance(state, JsonCalls | KeyedCalls | JsonArguments | PythonCalls | BraceArguments):
        state = states[state.then]
    if isinstance(state, Span):
        return {*state.on, *state.first, *state.habits.on}
    if isinstance(state, Header):
        return state.ends
    if isinstance(state, ElementArgument):
        return (f"{state.prefix}<",)
    if isinstance(state, Name):
        return {*state.on, *state.peek, *state.habits}
    return state.on if isinstance(state, Key | Value | TextArguments) else ()
