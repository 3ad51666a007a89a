"""A client's structural tag, in xgrammar's notation → grammar IR. Unknown fields are ignored.

Both notations are read: `{"type": "structural_tag", "format": …}`, and the older
`{"structures": [{begin, schema, end}], "triggers": […]}`.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.gbnf_parser import parse_gbnf
from antiphon.constrain.grammar_ir import (
    EMPTY,
    Expr,
    RuleReference,
    Until,
    alternation,
    optional,
    repeat,
    sequence,
)
from antiphon.constrain.json_schema import compile_schema
from antiphon.constrain.regex import client_regex
from antiphon.constrain.value_syntax import JsonSyntax
from antiphon.core.errors import RequestError

Text = Annotated[str, Meta(min_length=1)]


class ConstString(Struct, tag="const_string"):
    """This text."""

    value: str


class SchemaFormat(Struct, tag="json_schema"):
    """JSON of this schema."""

    json_schema: dict[str, Any] | bool


class RegexFormat(Struct, tag="regex"):
    """Text that matches the whole of the pattern."""

    pattern: str


class GbnfFormat(Struct, tag="grammar"):
    """Text of a grammar in GBNF."""

    grammar: str


class AnyText(Struct, tag="any_text"):
    """Any text, up to the end of the enclosing tag."""


class SequenceFormat(Struct, tag="sequence"):
    """One after the other."""

    elements: "Annotated[list[Format], Meta(min_length=1)]"


class OrFormat(Struct, tag="or"):
    """One of these."""

    elements: "Annotated[list[Format], Meta(min_length=1)]"


class Tag(Struct):
    """A tag in a list of tags. It has one end, or several."""

    begin: str
    content: "Format"
    end: str | Annotated[list[str], Meta(min_length=1)]

    @property
    def ends(self) -> list[str]:
        """The texts that end it."""
        return [self.end] if isinstance(self.end, str) else self.end


class SingleTag(Tag, tag="tag"):
    """A tag that is a format itself."""


class TriggeredTags(Struct, tag="triggered_tags"):
    """Free text, in which each trigger begins one of the tags that begin with it."""

    triggers: Annotated[list[Text], Meta(min_length=1)]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False


class TagsWithSeparator(Struct, tag="tags_with_separator"):
    """Tags with the same text between any two."""

    tags: Annotated[list[Tag], Meta(min_length=1)]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Bounded = ConstString | SchemaFormat | RegexFormat | GbnfFormat | SingleTag | TagsWithSeparator
"""The formats that end by themselves."""

Format = Bounded | AnyText | SequenceFormat | OrFormat | TriggeredTags


class Structure(Struct, rename={"json_schema": "schema"}):
    """A tag in the older notation."""

    begin: str
    json_schema: dict[str, Any] | bool
    end: str


class StructuralTagSpec(Struct):
    """A structural tag."""

    format: Format


class OlderStructuralTag(Struct):
    """A structural tag in the older notation."""

    structures: list[Structure]
    triggers: Annotated[list[Text], Meta(min_length=1)]

    @property
    def format(self) -> TriggeredTags:
        """The same in today's notation."""
        tags = [Tag(tag.begin, SchemaFormat(tag.json_schema), tag.end) for tag in self.structures]
        return TriggeredTags(self.triggers, tags)


MAX_DEPTH = 32
"""How deep formats are nested."""


def parse_structural_tag(
    spec: Mapping[str, Any], rules: dict[str, Expr], budget: WorkBudget
) -> tuple[Expr, list[tuple[str, str]]]:
    """The expression of the whole text, and the parts that are not enforced.

    Raises RequestError, `TooMuchWorkError`.
    """
    parser = _TagParser(rules, budget)
    return parser.expr(_decoded(spec).format, "", 0), parser.unenforced


def _decoded(spec: Mapping[str, Any]) -> StructuralTagSpec | OlderStructuralTag:
    syntax: type[StructuralTagSpec | OlderStructuralTag] = (
        OlderStructuralTag if "structures" in spec else StructuralTagSpec
    )
    try:
        return msgspec.convert(spec, syntax)
    except msgspec.ValidationError as error:
        message = f"This structural tag is not valid: {error}. Write it in xgrammar's notation."
        raise RequestError(message, param="format") from error
    except RecursionError as error:
        raise _too_deep() from error


class _TagParser:
    """Parses one structural tag. `end` is the text after a format, at which free text stops."""

    def __init__(self, rules: dict[str, Expr], budget: WorkBudget) -> None:
        self._rules = rules
        self._budget = budget
        self.unenforced: list[tuple[str, str]] = []

    def expr(self, spec: Format, end: str, depth: int) -> Expr:
        """A format, followed by this text."""
        if depth > MAX_DEPTH:
            raise _too_deep()
        match spec:
            case AnyText():
                return _free(end)
            case SequenceFormat(elements):
                ends = [*("" for _ in elements[1:]), end]
                return sequence(*(self.expr(*pair, depth + 1) for pair in zip(elements, ends, strict=True)))
            case OrFormat(elements):
                return alternation(*(self.expr(element, end, depth + 1) for element in elements))
            case TriggeredTags():
                return self._triggered(spec, end, depth + 1)
            case _:
                return sequence(self._bounded(spec, depth + 1), end)

    def _bounded(self, spec: Bounded, depth: int) -> Expr:
        """A format that defines its own end."""
        match spec:
            case ConstString(value):
                return sequence(value)
            case SchemaFormat(schema):
                return self._schema(schema)
            case RegexFormat(pattern):
                return client_regex(pattern, self._budget)
            case GbnfFormat(grammar):
                return parse_gbnf(grammar, self._rules, self._budget)
            case SingleTag():
                return self._tag(spec, spec.begin, depth)
            case TagsWithSeparator():
                return self._separated(spec, depth)

    def _tag(self, tag: Tag, begin: str, depth: int) -> Expr:
        return sequence(begin, alternation(*(self.expr(tag.content, end, depth) for end in tag.ends)))

    def _triggered(self, spec: TriggeredTags, end: str, depth: int) -> Expr:
        if end:
            raise RequestError("Text after triggered tags is ambiguous. Put it into them.", param="format")
        name = f"tags {len(self._rules)}"
        self._rules[name] = EMPTY
        again = EMPTY if spec.stop_after_first else RuleReference(name)
        ways = []
        for trigger in dict.fromkeys(spec.triggers):
            tags = [tag for tag in spec.tags if tag.begin.startswith(trigger)]
            if not tags:
                raise RequestError(f"No tag begins with the trigger '{trigger}': add one.", param="format")
            rests = [self._tag(tag, tag.begin[len(trigger) :], depth) for tag in tags]
            ways.append((trigger, sequence(alternation(*rests), again)))
        self._rules[name] = Until(tuple(ways), open=not spec.at_least_one)
        return RuleReference(name)

    def _separated(self, spec: TagsWithSeparator, depth: int) -> Expr:
        one = alternation(*(self._tag(tag, tag.begin, depth) for tag in spec.tags))
        more = EMPTY if spec.stop_after_first else repeat(sequence(spec.separator, one))
        several = sequence(one, more)
        return several if spec.at_least_one else optional(several)

    def _schema(self, schema: Mapping[str, Any] | bool) -> Expr:
        schema_ir, unenforced = compile_schema(schema, self._budget)
        self.unenforced += unenforced
        scope = f"tag {len(self._rules)} {json.dumps(schema)[:20]}"
        return JsonSyntax(self._rules, scope, schema_ir.definitions).expr(schema_ir.node)


def _free(end: str) -> Expr:
    return Until(((end, EMPTY),)) if end else Until((), open=True)


def _too_deep() -> RequestError:
    return RequestError(
        f"This structural tag has more than {MAX_DEPTH} formats inside each other.", param="format"
    )
