"""Schema IR → grammar IR: how a model family writes JSON values. A dialect's state selects the class.

`unenforced` lists schema nodes that a syntax cannot write.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.constrain.grammar_ir import (
    ANY_CHAR,
    EMPTY,
    NOTHING,
    CharClass,
    Expr,
    Literal,
    RuleReference,
    Until,
    alternation,
    char_class,
    contains,
    map_characters,
    optional,
    repeat,
    rule,
    sequence,
    without,
)
from antiphon.constrain.node_types import ANY_VALUE_NODES, accepts_any_text, is_ambiguous_union
from antiphon.constrain.schema_ir import (
    FREE_TEXT,
    Array,
    Const,
    DefinitionReference,
    Number,
    Object,
    SchemaNode,
    String,
    Union,
)
from antiphon.constrain.unquoted_text import bare_names, is_bare_name, text_except, without_characters

SPACE = optional(alternation(" ", sequence("\n", repeat(char_class(" \t"), 0, 20))))
"""Space between the parts of a value: bounded, because a model might write blanks without end."""

_CONTROLS = "".join(map(chr, range(0x20)))
_HEX = char_class("0-9a-fA-F")
_CODE = sequence(
    "u",
    alternation(
        sequence(char_class("0-9abcefABCEF"), repeat(_HEX, 3, 3)),
        sequence(char_class("dD"), char_class("0-7"), repeat(_HEX, 2, 2)),
    ),
)
_PAIR = sequence(
    "u",
    char_class("dD"),
    char_class("89abAB"),
    repeat(_HEX, 2, 2),
    "\\u",
    char_class("dD"),
    char_class("c-fC-F"),
    repeat(_HEX, 2, 2),
)
_SPELLED = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


class ValueSyntax:
    """The common part of the syntaxes. `definitions` are the targets of references."""

    name = ""

    def __init__(self, rules: dict[str, Expr], scope: str, definitions: Mapping[str, SchemaNode]) -> None:
        self._rules = rules
        self._scope = scope
        self._definitions = definitions
        self.unenforced: list[str] = []

    def expr(self, node: SchemaNode) -> Expr:  # noqa: PLR0911  # one for each type
        """How values of this node are written."""
        match node:
            case Const(value):
                return self.constant(value)
            case String(body):
                return self.text(body)
            case Number(digits):
                return digits
            case Array():
                return self.array(node)
            case Object():
                return self.object(node)
            case Union(options):
                return alternation(*map(self.expr, options))
            case DefinitionReference(name):
                return self._ruled(f"{self._scope} {name}", lambda: self.expr(self._definitions[name]))
            case _:
                return self.any_value()

    def any_value(self) -> Expr:
        """Any value."""
        return self._ruled("value", lambda: alternation(*map(self.expr, ANY_VALUE_NODES)))

    def constant(self, value: Any) -> Expr:
        """Exactly this value."""
        raise NotImplementedError

    def text(self, body: Expr) -> Expr:
        """A string."""
        raise NotImplementedError

    def array(self, node: Array) -> Expr:
        """An array."""
        raise NotImplementedError

    def object(self, node: Object) -> Expr:
        """An object."""
        raise NotImplementedError

    def rule_of(self, reference: str) -> str:
        """The name of the rule that a reference becomes."""
        return f"{self.name} {self._scope} {reference}"

    def _ruled(self, name: str, make: Callable[[], Expr]) -> Expr:
        """A rule of its own, made once; it may refer to itself."""
        return rule(self._rules, f"{self.name} {name}", make)


class JsonSyntax(ValueSyntax):
    """JSON. Strings contain none of the characters in `avoid`: these are written as codes."""

    name = "json"
    words: Mapping[Any, Expr] = {None: Literal("null"), True: Literal("true"), False: Literal("false")}
    special = '"\\'
    escapes = '"\\\\/bfnrt'
    after_key: Expr = sequence(":", SPACE)
    comma: Expr = sequence(",", SPACE)
    gap: Expr = SPACE

    def __init__(
        self, rules: dict[str, Expr], scope: str, definitions: Mapping[str, SchemaNode], avoid: str = ""
    ) -> None:
        super().__init__(rules, scope, definitions)
        self._avoid = avoid
        self._texts: dict[Expr, Expr] = {}
        self.name = f"{type(self).name}{''.join(f'{ord(char):x}' for char in avoid)}"

    def constant(self, value: Any) -> Expr:
        """Exactly this value."""
        if isinstance(value, str):
            return self.text(Literal(value))
        if isinstance(value, list):
            return self._between(
                "[", sequence(*_with_commas(list(map(self.constant, value)), self.comma)), "]"
            )
        if isinstance(value, Mapping):
            members = [
                sequence(self.key(key), self.after_key, self.constant(member))
                for key, member in value.items()
            ]
            return self._between("{", sequence(*_with_commas(members, self.comma)), "}")
        return self.words[value] if value is None or isinstance(value, bool) else Literal(json.dumps(value))

    def text(self, body: Expr) -> Expr:
        """A string."""
        if body == FREE_TEXT:
            return self._ruled("string", lambda: sequence('"', repeat(self._char()), '"'))
        if body not in self._texts:
            self._texts[body] = self._part(sequence('"', map_characters(body, self._spelled), '"'))
        return self._texts[body]

    def key(self, name: str) -> Expr:
        """The key of a member."""
        return self.text(Literal(name))

    def keys(self, body: Expr, taken: Sequence[str]) -> Expr:
        """The keys of members that are not listed."""
        return self.text(text_except(taken) if body == FREE_TEXT and taken else body)

    def array(self, node: Array) -> Expr:
        """An array."""
        first = [self.expr(item) for item in node.first]
        more = NOTHING if node.rest is None else self._part(self.expr(node.rest))
        rest = repeat(sequence(self.comma, more), node.minimum, node.maximum)
        if not first:
            maximum = None if node.maximum is None else max(0, node.maximum - 1)
            inner = sequence(more, repeat(sequence(self.comma, more), max(0, node.minimum - 1), maximum))
            return self._between("[", inner if node.minimum else optional(inner), "]")
        inner = rest
        for at in reversed(range(len(first))):
            inner = sequence(self.comma if at else EMPTY, first[at], inner)
            inner = inner if at < node.whole else optional(inner)
        return self._between("[", inner, "]")

    def object(self, node: Object) -> Expr:
        """An object."""
        names = [member.name for member in node.members]
        others: Expr = NOTHING
        if node.others is not None:
            others = sequence(self.keys(node.keys, names), self.after_key, self.expr(node.others))
        listed = [
            (sequence(self.key(member.name), self.after_key, self.expr(member.node)), member.required)
            for member in node.members
        ]
        return self._between("{", self.joined(listed, others, node.minimum, node.maximum), "}")

    def joined(
        self, listed: list[tuple[Expr, bool]], others: Expr, minimum: int, maximum: int | None
    ) -> Expr:
        """Members with commas between them: the listed ones, some of which are optional, then others."""
        more = sequence(self.comma, others)
        if not listed:
            further = None if maximum is None else maximum - 1
            inner = sequence(others, repeat(more, max(0, minimum - 1), further))
            return EMPTY if others == NOTHING or maximum == 0 else inner if minimum else optional(inner)
        tails: list[Expr] = [repeat(more, minimum, maximum)]
        for expr, required in reversed(listed):
            one = sequence(self.comma, expr)
            tails.append(self._part(sequence(one if required else optional(one), tails[-1])))
        tails.reverse()  # what may follow the member before each
        needed = next((at for at, (_, required) in enumerate(listed) if required), len(listed))
        begins = [sequence(expr, tails[at + 1]) for at, (expr, _) in enumerate(listed[: needed + 1])]
        if needed == len(listed):
            begins += [EMPTY, sequence(others, repeat(more, max(0, minimum - 1), maximum))]
        return alternation(*begins)

    def _part(self, expr: Expr) -> Expr:
        """A rule for an expression that is used in several places."""
        atomic = expr == NOTHING or isinstance(expr, RuleReference | Literal | CharClass)
        return expr if atomic else self._ruled(f"{self._scope} {len(self._rules)}", lambda: expr)

    def _between(self, opening: str, inner: Expr, closing: str) -> Expr:
        if inner == EMPTY:
            return Literal(opening + closing)
        return sequence(opening, self.gap, inner, self.gap, closing)

    def _char(self) -> Expr:
        """Any character of a string."""
        escape = sequence("\\", alternation(char_class(self.escapes), _CODE, _PAIR))
        without_characters = without(ANY_CHAR, f"{self.special}{_CONTROLS}{self._avoid}")
        return self._ruled("char", lambda: alternation(without_characters, escape))

    def _spelled(self, expr: Literal | CharClass) -> Expr:
        """A part of a string, as it is written between quotes."""
        if isinstance(expr, Literal):
            return Literal("".join(map(self._escaped, expr.text)))
        if expr == ANY_CHAR:
            return self._char()
        special = f"{self.special}{_CONTROLS}{self._avoid}"
        escaped_chars = [
            self._escaped(char)
            for char in special
            if contains(expr, char) and (char in _SPELLED or char in self.special)
        ]
        return alternation(without(expr, special), *escaped_chars)

    def _escaped(self, char: str) -> str:
        if char in _SPELLED or char in self.special:
            return _SPELLED.get(char, f"\\{char}")
        return f"\\u{ord(char):04x}" if char in _CONTROLS or char in self._avoid else char


class PythonSyntax(JsonSyntax):
    """Python literals, and JSON's words."""

    name = "python"
    words: Mapping[Any, Expr] = {
        None: alternation("None", "null"),
        True: alternation("True", "true"),
        False: alternation("False", "false"),
    }
    special = "\"'\\"
    escapes = "\"'\\\\nrt"

    def text(self, body: Expr) -> Expr:
        """A string."""
        if body == FREE_TEXT:
            return self._ruled("string", lambda: self._in_either(body))
        return self._in_either(body)

    def _in_either(self, body: Expr) -> Expr:
        """A string in quotes of either kind; both are escaped in it."""
        inner = map_characters(body, self._spelled)
        return alternation(*(sequence(quote, inner, quote) for quote in "\"'"))


class BraceSyntax(JsonSyntax):
    """`{key:<|"|>text<|"|>,n:42}`: bare keys, and tokens around strings, without escapes."""

    name = "braces"
    after_key: Expr = Literal(":")
    comma: Expr = Literal(",")
    gap: Expr = EMPTY

    def __init__(
        self, rules: dict[str, Expr], scope: str, definitions: Mapping[str, SchemaNode], quote: str
    ) -> None:
        super().__init__(rules, scope, definitions)
        self._quote = quote

    def text(self, body: Expr) -> Expr:
        """A string."""
        if body == FREE_TEXT:
            return sequence(self._quote, Until(((self._quote, EMPTY),)))
        return sequence(self._quote, without_characters(body, self._quote[0]), self._quote)

    def key(self, name: str) -> Expr:
        """The key of a member."""
        if not is_bare_name(name):
            self.unenforced.append(f"the name '{name}': this model's format cannot write it")
            return NOTHING
        return Literal(name)

    def keys(self, body: Expr, taken: Sequence[str]) -> Expr:
        """The keys of members that are not listed."""
        return bare_names(body, taken)


class ElementSyntax(ValueSyntax):
    """Elements: `<a>1</a>` for the member `a`, `<item>` for a value; each tag begins with `prefix`."""

    name = "tree"

    def __init__(
        self, rules: dict[str, Expr], scope: str, definitions: Mapping[str, SchemaNode], prefix: str
    ) -> None:
        super().__init__(rules, scope, definitions)
        self._prefix = prefix
        self._json = JsonSyntax(rules, scope, definitions)

    def element(self, name: str, node: SchemaNode) -> Expr:
        """One element, with its end."""
        if not is_bare_name(name) or "/" in name:
            self.unenforced.append(f"the name '{name}': this model's format cannot write it")
            return NOTHING
        if accepts_any_text(node, self._definitions):
            end = Literal(f"</{name}>")
            return sequence(f"{self._prefix}<{name}>", Until(((self._prefix, end),)))
        return sequence(f"{self._prefix}<{name}>", self.expr(node), f"{self._prefix}</{name}>")

    def expr(self, node: SchemaNode) -> Expr:
        """How values of this node are written."""
        if isinstance(node, Union) and is_ambiguous_union(node):
            self.unenforced.append(_AMBIGUOUS_TYPES)
        return super().expr(node)

    def any_value(self) -> Expr:
        """Any value."""
        return sequence(char_class("A-Za-z"), repeat(without(ANY_CHAR, f"{self._prefix[0]}<>")))

    def constant(self, value: Any) -> Expr:
        """Exactly this value."""
        if isinstance(value, list | Mapping):
            self.unenforced.append("a listed object or array: this model's format cannot write it")
            return NOTHING
        return (
            without_characters(Literal(value), self._prefix[0])
            if isinstance(value, str)
            else self._json.constant(value)
        )

    def text(self, body: Expr) -> Expr:
        """A string."""
        return without_characters(body, self._prefix[0])

    def array(self, node: Array) -> Expr:
        """An array."""
        if node.first:
            self.unenforced.append("prefixItems: this model's format does not tell their types")
        items = [self.element("item", item) for item in node.first]
        rest = NOTHING if node.rest is None else self.element("item", node.rest)
        return sequence(*items, repeat(rest, node.minimum, node.maximum))

    def object(self, node: Object) -> Expr:
        """An object."""
        elements = [(self.element(member.name, member.node), member.required) for member in node.members]
        return sequence(*(element if required else optional(element) for element, required in elements))


class RawTextSyntax(ValueSyntax):
    """Verbatim text for strings, JSON for all else: the values of XML-like formats.

    They contain none of the characters in `avoid`, with which the ends of values begin.
    """

    name = "verbatim"

    def __init__(
        self, rules: dict[str, Expr], scope: str, definitions: Mapping[str, SchemaNode], avoid: str
    ) -> None:
        super().__init__(rules, scope, definitions)
        self._avoid = avoid
        self.json = JsonSyntax(rules, scope, definitions, avoid)

    def expr(self, node: SchemaNode) -> Expr:
        """How values of this node are written."""
        if isinstance(node, Union) and is_ambiguous_union(node):
            self.unenforced.append(_AMBIGUOUS_TYPES)
        return self.json.expr(node) if isinstance(node, Array | Object) else super().expr(node)

    def any_value(self) -> Expr:
        """Any value."""
        return self.text(FREE_TEXT)

    def constant(self, value: Any) -> Expr:
        """Exactly this value."""
        return self.text(Literal(value)) if isinstance(value, str) else self.json.constant(value)

    def text(self, body: Expr) -> Expr:
        """A string."""
        return without_characters(body, self._avoid)


_AMBIGUOUS_TYPES = "a string as well as other types: this model's format cannot distinguish them"


def _with_commas(parts: list[Expr], comma: Expr) -> list[Expr]:
    return [piece for part in parts for piece in (comma, part)][1:]
