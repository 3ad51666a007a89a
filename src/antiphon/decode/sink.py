"""Where readers put what they read: it becomes events here.

The sink keeps the three things that every reader needs and none should know:
which item is open, which tokens stand behind the text, and what is
provisional. While a call is being opened, everything read is provisional; it
is committed when the call's name is known, or taken back to become text.
"""

from collections.abc import Mapping
from typing import NamedTuple

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
from antiphon.core.grammar import Keyed, Kind
from antiphon.decode.arguments.types import Schema
from antiphon.decode.arguments.writer import ObjectWriter
from antiphon.decode.arguments.xml_tree import Element
from antiphon.decode.ids import CallIds
from antiphon.decode.ledger import Ledger
from antiphon.decode.lexer import Lexer

MAX_PROVISIONAL = 64 * 1024
"""Characters that may wait for the name of a call; beyond it they are text."""


class Stopper(NamedTuple):
    """Finds where visible text ends: before the first stop string, or after it if it is `shown`."""

    strings: Lexer
    shown: bool

    def find(self, text: str) -> tuple[int, str | None]:
        """How much of `text` is certainly said, and the stop string that was found."""
        found = self.strings.find(text)
        if found is None:
            return len(text), None
        if not found.marker:
            return found.start, None
        return found.start + len(found.marker) * self.shown, found.marker


class Sink:
    """Makes events of text that is reported in order, each character once.

    `ids` makes call ids, `stop` finds where visible text ends.
    `tools` are the functions that the request offers, with the schemas of
    their arguments.
    """

    def __init__(
        self, ledger: Ledger, ids: CallIds, stop: Stopper | None, tools: Mapping[str, Schema]
    ) -> None:
        self._ledger = ledger
        self._ids = ids
        self._calls = 0
        self._call_ids: set[str] = set()
        self._stop = stop
        self._tools = tools
        self._held = ""  # visible text that may be the beginning of a stop string
        self._kind = Kind.TEXT  # what is being read
        self._phase: str | None = None  # what the text that is being read is called
        self._open: Kind | None = None  # the item that is being shown: text, thought or call
        self._writer = ObjectWriter({})
        self._provisional: list[str] | None = None
        self._provisional_size = 0
        self._events: list[Event] = []
        self._completion_tokens = 0
        self.reasoning_tokens = 0
        """Tokens of thoughts."""
        self.cached_tokens = 0
        self.marker: str | None = None
        """The marker that what is provisional began with."""
        self.stopped: str | None = None
        """The stop string that was found."""

    # Text and markup

    def enter(self, kind: Kind, phase: str | None = None) -> None:
        """Text of this kind comes next: an item of another kind is over."""
        if self._open is not kind or self._phase != phase:
            self.close()
        self._kind, self._phase = kind, phase

    def text(self, kind: Kind, raw: str) -> None:
        """Text of a span."""
        if self._stop is None or kind is not Kind.TEXT:
            self._show(kind, raw)
        else:
            self._show_until_stop(self._stop, self._held + raw)

    def say(self, text: str) -> None:
        """Show text that the model did not write."""
        if text:
            self._open_item(Kind.TEXT)
            self._events.append(TextDelta(text, ""))

    def markup(self, raw: str) -> None:
        """Text without content."""
        if self._provisional is not None:
            self._provisional.append(raw)
            self._provisional_size += len(raw)
        elif raw:
            self._release()
            self._events.append(Markup(raw, self._take(raw)))

    def malformed(self, why: str) -> None:
        """Markup is broken; its text is reported beside this."""
        self._events.append(Malformed(why))

    def close(self) -> None:
        """Whatever item is open is over; a call that was not given up is whole."""
        self._release()
        if self._open is Kind.CALL:
            self.arguments(self._writer.end(), "")
            self.end_call()
        elif self._open is not None:
            self._events.append(TextEnded() if self._open is Kind.TEXT else ReasoningEnded())
        self._open = None

    # The opening of a call

    def begin_call(self, marker: str | None) -> None:
        """From here on text is provisional, until `call` or `retract`. None: no marker, a list goes on."""
        self.marker = marker
        self._provisional, self._provisional_size = [], 0

    @property
    def provisional(self) -> bool:
        """A call is being opened."""
        return self._provisional is not None

    @property
    def overfull(self) -> bool:
        """More text is provisional than the opening of a call may need."""
        return self._provisional is not None and self._provisional_size > MAX_PROVISIONAL

    def retract(self) -> tuple[str | None, str]:
        """There is no call: the marker and what followed are given back, to be read as something else."""
        raw, marker = "".join(self._provisional or ()), self.marker
        self._provisional = self.marker = None
        return marker, raw

    def forget_call(self) -> None:
        """There is no call, and nothing that could be text: what was provisional is markup."""
        marker, raw = self.retract()
        self.markup((marker or "") + raw)

    def declares(self, name: str) -> bool:
        """The request offers a function of this name."""
        return name in self._tools

    def call(self, name: str, call_id: str | None = None) -> None:
        """The call is real: its name is known."""
        marker, raw = self.retract()
        raw = (marker or "") + raw
        self.enter(Kind.MARKUP)
        self._open = Kind.CALL
        self._writer = ObjectWriter(self._tools.get(name, {}))
        if call_id is None or call_id in self._call_ids:  # models repeat theirs
            call_id = self._ids(name, self._calls)
        self._call_ids.add(call_id)
        self._calls += 1
        self._events.append(CallStarted(call_id, name, raw, self._take(raw)))

    # Its arguments

    @property
    def in_call(self) -> bool:
        """A call is open."""
        return self._open is Kind.CALL

    def arguments(self, text: str, raw: str) -> None:
        """More arguments of the call, as they stand."""
        if raw or text:
            self._events.append(ArgumentsDelta(text, raw, self._take(raw)))

    def key(self, keyed: Keyed, raw: str) -> None:
        """An argument begins."""
        self.arguments(self._writer.key(keyed), raw)

    def value(self, text: str, raw: str) -> None:
        """More of the argument's value."""
        if raw:
            self.arguments(self._writer.text(text) if text else "", raw)

    def end_value(self, raw: str) -> None:
        """The argument's value is whole; `raw` was its end."""
        self.arguments(self._writer.end_value(), raw)

    def takes_text(self, key: str) -> bool:
        """The tool's schema says that the argument is a string."""
        return self._writer.takes_text(key)

    def takes_list(self, key: str) -> bool:
        """The tool's schema says that the argument is an array, and that its values are none."""
        return self._writer.takes_list(key)

    def list_value(self, key: str, element: Element, raw: str) -> None:
        """A value of an argument that is an array was read as an element; `raw` was its end."""
        self.arguments(self._writer.list_value(key, element), raw)

    def element(self, element: Element, raw: str) -> None:
        """An argument was read as an element; `raw` was its end."""
        self.arguments(self._writer.element(element), raw)

    def end_call(self) -> None:
        """The call is over, and whole."""
        self._open = None
        self._events.append(CallEnded(complete=True))

    def give_up_call(self, why: str) -> None:
        """The call is over, and not whole."""
        self._open = None
        self.malformed(why)
        self._events.append(CallEnded(complete=False))

    # The end

    def finish(self, finish: Finish) -> None:
        """The generation is over, and every reader has reported."""
        self.close()
        rest = self._ledger.rest()
        counted = self._completion_tokens + len(rest)
        usage = Usage(
            completion_tokens=counted if finish.completion_tokens is None else finish.completion_tokens,
            reasoning_tokens=self.reasoning_tokens,
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
            self.reasoning_tokens += len(tokens)
        return tokens

    def _show(self, kind: Kind, raw: str) -> None:
        self._open_item(kind)
        tokens = self._take(raw)
        if kind is Kind.TEXT:
            self._events.append(TextDelta(raw, raw, tokens))
        else:
            self._events.append(ReasoningDelta(raw, raw, tokens))

    def _open_item(self, kind: Kind) -> None:
        if self._open is not kind:
            self.close()
            self._open = kind
            self._events.append(TextStarted(self._phase) if kind is Kind.TEXT else ReasoningStarted())

    def _show_until_stop(self, stop: Stopper, text: str) -> None:
        self._held = ""
        if self.stopped is not None:
            self.markup(text)
            return
        end, self.stopped = stop.find(text)
        if end:
            self._show(Kind.TEXT, text[:end])
        if self.stopped:
            self.markup(text[end:])
        else:
            self._held = text[end:]

    def _release(self) -> None:
        """What was held for a stop string is not the beginning of one."""
        if self._held:
            held, self._held = self._held, ""
            self._show(Kind.TEXT, held)
