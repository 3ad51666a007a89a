"""Builds events from the reports of readers.

It tracks for all readers which item is open, which tokens the text consists of, and which text is
provisional. From the opening marker of a call on, text is provisional; it is committed with the first
argument of the call, or its end. Until then nothing of the call is shown, and it can be retracted to become
text.
"""

from collections.abc import Mapping, Set

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
from antiphon.core.grammar import AcceptedNames, ArgumentKey, CallHeader, SpanKind
from antiphon.decode.arguments.elements import Element
from antiphon.decode.arguments.types import Schema, argument_names
from antiphon.decode.arguments.writer import ObjectWriter
from antiphon.decode.ids import CallIds
from antiphon.decode.stops import StopMatcher
from antiphon.decode.token_map import TokenMap

MAX_PROVISIONAL = 64 * 1024
"""Characters that are held back until a call has an argument; beyond that they are text."""
MAX_SKIPPED = 64
"""Those of them that belong to no part of the call: prose may quote the markers that begin one."""

_TEXT, _REASONING, _CALL = SpanKind.TEXT, SpanKind.REASONING, SpanKind.CALL
"""Looked up once: in Python 3.11 the attribute of an enumeration takes as long as a call."""


class EventBuilder:
    """Builds events from text that is reported in order, each character once.

    `ids` makes call ids, `stop` finds where visible text ends.
    `tools` are the functions that the request offers, with the schemas of
    their arguments.
    """

    def __init__(
        self, token_map: TokenMap, ids: CallIds, stop: StopMatcher | None, tools: Mapping[str, Schema]
    ) -> None:
        self._token_map = token_map
        self._ids = ids
        self._calls = 0
        self._call_ids: set[str] = set()
        self._stop = stop
        self._tools = tools
        self._held = ""  # visible text that may be the beginning of a stop string
        self._kind = _TEXT  # of the current text
        self._phase: str | None = None  # the phase of the current text
        self._open: SpanKind | None = None  # the open item: text, reasoning or call
        self._writer: ObjectWriter  # of the arguments of the call that is named
        self._broken = False  # the arguments of the open call are no JSON any more
        self._provisional: list[str] | None = None
        self._call_header: CallHeader | None = None  # the call that the provisional text begins
        self._provisional_size = self._skipped = 0
        self._events: list[Event] = []
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.cached_tokens = 0
        self.media_tokens = 0
        self.reasoned = False
        """Whether reasoning was entered."""
        self.marker: str | None = None
        """The marker that the provisional text began with."""
        self.stopped: str | None = None
        """The stop string that was found."""

    # Text and markup

    def enter(self, kind: SpanKind, phase: str | None = None) -> None:
        """Prepare for text of this kind: close an open item of another kind."""
        # A call with a name and without an argument is not open yet, but ends here as well.
        if self._open is not kind or self._phase != phase or self._call_header is not None:
            self.close()
        self._kind, self._phase = kind, phase
        self.reasoned = self.reasoned or kind is _REASONING

    def text(self, kind: SpanKind, raw: str) -> None:
        """Text of a span."""
        if self._stop is None or kind is not _TEXT:
            self._show(kind, raw)
        else:
            self._show_until_stop(self._stop, self._held + raw)

    def insert_text(self, text: str) -> None:
        """Add visible text that the model did not write."""
        if self._open is not _TEXT:
            self._open_item(_TEXT)
        self._events.append(TextDelta(text, ""))

    def markup(self, raw: str) -> None:
        """Text that belongs to no item, like markers."""
        if self._provisional is not None:
            self._provisional.append(raw)
            self._provisional_size += len(raw)
        elif raw:
            if self._held:
                self._release()
            self._events.append(Markup(raw, self._take(raw)))

    def skip(self, raw: str) -> None:
        """Text inside a call that belongs to none of its parts."""
        self._skipped += len(raw)
        self.markup(raw)

    def malformed(self, why: str) -> None:
        """The markup is malformed; its text is reported separately."""
        self._events.append(Malformed(why))

    def _malformed_arguments(self, why: str) -> None:
        """The arguments are no JSON from here on, or they end here."""
        self._events.append(Malformed(why, arguments=True))

    def close(self) -> None:
        """Close the open item; a call that did not fail is complete."""
        if self._held:
            self._release()
        if self._open is _CALL or self._call_header is not None:
            self.arguments(self._writer.end(), "")
            self.end_call()
        elif self._open is not None:
            self._events.append(TextEnded() if self._open is _TEXT else ReasoningEnded())
        self._open = None

    def passes(self, kind: SpanKind) -> bool:
        """Whether plain text of this kind needs only a delta: its item is open, no text is provisional."""
        return self._open is kind and not self._held and (self._stop is None or kind is not _TEXT)

    # The opening of a call

    def begin_provisional(self, marker: str | None) -> None:
        """Hold text back until the call starts or is retracted. `marker` is None later in a list."""
        self.marker = marker
        self._provisional, self._provisional_size, self._skipped = [], 0, 0

    @property
    def provisional(self) -> bool:
        """Whether there may be a call, whose name is not known."""
        return self._provisional is not None and self._call_header is None

    @property
    def retractable(self) -> bool:
        """Whether nothing of the call is shown: it has no argument yet, and can still become text."""
        return self._provisional is not None

    @property
    def in_list(self) -> bool:
        """Whether the provisional text follows another call of a list."""
        return self._provisional is not None and self.marker is None

    @property
    def over_limit(self) -> bool:
        """Whether more text is provisional than the opening of a call may have."""
        over = self._provisional_size > MAX_PROVISIONAL or self._skipped > MAX_SKIPPED
        return over and self._provisional is not None

    def retract(self) -> tuple[str | None, str]:
        """There is no call: return the marker and the text after it, to be read again."""
        raw, marker = "".join(self._provisional or ()), self.marker
        self._provisional = self.marker = self._call_header = None
        return marker, raw

    def discard_call(self) -> None:
        """There is no call and no text: the provisional text is markup."""
        marker, raw = self.retract()
        self.markup((marker or "") + raw)

    def accepts(self, name: str, names: AcceptedNames) -> bool:
        """Whether a call may have this name."""
        return names is AcceptedNames.ANY or self.declares(name)

    def declares(self, name: str) -> bool:
        """Whether the request offers a function of this name."""
        return name in self._tools

    def split_name(self, text: str) -> tuple[str, str] | None:
        """The names of a declared function and of one of its arguments, with nothing but space between."""
        for name in sorted(self._tools, key=len, reverse=True):
            key = text.removeprefix(name)
            if len(key) < len(text) and key.strip() in argument_names(self._tools[name]):
                return name, key
        return None

    def name_call(self, name: str, call_id: str | None = None) -> None:
        """The call's name is known: it starts with its first argument, or its end."""
        self._call_header = CallHeader(name, call_id)
        self._writer = ObjectWriter(self._tools.get(name, {}))

    def _start_call(self, name: str, call_id: str | None) -> None:
        marker, raw = self.retract()
        raw = (marker or "") + raw
        # Also if it follows reasoning: its tokens do not count as reasoning.
        self.enter(SpanKind.MARKUP)
        self._open = _CALL
        if call_id is None or call_id in self._call_ids:  # models repeat ids
            call_id = self._ids(name, self._calls)
        self._call_ids.add(call_id)
        self._calls += 1
        self._broken = False
        self._events.append(CallStarted(call_id, name, raw, self._take(raw)))

    # Its arguments

    @property
    def in_call(self) -> bool:
        """Whether a call is open."""
        return self._open is _CALL or self._call_header is not None

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun, which may have ended."""
        return self._calls > 0

    def arguments(self, text: str, raw: str) -> None:
        """Add JSON text to the arguments of the call, which starts with the first text."""
        if self._call_header is not None:
            if not text:
                self.markup(raw)
                return
            self._start_call(*self._call_header)
        if raw or text:
            self._events.append(ArgumentsDelta(text, raw, self._take(raw)))

    def broken_arguments(self, text: str, raw: str, why: str) -> None:
        """Add text that is not JSON to the arguments, after reporting that they are malformed."""
        if text and self._call_header is not None:
            self._start_call(*self._call_header)
        if text and not self._broken:
            self._broken = True
            self._malformed_arguments(why)
        self.arguments(text, raw)

    def key(self, keyed: ArgumentKey, raw: str) -> None:
        """Start an argument."""
        self.arguments(self._writer.key(keyed), raw)

    def value(self, text: str, raw: str) -> None:
        """Add text to the argument's value."""
        if raw:
            self.arguments(self._writer.text(text) if text else "", raw)

    def end_value(self, raw: str) -> None:
        """Complete the argument's value; `raw` was its end."""
        self.arguments(self._writer.end_value(), raw)

    def takes_text(self, key: str) -> bool:
        """Whether the tool's schema says that the argument is a string."""
        return self._writer.takes_text(key)

    def may_be_text(self, key: str) -> bool:
        """Whether the argument may be a string, for all that the tool's schema says."""
        return self._writer.may_be_text(key)

    def names_of(self, name: str) -> Set[str]:
        """The arguments that the function of this name declares, if the request offers one."""
        return argument_names(self._tools.get(name, {}))

    @property
    def argument_names(self) -> Set[str]:
        """The arguments that the tool declares."""
        return self._writer.names

    def takes_list(self, key: str) -> bool:
        """Whether the tool's schema says that the argument is an array, and its values are not."""
        return self._writer.takes_list(key)

    def list_value(self, key: str, element: Element, raw: str) -> None:
        """Add a value to an array argument, from an element; `raw` was its end."""
        self.arguments(self._writer.list_value(key, element), raw)

    def element(self, element: Element, raw: str) -> None:
        """Add an argument, from an element; `raw` was its end."""
        self.arguments(self._writer.element(element), raw)

    def end_call(self) -> None:
        """End a complete call."""
        self._open = None
        self._events.append(CallEnded(complete=True))

    def fail_call(self, why: str) -> None:
        """End an incomplete call. A retractable one is left to be retracted."""
        if self.retractable:
            return
        if not self._broken:
            self._malformed_arguments(why)
        self._open = None
        self._events.append(CallEnded(complete=False))

    # The end

    def finish(self, finish: Finish) -> None:
        """End the generation, after the last report of a reader."""
        self.close()
        rest = self._token_map.rest()
        counted = self.completion_tokens + len(rest)
        usage = Usage(
            completion_tokens=counted if finish.completion_tokens is None else finish.completion_tokens,
            reasoning_tokens=self.reasoning_tokens,
            cached_tokens=self.cached_tokens,
            media_tokens=self.media_tokens,
        )
        reason, stop = finish.reason, finish.stop
        closed, unused = finish.closed, finish.unused
        if self.stopped is not None:  # also in the text that would have ended its form
            reason, stop, closed, unused = FinishReason.STOP, self.stopped, 0, 0
        self._events.append(
            Finished(
                reason,
                usage,
                stop,
                "",
                rest,
                kv_transfer_params=finish.kv_transfer_params,
                closed=closed,
                unused=unused,
            )
        )

    def drain(self) -> list[Event]:
        """The events since this was last called."""
        events, self._events = self._events, []
        return events

    def _take(self, raw: str, visible: bool = False) -> tuple[Token, ...]:
        tokens = self._token_map.take(len(raw), visible)
        self.completion_tokens += len(tokens)
        if self._kind is _REASONING:  # space and markers inside reasoning count as reasoning
            self.reasoning_tokens += len(tokens)
        return tokens

    def _show(self, kind: SpanKind, raw: str) -> None:
        if self._open is not kind:
            self._open_item(kind)
        if kind is _TEXT:
            self._events.append(TextDelta(raw, raw, self._take(raw, visible=True)))
        else:
            self._events.append(ReasoningDelta(raw, raw, self._take(raw)))

    def _open_item(self, kind: SpanKind) -> None:
        self.close()
        self._open = kind
        self._events.append(TextStarted(self._phase) if kind is _TEXT else ReasoningStarted())

    def _show_until_stop(self, stop: StopMatcher, text: str) -> None:
        self._held = ""
        if self.stopped is not None:
            self.markup(text)
            return
        end, self.stopped = stop.find(text, self._token_map.least_end - self._token_map.position)
        if end:
            self._show(_TEXT, text[:end])
        if self.stopped:
            self.markup(text[end:])
        else:
            self._held = text[end:]

    def _release(self) -> None:
        """Report text that was held back, because after all no stop string begins in it."""
        assert self._stop is not None
        held, self._held = self._held, ""
        end, self.stopped = self._stop.find_final(held)
        if end:
            self._show(_TEXT, held[:end])
        if self.stopped:
            self.markup(held[end:])
