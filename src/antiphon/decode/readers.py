"""Readers: one per kind of state, which consumes text and reports it to the `EventBuilder`.

A reader's `feed` returns None when it needs more text, or a `Step`: the next state
and the text that it did not read. `finish` is the same for the last text. A reader
that finds that a provisional call is not one returns `RETRACT` as the state.
"""

import re
from typing import Final, NamedTuple, Protocol

from antiphon.core.grammar import Span, SpanKind
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.lexer import MAX_SPACE, Lexer, MarkerMatch

RETRACT: Final = ""
"""In place of a state's name: the provisional text is not a call."""


MIN_CUT_MARKER = 2
"""Characters of a marker that a cut answer does not show. After text, a single one is rather text."""

_NAME = re.compile(r"\s*[\w.:/-]{1,256}\s*")
"""A name before a marker."""
_OPENING, _CALL = SpanKind.OPENING, SpanKind.CALL
_TEXT, _MARKUP = SpanKind.TEXT, SpanKind.MARKUP


class Step(NamedTuple):
    """The next state. `raw` is the marker that leads there, with the space before it."""

    to: str
    rest: str
    raw: str = ""


class StateReader(Protocol):
    """Reads the text of one state."""

    def feed(self, text: str) -> Step | None:
        """Read more text. None: all of it was read or is held back."""
        ...

    def finish(self, text: str) -> Step | None:
        """Read the last text, and report held text. None: all is reported.

        If the answer was cut, a call that is still provisional counts as a call.
        """
        ...


class SpanTable:
    """A compiled span: its markers and their states, for its start and for the text after it.

    `reasoned` is for an answer that has had reasoning. `otherwise` is the state for text that the span does
    not allow; None if it allows text, or skips it, which a span says by its own `name` as `otherwise`.
    `quoting` finds markers after a marker that was text: there, those that are hidden elsewhere are text too.
    """

    def __init__(self, span: Span, name: str, reasoned: bool = False) -> None:
        only_space = span.kind in (SpanKind.MARKUP, SpanKind.OPENING) or span.otherwise is not None
        habits, closes = span.habits, span.closes if reasoned else ()
        on = {**habits.on, **span.on, **({**habits.again, **span.again} if reasoned else {})}
        self.kind = span.kind
        self.otherwise = span.otherwise or RETRACT if only_space and span.otherwise != name else None
        self.peek = frozenset((*span.peek, *habits.peek))
        self.names = frozenset(habits.names)
        self.to = {**on, **habits.first, **span.first, **span.peek, **habits.peek}
        self.closes = frozenset(closes) - on.keys()
        self.hidden = frozenset((*habits.hidden, *closes)) - on.keys()
        self.quotes = frozenset(span.quotes if closes else ()) - on.keys()
        self.lexer = Lexer((*on, *self.hidden, *self.quotes))
        self.quoting = Lexer((*on, *self.closes, *self.quotes)) if habits.hidden else self.lexer
        self.begin = Lexer((*self.to, *self.hidden))


class SpanReader:
    """Reads text of one kind, after a marker, up to the next marker."""

    def __init__(self, table: SpanTable, builder: EventBuilder) -> None:
        self._table = table
        self._builder = builder
        self.at_start = True  # only space was read so far, which belongs to the marker before
        self._lexer = table.begin
        self._held = ""
        self._final = False
        self._quoted = False  # an opening marker of reasoning is part of the text: so is the next closing one

    @property
    def holds_marker(self) -> bool:
        """Whether text is held back that may be the beginning of a marker."""
        return bool(self._held) and not self._held.isspace()

    def feed(self, text: str) -> Step | None:
        """Report text, and hold back what may be the start of a marker, and the space before it."""
        if self._held:
            text, self._held = self._held + text, ""
        while text:
            match = self._lexer.find_final(text) if self._final else self._lexer.find(text)
            if match is None or not self._passes(match.marker):
                return self._read_to(text, match)
            text = self._pass(text, match)
        return None

    def _read_to(self, text: str, match: MarkerMatch | None) -> Step | None:
        """Read text up to the match in it; None: there is none."""
        if match is not None:
            return self._read(text, match)
        only_space = self._begins and (self._table.otherwise is not None or self._table.names)
        if self.at_start or text[-1:].isspace() or only_space:
            return self._read(text, MarkerMatch(len(text), len(text), ""))
        if self._begins:
            return self._begin(text, "")
        self._report(text)
        return Step(RETRACT, "") if self._builder.over_limit else None

    def finish(self, text: str) -> Step | None:
        """The same, without holding text back."""
        if self._table.kind in (_MARKUP, _CALL):
            if text and (step := self.feed(text)):
                return step
            if to := self._cut_tag():
                return Step(to, "", self._held)
            text = ""
        self._final = True
        step = self.feed(text) if text or self._held else None
        if step is None and self._table.kind is _OPENING:
            return Step(RETRACT, self._held)
        if step is None and self._held:
            self._report(self._held)
        return step

    def _cut_tag(self) -> str:
        """The state that a tag around calls leads to, whose last characters the model has left out."""
        start, table = self._held.strip(), self._table
        if len(start) <= MIN_CUT_MARKER:
            return ""
        states = {
            to for marker, to in table.to.items() if marker.startswith(start) and marker not in table.peek
        }
        return states.pop() if len(states) == 1 else ""

    def drop_cut_marker(self) -> None:
        """Report the beginning of a marker, or the name before it, as markup: the answer was cut there."""
        match = self._lexer.find(self._held)
        minimum = MIN_CUT_MARKER if self._table.kind is _TEXT and not self._begins else 1
        whole = self._lexer.find_final(self._held)  # it may be the beginning of a longer one
        is_whole = whole is not None and whole.end == len(self._held)
        is_cut = match and match.end - match.start >= minimum and not is_whole
        if is_cut or (self._begins and self._is_name(self._held, "")):
            self._builder.markup(self._held)
            self._held = ""

    @property
    def text_lexer(self) -> Lexer | None:
        """The lexer for the next text, if text without a marker is only reported."""
        in_text = not (self.at_start or self._held or self._final or self._begins)
        return self._lexer if in_text else None

    @property
    def _begins(self) -> bool:
        """Whether nothing but space and hidden markers was read."""
        return self._lexer is self._table.begin

    def keep_space(self) -> None:
        """No marker precedes this text, so space at its start is text."""
        self.at_start = False

    def take_as_text(self, text: str, *, quoted: bool) -> None:
        """Report text that begins no call. It is `quoted` if it is a marker."""
        self.at_start = False
        self._lexer = self._table.quoting if quoted else self._table.lexer
        self._report(text)

    def _passes(self, marker: str) -> bool:
        """Whether this marker leads nowhere: it is hidden, or quoted."""
        if self._begins and marker in self._table.to:
            return False
        return marker in self._table.hidden or marker in self._table.quotes

    def _pass(self, text: str, match: MarkerMatch) -> str:
        """Read such a marker, and the text before it; return the text after it."""
        body, marker = text[: match.start], match.marker
        if self.at_start:
            body = self._skip_space(body)
        if body:
            self._lexer = self._table.lexer
            self._report(body)
        quoted = self._quoted if marker in self._table.closes else marker in self._table.quotes
        if quoted:
            self._report(marker)
        else:
            self._builder.markup(marker)
        self._quoted = quoted and marker in self._table.quotes
        return text[match.end :]

    def _read(self, text: str, match: MarkerMatch) -> Step | None:
        """Read text, space, and a marker or the start of one."""
        body, rest, begins = text[: match.start], text[match.start :], self._begins
        if self.at_start:
            body = self._skip_space(body)
        if begins and self._is_name(body, match.marker):
            return self._read_name(body, text, match)
        content = body.rstrip()
        if content and self._table.otherwise is not None:
            return Step(self._table.otherwise, body + rest)
        if content and begins:
            return self._begin(content, body[len(content) :] + rest)
        space = body[len(content) :]
        surplus = max(0, len(space) - MAX_SPACE)
        self._report(content + space[:surplus])
        if content and self._builder.over_limit:
            return Step(RETRACT, space[surplus:] + rest)
        if match.marker:
            to, space = self._table.to[match.marker], space[surplus:]
            peeks = match.marker in self._table.peek
            return Step(to, rest, space) if peeks else Step(to, text[match.end :], space + match.marker)
        self._held = space[surplus:] + rest
        return None

    def _read_name(self, name: str, text: str, match: MarkerMatch) -> Step | None:
        """Hold a name back until the marker after it comes."""
        if match.marker in self._table.peek:
            return Step(self._table.to[match.marker], text)
        if match.marker:
            return Step(self._table.to[match.marker], text[match.end :], name + match.marker)
        self._held = name + text[match.start :]
        return None

    def _is_name(self, body: str, marker: str) -> bool:
        """Whether the text may be a name before a marker, see `Habits`."""
        may_follow = marker in self._table.names or not (marker or self._final)
        return bool(self._table.names) and may_follow and _NAME.fullmatch(body) is not None

    def _begin(self, content: str, rest: str) -> Step | None:
        """Report the first text of this span; from here on the markers in `first` are text."""
        self._lexer = self._table.lexer
        if self._table.kind is _CALL:
            self._builder.malformed("text between the arguments of a call")
        self._report(content)
        return self.feed(rest) if rest else None

    def _skip_space(self, text: str) -> str:
        """Report space after a marker as part of the marker."""
        body = text.lstrip()
        self._builder.markup(text[: len(text) - len(body)])
        self.at_start = not body
        return body

    def _report(self, text: str) -> None:
        kind = self._table.kind
        if kind is _MARKUP:
            self._builder.markup(text)
        elif kind is _CALL or kind is _OPENING:
            self._builder.skip(text)
        elif text:
            self._builder.text(kind, text)
