"""Where readers put what they read: it becomes events here.

The sink keeps the three things that every reader needs and none should know:
which item is open, which tokens stand behind the text, and what is
provisional. While a call is being opened, everything read is provisional; it
is committed when the call's name is known, or taken back to become text.
"""

from antiphon.core.chunks import Finish, FinishReason, Token
from antiphon.core.events import (
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Finished,
    Malformed,
    Markup,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextStarted,
    Usage,
)
from antiphon.core.grammar import Kind
from antiphon.decode.ids import CallIds
from antiphon.decode.ledger import Ledger
from antiphon.decode.lexer import Lexer

MAX_PROVISIONAL = 64 * 1024
"""Characters that may wait for the name of a call; beyond it they are text."""


class Sink:
    """Makes events of text that is reported in order, each character once.

    `ids` makes call ids, `calls` is how many calls the conversation has so
    far, `stop` finds the stop strings in visible text.
    """

    def __init__(self, ledger: Ledger, ids: CallIds, calls: int, stop: Lexer | None) -> None:
        self._ledger = ledger
        self._ids = ids
        self._calls = calls
        self._stop = stop
        self._held = ""  # visible text that may be the beginning of a stop string
        self._kind = Kind.TEXT  # what is being read
        self._open: Kind | None = None  # the item that is being shown
        self._provisional: list[str] | None = None
        self._provisional_size = 0
        self._marker = ""  # the marker that what is provisional began with
        self._events: list[Event] = []
        self._completion_tokens = 0
        self._reasoning_tokens = 0
        self.cached_tokens = 0
        self.stopped: str | None = None
        """The stop string that was found."""

    def text(self, kind: Kind, raw: str) -> None:
        """Text of a span."""
        if self._stop is None or kind is not Kind.TEXT:
            self._show(kind, raw)
        else:
            self._show_until_stop(self._stop, self._held + raw)

    def markup(self, raw: str) -> None:
        """Text without content."""
        if self._provisional is not None:
            self._provisional.append(raw)
            self._provisional_size += len(raw)
        elif raw:
            self._release()
            self._events.append(Markup(raw, self._take(raw)))

    def enter(self, kind: Kind) -> None:
        """Text of this kind comes next: an item of another kind is over."""
        if self._open is not kind:
            self.close()
        self._kind = kind

    def close(self) -> None:
        """Whatever item is open is over."""
        self._release()
        if self._open is Kind.TEXT:
            self._events.append(TextEnded())
        elif self._open is Kind.REASONING:
            self._events.append(ReasoningEnded())
        self._open = None

    def begin_call(self, marker: str) -> None:
        """From `marker` on text is provisional, until `call` or `retract`."""
        self._marker = marker
        self._provisional, self._provisional_size = [], 0

    @property
    def provisional(self) -> bool:
        """A call is being opened."""
        return self._provisional is not None

    @property
    def overfull(self) -> bool:
        """More text is provisional than the opening of a call may need."""
        return self._provisional is not None and self._provisional_size > MAX_PROVISIONAL

    def retract(self) -> tuple[str, str]:
        """There is no call: the marker and what followed are given back, to be read as something else."""
        raw = "".join(self._provisional or ())
        self._provisional = None
        return self._marker, raw

    def call(self, name: str) -> None:
        """The call is real: its name is known."""
        raw = "".join(self.retract())
        self.enter(Kind.MARKUP)
        call_id = self._ids(name, self._calls)
        self._calls += 1
        self._events.append(CallStarted(call_id, name, raw, self._take(raw)))

    def arguments(self, text: str, raw: str) -> None:
        """More arguments of the call."""
        if raw or text:
            self._events.append(ArgumentsDelta(text, raw, self._take(raw)))

    def end_call(self) -> None:
        """The call is over, and whole."""
        self._events.append(CallEnded(complete=True))

    def give_up_call(self, why: str) -> None:
        """The call is over, and not whole."""
        self.malformed(why)
        self._events.append(CallEnded(complete=False))

    def malformed(self, why: str) -> None:
        """Markup is broken; its text is reported beside this."""
        self._events.append(Malformed(why))

    def finish(self, finish: Finish) -> None:
        """The generation is over, and every reader has reported."""
        self.close()
        rest = self._ledger.rest()
        counted = self._completion_tokens + len(rest)
        usage = Usage(
            completion_tokens=counted if finish.completion_tokens is None else finish.completion_tokens,
            reasoning_tokens=self._reasoning_tokens,
            cached_tokens=self.cached_tokens,
        )
        reason, stop = finish.reason, finish.stop
        if self.stopped is not None:
            reason, stop = FinishReason.STOP, self.stopped
        self._events.append(Finished(reason, usage, stop, "", rest))

    def drain(self) -> list[Event]:
        """The events since this was last called."""
        events, self._events = self._events, []
        return events

    def _take(self, raw: str) -> tuple[Token, ...]:
        tokens = self._ledger.take(len(raw))
        self._completion_tokens += len(tokens)
        if self._kind is Kind.REASONING:  # space and markers inside thoughts count as thinking
            self._reasoning_tokens += len(tokens)
        return tokens

    def _show(self, kind: Kind, raw: str) -> None:
        if self._open is not kind:
            self.close()
            self._open = kind
            self._events.append(TextStarted() if kind is Kind.TEXT else ReasoningStarted())
        tokens = self._take(raw)
        if kind is Kind.TEXT:
            self._events.append(TextDelta(raw, raw, tokens))
        else:
            self._events.append(ReasoningDelta(raw, raw, tokens))

    def _show_until_stop(self, stop: Lexer, text: str) -> None:
        self._held = ""
        if self.stopped is not None:
            self.markup(text)
            return
        found = stop.find(text)
        shown = text if found is None else text[: found.start]
        if shown:
            self._show(Kind.TEXT, shown)
        if found is not None and found.marker:
            self.stopped = found.marker
            self.markup(text[found.start :])
        elif found is not None:
            self._held = text[found.start :]

    def _release(self) -> None:
        """What was held for a stop string is not the beginning of one."""
        if self._held:
            held, self._held = self._held, ""
            self._show(Kind.TEXT, held)
