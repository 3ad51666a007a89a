"""The grammar of a whole answer: reasoning, headers, and then the required text or calls.

It is built by walking the states outside of calls. Reasoning is free up to the markers that end it. Then
follows the body (the format's text), calls, or both; free text ends at a marker that opens a call.
"""

from antiphon.constrain.arguments import GAP
from antiphon.constrain.calls import CallGrammar, headings_of, opens_call
from antiphon.constrain.grammar_ir import (
    ANY_CHAR,
    EMPTY,
    NOTHING,
    Expr,
    Until,
    alternation,
    char_class,
    optional,
    repeat,
    rule,
    sequence,
    without,
)
from antiphon.core.grammar import Grammar, Header, Space, Span, SpanKind

_SHOWN = (SpanKind.TEXT, SpanKind.REASONING)
_OUTSIDE = (SpanKind.TEXT, SpanKind.MARKUP)
_BLANKS = repeat(char_class(" \t\r\n"))


class AnswerGrammar:
    """Builds the grammar of answers.

    `calls` is None if there are none, `body` None if no text is required.
    """

    def __init__(
        self, grammar: Grammar, calls: CallGrammar | None, body: Expr | None, rules: dict[str, Expr]
    ) -> None:
        self._grammar = grammar
        self._states = grammar.states
        self._calls = calls
        self._body = body
        self._rules = rules
        phases = [state.phase for state in self._states.values() if isinstance(state, Span)]
        self._phase = next((phase for phase in phases if phase and phase.startswith("final")), None)

    def demanded(self, state: str | None, *, mid_text: bool = False) -> Expr:
        """An answer that is the body, or calls: one of them is required."""
        name = state or self._grammar.start
        begins = self._states[name]
        if isinstance(begins, Header):
            return self._headed(begins, with_speaker=False, may_reason=True)
        assert isinstance(begins, Span)
        if begins.kind is SpanKind.REASONING:
            return self._reasoning(name)
        # Space at the very beginning is part of the text, after a marker it is not.
        lead = EMPTY if state is None or mid_text else _space(begins)
        return self._outside_calls(name, may_reason=state is None, seen=frozenset({name}), lead=lead)

    def free(self, state: str | None) -> Expr:
        """An answer of free text, in which an opened call must be a valid one."""
        name = state or self._grammar.start
        begins = self._states[name]
        if isinstance(begins, Header):
            return self._free_header(begins, with_speaker=False)
        return self._free(name, fresh=True)

    def triggers(self) -> tuple[str, ...]:
        """The markers that open a call anywhere; none if a call may also begin otherwise."""
        spans = {name: state for name, state in self._states.items() if isinstance(state, Span)}
        openers = [set(self._openers(span)) for span in spans.values() if span.kind in _SHOWN]
        headers = isinstance(self._states[self._grammar.start], Header)
        peeked = any(
            self._opens(to) for span in spans.values() if span.kind in _SHOWN for to in span.peek.values()
        )
        same = all(markers == openers[0] for markers in openers)
        return tuple(sorted(openers[0])) if same and not headers and not peeked else ()

    def triggered(self, triggers: tuple[str, ...]) -> Expr:
        """The grammar from one of these markers on."""
        assert self._calls is not None
        text = self._states[self._grammar.text]
        assert isinstance(text, Span)
        return alternation(*(sequence(marker, self._calls.opened(text.on[marker])) for marker in triggers))

    # Where something is demanded

    def _outside_calls(
        self, name: str, may_reason: bool, seen: frozenset[str], lead: Expr | None = None
    ) -> Expr:
        """From a state outside of calls, with no text yet."""
        span = self._states[name]
        assert isinstance(span, Span)
        loops: list[Expr] = []
        ways: dict[Expr, list[Expr]] = {GAP: [], _space(span): []}  # by the space before them
        for marker, to in {**span.first, **span.on}.items():
            if to == name:
                may_repeat = span.kind is SpanKind.MARKUP or self._body is not None
                loops += [optional(sequence(_space(span), marker))] if may_repeat else []
            else:
                space = GAP if self._opens(to) else _space(span)
                ways[space].append(sequence(marker, self._after_marker(marker, to, may_reason, seen)))
        if self._calls is not None:
            ways[GAP] += (
                self._calls.opened(to, begins) for begins, to in span.peek.items() if self._opens(to)
            )
        text = sequence(_space(span) if lead is None else lead, self._text(name, span))
        return sequence(
            *loops, alternation(text, *(sequence(space, alternation(*way)) for space, way in ways.items()))
        )

    def _after_marker(self, marker: str, to: str, may_reason: bool, seen: frozenset[str]) -> Expr:
        """After a marker that leads to that state."""
        state = self._states[to]
        if isinstance(state, Header):
            has_marker = marker == headings_of(state).marker
            return self._headed(state, with_speaker=True, may_reason=may_reason) if has_marker else NOTHING
        if self._opens(to):
            return NOTHING if self._calls is None else self._calls.opened(to)
        if isinstance(state, Span) and state.kind is SpanKind.REASONING:
            return self._reasoning(to) if may_reason else NOTHING
        if to in seen or not isinstance(state, Span) or state.kind not in _OUTSIDE:
            return NOTHING
        return self._outside_calls(to, may_reason, seen | {to})

    def _text(self, name: str, span: Span) -> Expr:
        """The body, and the markers that may close it."""
        if (
            self._body is None
            or span.kind is not SpanKind.TEXT
            or (self._phase and span.phase != self._phase)
        ):
            return NOTHING
        closers = [
            optional(sequence(_space(span), marker))
            for marker, to in span.on.items()
            if isinstance(state := self._states[to], Span) and state.kind in _OUTSIDE
        ]
        return sequence(self._body, *closers)

    def _reasoning(self, name: str) -> Expr:
        """From inside reasoning to what follows it."""

        def make() -> Expr:
            span = self._states[name]
            assert isinstance(span, Span)
            ways = ((m, self._after_marker(m, to, False, frozenset({name}))) for m, to in span.on.items())
            on = tuple((marker, None if then == NOTHING else then) for marker, then in ways)
            return Until((*on, *_forbidden(span)))

        return rule(self._rules, f"reasoning {name}", make)

    def _headed(self, header: Header, with_speaker: bool, may_reason: bool) -> Expr:
        """From inside the header of a message."""
        ways = [] if self._calls is None else [self._calls.headed(self._name_of(header), with_speaker)]
        headings = headings_of(header)
        for text, to, _ in headings.spellings:
            state = self._states.get(to)
            spelling = text if with_speaker else text.removeprefix(headings.speaker)
            lead = sequence(
                optional(" ") if spelling.startswith(" ") else EMPTY,
                spelling.removeprefix(" "),
                header.ends[0],
            )
            if "NAME" in text or not isinstance(state, Span):
                continue
            if state.kind is SpanKind.REASONING and may_reason:
                ways.append(sequence(lead, self._reasoning(to)))
            elif state.kind is SpanKind.TEXT:
                ways.append(sequence(lead, _space(state), self._text(to, state)))
        return alternation(*ways)

    # Where text is free

    def _free(self, name: str, fresh: bool) -> Expr:
        span = self._states[name]
        assert isinstance(span, Span)
        text = self._states[self._grammar.text]
        assert isinstance(text, Span)
        markers = {**text.on, **span.on} if span.kind is SpanKind.MARKUP else span.on
        forbidden = _forbidden(text if span.kind is SpanKind.MARKUP else span)

        def make() -> Expr:
            return Until((*self._endings(dict(markers)), *forbidden), open=True)

        expr = rule(self._rules, f"free {name}", make)
        if not fresh:
            return expr
        first = {marker: to for marker, to in span.first.items() if to != name and not self._opens(to)}
        leads = [
            sequence(_BLANKS, marker, self._free(to, fresh=to not in first)) for marker, to in first.items()
        ]
        peeks = {begins: to for begins, to in span.peek.items() if self._opens(to)}
        return alternation(*leads, self._not_as_call(peeks, dict(markers), expr) if peeks else expr)

    def _not_as_call(self, peeks: dict[str, str], markers: dict[str, str], expr: Expr) -> Expr:
        """Text that does not begin like a call without a marker; or such a call."""
        assert self._calls is not None
        letters = "".join(sorted({marker[0] for marker in markers}))  # in every process the same
        endings = self._endings(markers)
        calls = [self._calls.opened(to, begins) for begins, to in peeks.items()]
        begins = [sequence(letter, Until(endings, open=True, prefix=letter)) for letter in letters]
        other = sequence(without(ANY_CHAR, letters + "".join(peeks) + " \t\r\n"), expr)
        return sequence(_BLANKS, alternation(EMPTY, *calls, *begins, other))

    def _endings(self, markers: dict[str, str]) -> tuple[tuple[str, Expr | None], ...]:
        return tuple((marker, self._free_after_marker(marker, to)) for marker, to in markers.items())

    def _free_after_marker(self, marker: str, to: str) -> Expr | None:
        state = self._states[to]
        if isinstance(state, Header):
            return (
                self._free_header(state, with_speaker=True) if marker == headings_of(state).marker else None
            )
        if self._opens(to):
            return None if self._calls is None else self._calls.opened(to)
        return self._free(to, fresh=False)

    def _free_header(self, header: Header, with_speaker: bool) -> Expr:
        def make() -> Expr:
            ways = [] if self._calls is None else [self._calls.headed(self._name_of(header), with_speaker)]
            headings = headings_of(header)
            for text, to, _ in headings.spellings:
                spelling = text if with_speaker else text.removeprefix(headings.speaker)
                lead = optional(" ") if spelling.startswith(" ") else EMPTY
                if "NAME" not in text:
                    ways.append(
                        sequence(
                            lead, spelling.removeprefix(" "), header.ends[0], self._free(to, fresh=False)
                        )
                    )
            return alternation(*ways)

        return rule(self._rules, f"header {'later' if with_speaker else 'first'}", make)

    # Common parts

    def _openers(self, span: Span) -> list[str]:
        return [marker for marker, to in span.on.items() if self._opens(to)]

    def _opens(self, name: str) -> bool:
        return opens_call(self._states[name])

    def _name_of(self, header: Header) -> str:
        return next(name for name, state in self._states.items() if state is header)


def _forbidden(span: Span) -> tuple[tuple[str, None], ...]:
    """The markers of habits, which free text must not contain: no model should begin a call with them."""
    return tuple((marker, None) for marker in span.habits.on if marker not in span.on)


def _space(span: Span) -> Expr:
    """The space around text in a span, where it is not part of the text."""
    return EMPTY if span.space is Space.TEXT else GAP
