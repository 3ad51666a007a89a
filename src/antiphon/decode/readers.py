"""One reader per kind of state: it consumes text and reports to the sink what it was.

A reader's `feed` returns None when it wants more text, or a `Step`: the state
to go to and the text that it did not read. `finish` is the same, knowing that
no more text will come. A reader that finds that there is no call after all
returns `RETRACT` as the state.
"""

from typing import Final, NamedTuple, Protocol

from antiphon.core.grammar import Kind, Span
from antiphon.decode.lexer import Found, Lexer
from antiphon.decode.sink import Sink

MAX_SPACE = 256
"""Characters of space that are held back because a marker may follow; more is text."""

RETRACT: Final = ""
"""Instead of a state's name: what is provisional was no call."""


class Step(NamedTuple):
    """Where to go on. `raw` is the marker that led there, with the space before it."""

    to: str
    rest: str
    raw: str = ""


class Reader(Protocol):
    """Reads the text of one state."""

    def feed(self, text: str) -> Step | None:
        """Read on. None: all was read or is held back, more text is wanted."""
        ...

    def finish(self, text: str) -> Step | None:
        """Read the last text, and give up what is held back. None: all is reported."""
        ...


class SpanTable:
    """A span, compiled: its markers and where they lead, once for its beginning and once for what follows.

    `otherwise` is where text leads that may not stand there. None: it may, or it is
    skipped, in a span called `name` that leads there itself.
    """

    __slots__ = ("begin", "kind", "lexer", "otherwise", "peek", "to")

    def __init__(self, span: Span, name: str) -> None:
        only_space = span.kind in (Kind.MARKUP, Kind.OPENING) and span.otherwise != name
        self.kind = span.kind
        self.otherwise = span.otherwise or RETRACT if only_space else None
        self.peek = frozenset(span.peek)
        self.to = {**span.on, **span.first, **span.peek}
        self.lexer = Lexer(span.on)
        self.begin = Lexer(self.to)


class SpanReader:
    """Reads text of one kind, which follows a marker, up to the next marker."""

    __slots__ = ("_final", "_held", "_lexer", "_sink", "_table", "fresh")

    def __init__(self, table: SpanTable, sink: Sink) -> None:
        self._table = table
        self._sink = sink
        self.fresh = True  # nothing but space was read, and it belongs to the marker before
        self._lexer = table.begin
        self._held = ""
        self._final = False

    def feed(self, text: str) -> Step | None:
        """Report text as it comes; hold back what may be a marker, and the space before it."""
        if self._held:
            text, self._held = self._held + text, ""
        if not text:
            return None
        found = self._lexer.find_final(text) if self._final else self._lexer.find(text)
        if found is not None:
            return self._read(text, found)
        if self.fresh or self._lexer is not self._table.lexer or text[-1:].isspace():
            return self._read(text, Found(len(text), len(text), ""))
        self._report(text)
        return None

    def finish(self, text: str) -> Step | None:
        """The same, with nothing held back."""
        self._final = True
        step = self.feed(text)
        if step is None and self._table.kind is Kind.OPENING:
            return Step(RETRACT, self._held)
        if step is None:
            self._report(self._held)
        return step

    def keep_space(self) -> None:
        """No marker stands before this text: space at its beginning was said."""
        self.fresh = False

    def retake(self, marker: str) -> None:
        """The marker is text: report it, and count it as said."""
        self.fresh = False
        self._lexer = self._table.lexer
        self._report(marker)

    def _read(self, text: str, found: Found) -> Step | None:
        """Text, then space, then the marker or what may become one."""
        body, rest = text[: found.start], text[found.start :]
        if self.fresh:
            body = self._skip_space(body)
        said = body.rstrip()
        if said and self._table.otherwise is not None:
            return Step(self._table.otherwise, body + rest)
        if said and self._lexer is not self._table.lexer:
            return self._begin(said, body[len(said) :] + rest)
        space = body[len(said) :]
        surplus = max(0, len(space) - MAX_SPACE)
        self._report(said + space[:surplus])
        if found.marker in self._table.peek:
            return Step(self._table.to[found.marker], rest, space[surplus:])
        if found.marker:
            return Step(self._table.to[found.marker], text[found.end :], space[surplus:] + found.marker)
        self._held = space[surplus:] + rest
        return Step(RETRACT, self._held) if self._sink.overfull else None

    def _begin(self, said: str, rest: str) -> Step | None:
        """Report the first text of this span; the markers that count only before it do not count any more."""
        self._lexer = self._table.lexer
        if self._table.kind is Kind.CALL:
            self._sink.malformed("text between the arguments of a call")
        self._report(said)
        return self.feed(rest)

    def _skip_space(self, text: str) -> str:
        """Space after a marker belongs to the marker."""
        body = text.lstrip()
        self._sink.markup(text[: len(text) - len(body)])
        self.fresh = not body
        return body

    def _report(self, text: str) -> None:
        if self._table.kind in (Kind.CALL, Kind.MARKUP):
            self._sink.markup(text)
        elif text:
            self._sink.text(self._table.kind, text)
