"""The form of a whole answer, from where the prompt leaves off, through thoughts and headers, to the demand.

Strategy: a walk over the states outside of calls. Thoughts are free up to the
markers that end them. Where the answer itself may begin stands the body (the
format's text), calls, or both; where text is free, so is all up to a marker
that opens a call.
"""

from collections.abc import Callable

from antiphon.constrain.arguments import GAP
from antiphon.constrain.calls import Calls, headings_of
from antiphon.constrain.form import (
    ANY,
    EMPTY,
    NOTHING,
    Form,
    Ref,
    Until,
    chars,
    choice,
    optional,
    repeat,
    sequence,
    without,
)
from antiphon.core.grammar import Grammar, Header, Kind, Span

_SHOWN = (Kind.TEXT, Kind.REASONING)
_OUTSIDE = (Kind.TEXT, Kind.MARKUP)
_BLANKS = repeat(chars(" \t\r\n"))


class Answer:
    """Writes answers. `calls` is None if there are none, `body` None if no text is asked for."""

    def __init__(
        self, grammar: Grammar, calls: Calls | None, body: Form | None, rules: dict[str, Form]
    ) -> None:
        self._grammar = grammar
        self._states = grammar.states
        self._calls = calls
        self._body = body
        self._rules = rules
        phases = [state.phase for state in self._states.values() if isinstance(state, Span)]
        self._phase = next((phase for phase in phases if phase and phase.startswith("final")), None)

    def demanded(self, state: str | None) -> Form:
        """An answer that is the body, or calls: one of them must come."""
        name = state or self._grammar.start
        begins = self._states[name]
        if isinstance(begins, Header):
            return self._headed(begins, spoken=False, thinks=True)
        assert isinstance(begins, Span)
        if begins.kind is Kind.REASONING:
            return self._thought(name)
        lead = EMPTY if state is None else GAP  # space at the very beginning is said
        return self._reached(name, thinks=state is None, seen=frozenset({name}), lead=lead)

    def free(self, state: str | None) -> Form:
        """An answer of free text, in which a call that is opened is a call."""
        name = state or self._grammar.start
        begins = self._states[name]
        if isinstance(begins, Header):
            return self._free_header(begins, spoken=False)
        return self._free(name, fresh=True)

    def triggers(self) -> tuple[str, ...]:
        """The markers that open a call wherever they stand; none if a call may also begin otherwise."""
        spans = {name: state for name, state in self._states.items() if isinstance(state, Span)}
        found = [set(self._openers(span)) for span in spans.values() if span.kind in _SHOWN]
        headers = any(isinstance(state, Header) for state in self._reachable().values())
        peeked = any(
            self._opens(to) for span in spans.values() if span.kind in _SHOWN for to in span.peek.values()
        )
        same = all(each == found[0] for each in found)
        return tuple(sorted(found[0])) if same and not headers and not peeked else ()

    def triggered(self, triggers: tuple[str, ...]) -> Form:
        """From one of these markers on."""
        assert self._calls is not None
        text = self._states[self._grammar.text]
        assert isinstance(text, Span)
        return choice(*(sequence(marker, self._calls.opened(text.on[marker])) for marker in triggers))

    # Where something is demanded

    def _reached(self, name: str, thinks: bool, seen: frozenset[str], lead: Form = GAP) -> Form:
        """From a state outside of calls, where nothing is said yet."""
        span = self._states[name]
        assert isinstance(span, Span)
        loops: list[Form] = []
        ways: list[Form] = []
        for marker, to in {**span.first, **span.on}.items():
            if to == name:
                wanted = span.kind is Kind.MARKUP or self._body is not None
                loops += [optional(sequence(GAP, marker))] if wanted else []
            else:
                ways.append(sequence(marker, self._led(marker, to, thinks, seen)))
        if self._calls is not None:
            ways += (self._calls.opened(to, begins) for begins, to in span.peek.items() if self._opens(to))
        text = sequence(lead, self._text(name, span))
        return sequence(*loops, choice(text, sequence(GAP, choice(*ways))))

    def _led(self, marker: str, to: str, thinks: bool, seen: frozenset[str]) -> Form:
        """Behind a marker that leads to that state."""
        state = self._states[to]
        if isinstance(state, Header):
            written = marker == headings_of(state).marker
            return self._headed(state, spoken=True, thinks=thinks) if written else NOTHING
        if self._opens(to):
            return NOTHING if self._calls is None else self._calls.opened(to)
        if isinstance(state, Span) and state.kind is Kind.REASONING:
            return self._thought(to) if thinks else NOTHING
        if to in seen or not isinstance(state, Span) or state.kind not in _OUTSIDE:
            return NOTHING
        return self._reached(to, thinks, seen | {to})

    def _text(self, name: str, span: Span) -> Form:
        """The body, and the markers that may close it."""
        if self._body is None or span.kind is not Kind.TEXT or (self._phase and span.phase != self._phase):
            return NOTHING
        closers = [
            optional(sequence(GAP, marker))
            for marker, to in span.on.items()
            if isinstance(state := self._states[to], Span) and state.kind in _OUTSIDE
        ]
        return sequence(self._body, *closers)

    def _thought(self, name: str) -> Form:
        """A thought from its inside to what follows it."""

        def make() -> Form:
            span = self._states[name]
            assert isinstance(span, Span)
            ways = ((m, self._led(m, to, False, frozenset({name}))) for m, to in span.on.items())
            return Until(tuple((marker, None if then == NOTHING else then) for marker, then in ways))

        return self._ruled(f"thought {name}", make)

    def _headed(self, header: Header, spoken: bool, thinks: bool) -> Form:
        """From inside the header of a message."""
        ways = [] if self._calls is None else [self._calls.headed(self._name_of(header), spoken)]
        headings = headings_of(header)
        for text, to, _ in headings.headings:
            state = self._states[to]
            begun = text if spoken else text.removeprefix(headings.speaker)
            lead = sequence(
                optional(" ") if begun.startswith(" ") else EMPTY, begun.removeprefix(" "), header.ends[0]
            )
            if "NAME" in text or not isinstance(state, Span):
                continue
            if state.kind is Kind.REASONING and thinks:
                ways.append(sequence(lead, self._thought(to)))
            elif state.kind is Kind.TEXT:
                ways.append(sequence(lead, GAP, self._text(to, state)))
        return choice(*ways)

    # Where text is free

    def _free(self, name: str, fresh: bool) -> Form:
        span = self._states[name]
        assert isinstance(span, Span)
        text = self._states[self._grammar.text]
        assert isinstance(text, Span)
        markers = {**text.on, **span.on} if span.kind is Kind.MARKUP else span.on
        form = self._ruled(f"free {name}", lambda: Until(self._endings(dict(markers)), open=True))
        if not fresh:
            return form
        first = {marker: to for marker, to in span.first.items() if to != name and not self._opens(to)}
        begun = [
            sequence(_BLANKS, marker, self._free(to, fresh=to not in first)) for marker, to in first.items()
        ]
        peeks = {begins: to for begins, to in span.peek.items() if self._opens(to)}
        return choice(*begun, self._unlike(peeks, dict(markers), form) if peeks else form)

    def _unlike(self, peeks: dict[str, str], markers: dict[str, str], form: Form) -> Form:
        """Text that does not begin as a call without a marker does, or such a call."""
        assert self._calls is not None
        letters = "".join({marker[0] for marker in markers})
        endings = self._endings(markers)
        calls = [self._calls.opened(to, begins) for begins, to in peeks.items()]
        begins = [sequence(letter, Until(endings, open=True, begun=letter)) for letter in letters]
        other = sequence(without(ANY, letters + "".join(peeks) + " \t\r\n"), form)
        return sequence(_BLANKS, choice(EMPTY, *calls, *begins, other))

    def _endings(self, markers: dict[str, str]) -> tuple[tuple[str, Form | None], ...]:
        return tuple((marker, self._freely(marker, to)) for marker, to in markers.items())

    def _freely(self, marker: str, to: str) -> Form | None:
        state = self._states[to]
        if isinstance(state, Header):
            return self._free_header(state, spoken=True) if marker == headings_of(state).marker else None
        if self._opens(to):
            return None if self._calls is None else self._calls.opened(to)
        return self._free(to, fresh=False)

    def _free_header(self, header: Header, spoken: bool) -> Form:
        def make() -> Form:
            ways = [] if self._calls is None else [self._calls.headed(self._name_of(header), spoken)]
            headings = headings_of(header)
            for text, to, _ in headings.headings:
                begun = text if spoken else text.removeprefix(headings.speaker)
                lead = optional(" ") if begun.startswith(" ") else EMPTY
                if "NAME" not in text:
                    ways.append(
                        sequence(lead, begun.removeprefix(" "), header.ends[0], self._free(to, fresh=False))
                    )
            return choice(*ways)

        return self._ruled(f"header {'later' if spoken else 'first'}", make)

    # What both share

    def _openers(self, span: Span) -> list[str]:
        return [marker for marker, to in span.on.items() if self._opens(to)]

    def _reachable(self) -> dict[str, object]:
        return {name: state for name, state in self._states.items() if name == self._grammar.start}

    def _opens(self, name: str) -> bool:
        state = self._states[name]
        if isinstance(state, Span | Header):
            return isinstance(state, Span) and state.kind is Kind.OPENING
        return True

    def _name_of(self, header: Header) -> str:
        return next(name for name, state in self._states.items() if state is header)

    def _ruled(self, name: str, make: Callable[[], Form]) -> Form:
        if name not in self._rules:
            self._rules[name] = NOTHING
            self._rules[name] = make()
        return Ref(name)
