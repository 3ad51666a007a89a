"""A grammar, compiled once and shared by every decoder that uses it: lexers, and a reader per state."""

from collections.abc import Iterable, Mapping
from typing import assert_never

from antiphon.core.grammar import (
    BraceArguments,
    Grammar,
    Header,
    JsonArguments,
    JsonCalls,
    Key,
    KeyedCalls,
    Kind,
    Name,
    PythonCalls,
    Span,
    State,
    TextArguments,
    Tree,
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
from antiphon.decode.header_reader import HeaderReader
from antiphon.decode.json_calls import JsonCallsReader
from antiphon.decode.keyed_calls import KeyedCallsReader
from antiphon.decode.lexer import Lexer
from antiphon.decode.python_calls import PythonCallsReader
from antiphon.decode.readers import Reader, SpanReader, SpanTable
from antiphon.decode.sink import Sink
from antiphon.decode.tree_reader import TreeReader


class Table:
    """Makes readers for the states of a grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        states = grammar.states
        self._spans = {name: SpanTable(state) for name, state in states.items() if isinstance(state, Span)}
        self._lexers = {name: Lexer(_markers(state, states)) for name, state in states.items()}

    def reader(self, name: str, sink: Sink) -> Reader:  # noqa: C901, PLR0911, PLR0912 - one for each kind of state
        """A reader for the state that a marker leads to."""
        state, lexer = self.grammar.states[name], self._lexers[name]
        match state:
            case Span():
                return self.span_reader(name, sink)
            case JsonCalls():
                return JsonCallsReader(state, lexer, sink)
            case KeyedCalls():
                return KeyedCallsReader(state, lexer, sink)
            case PythonCalls():
                return PythonCallsReader(state, lexer, sink)
            case Header():
                return HeaderReader(state, lexer, sink, self.grammar.states)
            case Name():
                return NameReader(state, lexer, sink)
            case Key():
                return KeyReader(state, lexer, sink)
            case Value():
                return ValueReader(state, lexer, sink)
            case Tree():
                return TreeReader(state, lexer, sink)
            case TextArguments():
                return TextArgumentsReader(state, lexer, sink)
            case BraceArguments():
                return BraceArgumentsReader(state, lexer, sink)
            case JsonArguments():
                return JsonArgumentsReader(state.then, lexer, sink)
            case _:
                assert_never(state)

    def span_reader(self, name: str, sink: Sink) -> SpanReader:
        """A reader for a span that a marker leads to."""
        return SpanReader(self._spans[name], sink)

    def state(self, name: str) -> State:
        """The state of that name."""
        return self.grammar.states[name]

    def shows(self, name: str) -> bool:
        """The state's text is said or thought."""
        state = self.state(name)
        return isinstance(state, Span) and state.kind in (Kind.TEXT, Kind.REASONING)


def _markers(state: State, states: Mapping[str, State]) -> Iterable[str]:
    """What ends the text of a state; for JSON, what may follow it."""
    if isinstance(state, JsonCalls | KeyedCalls | JsonArguments | PythonCalls | BraceArguments):
        state = states[state.then]
    if isinstance(state, Span):
        return {*state.on, *state.first}
    if isinstance(state, Header):
        return state.ends
    if isinstance(state, Tree):
        return (f"{state.prefix}<",)
    if isinstance(state, Name):
        return {*state.on, *state.peek}
    return state.on if isinstance(state, Key | Value | TextArguments) else ()
