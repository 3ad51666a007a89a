"""The grammar of one function's arguments, from the states of a dialect's table that hold them.

The table accepts more than models are trained to write. Only the first marker of each key and value is
allowed, and open elements must be closed.
"""

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from antiphon.constrain.grammar_ir import (
    EMPTY,
    NOTHING,
    Expr,
    Literal,
    Until,
    alternation,
    char_class,
    optional,
    repeat,
    rule,
    sequence,
)
from antiphon.constrain.node_types import accepts_any_text, object_nodes, of_type
from antiphon.constrain.schema_ir import Object, Property, SchemaIR, SchemaNode
from antiphon.constrain.unquoted_text import WORD, bare_names, is_bare_name
from antiphon.constrain.value_syntax import (
    BraceSyntax,
    ElementSyntax,
    JsonSyntax,
    PythonSyntax,
    RawTextSyntax,
)
from antiphon.core.grammar import (
    BraceArguments,
    ElementArgument,
    Grammar,
    JsonArguments,
    Key,
    KeySpelling,
    Name,
    Span,
    SpanKind,
    SpelledParser,
    State,
    Trim,
    Value,
)

GAP = alternation(EMPTY, " ", "\n", "\n\n")
"""Space between markers: models differ in it."""

_PLACES = re.compile(r"(?<![A-Z_])(NAME|KEY|NUMBER|ID)(?![A-Z_])")


class CallableFunction(Struct, frozen=True):
    """A function that may be called: its name, and the schema nodes of its arguments.

    A `native` one is a tool that the model's family was trained with.
    """

    name: str
    schema_ir: SchemaIR
    native: bool = False


class UnsupportedSyntaxError(Exception):
    """The table does not define how calls are written. The message names the missing part."""


class ArgumentGrammar:
    """Builds the grammar of the arguments of one function. `after` returns what follows a call."""

    def __init__(
        self,
        grammar: Grammar,
        offered: CallableFunction,
        rules: dict[str, Expr],
        scope: str,
        after: Callable[[str], Expr],
    ) -> None:
        self._states = grammar.states
        self._offered = offered
        self._rules = rules
        self._scope = scope
        self._after = after
        self._definitions = offered.schema_ir.definitions
        self._objects = object_nodes(offered.schema_ir.node, self._definitions)
        self.unenforced: list[str] = []

    def json(self) -> Expr:
        """All arguments as a JSON object."""
        syntax = JsonSyntax(self._rules, self._scope, self._definitions)
        return rule(
            self._rules, f"arguments {self._scope}", lambda: alternation(*map(syntax.expr, self._objects))
        )

    def python(self) -> Expr:
        """All arguments as Python writes them, without parentheses."""
        syntax = PythonSyntax(self._rules, self._scope, self._definitions)
        variants = []
        for node in self._objects:
            others: Expr = NOTHING
            if node.others is not None:
                others = sequence(bare_names(node.keys, _names(node), WORD), "=", syntax.expr(node.others))
            members = [m for m in node.members if self._writable(m, re.fullmatch(r"\w{1,200}", m.name))]
            listed = [(sequence(m.name, "=", syntax.expr(m.node)), m.required) for m in members]
            variants.append(syntax.joined(listed, others, node.minimum, node.maximum))
        return alternation(*variants)

    def after_header(self, state: Name) -> Expr:
        """From the end of a call's header up to the end of the call."""
        direct = [to for to in state.on.values() if isinstance(self._states[to], Key)]
        options = [self._pairs(self._after_value(direct[0]))] if direct else []
        for marker, to in state.on.items():
            if not isinstance(self._states[to], Key) and not self._outside(to):
                options.append(sequence(marker, self.inside(to)))
        options += (self.inside(to) for to in state.peek.values())
        if not options:
            ends = [sequence(marker, self._after(to)) for marker, to in state.on.items()]
            options = ends if self._may_be_empty() else []
        return sequence(GAP, alternation(*options))

    def inside(self, name: str) -> Expr:
        """From the state of that name up to the end of the call."""
        state = self._states[name]
        if isinstance(state, JsonArguments):
            return sequence(GAP, self.json(), self._after(state.then))
        if isinstance(state, BraceArguments):
            return self._braces(state)
        if not isinstance(state, Span) or state.kind is not SpanKind.CALL:
            return NOTHING
        kinds = {type(self._states[to]) for to in (*state.on.values(), *state.peek.values())}
        if ElementArgument in kinds:
            return self._elements(name)
        return self._pairs(name) if Key in kinds else self._prelude(name, state)

    def _prelude(self, name: str, span: Span) -> Expr:
        """Markers before the JSON of the arguments, each at most once."""
        loops = [optional(sequence(GAP, marker)) for marker, to in span.on.items() if to == name]
        leads = [
            sequence(marker, self.inside(to))
            for marker, to in span.on.items()
            if isinstance(self._states[to], JsonArguments)
        ]
        leads += (self.inside(to) for to in span.peek.values())
        return sequence(*loops, GAP, alternation(*leads))

    def _braces(self, state: BraceArguments) -> Expr:
        syntax = BraceSyntax(self._rules, f"{self._scope} {state.quote}", self._definitions, state.quote)
        variants = []
        for node in self._objects:
            members = tuple(m for m in node.members if self._writable(m, is_bare_name(m.name)))
            listed = [(sequence(m.name, ":", syntax.expr(m.node)), m.required) for m in members]
            others: Expr = NOTHING
            if node.others is not None:
                others = sequence(bare_names(node.keys, _names(node)), ":", syntax.expr(node.others))
            variants.append(syntax.joined(listed, others, node.minimum, node.maximum))
        self.unenforced += syntax.unenforced
        return sequence(alternation(*variants), state.close, self._after(state.then))

    def _elements(self, name: str) -> Expr:
        """Arguments as elements, one after another."""
        span = self._states[name]
        assert isinstance(span, Span)
        tree = next(
            s for s in map(self._states.__getitem__, span.on.values()) if isinstance(s, ElementArgument)
        )
        syntax = ElementSyntax(self._rules, self._scope, self._definitions, tree.prefix)

        def one(member: Property) -> Expr:
            return syntax.element(member.name, member.node)

        expr = sequence(self._chain(one, lambda node: NOTHING), self._end(span))
        self.unenforced += syntax.unenforced
        return expr

    def _pairs(self, name: str) -> Expr:
        """Arguments as a key and a value each."""
        span = self._states[name]
        assert isinstance(span, Span)
        marker, key = next(
            (marker, state) for marker, to in span.on.items() if isinstance(state := self._states[to], Key)
        )

        def one(member: Property) -> Expr:
            writable = is_bare_name(member.name)
            return (
                sequence(marker, self._pair(key, Literal(member.name), member.node)) if writable else NOTHING
            )

        def other(node: Object) -> Expr:
            assert node.others is not None
            return sequence(marker, self._pair(key, bare_names(node.keys, _names(node)), node.others))

        return sequence(self._chain(one, other), self._end(span))

    def _chain(self, one: Callable[[Property], Expr], other: Callable[[Object], Expr]) -> Expr:
        """All arguments in their order; optional ones may be left out."""
        variants = []
        for node in self._objects:
            parts = []
            for member in node.members:
                expr = one(member)
                if self._writable(member, expr != NOTHING):
                    spaced = sequence(GAP, expr)
                    parts.append(spaced if member.required else optional(spaced))
            if node.others is not None:
                parts.append(repeat(sequence(GAP, other(node)), node.minimum, node.maximum))
            variants.append(sequence(*parts))
        return alternation(*variants)

    def _end(self, span: Span) -> Expr:
        """The marker that closes the call, and what follows it."""
        ends = ((marker, to) for marker, to in span.on.items() if self._outside(to))
        marker, to = next(ends)
        return sequence(GAP, marker, self._after(to))

    def _pair(self, key: Key, name: Expr, node: SchemaNode) -> Expr:
        """A key, and its value up to its end."""
        if not isinstance(key.parse, SpelledParser):
            raise UnsupportedSyntaxError("how its keys are written")
        marker, to = next(iter(key.on.items()))
        between: Expr = EMPTY
        state = self._states[to]
        if isinstance(state, Span):
            inner, to = next((m, t) for m, t in state.on.items() if isinstance(self._states[t], Value))
            between, state = sequence(GAP, inner), self._states[to]
        assert isinstance(state, Value)
        options = []
        for spelling in key.parse.spellings:
            fitting = of_type(node, spelling.type, self._definitions)
            value = self._value(state, fitting, spelling)
            options.append(
                sequence(fill_placeholders(spelling.text, {"KEY": name}), GAP, marker, between, value)
            )
        return alternation(*options)

    def _value(self, state: Value, node: SchemaNode, spelling: KeySpelling) -> Expr:
        """A value, with the marker that ends it."""
        end, *other_ends = state.on
        avoid = "".join(sorted({marker.strip()[0] for marker in state.on}))
        json = spelling.type not in (None, "string")
        if not json and accepts_any_text(node, self._definitions):
            self._without_end(node, avoid, json)  # free text covers every type that the value may have
            forbidden = dict.fromkeys(
                (*other_ends, *(marker for marker in state.habits if marker not in state.on))
            )
            return Until(((end, EMPTY), *forbidden.items()))
        ways = [sequence(self._without_end(node, avoid, json), end)]
        if state.trim is Trim.NEWLINE:
            lines = sequence("\n", self._without_end(node, avoid, json), "\n", end)
            ways = [lines, sequence(self._without_end(node, avoid + "\n", json), end)]
        return alternation(*ways)

    def _without_end(self, node: SchemaNode, avoid: str, json: bool) -> Expr:
        """A value without its end."""
        syntax = RawTextSyntax(self._rules, f"{self._scope} {avoid}", self._definitions, avoid)
        expr = syntax.json.expr(node) if json else syntax.expr(node)
        self.unenforced += syntax.unenforced
        return expr

    def _after_value(self, key: str) -> str:
        """The state after the value of that key."""
        state: State = self._states[key]
        while not isinstance(state, Value):
            assert isinstance(state, Key | Span)
            leads = [to for to in state.on.values() if isinstance(self._states[to], Value | Span)]
            state = self._states[next((to for to in leads if isinstance(self._states[to], Value)), leads[0])]
        return next(iter(state.on.values()))

    def _outside(self, name: str) -> bool:
        state = self._states[name]
        return isinstance(state, Span) and state.kind in (SpanKind.TEXT, SpanKind.MARKUP)

    def _may_be_empty(self) -> bool:
        return any(not any(member.required for member in node.members) for node in self._objects)

    def _writable(self, member: Property, form: object) -> bool:
        if not form:
            self.unenforced.append(
                f"the argument '{member.name}': this model's format has no way to write its name"
            )
        return bool(form)


def fill_placeholders(text: str, positions: Mapping[str, Expr]) -> Expr:
    """A header or key as it is written, with the placeholders replaced."""
    replacements = {"NUMBER": _NUMBER, "ID": _ID, **positions}
    return sequence(*(replacements.get(part, part) for part in _PLACES.split(text)))


_NUMBER = repeat(char_class("0-9"), 1, 4)
_ID = repeat(char_class("A-Za-z0-9"), 9, 9)


def _names(node: Object) -> list[str]:
    return [member.name for member in node.members]
