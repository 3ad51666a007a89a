"""Chunks → events: the one decoder that streams and full answers share.

Strategy: a table says which state the text is in, a reader per state consumes
it, and the sink turns what the reader reports into events. The decoder only
moves between states. It is total: any sequence of chunks gives events, and
nothing that a model writes raises.
"""

from collections.abc import Iterable

from antiphon.core.chunks import Chunk, Finish
from antiphon.core.events import Event
from antiphon.core.grammar import Grammar, Kind, Span
from antiphon.decode.ids import CallIds, openai_call_id
from antiphon.decode.json_calls import JsonCallsReader
from antiphon.decode.ledger import Ledger
from antiphon.decode.lexer import Lexer
from antiphon.decode.readers import RETRACT, Reader, SpanReader, SpanTable, Step
from antiphon.decode.sink import Sink


class Table:
    """A grammar, compiled once and shared by every decoder that uses it."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._spans = {
            name: SpanTable(state) for name, state in grammar.states.items() if isinstance(state, Span)
        }

    def reader(self, name: str, sink: Sink) -> Reader:
        """A reader for the state that a marker leads to."""
        state = self.grammar.states[name]
        if isinstance(state, Span):
            return self.span_reader(name, sink)
        return JsonCallsReader(state, self._spans[state.then].begin, sink)

    def span_reader(self, name: str, sink: Sink) -> SpanReader:
        """A reader for a span that a marker leads to."""
        return SpanReader(self._spans[name], sink)

    def kind(self, name: str) -> Kind | None:
        """What the text of a state is; None if the state reads calls."""
        state = self.grammar.states[name]
        return state.kind if isinstance(state, Span) else None


def state_after(table: Table, tail: str) -> str:
    """Where an answer begins whose prompt already holds its first words, `tail`.

    A template may open a thought (`<think>`) or close one (`<think></think>`)
    for the model. The tail is decoded as the answer that it is.
    """
    decoder = Decoder(table)
    decoder.feed(Chunk(tail))
    return decoder.state if table.kind(decoder.state) else table.grammar.start


class Decoder:
    """Decodes one generation. Not for reuse: every choice of every turn gets its own.

    `state` is where the answer begins (see `Table.state_after`), None for the
    grammar's start. `calls` is how many calls the conversation has already.
    """

    def __init__(
        self,
        table: Table,
        *,
        state: str | None = None,
        stop: Iterable[str] = (),
        ids: CallIds = openai_call_id,
        calls: int = 0,
    ) -> None:
        self._table = table
        self._ledger = Ledger()
        stops = tuple(stop)
        self._sink = Sink(self._ledger, ids, calls, Lexer(stops) if stops else None)
        self.state = state or table.grammar.start
        self._reader: Reader = table.span_reader(self.state, self._sink)
        self._sink.enter(table.kind(self.state) or Kind.TEXT)
        if state is None:
            self._reader.keep_space()
        self._origin: tuple[str, SpanReader] | None = None  # where the call that is being read began

    @property
    def stopped(self) -> bool:
        """A stop string was found: the engine has nothing more to do."""
        return self._sink.stopped is not None

    def feed(self, chunk: Chunk) -> list[Event]:
        """The events that this chunk completes."""
        self._ledger.add(chunk)
        self._sink.cached_tokens += chunk.cached_tokens
        text = chunk.text
        while text and (step := self._reader.feed(text)):
            text = self._follow(step)
        return self._sink.drain()

    def finish(self, finish: Finish) -> list[Event]:
        """The last events. Whatever was held back comes out."""
        text = ""
        while step := self._reader.finish(text):
            text = self._follow(step)
        self._sink.finish(finish)
        return self._sink.drain()

    def _follow(self, step: Step) -> str:
        """Go where a reader says; return the text to go on with."""
        if self.stopped:
            self._sink.markup(step.raw + step.rest)
            return ""
        if step.to == RETRACT:
            return self._retract(step.rest)
        kind = self._table.kind(step.to)
        if kind is None:
            self._origin = self._home()
            self._sink.begin_call(step.raw)
        else:
            self._sink.enter(kind)
            self._sink.markup(step.raw)
        self._go(step.to)
        return step.rest

    def _home(self) -> tuple[str, SpanReader] | None:
        """The state and reader to come back to if the call that begins here is none."""
        shows = self._table.kind(self.state) in (Kind.TEXT, Kind.REASONING)
        return (self.state, self._reader) if shows and isinstance(self._reader, SpanReader) else None

    def _retract(self, rest: str) -> str:
        """What looked like a call is text: its marker, and then whatever the rest turns out to be."""
        if not self._sink.provisional:
            self._go(self._table.grammar.start)
            return rest
        marker, raw = self._sink.retract()
        self._sink.malformed("a marker that opens no call")
        home = self._origin
        if not marker:  # inside an array, after other calls: one character is taken as text, to get on
            home, marker, raw = None, raw[:1], raw[1:]
        self.state, reader = home or self._beginning()
        reader.retake(marker)
        self._reader = reader
        return raw + rest

    def _beginning(self) -> tuple[str, SpanReader]:
        start = self._table.grammar.start
        return start, self._table.span_reader(start, self._sink)

    def _go(self, state: str) -> None:
        self.state = state
        self._reader = self._table.reader(state, self._sink)
