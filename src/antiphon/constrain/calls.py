"""The grammar of calls, from a dialect's state table.

From each state in which a call may begin, markers lead to its header and arguments, and then to the next
call or the end. Each state becomes a rule. If the table has several spellings (versions of a family), all
are allowed: a model writes the one that it was trained with.
"""

import json
from collections.abc import Sequence

from antiphon.constrain.arguments import (
    GAP,
    ArgumentGrammar,
    CallableFunction,
    UnsupportedSyntaxError,
    fill_placeholders,
)
from antiphon.constrain.grammar_ir import (
    EMPTY,
    NOTHING,
    Expr,
    Literal,
    alternation,
    char_class,
    optional,
    repeat,
    rule,
    sequence,
)
from antiphon.constrain.value_syntax import SPACE
from antiphon.core.grammar import (
    CallStart,
    Grammar,
    Header,
    HeaderSpellings,
    JsonArguments,
    JsonCalls,
    KeyedCalls,
    Name,
    PythonCalls,
    Span,
    SpanKind,
    SpelledParser,
    State,
)

_CALL_ID = sequence('"', repeat(char_class("A-Za-z0-9_-"), 1, 40), '"')


class CallGrammar:
    """Writes calls of the functions offered. `several`: whether another may follow the first."""

    def __init__(
        self, grammar: Grammar, offered: Sequence[CallableFunction], several: bool, rules: dict[str, Expr]
    ) -> None:
        self._grammar = grammar
        self._states = grammar.states
        self._rules = rules
        self._allows_several = several
        self._arguments = {
            function.name: ArgumentGrammar(grammar, function, rules, str(index), self.after)
            for index, function in enumerate(offered)
        }
        self._natives = [function.name for function in offered if function.native]
        self._others = [function.name for function in offered if not function.native]

    def unenforced(self, name: str) -> list[str]:
        """The keywords that this format cannot enforce for the arguments of a function."""
        return list(dict.fromkeys(self._arguments[name].unenforced))

    def opened(self, name: str, begins: str = "", only: str | None = None) -> Expr:
        """From that state through all calls to the end. `begins` is how the text there begins, if known."""
        return rule(
            self._rules,
            f"call {name} {begins} {only or ''}",
            lambda: self._opened(self._states[name], name, begins, only),
        )

    def sent(self, name: str, only: str) -> Expr:
        """The body of a message that is sent to a function."""
        return rule(self._rules, f"sent {name} {only}", lambda: self._body(self._states[name], name, only))

    def _body(self, state: State, name: str, only: str) -> Expr:
        if not isinstance(state, Span):
            return self._arguments[only].inside(name) if isinstance(state, JsonArguments) else NOTHING
        if state.kind is SpanKind.CALL:  # the arguments: the header has the name
            return self._arguments[only].inside(name)
        ways = [sequence(m, self.opened(to, "", only)) for m, to in state.on.items() if self._opens(to)]
        return sequence(GAP, alternation(*ways))

    def headed(self, name: str, with_speaker: bool) -> Expr:
        """From inside the header of a message that calls, with its speaker if `with_speaker`."""
        header = self._states[name]
        assert isinstance(header, Header)
        return rule(
            self._rules, f"headed {name} {with_speaker}", lambda: self._headings(header, with_speaker)
        )

    def _headings(self, header: Header, with_speaker: bool) -> Expr:
        headings = headings_of(header)
        ways: list[Expr] = []
        for text, to, native in headings.spellings:
            if "NAME" in text:
                spelling = text if with_speaker else text.removeprefix(headings.speaker)
                for function in self._natives if native else self._others:
                    heading = fill_placeholders(spelling.removeprefix(" "), {"NAME": Literal(function)})
                    lead = optional(" ") if spelling.startswith(" ") else EMPTY
                    ways.append(sequence(lead, heading, header.ends[0], self.sent(to, function)))
        return alternation(*ways)

    def after(self, name: str) -> Expr:
        """What may follow a call that led to that state: closing markers, other calls, or the end."""
        return rule(self._rules, f"after {name}", lambda: self._after(name))

    def _opened(self, state: State, name: str, begins: str, only: str | None) -> Expr:
        match state:
            case Span():
                return self._opening(state, name, only)
            case Name():
                return alternation(*(self._headed(state, function) for function in self._callable(only)))
            case JsonCalls():
                return self._values(self._json_call(state, only), begins, state.then)
            case KeyedCalls():
                return self._values(self._keyed_call(only), begins, state.then)
            case PythonCalls():
                return self._python(state, begins, only)
            case _:
                raise UnsupportedSyntaxError("how a call begins")

    def _opening(self, span: Span, name: str, only: str | None) -> Expr:
        """Markers before the call's name; those that lead nowhere at most once each."""
        loops = [optional(sequence(GAP, marker)) for marker, to in span.on.items() if to == name]
        ways = [
            sequence(marker, self.opened(to, "", only))
            for marker, to in span.on.items()
            if to != name and self._opens(to)
        ]
        ways += (self.opened(to, begins, only) for begins, to in span.peek.items())
        if span.otherwise not in (None, name) and self._opens(span.otherwise):
            ways.append(self.opened(span.otherwise, "", only))
        return sequence(*loops, GAP, alternation(*ways))

    def _headed(self, state: Name, function: str) -> Expr:
        if not isinstance(state.parse, SpelledParser):
            raise UnsupportedSyntaxError("how the header of a call is written")
        headers = [fill_placeholders(text, {"NAME": Literal(function)}) for text in state.parse.spellings]
        return sequence(alternation(*headers), self._arguments[function].after_header(state))

    def _values(self, one: Expr, begins: str, then: str) -> Expr:
        """One call, or an array of calls."""
        more = repeat(sequence(",", SPACE, one)) if self._allows_several else EMPTY
        array = sequence("[", SPACE, one, more, SPACE, "]")
        exprs = {"{": [one], "[": [array]}.get(begins, [one, array])
        return sequence(EMPTY if begins else GAP, alternation(*exprs), self.after(then))

    def _json_call(self, state: JsonCalls, only: str | None) -> Expr:
        colon, comma = sequence(":", SPACE), sequence(",", SPACE)
        ids = [sequence(json.dumps(key), colon, _CALL_ID, comma) for key in state.ids]
        ways = [
            sequence(
                json.dumps(name, ensure_ascii=False),
                comma,
                alternation(*map(json.dumps, state.arguments)),
                colon,
                self._arguments[name].json(),
            )
            for name in self._callable(only)
        ]
        before = [*ids, sequence('"type"', colon, '"function"', comma)]
        head = sequence(optional(alternation(*before)), alternation(*map(json.dumps, state.name)), colon)
        return rule(
            self._rules,
            f"object {state.then} {state.name} {only or ''}",
            lambda: sequence("{", SPACE, head, alternation(*ways), SPACE, "}"),
        )

    def _keyed_call(self, only: str | None) -> Expr:
        ways = [
            sequence(json.dumps(name, ensure_ascii=False), ":", SPACE, self._arguments[name].json())
            for name in self._callable(only)
        ]
        return sequence("{", SPACE, alternation(*ways), SPACE, "}")

    def _python(self, state: PythonCalls, begins: str, only: str | None) -> Expr:
        ways = [sequence(name, "(", self._arguments[name].python(), ")") for name in self._callable(only)]
        one = rule(self._rules, f"python {state.then} {only or ''}", lambda: alternation(*ways))
        several = repeat(sequence(",", SPACE, one)) if self._allows_several else EMPTY
        rows = repeat(sequence("\n", one)) if self._allows_several else EMPTY
        array = sequence("[", SPACE, one, several, SPACE, "]", self.after(state.then))
        bare = sequence(one, rows, self.after(state.then))
        return array if begins == "[" else sequence(GAP, alternation(array, bare))

    def _after(self, name: str) -> Expr:
        span = self._states[name]
        assert isinstance(span, Span)
        loops = [optional(sequence(GAP, marker)) for marker, to in span.on.items() if to == name]
        ways: list[Expr] = [EMPTY]
        for marker, to in span.on.items():
            state = self._states[to]
            if self._allows_several and isinstance(state, Header):
                has_marker = isinstance(state.route, SpelledParser) and marker == headings_of(state).marker
                ways += [sequence(marker, self.headed(to, with_speaker=True))] if has_marker else []
            elif self._allows_several and self._opens(to):
                ways.append(sequence(marker, self.opened(to)))
            elif to != name and isinstance(state, Span) and _closes(span, state):
                ways.append(sequence(marker, self.after(to)))
        if self._allows_several and span.kind is SpanKind.MARKUP:
            ways += (self.opened(to, begins) for begins, to in span.peek.items() if self._opens(to))
        return sequence(*loops, GAP, alternation(*ways))

    def _opens(self, name: str) -> bool:
        return opens_call(self._states[name])

    def _callable(self, only: str | None) -> list[str]:
        return [only] if only is not None else list(self._arguments)


def opens_call(state: State) -> bool:
    """Whether a call begins in that state, headers of messages aside."""
    opening = isinstance(state, Span) and state.kind is SpanKind.OPENING
    return opening or (isinstance(state, CallStart) and not isinstance(state, Header))


def headings_of(header: Header) -> HeaderSpellings:
    """The headers that lead to messages. Raises `UnwritableError`."""
    if not isinstance(header.route, SpelledParser):
        raise UnsupportedSyntaxError("how headers are written")
    spellings = header.route.spellings
    assert isinstance(spellings, HeaderSpellings)
    return spellings


def _closes(span: Span, to: Span) -> bool:
    """Whether a marker between these states, after a call, may close it."""
    return to.kind is SpanKind.MARKUP or (to.kind is SpanKind.TEXT and span.kind is SpanKind.MARKUP)
