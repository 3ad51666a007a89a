"""Chunks → events: the one decoder that streams and full answers share.

Strategy: a table says which state the text is in, a reader per state consumes
it, and the sink turns what the reader reports into events. The decoder only
moves between states. It is total: any sequence of chunks gives events, and
nothing that a model writes raises.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.events import Event, ReasoningDelta, TextDelta
from antiphon.core.grammar import Grammar, Header, Kind, Span, State, TextArguments
from antiphon.decode.arguments.types import Schema
from antiphon.decode.ids import CallIds, ids_by, openai_call_id
from antiphon.decode.ledger import Ledger
from antiphon.decode.lexer import Lexer
from antiphon.decode.readers import RETRACT, Reader, SpanReader, Step
from antiphon.decode.sink import Sink, Stopper
from antiphon.decode.table import Table


def header_of(opening: str, grammar: Grammar) -> str:
    """What a template writes before every answer, `opening`, up to the first marker that may stand there."""
    spans = [state for state in grammar.states.values() if isinstance(state, Span)]
    markers = {marker: to for span in spans for marker, to in (*span.on.items(), *span.first.items())}
    # A marker that begins the header of every message is part of what every answer begins with.
    starts = {marker: int(isinstance(grammar.states[to], Header)) for marker, to in markers.items()}
    ends = [at for marker, start in starts.items() if (at := opening.find(marker, start)) >= 0]
    return opening[: min(ends, default=len(opening))]


class Start(NamedTuple):
    """Where an answer begins: None for the grammar's start. `amid`: in the middle of what is said there.

    `opened` is what the prompt already holds of calls that the answer goes on with.
    """

    state: str | None = None
    amid: bool = False
    opened: str = ""


def start_after(table: Table, tail: str) -> Start:
    """Where an answer begins whose prompt already holds its first words, `tail`.

    A template may open a thought (`<think>`) or close one (`<think></think>`) for the model, and
    a client may have begun the text, or a call. The tail is decoded as the answer that it is.
    """
    decoder = Decoder(table, state=table.grammar.start)
    decoder.feed(Chunk(tail))
    entry = table[decoder.state]
    if entry.shows or isinstance(entry.state, Header):
        return Start(decoder.state, decoder.amid)
    if entry.outside or decoder.opening is None:
        return Start(table.grammar.text)
    return Start(decoder.opening.state, opened=tail[decoder.opening.at :])


class Opening(NamedTuple):
    """Where calls began: the state that was left for them, and how many characters were read before."""

    state: str
    at: int


def state_after(table: Table, tail: str) -> str:
    """The state in which it begins."""
    return start_after(table, tail).state or table.grammar.start


class Decoder:
    """Decodes one generation. Not for reuse: every choice of every turn gets its own.

    `state` is where the answer begins (see `state_after`), None for the
    grammar's start. `stop` strings end what is said, and are part of it if `shown`.
    `ids` makes the ids of calls, given the index of the call
    in this answer. `tools` are the functions that the request offers: name →
    JSON Schema. `opened` is what the prompt holds of a call: the events tell the whole call,
    but their raw text is only what comes after.
    """

    def __init__(  # noqa: PLR0913 - all but the table may be left out
        self,
        table: Table,
        *,
        state: str | None = None,
        stop: Iterable[str] = (),
        shown: bool = False,
        ids: CallIds | None = None,
        tools: Mapping[str, Schema] | None = None,
        opened: str = "",
    ) -> None:
        self._table = table
        self._ledger = Ledger()
        stops = tuple(stop)
        stopper = Stopper(Lexer(stops), shown) if stops else None
        self._sink = Sink(self._ledger, ids or ids_by(openai_call_id), stopper, tools or {})
        self._origin: tuple[str, SpanReader] | None = None  # where the call that is being read began
        self.opening: Opening | None = None
        """Where the last calls that stand together began."""
        self._given = 0  # characters of the prompt that no event has told yet
        self.state = table.grammar.text
        self._reader: Reader = table[self.state].make(self._sink)
        self._arrive(state or table.grammar.start)
        if state is None:
            self.keep_space()
        if opened:
            self._read(Chunk(opened))
            self._given = len(opened)

    @property
    def amid(self) -> bool:
        """Something was said, of which what comes next is more."""
        return isinstance(self._reader, SpanReader) and not self._reader.fresh

    def keep_space(self) -> None:
        """The prompt ends in the middle of what is said: space at the beginning is part of it."""
        if isinstance(self._reader, SpanReader):
            self._reader.keep_space()

    @property
    def stopped(self) -> bool:
        """A stop string was found: the engine has nothing more to do."""
        return self._sink.stopped is not None

    @property
    def thinking(self) -> bool:
        """What comes next is a thought."""
        state = self._table[self.state].state
        return isinstance(state, Span) and state.kind is Kind.REASONING

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of thoughts so far."""
        return self._sink.reasoning_tokens

    def feed(self, chunk: Chunk) -> list[Event]:
        """The events that this chunk completes."""
        self._read(chunk)
        return self._drain() if self._given else self._sink.drain()

    def _read(self, chunk: Chunk) -> None:
        self._ledger.add(chunk)
        self._sink.cached_tokens += chunk.cached_tokens
        text = chunk.text
        while text and (step := self._reader.feed(text)):
            text = self._follow(step)

    def finish(self, finish: Finish) -> list[Event]:
        """The last events. Whatever was held back comes out."""
        text = ""
        while step := self._reader.finish(text):
            text = self._follow(step)
        if self._sink.in_call and not self._may_end_here(finish):
            self._sink.give_up_call("the call was cut")
        self._sink.finish(finish)
        return self._drain()

    def _drain(self) -> list[Event]:
        """What the sink has. What the prompt holds of it is not the model's."""
        return [kept for event in self._sink.drain() if (kept := self._without_given(event))]

    def _without_given(self, event: Event) -> Event | None:
        """The event without the text of the prompt; None if it has no other."""
        given = min(self._given, len(event.raw))
        if not given:
            return event
        self._given -= given
        if not isinstance(event, TextDelta | ReasoningDelta):
            return replace(event, raw=event.raw[given:])
        new = event.raw[given:]
        return replace(event, text=new, raw=new) if new else None

    def _may_end_here(self, finish: Finish) -> bool:
        """Only the closing markers of the call are missing, and it was the model that left them out."""
        state = self._table[self.state].state
        whole = isinstance(state, TextArguments) or (isinstance(state, Span) and state.kind is Kind.CALL)
        return whole and finish.reason is FinishReason.STOP

    def _follow(self, step: Step) -> str:
        """Go where a reader says; return the text to go on with."""
        if self.stopped:
            self._sink.markup(step.raw + step.rest)
            return ""
        if step.to == RETRACT:
            return self._retract(step.rest)
        self._arrive(step.to, step.raw)
        return step.rest

    def _arrive(self, name: str, marker: str = "") -> None:
        """Enter a state by a marker."""
        entry = self._table[name]
        if entry.opens and not self._sink.provisional:
            self._begin_call(marker)
        elif entry.outside:
            self._enter(entry.state, marker)
        else:
            self._sink.markup(marker)
        self.state = name
        self._reader = entry.make(self._sink)

    def _begin_call(self, marker: str) -> None:
        """A call may begin: remember where to come back to if there is none."""
        shows, reader = self._table[self.state].shows, self._reader
        self._origin = (self.state, reader) if shows and isinstance(reader, SpanReader) else None
        if self._origin:
            self.opening = Opening(self.state, self._ledger.read)
        if self._sink.in_call:
            self._sink.close()
        self._sink.begin_call(marker)

    def _enter(self, span: State, marker: str) -> None:
        """Text outside of calls comes next."""
        assert isinstance(span, Span)
        if self._sink.provisional:
            self._sink.forget_call()  # a group without calls
        self._sink.enter(span.kind, span.phase)
        self._sink.markup(marker)
        self._sink.say(span.shown)

    def _retract(self, rest: str) -> str:
        """What looked like a call is text: its marker, and then whatever the rest turns out to be."""
        if not self._sink.provisional:
            self._arrive(self._table.grammar.text)
            return rest
        marker, raw = self._sink.retract()
        text = (marker or "") + raw + rest
        if text:  # an answer that begins inside a header may be empty
            self._sink.malformed("a marker that opens no call")
        taken = self._taken(marker or "", raw)
        reader = self._come_home(None if marker is None else self._origin)
        reader.retake(text[:taken])
        return text[taken:]

    def _taken(self, marker: str, raw: str) -> int:
        """How much is certainly text, so that reading gets on, and reads nothing over and over."""
        if marker.strip() and _is_opening(self._table[self.state].state):
            return len(marker) + len(raw)  # markers in a row that led nowhere
        return len(marker) + (not marker.strip())

    def _come_home(self, origin: tuple[str, SpanReader] | None) -> SpanReader:
        """Read on where the call seemed to begin, or as plain text if that was inside of markup."""
        self.state = origin[0] if origin else self._table.grammar.text
        entry = self._table[self.state]
        reader, span = origin[1] if origin else entry.make(self._sink), entry.state
        assert isinstance(span, Span)
        assert isinstance(reader, SpanReader)
        self._sink.enter(span.kind, span.phase)
        self._reader = reader
        return reader


def _is_opening(state: State) -> bool:
    return isinstance(state, Span) and state.kind is Kind.OPENING
