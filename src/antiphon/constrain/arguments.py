"""How the arguments of one function are written, in the states of a dialect's table that hold them.

The table says how calls are read, and reads more than models are taught.
What is written keeps to the first marker of keys and values, and closes what it opens.
"""

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from antiphon.constrain.form import (
    EMPTY,
    NOTHING,
    Form,
    Literal,
    Ref,
    Until,
    chars,
    choice,
    optional,
    repeat,
    sequence,
)
from antiphon.constrain.kinds import is_free, objects, of_type
from antiphon.constrain.names import is_name, plain_names
from antiphon.constrain.notation import (
    Braces,
    Json,
    Python,
    Tree,
    Verbatim,
)
from antiphon.constrain.shape import Member, Object, Shape, Shapes
from antiphon.core.grammar import (
    BraceArguments,
    Grammar,
    JsonArguments,
    Key,
    KeySpelling,
    Kind,
    Name,
    Span,
    Spelled,
    State,
    Trim,
    Value,
)
from antiphon.core.grammar import (
    Tree as TreeState,
)

GAP = choice(EMPTY, " ", "\n", "\n\n")
"""Space between markers: each model writes what it is used to."""

_PLACES = re.compile(r"(?<![A-Z_])(NAME|KEY|NUMBER|ID)(?![A-Z_])")


class Offered(Struct, frozen=True):
    """A function that may be called: its name, and the shapes of its arguments.

    A `native` one is a tool that the model's family was trained with.
    """

    name: str
    shapes: Shapes
    native: bool = False


class UnwritableError(Exception):
    """The table does not say how calls are written. The message says what it lacks."""


class Arguments:
    """Writes the arguments of one function. `after` gives what follows a call that leads to a state."""

    def __init__(
        self,
        grammar: Grammar,
        offered: Offered,
        rules: dict[str, Form],
        scope: str,
        after: Callable[[str], Form],
    ) -> None:
        self._states = grammar.states
        self._offered = offered
        self._rules = rules
        self._scope = scope
        self._after = after
        self._named = offered.shapes.named
        self._objects = objects(offered.shapes.shape, self._named)
        self.missed: list[str] = []

    def json(self) -> Form:
        """All arguments as a JSON object."""
        name = f"arguments {self._scope}"
        if name not in self._rules:
            notation = Json(self._rules, self._scope, self._named)
            self._rules[name] = choice(*map(notation.form, self._objects))
        return Ref(name)

    def python(self) -> Form:
        """All arguments as Python writes them, without parentheses."""
        notation = Python(self._rules, self._scope, self._named)
        variants = []
        for shape in self._objects:
            others: Form = NOTHING
            if shape.others is not None:
                others = sequence(plain_names(_names(shape)), "=", notation.form(shape.others))
            members = [m for m in shape.members if self._writable(m, re.fullmatch(r"\w{1,200}", m.name))]
            listed = [(sequence(m.name, "=", notation.form(m.shape)), m.required) for m in members]
            variants.append(notation.joined(listed, others, shape.least, shape.most))
        return choice(*variants)

    def behind(self, state: Name) -> Form:
        """From behind the text of a call's header up to its end."""
        direct = [to for to in state.on.values() if isinstance(self._states[to], Key)]
        options = [self._pairs(self._after_value(direct[0]))] if direct else []
        for marker, to in state.on.items():
            if not isinstance(self._states[to], Key) and not self._outside(to):
                options.append(sequence(marker, self.inside(to)))
        options += (self.inside(to) for to in state.peek.values())
        if not options:
            ends = [sequence(marker, self._after(to)) for marker, to in state.on.items()]
            options = ends if self._may_be_empty() else []
        return sequence(GAP, choice(*options))

    def inside(self, name: str) -> Form:
        """From the state of that name up to the end of the call."""
        state = self._states[name]
        if isinstance(state, JsonArguments):
            return sequence(GAP, self.json(), self._after(state.then))
        if isinstance(state, BraceArguments):
            return self._braces(state)
        if not isinstance(state, Span) or state.kind is not Kind.CALL:
            return NOTHING
        kinds = {type(self._states[to]) for to in (*state.on.values(), *state.peek.values())}
        if TreeState in kinds:
            return self._elements(name)
        return self._pairs(name) if Key in kinds else self._prelude(name, state)

    def _prelude(self, name: str, span: Span) -> Form:
        """Markers before the JSON of the arguments, each at most once."""
        loops = [optional(sequence(GAP, marker)) for marker, to in span.on.items() if to == name]
        leads = [
            sequence(marker, self.inside(to))
            for marker, to in span.on.items()
            if isinstance(self._states[to], JsonArguments)
        ]
        leads += (self.inside(to) for to in span.peek.values())
        return sequence(*loops, GAP, choice(*leads))

    def _braces(self, state: BraceArguments) -> Form:
        notation = Braces(self._rules, f"{self._scope} {state.quote}", self._named, state.quote)
        variants = []
        for shape in self._objects:
            members = tuple(m for m in shape.members if self._writable(m, is_name(m.name)))
            listed = [(sequence(m.name, ":", notation.form(m.shape)), m.required) for m in members]
            others: Form = NOTHING
            if shape.others is not None:
                others = sequence(plain_names(_names(shape)), ":", notation.form(shape.others))
            variants.append(notation.joined(listed, others, shape.least, shape.most))
        self.missed += notation.missed
        return sequence(choice(*variants), state.close, self._after(state.then))

    def _elements(self, name: str) -> Form:
        """Arguments as elements, one after another."""
        span = self._states[name]
        assert isinstance(span, Span)
        tree = next(s for s in map(self._states.__getitem__, span.on.values()) if isinstance(s, TreeState))
        notation = Tree(self._rules, self._scope, self._named, tree.prefix)

        def one(member: Member) -> Form:
            return notation.element(member.name, member.shape)

        form = sequence(self._chain(one, lambda shape: NOTHING), self._end(span))
        self.missed += notation.missed
        return form

    def _pairs(self, name: str) -> Form:
        """Arguments as a key and a value each."""
        span = self._states[name]
        assert isinstance(span, Span)
        marker, key = next(
            (marker, state) for marker, to in span.on.items() if isinstance(state := self._states[to], Key)
        )

        def one(member: Member) -> Form:
            writable = is_name(member.name)
            return (
                sequence(marker, self._pair(key, Literal(member.name), member.shape)) if writable else NOTHING
            )

        def other(shape: Object) -> Form:
            assert shape.others is not None
            return sequence(marker, self._pair(key, plain_names(_names(shape)), shape.others))

        return sequence(self._chain(one, other), self._end(span))

    def _chain(self, one: Callable[[Member], Form], other: Callable[[Object], Form]) -> Form:
        """All arguments in their order, without the required ones left out."""
        variants = []
        for shape in self._objects:
            parts = []
            for member in shape.members:
                form = one(member)
                if self._writable(member, form != NOTHING):
                    spaced = sequence(GAP, form)
                    parts.append(spaced if member.required else optional(spaced))
            if shape.others is not None:
                parts.append(repeat(sequence(GAP, other(shape)), shape.least, shape.most))
            variants.append(sequence(*parts))
        return choice(*variants)

    def _end(self, span: Span) -> Form:
        """The marker that closes the call, and what follows it."""
        ends = ((marker, to) for marker, to in span.on.items() if self._outside(to))
        marker, to = next(ends)
        return sequence(GAP, marker, self._after(to))

    def _pair(self, key: Key, name: Form, shape: Shape) -> Form:
        """A key, and its value up to its end."""
        if not isinstance(key.form, Spelled):
            raise UnwritableError("how its keys are written")
        marker, to = next(iter(key.on.items()))
        between: Form = EMPTY
        state = self._states[to]
        if isinstance(state, Span):
            inner, to = next((m, t) for m, t in state.on.items() if isinstance(self._states[t], Value))
            between, state = sequence(GAP, inner), self._states[to]
        assert isinstance(state, Value)
        options = []
        for spelling in key.form.written:
            fitting = of_type(shape, spelling.type, self._named)
            value = self._value(state, fitting, spelling)
            options.append(sequence(filled(spelling.text, {"KEY": name}), GAP, marker, between, value))
        return choice(*options)

    def _value(self, state: Value, shape: Shape, spelling: KeySpelling) -> Form:
        """A value, with the marker that ends it."""
        end, *others = state.on
        avoid = "".join(sorted({marker.strip()[0] for marker in state.on}))
        json = spelling.type not in (None, "string")
        if not json and is_free(shape, self._named):
            self._written(shape, avoid, json)  # free text stands for every type that the value may have
            return Until(((end, EMPTY), *((each, None) for each in others)))
        ways = [sequence(self._written(shape, avoid, json), end)]
        if state.trim is Trim.NEWLINE:
            lines = sequence("\n", self._written(shape, avoid, json), "\n", end)
            ways = [lines, sequence(self._written(shape, avoid + "\n", json), end)]
        return choice(*ways)

    def _written(self, shape: Shape, avoid: str, json: bool) -> Form:
        """A value without its end."""
        notation = Verbatim(self._rules, f"{self._scope} {avoid}", self._named, avoid)
        form = notation.json.form(shape) if json else notation.form(shape)
        self.missed += notation.missed
        return form

    def _after_value(self, key: str) -> str:
        """The state behind the value of that key."""
        state: State = self._states[key]
        while not isinstance(state, Value):
            assert isinstance(state, Key | Span)
            leads = [to for to in state.on.values() if isinstance(self._states[to], Value | Span)]
            state = self._states[next((to for to in leads if isinstance(self._states[to], Value)), leads[0])]
        return next(iter(state.on.values()))

    def _outside(self, name: str) -> bool:
        state = self._states[name]
        return isinstance(state, Span) and state.kind in (Kind.TEXT, Kind.MARKUP)

    def _may_be_empty(self) -> bool:
        return any(not any(member.required for member in shape.members) for shape in self._objects)

    def _writable(self, member: Member, written: object) -> bool:
        if not written:
            self.missed.append(
                f"the argument '{member.name}': this model's format has no way to write its name"
            )
        return bool(written)


def filled(text: str, places: Mapping[str, Form]) -> Form:
    """A header or key as it is written, with its places filled."""
    known = {"NUMBER": _NUMBER, "ID": _ID, **places}
    return sequence(*(known.get(part, part) for part in _PLACES.split(text)))


_NUMBER = repeat(chars("0-9"), 1, 4)
_ID = repeat(chars("A-Za-z0-9"), 9, 9)


def _names(shape: Object) -> list[str]:
    return [member.name for member in shape.members]
