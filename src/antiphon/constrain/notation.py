"""Shapes → forms: how a model family writes JSON values. One class for each way; a dialect's state chooses.

A notation collects the rules that its forms refer to, and in `missed` what it
has no way to write.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.constrain.form import (
    ANY,
    EMPTY,
    NOTHING,
    Chars,
    Form,
    Literal,
    Ref,
    Until,
    chars,
    choice,
    holds,
    mapped,
    optional,
    repeat,
    sequence,
    without,
)
from antiphon.constrain.kinds import ANY_VALUE, is_free, is_risky
from antiphon.constrain.names import is_name, other_than, plain_names, raw
from antiphon.constrain.shape import (
    FREE_TEXT,
    Array,
    Constant,
    Named,
    Number,
    Object,
    Shape,
    Text,
    Union,
)

SPACE = optional(choice(" ", sequence("\n", repeat(chars(" \t"), 0, 20))))
"""Space between the parts of a value: bounded, so that a model cannot lose itself in blanks."""

_CONTROLS = "".join(map(chr, range(0x20)))
_HEX = chars("0-9a-fA-F")
_CODE = sequence(
    "u",
    choice(
        sequence(chars("0-9abcefABCEF"), repeat(_HEX, 3, 3)),
        sequence(chars("dD"), chars("0-7"), repeat(_HEX, 2, 2)),
    ),
)
_PAIR = sequence(
    "u",
    chars("dD"),
    chars("89abAB"),
    repeat(_HEX, 2, 2),
    "\\u",
    chars("dD"),
    chars("c-fC-F"),
    repeat(_HEX, 2, 2),
)
_SPELLED = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


class Notation:
    """What the notations have in common. `named` are the shapes that references lead to."""

    name = ""

    def __init__(self, rules: dict[str, Form], scope: str, named: Mapping[str, Shape]) -> None:
        self._rules = rules
        self._scope = scope
        self._named = named
        self.missed: list[str] = []

    def form(self, shape: Shape) -> Form:  # noqa: PLR0911  # one for each form
        """How values of this shape are written."""
        match shape:
            case Constant(value):
                return self.constant(value)
            case Text(body):
                return self.text(body)
            case Number(digits):
                return digits
            case Array():
                return self.array(shape)
            case Object():
                return self.object(shape)
            case Union(options):
                return choice(*map(self.form, options))
            case Named(name):
                return self._ruled(f"{self._scope} {name}", lambda: self.form(self._named[name]))
            case _:
                return self.anything()

    def anything(self) -> Form:
        """Any value."""
        return self._ruled("value", lambda: choice(*map(self.form, ANY_VALUE)))

    def constant(self, value: Any) -> Form:
        """Exactly this value."""
        raise NotImplementedError

    def text(self, body: Form) -> Form:
        """A string."""
        raise NotImplementedError

    def array(self, shape: Array) -> Form:
        """An array."""
        raise NotImplementedError

    def object(self, shape: Object) -> Form:
        """An object."""
        raise NotImplementedError

    def rule_of(self, reference: str) -> str:
        """The name of the rule that a reference becomes."""
        return f"{self.name} {self._scope} {reference}"

    def _ruled(self, name: str, make: Callable[[], Form]) -> Form:
        """A rule of its own, made once; it may refer to itself."""
        name = f"{self.name} {name}"
        if name not in self._rules:
            self._rules[name] = NOTHING
            self._rules[name] = make()
        return Ref(name)


class Json(Notation):
    """JSON. None of the characters in `avoid` stands in a string: it is written as a code."""

    name = "json"
    words: Mapping[Any, Form] = {None: Literal("null"), True: Literal("true"), False: Literal("false")}
    special = '"\\'
    escapes = '"\\\\/bfnrt'
    after_key: Form = sequence(":", SPACE)
    comma: Form = sequence(",", SPACE)
    gap: Form = SPACE

    def __init__(
        self, rules: dict[str, Form], scope: str, named: Mapping[str, Shape], avoid: str = ""
    ) -> None:
        super().__init__(rules, scope, named)
        self._avoid = avoid
        self.name = f"{type(self).name}{''.join(f'{ord(char):x}' for char in avoid)}"

    def constant(self, value: Any) -> Form:
        """Exactly this value."""
        if isinstance(value, str):
            return self.text(Literal(value))
        if isinstance(value, list):
            return self._between("[", sequence(*_joined(list(map(self.constant, value)), self.comma)), "]")
        if isinstance(value, Mapping):
            members = [
                sequence(self.key(key), self.after_key, self.constant(each)) for key, each in value.items()
            ]
            return self._between("{", sequence(*_joined(members, self.comma)), "}")
        return self.words[value] if value is None or isinstance(value, bool) else Literal(json.dumps(value))

    def text(self, body: Form) -> Form:
        """A string."""
        if body == FREE_TEXT:
            return self._ruled("string", lambda: sequence('"', repeat(self._char()), '"'))
        return sequence('"', mapped(body, self._spelled), '"')

    def key(self, name: str) -> Form:
        """The key of a member."""
        return self.text(Literal(name))

    def keys(self, body: Form, taken: Sequence[str]) -> Form:
        """The keys of members that are not listed."""
        return self.text(other_than(taken) if body == FREE_TEXT and taken else body)

    def array(self, shape: Array) -> Form:
        """An array."""
        first = [self.form(each) for each in shape.first]
        more = NOTHING if shape.rest is None else self.form(shape.rest)
        rest = repeat(sequence(self.comma, more), shape.least, shape.most)
        if not first:
            most = None if shape.most is None else max(0, shape.most - 1)
            inner = sequence(more, repeat(sequence(self.comma, more), max(0, shape.least - 1), most))
            return self._between("[", inner if shape.least else optional(inner), "]")
        inner = rest
        for at in reversed(range(len(first))):
            inner = sequence(self.comma if at else EMPTY, first[at], inner)
            inner = inner if at < shape.whole else optional(inner)
        return self._between("[", inner, "]")

    def object(self, shape: Object) -> Form:
        """An object."""
        names = [member.name for member in shape.members]
        others: Form = NOTHING
        if shape.others is not None:
            others = sequence(self.keys(shape.keys, names), self.after_key, self.form(shape.others))
        listed = [
            (sequence(self.key(each.name), self.after_key, self.form(each.shape)), each.required)
            for each in shape.members
        ]
        return self._between("{", self.joined(listed, others, shape.least, shape.most), "}")

    def joined(self, listed: list[tuple[Form, bool]], others: Form, least: int, most: int | None) -> Form:
        """Members with commas between them: those listed, of which some may be left out, then others."""
        if not listed:
            inner = sequence(
                others,
                repeat(sequence(self.comma, others), max(0, least - 1), None if most is None else most - 1),
            )
            return EMPTY if others == NOTHING or most == 0 else inner if least else optional(inner)
        tails: list[Form] = [repeat(sequence(self.comma, others), least, most)]
        for form, required in reversed(listed):
            one = sequence(self.comma, form)
            tails.append(self._part(sequence(one if required else optional(one), tails[-1])))
        tails.reverse()  # what may follow the member before each
        needed = next((at for at, (_, required) in enumerate(listed) if required), len(listed))
        begins = [sequence(form, tails[at + 1]) for at, (form, _) in enumerate(listed[: needed + 1])]
        if needed == len(listed):
            begins += [EMPTY, sequence(others, repeat(sequence(self.comma, others), max(0, least - 1), most))]
        return choice(*begins)

    def _part(self, form: Form) -> Form:
        """A rule for what is used in several places."""
        plain = isinstance(form, Ref | Literal)
        return form if plain else self._ruled(f"{self._scope} {len(self._rules)}", lambda: form)

    def _between(self, opening: str, inner: Form, closing: str) -> Form:
        if inner == EMPTY:
            return Literal(opening + closing)
        return sequence(opening, self.gap, inner, self.gap, closing)

    def _char(self) -> Form:
        """Any character of a string."""
        escape = sequence("\\", choice(chars(self.escapes), _CODE, _PAIR))
        raw = without(ANY, f"{self.special}{_CONTROLS}{self._avoid}")
        return self._ruled("char", lambda: choice(raw, escape))

    def _spelled(self, form: Literal | Chars) -> Form:
        """A part of a string, as it stands between quotes."""
        if isinstance(form, Literal):
            return Literal("".join(map(self._escaped, form.text)))
        if form == ANY:
            return self._char()
        special = f"{self.special}{_CONTROLS}{self._avoid}"
        written = [
            self._escaped(char)
            for char in special
            if holds(form, char) and (char in _SPELLED or char in self.special)
        ]
        return choice(without(form, special), *written)

    def _escaped(self, char: str) -> str:
        if char in _SPELLED or char in self.special:
            return _SPELLED.get(char, f"\\{char}")
        return f"\\u{ord(char):04x}" if char in _CONTROLS or char in self._avoid else char


class Python(Json):
    """Python literals, with JSON's words beside Python's."""

    name = "python"
    words: Mapping[Any, Form] = {
        None: choice("None", "null"),
        True: choice("True", "true"),
        False: choice("False", "false"),
    }
    special = "\"'\\"
    escapes = "\"'\\\\nrt"

    def text(self, body: Form) -> Form:
        """A string."""
        if body == FREE_TEXT:
            return self._ruled("string", lambda: self._in_either(body))
        return self._in_either(body)

    def _in_either(self, body: Form) -> Form:
        """A string in quotes of either kind; both are escaped in it."""
        written = mapped(body, self._spelled)
        return choice(*(sequence(quote, written, quote) for quote in "\"'"))


class Braces(Json):
    """`{key:<|"|>text<|"|>,n:42}`: bare keys, and tokens around strings, in which nothing is escaped."""

    name = "braces"
    after_key: Form = Literal(":")
    comma: Form = Literal(",")
    gap: Form = EMPTY

    def __init__(self, rules: dict[str, Form], scope: str, named: Mapping[str, Shape], quote: str) -> None:
        super().__init__(rules, scope, named)
        self._quote = quote

    def text(self, body: Form) -> Form:
        """A string."""
        if body == FREE_TEXT:
            return sequence(self._quote, Until(((self._quote, EMPTY),)))
        return sequence(self._quote, raw(body, self._quote[0]), self._quote)

    def key(self, name: str) -> Form:
        """The key of a member."""
        if not is_name(name):
            self.missed.append(f"the name '{name}': this model's format cannot write it")
            return NOTHING
        return Literal(name)

    def keys(self, body: Form, taken: Sequence[str]) -> Form:
        """The keys of members that are not listed."""
        return plain_names(taken)


class Tree(Notation):
    """Elements: `<a>1</a>` for the member `a`, `<item>` for a value; `prefix` stands before each tag."""

    name = "tree"

    def __init__(self, rules: dict[str, Form], scope: str, named: Mapping[str, Shape], prefix: str) -> None:
        super().__init__(rules, scope, named)
        self._prefix = prefix
        self._json = Json(rules, scope, named)

    def element(self, name: str, shape: Shape) -> Form:
        """One element, with its end."""
        if not is_name(name) or "/" in name:
            self.missed.append(f"the name '{name}': this model's format cannot write it")
            return NOTHING
        if is_free(shape, self._named):
            end = Literal(f"</{name}>")
            return sequence(f"{self._prefix}<{name}>", Until(((self._prefix, end),)))
        return sequence(f"{self._prefix}<{name}>", self.form(shape), f"{self._prefix}</{name}>")

    def form(self, shape: Shape) -> Form:
        """How values of this shape are written."""
        if isinstance(shape, Union) and is_risky(shape):
            self.missed.append(_RISKY)
        return super().form(shape)

    def anything(self) -> Form:
        """Any value."""
        return sequence(chars("A-Za-z"), repeat(without(ANY, f"{self._prefix[0]}<>")))

    def constant(self, value: Any) -> Form:
        """Exactly this value."""
        if isinstance(value, list | Mapping):
            self.missed.append("a listed object or array: this model's format cannot write it")
            return NOTHING
        return raw(Literal(value), self._prefix[0]) if isinstance(value, str) else self._json.constant(value)

    def text(self, body: Form) -> Form:
        """A string."""
        return raw(body, self._prefix[0])

    def array(self, shape: Array) -> Form:
        """An array."""
        if shape.first:
            self.missed.append("prefixItems: this model's format does not tell their types")
        items = [self.element("item", each) for each in shape.first]
        rest = NOTHING if shape.rest is None else self.element("item", shape.rest)
        return sequence(*items, repeat(rest, shape.least, shape.most))

    def object(self, shape: Object) -> Form:
        """An object."""
        elements = [(self.element(each.name, each.shape), each.required) for each in shape.members]
        return sequence(*(each if required else optional(each) for each, required in elements))


class Verbatim(Notation):
    """Text as it stands for strings, JSON for all else: the values of XML-like formats.

    None of the characters in `avoid`, with which the ends of values begin, is written.
    """

    name = "verbatim"

    def __init__(self, rules: dict[str, Form], scope: str, named: Mapping[str, Shape], avoid: str) -> None:
        super().__init__(rules, scope, named)
        self._avoid = avoid
        self.json = Json(rules, scope, named, avoid)

    def form(self, shape: Shape) -> Form:
        """How values of this shape are written."""
        if isinstance(shape, Union) and is_risky(shape):
            self.missed.append(_RISKY)
        return self.json.form(shape) if isinstance(shape, Array | Object) else super().form(shape)

    def anything(self) -> Form:
        """Any value."""
        return self.text(FREE_TEXT)

    def constant(self, value: Any) -> Form:
        """Exactly this value."""
        return self.text(Literal(value)) if isinstance(value, str) else self.json.constant(value)

    def text(self, body: Form) -> Form:
        """A string."""
        return raw(body, self._avoid)


_RISKY = "a string beside other types: this model's format cannot tell them apart"


def _joined(parts: list[Form], comma: Form) -> list[Form]:
    return [each for part in parts for each in (comma, part)][1:]
