"""A compiled grammar, shared by all decoders that use it: lexers, and a reader per state."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, Self

from msgspec.structs import replace

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
    Lookahead,
    Markers,
    Name,
    PythonCalls,
    Space,
    Span,
    SpanKind,
    State,
    TextArguments,
    Value,
)
from antiphon.decode.brace_arguments import BraceArgumentsReader
from antiphon.decode.call_readers import (
    JsonArgumentsReader,
    KeyReader,
    LookaheadReader,
    NameReader,
)
from antiphon.decode.element_reader import ElementReader
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.header_reader import HeaderReader
from antiphon.decode.json_calls import JsonCallsReader, KeyedCallsReader
from antiphon.decode.lexer import Lexer
from antiphon.decode.python_calls import PythonCallsReader
from antiphon.decode.readers import SpanReader, SpanTable, StateReader
from antiphon.decode.spaced_reader import SpacedSpanReader
from antiphon.decode.value_reader import (
    Following,
    FollowingMarkers,
    TextArgumentsReader,
    ValueReader,
    is_key,
    is_space,
)


class CompiledState:
    """A compiled state: its type, and a factory of readers for it."""

    def __init__(self, state: State, make: Callable[[EventBuilder], StateReader]) -> None:
        span = state if isinstance(state, Span) else None
        kind = None if span is None else span.kind
        self.state = state
        self.make = make
        self.starts_call = _starts_call(state)
        """A call may start here."""
        self.visible = kind in (SpanKind.TEXT, SpanKind.REASONING)
        """The text is content or reasoning."""
        self.visible_kind = kind if self.visible else None
        self.delta = ReasoningDelta if kind is SpanKind.REASONING else TextDelta
        self.outside_calls = span if self.visible or kind is SpanKind.MARKUP else None
        """The span, if no call is open here."""


def _starts_call(state: State) -> bool:
    return isinstance(state, CallStart) or (isinstance(state, Span) and state.kind is SpanKind.OPENING)


class Table(dict[str, CompiledState]):
    """Makes readers for the states of a grammar: name → state.

    A state is compiled when it is first used: detection tries every dialect, and uses few states of each.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar

    def __missing__(self, name: str) -> CompiledState:
        state = self.grammar.states[name]
        compiled = self[name] = CompiledState(state, self._maker(name, state))
        return compiled

    @cached_property
    def header_tokens(self) -> frozenset[str]:
        """The special tokens that begin and end messages: where a header has no message they are hidden."""
        spans = [state for state in self.grammar.states.values() if isinstance(state, Span)]
        return self.grammar.special_tokens & {
            marker for span in spans for marker in (*span.on, *span.habits.hidden)
        }

    def compile(self) -> Self:
        """Compile all states now, so that no answer waits for it."""
        for name in self.grammar.states:
            self[name]
        return self

    def _maker(self, name: str, state: State) -> Callable[[EventBuilder], StateReader]:
        original, state = state, _decoded(state, self.grammar.states)
        if isinstance(state, Span):
            first, reader = SpanTable(state, name), _SPAN_READERS[state.space]
            again = SpanTable(state, name, reasoned=True) if state.again or state.closes else first
            return lambda builder: reader(again if builder.reasoned else first, builder)
        lexer = Lexer(_markers(state, self.grammar.states))
        if isinstance(state, Header):
            return partial(HeaderReader, state, lexer, self.grammar)
        if isinstance(state, Value):
            habits = original.habits if isinstance(original, Value) else {}
            return partial(ValueReader, state, lexer, _following(state, habits, self.grammar.states))
        if isinstance(state, JsonCalls | KeyedCalls | JsonArguments):
            openers = Lexer(_openers(state.then, self.grammar.states))
            return partial(_JSON_READERS[type(state)], state, lexer, openers)
        return partial(_READERS[type(state)], state, lexer)


_SPAN_READERS = {Space.MARKUP: SpanReader, Space.TEXT: SpacedSpanReader}

_READERS: dict[type[State], Callable[[Any, Lexer, EventBuilder], StateReader]] = {
    BraceArguments: BraceArgumentsReader,
    Key: KeyReader,
    Name: NameReader,
    PythonCalls: PythonCallsReader,
    TextArguments: TextArgumentsReader,
    ElementArgument: ElementReader,
    Lookahead: lambda state, lexer, builder: LookaheadReader(state, builder),
}
"""The readers of states other than spans and headers."""

_JSON_READERS: dict[type[State], Callable[[Any, Lexer, Lexer, EventBuilder], StateReader]] = {
    JsonArguments: lambda state, closers, openers, builder: JsonArgumentsReader(
        state.then, closers, openers, builder
    ),
    JsonCalls: JsonCallsReader,
    KeyedCalls: KeyedCallsReader,
}
"""Those of states with JSON."""


def _decoded(state: State, states: Mapping[str, State]) -> State:
    """The state with its habits as markers; those that lead to a `Lookahead` are only peeked at."""
    if isinstance(state, Value):
        return replace(state, on={**state.on, **state.habits})
    if not isinstance(state, Span | Name):
        return state
    habits = state.habits.on if isinstance(state, Span) else {**state.habits, **state.unclosed}
    on = {**state.on, **habits}
    ahead = {marker: to for marker, to in on.items() if isinstance(states[to], Lookahead)}
    return replace(state, on=on, peek={**state.peek, **ahead})


def _openers(then: str, states: Mapping[str, State]) -> set[str]:
    """The markers that begin another call after a call that leads to that state."""
    span = _decoded(states[then], states)
    assert isinstance(span, Span)
    return {marker for marker, to in span.on.items() if _starts_call(states[to])}


def _following(value: Value, habits: Markers, states: Mapping[str, State]) -> FollowingMarkers:
    """What decides whether a marker after that value is its end."""
    between = {marker: to for marker, to in value.on.items() if _is_between(states[to])}
    after = {marker for to in between.values() for marker in _all_on(states[to])}
    close = Following(Lexer({*between, *after}), frozenset(after))
    following = dict.fromkeys(between, close)
    for marker in habits.keys() - between.keys():
        to = states[habits[marker]]
        if isinstance(to, Key):
            following[marker] = Following(Lexer({*between, *to.on}), [*to.on][:1], is_key(to.parse))
        elif isinstance(to, Span):
            following[marker] = Following(Lexer({*between, *_all_on(to)}), frozenset(_all_on(to)), is_space)
    return following


def _is_between(state: State) -> bool:
    """Whether the state is one between arguments."""
    return isinstance(state, Span) and state.kind is SpanKind.CALL


def _all_on(state: State) -> set[str]:
    assert isinstance(state, Span)
    return {*state.on, *state.habits.on, *state.habits.names}


def _markers(state: State, states: Mapping[str, State]) -> Iterable[str]:
    """The markers that end the text of a state, or that may follow it, for JSON and the like."""
    if isinstance(state, JsonCalls | KeyedCalls | JsonArguments | PythonCalls | BraceArguments):
        state = _decoded(states[state.then], states)
    if isinstance(state, Span):
        return {*state.on, *state.first}
    if isinstance(state, Header):
        return state.ends
    if isinstance(state, ElementArgument):
        return (f"{state.prefix}<",)
    if isinstance(state, Name):
        return {*state.on, *state.peek, *state.glued}
    return state.on if isinstance(state, Key | Value | TextArguments) else ()
