"""A grammar, compiled once and shared by every decoder that uses it: lexers, and a reader per state."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

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
    Opener,
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


class Entry:
    """A state, compiled: what it is, and what makes readers for it."""

    __slots__ = ("make", "opens", "outside", "shows", "state")

    def __init__(self, state: State, make: Callable[[Sink], Reader]) -> None:
        kind = state.kind if isinstance(state, Span) else None
        self.state = state
        self.make = make
        self.opens = kind is Kind.OPENING or isinstance(state, Opener)
        """A call may begin here."""
        self.shows = kind in (Kind.TEXT, Kind.REASONING)
        """The text is said or thought."""
        self.outside = self.shows or kind is Kind.MARKUP
        """No call is open here."""


class Table:
    """Makes readers for the states of a grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._entries = {
            name: Entry(state, self._maker(name, state)) for name, state in grammar.states.items()
        }

    def __getitem__(self, name: str) -> Entry:
        """The state of that name."""
        return self._entries[name]

    def _maker(self, name: str, state: State) -> Callable[[Sink], Reader]:
        if isinstance(state, Span):
            return partial(SpanReader, SpanTable(state, name))
        lexer = Lexer(_markers(state, self.grammar.states))
        if isinstance(state, Header):
            return partial(HeaderReader, state, lexer, self.grammar.states)
        return partial(_READERS[type(state)], state, lexer)


_READERS: dict[type[State], Callable[[Any, Lexer, Sink], Reader]] = {
    BraceArguments: BraceArgumentsReader,
    JsonArguments: lambda state, lexer, sink: JsonArgumentsReader(state.then, lexer, sink),
    JsonCalls: JsonCallsReader,
    Key: KeyReader,
    KeyedCalls: KeyedCallsReader,
    Name: NameReader,
    PythonCalls: PythonCallsReader,
    TextArguments: TextArgumentsReader,
    Tree: TreeReader,
    Value: ValueReader,
}
"""What reads each kind of state that is no span and no header."""


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
