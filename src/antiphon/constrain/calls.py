"""How calls are written: a dialect's table read the other way.

Strategy: a walk over the states. From each state in which a call may begin,
markers lead to its header and its arguments, and behind them to the next call
or the end. Each state becomes a rule, made once, so that the table's circles
are circles of rules. Where the table knows several spellings (versions of one
family, arrays and single objects), all are offered: a model writes the one it
was taught.
"""

import json
from collections.abc import Callable, Sequence

from antiphon.constrain.arguments import GAP, Arguments, Offered, UnwritableError, filled
from antiphon.constrain.form import (
    EMPTY,
    NOTHING,
    Form,
    Literal,
    Ref,
    chars,
    choice,
    optional,
    repeat,
    sequence,
)
from antiphon.constrain.notation import SPACE
from antiphon.core.grammar import (
    Grammar,
    Header,
    Headings,
    JsonArguments,
    JsonCalls,
    KeyedCalls,
    Kind,
    Name,
    Opener,
    PythonCalls,
    Span,
    Spelled,
    State,
)

_CALL_ID = sequence('"', repeat(chars("A-Za-z0-9_-"), 1, 40), '"')


class Calls:
    """Writes calls of the functions offered. `several`: whether another may follow the first."""

    def __init__(
        self, grammar: Grammar, offered: Sequence[Offered], several: bool, rules: dict[str, Form]
    ) -> None:
        self._grammar = grammar
        self._states = grammar.states
        self._rules = rules
        self._several = several
        self._arguments = {
            each.name: Arguments(grammar, each, rules, str(index), self.after)
            for index, each in enumerate(offered)
        }
        self._natives = [each.name for each in offered if each.native]
        self._others = [each.name for each in offered if not each.native]

    def missed(self, name: str) -> list[str]:
        """What this format cannot hold the arguments of a function to."""
        return list(dict.fromkeys(self._arguments[name].missed))

    def opens(self, name: str) -> bool:
        """Whether a call begins in that state, headers of messages aside."""
        state = self._states[name]
        opening = isinstance(state, Span) and state.kind is Kind.OPENING
        return opening or (isinstance(state, Opener) and not isinstance(state, Header))

    def opened(self, name: str, begins: str = "", only: str | None = None) -> Form:
        """From that state through all calls to the end. `begins` is how the text there begins, if known."""
        return self._ruled(
            f"call {name} {begins} {only or ''}", lambda: self._opened(self._states[name], name, begins, only)
        )

    def sent(self, name: str, only: str) -> Form:
        """The body of a message that is sent to a function."""
        return self._ruled(f"sent {name} {only}", lambda: self._body(self._states[name], name, only))

    def _body(self, state: State, name: str, only: str) -> Form:
        if isinstance(state, JsonArguments):
            return self._arguments[only].inside(name)
        if not isinstance(state, Span):
            return NOTHING
        ways = [sequence(m, self.opened(to, "", only)) for m, to in state.on.items() if self.opens(to)]
        return sequence(GAP, choice(*ways))

    def headed(self, name: str, spoken: bool) -> Form:
        """From inside the header of a message that calls, with its speaker if that is `spoken`."""
        header = self._states[name]
        assert isinstance(header, Header)
        return self._ruled(f"headed {name} {spoken}", lambda: self._headings(header, spoken))

    def _headings(self, header: Header, spoken: bool) -> Form:
        headings = headings_of(header)
        ways: list[Form] = []
        for text, to, native in headings.headings:
            if "NAME" in text:
                begun = text if spoken else text.removeprefix(headings.speaker)
                for function in self._natives if native else self._others:
                    written = filled(begun.removeprefix(" "), {"NAME": Literal(function)})
                    lead = optional(" ") if begun.startswith(" ") else EMPTY
                    ways.append(sequence(lead, written, header.ends[0], self.sent(to, function)))
        return choice(*ways)

    def after(self, name: str) -> Form:
        """What may follow a call that led to that state: closing markers, other calls, or the end."""
        return self._ruled(f"after {name}", lambda: self._after(name))

    def _opened(self, state: State, name: str, begins: str, only: str | None) -> Form:
        match state:
            case Span():
                return self._opening(state, name, only)
            case Name():
                return choice(*(self._headed(state, each) for each in self._callable(only)))
            case JsonCalls():
                return self._values(self._json_call(state, only), begins, state.then)
            case KeyedCalls():
                return self._values(self._keyed_call(only), begins, state.then)
            case PythonCalls():
                return self._python(state, begins, only)
            case _:
                raise UnwritableError("how a call begins")

    def _opening(self, span: Span, name: str, only: str | None) -> Form:
        """Markers before the call's name; those that lead nowhere at most once each."""
        loops = [optional(sequence(GAP, marker)) for marker, to in span.on.items() if to == name]
        ways = [
            sequence(marker, self.opened(to, "", only))
            for marker, to in span.on.items()
            if to != name and self.opens(to)
        ]
        ways += (self.opened(to, begins, only) for begins, to in span.peek.items())
        if span.otherwise is not None and self.opens(span.otherwise):
            ways.append(self.opened(span.otherwise, "", only))
        return sequence(*loops, GAP, choice(*ways))

    def _headed(self, state: Name, function: str) -> Form:
        if not isinstance(state.form, Spelled):
            raise UnwritableError("how the header of a call is written")
        headers = [filled(text, {"NAME": Literal(function)}) for text in state.form.written]
        return sequence(choice(*headers), self._arguments[function].behind(state))

    def _values(self, one: Form, begins: str, then: str) -> Form:
        """One call, or an array of them."""
        more = repeat(sequence(",", SPACE, one)) if self._several else EMPTY
        array = sequence("[", SPACE, one, more, SPACE, "]")
        forms = {"{": [one], "[": [array]}.get(begins, [one, array])
        return sequence(EMPTY if begins else GAP, choice(*forms), self.after(then))

    def _json_call(self, state: JsonCalls, only: str | None) -> Form:
        colon, comma = sequence(":", SPACE), sequence(",", SPACE)
        ids = [sequence(json.dumps(key), colon, _CALL_ID, comma) for key in state.ids]
        ways = [
            sequence(
                json.dumps(each, ensure_ascii=False),
                comma,
                choice(*map(json.dumps, state.arguments)),
                colon,
                self._arguments[each].json(),
            )
            for each in self._callable(only)
        ]
        before = [*ids, sequence('"type"', colon, '"function"', comma)]
        head = sequence(optional(choice(*before)), choice(*map(json.dumps, state.name)), colon)
        return self._ruled(
            f"object {state.then} {state.name} {only or ''}",
            lambda: sequence("{", SPACE, head, choice(*ways), SPACE, "}"),
        )

    def _keyed_call(self, only: str | None) -> Form:
        ways = [
            sequence(json.dumps(each, ensure_ascii=False), ":", SPACE, self._arguments[each].json())
            for each in self._callable(only)
        ]
        return sequence("{", SPACE, choice(*ways), SPACE, "}")

    def _python(self, state: PythonCalls, begins: str, only: str | None) -> Form:
        ways = [sequence(each, "(", self._arguments[each].python(), ")") for each in self._callable(only)]
        one = self._ruled(f"python {state.then} {only or ''}", lambda: choice(*ways))
        several = repeat(sequence(",", SPACE, one)) if self._several else EMPTY
        rows = repeat(sequence("\n", one)) if self._several else EMPTY
        array = sequence("[", SPACE, one, several, SPACE, "]", self.after(state.then))
        bare = sequence(one, rows, self.after(state.then))
        return array if begins == "[" else sequence(GAP, choice(array, bare))

    def _after(self, name: str) -> Form:
        span = self._states[name]
        assert isinstance(span, Span)
        loops = [optional(sequence(GAP, marker)) for marker, to in span.on.items() if to == name]
        ways: list[Form] = [EMPTY]
        for marker, to in span.on.items():
            state = self._states[to]
            if self._several and isinstance(state, Header):
                written = isinstance(state.route, Spelled) and marker == headings_of(state).marker
                ways += [sequence(marker, self.headed(to, spoken=True))] if written else []
            elif self._several and self.opens(to):
                ways.append(sequence(marker, self.opened(to)))
            elif to != name and isinstance(state, Span) and _closes(span, state):
                ways.append(sequence(marker, self.after(to)))
        if self._several and span.kind is Kind.MARKUP:
            ways += (self.opened(to, begins) for begins, to in span.peek.items() if self.opens(to))
        return sequence(*loops, GAP, choice(*ways))

    def _callable(self, only: str | None) -> list[str]:
        return [only] if only is not None else list(self._arguments)

    def _ruled(self, name: str, make: Callable[[], Form]) -> Form:
        if name not in self._rules:
            self._rules[name] = NOTHING
            self._rules[name] = make()
        return Ref(name)


def headings_of(header: Header) -> Headings:
    """The headers that lead to messages. Raises `UnwritableError`."""
    if not isinstance(header.route, Spelled):
        raise UnwritableError("how headers are written")
    written = header.route.written
    assert isinstance(written, Headings)
    return written


def _closes(span: Span, to: Span) -> bool:
    """Whether a marker between these states, behind a call, may be one that closes."""
    return to.kind is Kind.MARKUP or (to.kind is Kind.TEXT and span.kind is Kind.MARKUP)
