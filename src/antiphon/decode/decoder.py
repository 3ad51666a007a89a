"""Chunks → events: the one decoder that streams and full answers share.

Strategy: a table of states, a reader per state that consumes text, and an `EventBuilder` that turns the
reports of readers into events. The decoder only moves between states. It is total: any sequence of chunks
gives events, and it never raises because of model output.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.events import Event, ReasoningDelta, TextDelta
from antiphon.core.grammar import Grammar, Header, Lookahead, Name, Span, SpanKind, State, TextArguments
from antiphon.decode.arguments.types import Schema
from antiphon.decode.doubled import DoubledMarker
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.ids import CallIds, ids_by, openai_call_id
from antiphon.decode.lexer import NEVER_PLAIN
from antiphon.decode.readers import MIN_CUT_MARKER, RETRACT, SpanReader, StateReader, Step
from antiphon.decode.stops import StopMatcher
from antiphon.decode.table import Table
from antiphon.decode.token_map import TokenMap


def answer_header(generation_prompt: str, grammar: Grammar) -> str:
    """The part of a generation prompt before the first marker that belongs to the answer."""
    spans = [state for state in grammar.states.values() if isinstance(state, Span)]
    markers = {marker: to for span in spans for marker, to in (*span.on.items(), *span.first.items())}
    # A marker that starts the header of every message is part of every generation prompt.
    starts = {marker: int(isinstance(grammar.states[to], Header)) for marker, to in markers.items()}
    ends = [at for marker, start in starts.items() if (at := generation_prompt.find(marker, start)) >= 0]
    return generation_prompt[: min(ends, default=len(generation_prompt))]


class Start(NamedTuple):
    """Where an answer begins: `state` is None for the grammar's start.

    `mid_text` says that it continues text of the prompt, and `call_prefix` is the start
    of calls in the prompt that the answer continues.
    """

    state: str | None = None
    mid_text: bool = False
    call_prefix: str = ""


def start_after(table: Table, tail: str) -> Start:
    """Where an answer begins if the prompt ends with `tail`, its first text.

    A template may open reasoning (`<think>`) or skip it (`<think></think>`), and a client may
    have started the text, or a call. The tail is decoded like an answer.
    """
    decoder = Decoder(table, state=table.grammar.start)
    decoder.feed(Chunk(tail))
    entry = table[decoder.state]
    if entry.visible or isinstance(entry.state, Header):
        return Start(decoder.state, decoder.mid_text)
    if entry.outside_calls or decoder.calls_start is None:
        return Start(decoder.around_calls)
    return Start(decoder.calls_start.state, call_prefix=tail[decoder.calls_start.offset :])


class CallsStart(NamedTuple):
    """Where calls started: the state before them, and the number of characters read before."""

    state: str
    offset: int


def state_after(table: Table, tail: str) -> str:
    """The state of `start_after`, or the grammar's start."""
    return start_after(table, tail).state or table.grammar.start


PIECE = 512
"""Characters of a chunk that are read at a time: each state looks for its markers in all of them. Chunks that
were held back for a client that does not read are merged into one of any size."""


class Decoder:
    """Decodes one generation. A decoder is used once.

    `state` is where the answer begins (see `state_after`), None for the grammar's start. `stop` strings
    end visible text, but not before the answer has its `least` tokens, and are part of it if
    `include_stop`. `ids` makes the ids of calls, given the index of the call in this answer. `tools` are
    the functions that the request offers: name → JSON Schema. `call_prefix` is the start of calls in the
    prompt: events report the whole calls, with the raw text of the answer only.
    """

    def __init__(  # noqa: PLR0913 - all but the table may be left out
        self,
        table: Table,
        *,
        state: str | None = None,
        stop: Iterable[str] = (),
        include_stop: bool = False,
        least: int = 0,
        ids: CallIds | None = None,
        tools: Mapping[str, Schema] | None = None,
        call_prefix: str = "",
    ) -> None:
        self._table = table
        self._token_map = TokenMap()
        stops = tuple(stop)
        matcher = StopMatcher(stops, include_stop) if stops else None
        self._builder = EventBuilder(self._token_map, ids or ids_by(openai_call_id), matcher, tools or {})
        self._doubled = DoubledMarker()
        self._origin: tuple[str, SpanReader] | None = None  # where the current call started
        self.around_calls = table.grammar.text
        """The state that the latest calls began in, and that follows them."""
        self.calls_start: CallsStart | None = None
        """Where the latest group of calls started."""
        self.stopped = False
        """A stop string was found: the engine can stop."""
        self.plain = self._plain_texts = self._spaces = NEVER_PLAIN
        """Text → whether a chunk of one token with this text is plain now: then the text is its only delta.

        Most are: in an item that is open, with nothing in it that could be a marker.
        """
        self._space: Chunk | None = None  # between plain ones, and not read yet
        self._delta: type[TextDelta | ReasoningDelta] = TextDelta
        self._plain_length = self._plain_tokens = 0  # of plain chunks that are not counted yet
        self._prefix_left = 0  # characters of `call_prefix` that are still to be removed from events
        self.state = table.grammar.text
        text, begin = table[self.state], state or table.grammar.start
        self._reader: StateReader = text.make(self._builder)
        if begin == self.state and text.outside_calls is not None:
            self._enter(text.outside_calls, "")
        else:
            self._go_to(begin)
        if state is None:
            self.keep_space()
        if call_prefix:
            self._read(Chunk(call_prefix))
            self._prefix_left = len(call_prefix)
        if least:
            self._token_map.expect(least)

    @property
    def mid_text(self) -> bool:
        """Whether the next text continues text that was read."""
        return isinstance(self._reader, SpanReader) and not self._reader.at_start

    def keep_space(self) -> None:
        """Treat space at the start as text: the answer continues text of the prompt."""
        if isinstance(self._reader, SpanReader):
            self._reader.keep_space()

    @property
    def in_reasoning(self) -> bool:
        """Whether the next text is reasoning."""
        state = self._table[self.state].state
        return isinstance(state, Span) and state.kind is SpanKind.REASONING

    @property
    def open_delta(self) -> type[TextDelta | ReasoningDelta] | None:
        """The type of the deltas of plain chunks; None if no chunk is plain in this state."""
        return None if self._plain_texts is NEVER_PLAIN else self._delta

    @property
    def can_end(self) -> bool:
        """Whether an answer that ends here is whole up to here: no call is open, nor may have begun."""
        builder, reader = self._builder, self._reader
        if builder.in_call or builder.retractable:
            return False
        if isinstance(reader, SpanReader) and reader.holds_marker:
            return False
        return self._table[self.state].visible or builder.has_calls

    @property
    def completion_tokens(self) -> int:
        """Tokens so far."""
        return self._builder.completion_tokens + self._plain_tokens

    @property
    def reasoning_tokens(self) -> int:
        """Reasoning tokens so far, including an incomplete one."""
        self._flush_counts()
        return self._builder.reasoning_tokens + (self.in_reasoning and self._token_map.is_inside_token)

    def feed(self, chunk: Chunk) -> list[Event]:
        """The events that this chunk completes."""
        text = chunk.text
        if len(chunk.tokens) == 1 and self.plain[text]:  # has the same result as `_feed`
            self._plain_length += len(text)
            self._plain_tokens += 1
            return [self._delta(text, text, chunk.tokens)]
        return self._feed(chunk)

    def count_plain(self, texts: Sequence[str]) -> None:
        """Count plain chunks with these texts. They need not be fed."""
        self._plain_length += sum(map(len, texts))
        self._plain_tokens += len(texts)

    def _flush_counts(self) -> None:
        """Add the plain chunks since the last call to all counts."""
        length, tokens = self._plain_length, self._plain_tokens
        self._plain_length = self._plain_tokens = 0
        self._token_map.pass_over(length, tokens)
        self._builder.completion_tokens += tokens
        if self._delta is ReasoningDelta:
            self._builder.reasoning_tokens += tokens

    def _feed(self, chunk: Chunk) -> list[Event]:
        """The same for any chunk."""
        space, single = self._space, len(chunk.tokens) == 1
        if space is not None:
            text = space.text + chunk.text
            if single and self._plain_texts[text]:
                self._space, self.plain = None, self._plain_texts
                self._plain_length += len(text)
                self._plain_tokens += 2
                return [self._delta(text, text, space.tokens + chunk.tokens)]
        elif single and self._spaces[chunk.text]:
            # The next chunk will probably be plain together with this space. The space alone is not.
            self._space, self.plain = chunk, NEVER_PLAIN
            return []
        self._read_plain()
        self._read(chunk)
        events = self._drain()
        self.stopped = self._builder.stopped is not None
        self.plain = self._plain_texts = self._spaces = NEVER_PLAIN
        if chunk.finish is None:
            self._find_plain()
        return events

    def _read_plain(self) -> None:
        """Update all readers with the plain chunks since the last call, and the space after them."""
        if self._plain_tokens:
            self._flush_counts()
        if self._space is not None:
            self._read(self._space)
            self._space = None

    def _find_plain(self) -> None:
        """Find the condition for the next chunk to be plain, or space between plain ones, if it can be."""
        reader, entry = self._reader, self._table[self.state]
        kind = entry.visible_kind
        if kind is not None and not self._prefix_left and isinstance(reader, SpanReader):
            self._delta = entry.delta
            if (lexer := reader.text_lexer) and self._builder.passes(kind) and self._token_map.idle:
                self.plain = self._plain_texts = lexer.plain
                self._spaces = lexer.space

    def _read(self, chunk: Chunk) -> None:
        self._token_map.add(chunk)
        self._builder.cached_tokens += chunk.cached_tokens
        self._builder.media_tokens += chunk.media_tokens
        for start in range(0, len(chunk.text), PIECE):
            text = chunk.text[start : start + PIECE]
            if self._doubled.expected:
                text = self._without_double(text)
            while text and (step := self._reader.feed(text)):
                text = self._without_double(self._follow(step))

    def _without_double(self, text: str, *, final: bool = False) -> str:
        """The text after a marker, without the same marker."""
        double, text = self._doubled.take(text, final=final)
        if double:
            self._builder.markup(double)
        return text

    def finish(self, finish: Finish) -> list[Event]:
        """The last events, with all text that was held back."""
        self._read_plain()
        if finish.reason is FinishReason.STOP:
            self._read_last("")
            # What the model wrote last is text that began like a call. Read again, it may do so once more.
            while self._builder.retractable:
                self._read_last(self._retract(""))
        else:
            self._read_cut()
        if self._builder.in_call and not self._is_complete(finish):
            self._builder.fail_call("the call was truncated")
        self._builder.finish(finish)
        return self._drain()

    def _read_last(self, text: str) -> None:
        text = self._without_double(text, final=True)
        while step := self._reader.finish(text):
            text = self._without_double(self._follow(step), final=True)

    def _read_cut(self) -> None:
        """Read what was held back when the answer was cut: the beginning of a marker or call is not shown."""
        start, text = self._doubled.take_cut(MIN_CUT_MARKER)
        self._builder.markup(start)
        while text and (step := self._reader.feed(text)):
            text = self._follow(step)
        if isinstance(self._reader, SpanReader):
            self._reader.drop_cut_marker()
        text = ""
        while step := self._reader.finish(text):
            if step.to == RETRACT and self._builder.retractable:
                self._builder.markup(step.rest)
                break
            text = self._without_double(self._follow(step), final=True)
        if self._builder.retractable:
            self._builder.malformed("the call was truncated")
            self._builder.discard_call()

    def _drain(self) -> list[Event]:
        """The builder's events, without the text of `call_prefix`."""
        events = self._builder.drain()
        if not self._prefix_left:
            return events
        return [remaining for event in events if (remaining := self._without_prefix(event))]

    def _without_prefix(self, event: Event) -> Event | None:
        """The event without the text of `call_prefix`; None if it has no other."""
        length = min(self._prefix_left, len(event.raw))
        if not length:
            return event
        self._prefix_left -= length
        if not isinstance(event, TextDelta | ReasoningDelta):
            return replace(event, raw=event.raw[length:])
        new = event.raw[length:]
        return replace(event, text=new, raw=new) if new else None

    def _is_complete(self, finish: Finish) -> bool:
        """Whether the call ended with the answer: the token by which the model stopped was its end."""
        state = self._table[self.state].state
        return isinstance(state, TextArguments) and finish.reason is FinishReason.STOP

    def _follow(self, step: Step) -> str:
        """Apply a reader's step; return the text to read next."""
        if self._builder.stopped is not None:
            self._builder.markup(step.raw + step.rest)
            return ""
        if step.to == RETRACT:
            return self._retract(step.rest)
        self._go_to(step.to, step.raw)
        return step.rest

    def _go_to(self, name: str, marker: str = "") -> None:
        """Enter a state, after its marker."""
        # A grammar continues with text after calls. If they began in reasoning, reasoning continues.
        if name == self._table.grammar.text and not self._table[self.state].visible:
            name = self.around_calls
        entry = self._table[name]
        if entry.starts_call and not self._builder.provisional:
            self._begin_call(entry.state, marker)
        elif entry.outside_calls is not None:
            self._enter(entry.outside_calls, marker)
        else:
            self._builder.markup(marker)
        self.state = name
        self._reader = entry.make(self._builder)
        self._doubled.expect("" if isinstance(entry.state, Header) else marker)

    def _begin_call(self, start: State, marker: str) -> None:
        """Start a provisional call, and remember the state to return to."""
        shows, reader = self._table[self.state].visible, self._reader
        self._origin = (self.state, reader) if shows and isinstance(reader, SpanReader) else None
        if self._origin:
            self.calls_start = CallsStart(self.state, self._token_map.position)
            # A message of its own ends the text before it, a call in a text does not.
            self.around_calls = self._table.grammar.text if isinstance(start, Header) else self.state
        if self._builder.in_call:
            self._builder.close()
        self._builder.begin_provisional(marker)

    def _enter(self, span: Span, marker: str) -> None:
        """Enter a state outside calls."""
        if self._builder.provisional:
            self._builder.discard_call()  # a group without calls
        self._builder.enter(span.kind, span.phase)
        if marker:
            self._builder.markup(marker)
        if self._table[self.state].visible:  # the text before ends, and no calls
            self.around_calls = self._table.grammar.text
            if span.entry_text:
                self._builder.insert_text(span.entry_text)

    def _retract(self, rest: str) -> str:
        """The provisional call is text: its marker is, and the rest is read again."""
        if not self._builder.retractable:
            self._go_to(self._table.grammar.text)
            return rest
        marker, raw = self._builder.retract()
        text = (marker or "") + raw + rest
        token = self._header_token(text)
        if token:
            self._builder.malformed("a header without a message")
            self._builder.markup(token)
            self._resume_text(self._origin)
            return text[len(token) :]
        if text:  # an answer that starts inside a header may be empty
            self._builder.malformed("a marker that opens no call")
        length = self._text_length(marker or "", raw)
        reader = self._resume_text(None if marker is None else self._origin)
        reader.take_as_text(text[:length], quoted=bool(marker))
        return text[length:]

    def _header_token(self, text: str) -> str:
        """The special token, and the space before it, with which text that is no header begins."""
        if not isinstance(self._table[self.state].state, Header):
            return ""
        space = len(text) - len(text.lstrip())
        token = next((token for token in self._table.header_tokens if text.startswith(token, space)), "")
        return text[:space] + token if token else ""

    def _text_length(self, marker: str, raw: str) -> int:
        """The number of characters that are certainly text. At least one, so that reading makes progress."""
        if marker.strip() and _is_opening(self._table[self.state].state):
            return len(marker) + len(raw)  # consecutive markers without a call
        return len(marker) + (not marker.strip())

    def _resume_text(self, origin: tuple[str, SpanReader] | None) -> SpanReader:
        """Return to the state before the call, or before the calls if that was markup."""
        self._doubled.expect("")
        self.state = origin[0] if origin else self.around_calls
        entry = self._table[self.state]
        reader, span = origin[1] if origin else entry.make(self._builder), entry.state
        assert isinstance(span, Span)
        assert isinstance(reader, SpanReader)
        self._builder.enter(span.kind, span.phase)
        self._reader = reader
        return reader


def _is_opening(state: State) -> bool:
    """Whether nothing but markers of an opening was read before this state."""
    return isinstance(state, Name | Lookahead) or (isinstance(state, Span) and state.kind is SpanKind.OPENING)
