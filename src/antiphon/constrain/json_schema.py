"""JSON Schema → schema IR: every value that it allows is valid; not every valid value is allowed.

An object whose schema lists properties and does not mention others has no others, and properties come in the
schema's order. Keywords that cannot be enforced are collected in `unenforced` with their places. `$ref` and
`allOf` are merged into one schema first (`merge_schemas`); alternatives multiply out; the rest is compiled
type by type.

To add a keyword: what it compiles to here; how it combines with itself in `merge_schemas.py`; a string format
in `string_formats.py`. An entry of `SCHEMAS` in `tests/constrain/schemas.py`, and of `AGENT_SCHEMAS` in
`agent_schemas.py`; the lists in `docs/structured-output.md`.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from math import ceil, floor
from typing import Any

from msgspec.structs import replace

from antiphon.constrain.ambiguity import ambiguous_recursion
from antiphon.constrain.analysis import length
from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.dfa import with_length
from antiphon.constrain.grammar_ir import (
    ANY_CHAR,
    EMPTY,
    NOTHING,
    CharClass,
    Expr,
    GrammarIR,
    Literal,
    Repeat,
    alternation,
    repeat,
)
from antiphon.constrain.json_values import all_types_of, type_of, within
from antiphon.constrain.matcher import matches
from antiphon.constrain.merge_schemas import ANNOTATIONS, Schema, disjoint, merged, types_of
from antiphon.constrain.node_types import single_types
from antiphon.constrain.numbers import bound, integers, numbers
from antiphon.constrain.regex import UnsupportedRegexError, searching
from antiphon.constrain.schema_ir import (
    ANY_VALUE,
    FREE_TEXT,
    NEVER,
    Array,
    Const,
    DefinitionReference,
    Number,
    Object,
    Property,
    SchemaIR,
    SchemaNode,
    String,
    union,
)
from antiphon.constrain.string_formats import pattern_expr
from antiphon.constrain.value_syntax import JsonSyntax
from antiphon.core.schema_ids import resolved, without_ids

MAX_DEPTH = 64
"""How deep schemas are nested."""
_NODE, _VALUE = 20, 8
"""Work for a schema, and for a listed value."""

_ALTERNATIVES = ("anyOf", "oneOf")
_STRINGS = {"minLength", "maxLength", "pattern", "format"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_ARRAYS = {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains"}
_ARRAYS |= {"minContains", "maxContains", "unevaluatedItems"}
_OBJECTS = {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
_OBJECTS |= {"minProperties", "maxProperties", "unevaluatedProperties"}
_KEYWORDS = {
    "string": _STRINGS,
    "number": _NUMBERS,
    "integer": _NUMBERS,
    "array": _ARRAYS,
    "object": _OBJECTS,
}
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_OTHER_KEYWORDS = {"type", "enum", "const", "anyOf", "oneOf", "nullable"}
_ALL_KEYWORDS = _STRINGS | _NUMBERS | _ARRAYS | _OBJECTS | _OTHER_KEYWORDS | ANNOTATIONS


class SchemaCompiler:
    """Compiles one schema. `unenforced` has the keywords that its IR does not enforce, as (pointer, what)."""

    def __init__(self, root: Schema | bool, budget: WorkBudget) -> None:
        self._root = root
        self._budget = budget
        self._definitions: dict[str, SchemaNode] = {}
        self._patterns: dict[str, Expr] = {}
        self._depth = 0
        self.unenforced: list[tuple[str, str]] = []

    def compile(self) -> SchemaIR:
        """The IR of the whole schema. Raises `TooMuchWorkError`."""
        node = self._node(self._root, "")
        return SchemaIR(node, self._definitions)

    def _node(self, schema: Any, at: str) -> SchemaNode:
        """Compiles the schema at this place."""
        self._budget.spend(_NODE)
        if isinstance(schema, bool) or not isinstance(schema, Mapping):
            return (
                ANY_VALUE
                if schema is True
                else NEVER
                if schema is False
                else self._unenforceable(at, "no schema")
            )
        if self._depth >= MAX_DEPTH:
            return self._unenforceable(at, f"schemas nested deeper than {MAX_DEPTH}")
        self._depth += 1
        reference = schema.get("$ref")
        if isinstance(reference, str) and not schema.keys() - ANNOTATIONS - {"$ref"}:
            node = self._referred(reference, at)
        else:
            node = self._plain(schema, at)
        self._depth -= 1
        return node

    def _referred(self, reference: str, at: str) -> SchemaNode:
        """A reference becomes a name, so that a schema may refer to itself."""
        target = resolved(reference, self._root)
        if target is None:
            return self._unenforceable(at, f"$ref: there is no '{reference}' in the schema")
        if reference not in self._definitions:
            self._definitions[reference] = ANY_VALUE  # a placeholder while the referenced schema is compiled
            depth, self._depth = self._depth, 0
            self._definitions[reference] = self._node(target, reference.removeprefix("#"))
            self._depth = depth
        return DefinitionReference(reference)

    def _plain(self, schema: Schema, at: str) -> SchemaNode:
        """A schema with `$ref` and `allOf` merged into it."""
        plain, conflicts = merged(schema, self._root, self._budget)
        self.unenforced += ((at, conflict) for conflict in conflicts)
        if not isinstance(plain, Mapping):
            return ANY_VALUE if plain is True else NEVER
        for keyword in _ALTERNATIVES:
            if keyword in plain:
                return self._alternatives(plain, keyword, at)
        if plain.get("not") in (True, {}):
            return NEVER
        for keyword in sorted(plain.keys() - _ALL_KEYWORDS):
            self.unenforced.append((at, f"{keyword}: it cannot be enforced"))
        if "enum" in plain or "const" in plain:
            return self._constants(plain, at)
        return self._typed(plain, at)

    def _alternatives(self, schema: Schema, keyword: str, at: str) -> SchemaNode:
        rest = {key: value for key, value in schema.items() if key != keyword}
        options = schema[keyword]
        if not options:
            return self._unenforceable(at, f"{keyword}: it must be a list of schemas")
        if keyword == "oneOf" and not disjoint(options, self._root, self._budget):
            self.unenforced.append((at, "oneOf: more than one of its schemas may fit"))
        if not rest.keys() - ANNOTATIONS:
            return union(*(self._node(option, f"{at}/{keyword}/{i}") for i, option in enumerate(options)))
        return union(
            *(self._node({"allOf": [rest, part]}, f"{at}/{keyword}/{i}") for i, part in enumerate(options))
        )

    def _constants(self, schema: Schema, at: str) -> SchemaNode:
        """The values listed, as far as the rest of the schema allows them."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        self._budget.spend(_VALUE * len(values))
        allowed = schema["enum"] if "const" in schema and "enum" in schema else None
        types = types_of(schema)
        fitting = [
            v
            for v in values
            if (allowed is None or within(v, allowed)) and (types is None or all_types_of(v) & types)
        ]
        rest = {
            k: v for k, v in schema.items() if k not in {"enum", "const", "type", "nullable"} | ANNOTATIONS
        }
        if rest:
            fitting = [value for value in fitting if self._fits(value, rest, at)]
        return union(*map(Const, fitting))

    def _fits(self, value: Any, rest: Schema, at: str) -> bool:
        """Whether a listed value matches the other keywords; for containers that is not checked."""
        if isinstance(value, dict | list):
            self.unenforced.append((at, "enum: other keywords together with it, for objects and arrays"))
            return True
        if not rest.keys() & _KEYWORDS.get(type_of(value), set()):
            return True
        node = self._typed({**rest, "type": type_of(value)}, at)
        if isinstance(node, String):
            return matches(GrammarIR(node.body), value)
        return isinstance(node, Number) and matches(GrammarIR(node.digits), f"{Decimal(repr(value)):f}")

    def _typed(self, schema: Schema, at: str) -> SchemaNode:
        """One schema node for each type; if it names no type, those of its keywords."""
        types = types_of(schema)
        if types is not None and (unknown := types.difference(_TYPES)):
            self.unenforced += ((at, f"type: '{name}' is no type") for name in sorted(unknown))
            types = types.intersection(_TYPES) or None
        if types is None:
            with_keywords = {type_ for type_, keywords in _KEYWORDS.items() if schema.keys() & keywords}
            if not with_keywords:
                return ANY_VALUE
            types = frozenset(with_keywords - ({"integer"} if "number" in with_keywords else set()))
        if schema.get("nullable") is True:
            types = types | {"null"}
        return union(*(self._of_type(type_, schema, at) for type_ in _TYPES if type_ in types))

    def _of_type(self, type_: str, schema: Schema, at: str) -> SchemaNode:
        if type_ == "null":
            return Const(None)
        if type_ == "boolean":
            return union(Const(True), Const(False))
        if type_ in ("integer", "number"):
            return self._number(type_, schema, at)
        lowest, highest, node = {
            "string": ("minLength", "maxLength", self._string),
            "array": ("minItems", "maxItems", self._array),
            "object": ("minProperties", "maxProperties", self._object),
        }[type_]
        minimum, maximum = self._count_of(schema, lowest, at) or 0, self._count_of(schema, highest, at)
        if maximum is not None and maximum < minimum:
            return NEVER
        return node(schema, at, *self._budget.within_reach(minimum, maximum))

    # Numbers

    def _number(self, type_: str, schema: Schema, at: str) -> SchemaNode:
        report = partial(self._unenforceable, at)
        low, open_low = bound(schema, "minimum", "exclusiveMinimum", max, report)
        high, open_high = bound(schema, "maximum", "exclusiveMaximum", min, report)
        step = schema.get("multipleOf")
        if type_ == "number" and step == 1:
            type_, step = "integer", None
        if step is not None and not (type_ == "integer" and step == 1):
            self.unenforced.append((at, "multipleOf: it cannot be enforced"))
        if type_ == "number":
            digits = numbers(low, high, open_low, open_high)
        else:
            first = None if low is None else floor(low) + 1 if open_low else ceil(low)
            last = None if high is None else ceil(high) - 1 if open_high else floor(high)
            digits = integers(first, last)
        return NEVER if digits == NOTHING else Number(digits)

    # Strings

    def _string(self, schema: Schema, at: str, minimum: int, maximum: int | None) -> SchemaNode:
        body = self._pattern(schema, at)
        if body is None:
            return String(repeat(ANY_CHAR, minimum, maximum))
        if isinstance(body, Repeat) and isinstance(body.expr, CharClass):
            minimum = max(minimum, body.minimum)
            maximum = min((high for high in (maximum, body.maximum) if high is not None), default=None)
            if maximum is not None and maximum < minimum:
                return NEVER
            return String(repeat(body.expr, minimum, maximum))
        shortest, longest = length(body)
        if shortest < minimum or (maximum is not None and (longest is None or longest > maximum)):
            fitting = with_length(body, minimum, maximum, self._budget)
            if fitting is not None:
                return String(fitting) if fitting.ends else NEVER
            what = "minLength, maxLength: with this pattern or format they make too large an automaton"
            self.unenforced.append((at, what))
        return String(body)

    def _pattern(self, schema: Schema, at: str) -> Expr | None:
        """The expression of `pattern` or `format`."""
        pattern, format_ = schema.get("pattern"), schema.get("format")
        if isinstance(pattern, str):
            if format_ is not None:
                self.unenforced.append((at, f"format: '{format_}' cannot be enforced together with pattern"))
            try:
                return searching(pattern, self._budget)
            except UnsupportedRegexError as why:
                self.unenforced.append((at, f"pattern: {why} cannot be enforced"))
                return None
        if format_ is None:
            return None
        expr = pattern_expr(format_) if isinstance(format_, str) else None
        if expr is None:
            self.unenforced.append((at, f"format: '{format_}' cannot be enforced"))
        return expr

    def _count_of(self, schema: Schema, keyword: str, at: str) -> int | None:
        count = schema.get(keyword)
        if count is None:
            return None
        whole = isinstance(count, int) or (isinstance(count, float) and count.is_integer())
        if isinstance(count, bool) or not whole or count < 0:
            self.unenforced.append((at, f"{keyword}: it must be a whole number"))
            return None
        return int(count)

    # Arrays

    def _array(self, schema: Schema, at: str, minimum: int, maximum: int | None) -> SchemaNode:
        for keyword in sorted(schema.keys() & {"contains", "minContains", "maxContains"}):
            self.unenforced.append((at, f"{keyword}: it cannot be enforced"))
        if schema.get("uniqueItems") is True and maximum not in (0, 1):
            self.unenforced.append((at, "uniqueItems: it cannot be enforced"))
        prefix, rest = schema.get("prefixItems"), schema.get("items", True)
        if isinstance(rest, list):  # as drafts before 2020-12 wrote it
            prefix, rest = rest, schema.get("additionalItems", True)
        if "items" not in schema and schema.get("unevaluatedItems") is False:
            rest = False
        first = [self._node(item, f"{at}/prefixItems/{i}") for i, item in enumerate(prefix or ())]
        # After fixed items, models write no further ones unless the schema mentions them.
        closed = bool(first) and "items" not in schema and minimum <= len(first)
        more = NEVER if closed else self._node(rest, f"{at}/items")
        return _counted(first, more, minimum, maximum)

    # Objects

    def _object(self, schema: Schema, at: str, minimum: int, maximum: int | None) -> SchemaNode:
        properties, patterns = schema.get("properties") or {}, schema.get("patternProperties") or {}
        if not isinstance(properties, Mapping) or not isinstance(patterns, Mapping):
            return self._unenforceable(at, "properties, patternProperties: they must be objects")
        required = [name for name in schema.get("required") or () if isinstance(name, str)]
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        members = dict(self._members(properties, required, patterns, others, at))
        node, keys = self._others(schema, properties, patterns, others, at)
        if "propertyNames" in schema:
            members, keys = self._named(schema, members, node, keys, at)
        if any(member.required and member.node == NEVER for member in members.values()):
            return NEVER
        possible = tuple(member for member in members.values() if member.node != NEVER)
        return self._sized(Object(possible, None if node == NEVER else node, keys), at, minimum, maximum)

    def _members(
        self, properties: Schema, required: list[str], patterns: Schema, others: Any, at: str
    ) -> Iterator[tuple[str, Property]]:
        """The properties listed, and those that are only required."""
        for name in dict.fromkeys([*properties, *required]):
            place = f"{at}/properties/{_escaped(name)}"
            schema = properties.get(name, True)
            also = [value for pattern, value in patterns.items() if self._matches(pattern, name)]
            if name not in properties and not also:
                schema, place = others, f"{at}/additionalProperties"
            node = self._node({"allOf": [schema, *also]} if also else schema, place)
            yield name, Property(name, node, name in required)

    def _matches(self, pattern: str, name: str) -> bool:
        if pattern not in self._patterns:
            try:
                self._patterns[pattern] = searching(pattern, self._budget)
            except UnsupportedRegexError:
                self._patterns[pattern] = NOTHING  # reported elsewhere
        return self._is_one_of(self._patterns[pattern], name)

    def _is_one_of(self, names: Expr, name: str) -> bool:
        self._budget.spend(20 + 4 * len(name))
        return matches(GrammarIR(names), name)

    def _others(
        self, schema: Schema, properties: Schema, patterns: Schema, others: Any, at: str
    ) -> tuple[SchemaNode, Expr]:
        """Other members: their values, and the form of their keys."""
        if patterns:
            return self._patterned(properties, patterns, at)
        mentioned = "additionalProperties" in schema or "unevaluatedProperties" in schema
        if not mentioned and properties:
            return NEVER, FREE_TEXT
        return self._node(others, f"{at}/additionalProperties"), FREE_TEXT

    def _named(
        self, schema: Schema, members: dict[str, Property], node: SchemaNode, keys: Expr, at: str
    ) -> tuple[dict[str, Property], Expr]:
        """The members that have an allowed name, and the form of the keys of others, which are a `node`."""
        allowed = single_types(self._node(schema["propertyNames"], f"{at}/propertyNames"), self._definitions)
        texts = [
            Literal(item.value) for item in allowed if isinstance(item, Const) and isinstance(item.value, str)
        ]
        names = alternation(*texts, *(item.body for item in allowed if isinstance(item, String)))
        if names == FREE_TEXT:
            return members, keys
        fitting = {name for name in members if self._is_one_of(names, name)}
        if keys != FREE_TEXT or (node != NEVER and fitting):
            what = "propertyNames: only for other keys than those listed, and without patternProperties"
            self.unenforced.append((at, what))
        return {
            name: member if name in fitting else replace(member, node=NEVER)
            for name, member in members.items()
        }, names

    def _patterned(self, properties: Schema, patterns: Schema, at: str) -> tuple[SchemaNode, Expr]:
        (pattern, schema), *more = patterns.items()
        if more or any(self._matches(pattern, name) for name in properties):
            self.unenforced.append(
                (at, "patternProperties: only one pattern, and for other keys than those listed")
            )
            return NEVER, FREE_TEXT
        try:
            return self._node(schema, f"{at}/patternProperties/{_escaped(pattern)}"), searching(
                pattern, self._budget
            )
        except UnsupportedRegexError as why:
            self.unenforced.append((at, f"patternProperties: {why} cannot be enforced"))
            return NEVER, FREE_TEXT

    def _sized(self, node: Object, at: str, minimum: int, maximum: int | None) -> SchemaNode:
        """The object with its number of members bounded, as far as that can be expressed."""
        required = sum(member.required for member in node.members)
        if maximum is not None and maximum < required:
            return NEVER
        if node.members:
            if minimum > required or (maximum is not None and (len(node.members) > maximum or node.others)):
                self.unenforced.append(
                    (at, "minProperties, maxProperties: they cannot be enforced together with properties")
                )
            return node
        if minimum > 1:
            self.unenforced.append((at, "minProperties: a key may be written twice"))
        if node.others is None:
            return NEVER if minimum else node
        return Object((), node.others, node.keys, minimum, maximum)

    def _unenforceable(self, at: str, what: str) -> SchemaNode:
        """Report a part that cannot be enforced: it allows anything."""
        self.unenforced.append((at, what))
        return ANY_VALUE


def compile_schema(schema: Schema | bool, budget: WorkBudget) -> tuple[SchemaIR, list[tuple[str, str]]]:
    """The IR of a schema, and the keywords that it does not enforce. Raises `TooMuchWorkError`."""
    compiler = SchemaCompiler(schema if isinstance(schema, bool) else without_ids(schema), budget)
    schema_ir = compiler.compile()
    for reference in _ambiguous_references(schema_ir, budget):
        schema_ir = SchemaIR(schema_ir.node, {**schema_ir.definitions, reference: ANY_VALUE})
        what = "recursive alternatives begin with the same text: let a constant that differs come first"
        compiler.unenforced.append((reference.removeprefix("#"), what))
    return schema_ir, list(dict.fromkeys(compiler.unenforced))


class _CompactJson(JsonSyntax):
    """JSON without space, which would only slow down the search for ambiguities."""

    after_key, comma, gap = Literal(":"), Literal(","), EMPTY


def _ambiguous_references(schema_ir: SchemaIR, budget: WorkBudget) -> list[str]:
    """The references to recursive schemas in which an engine would have to follow too many places at once."""
    if not schema_ir.definitions:
        return []
    rules: dict[str, Expr] = {}
    syntax = _CompactJson(rules, "", schema_ir.definitions)
    syntax.expr(schema_ir.node)
    hard = set(ambiguous_recursion(rules, budget))
    return [reference for reference in schema_ir.definitions if syntax.rule_of(reference) in hard]


def _counted(first: list[SchemaNode], more: SchemaNode, minimum: int, maximum: int | None) -> SchemaNode:
    """An array of `minimum` to `maximum` values."""
    if maximum is not None and maximum < minimum:
        return NEVER
    possible = next((at for at, node in enumerate(first) if node == NEVER), len(first))
    first = first[: possible if maximum is None else min(possible, maximum)]
    rest = None if more == NEVER or possible < len(first) else more
    if rest is None and minimum > len(first):
        return NEVER
    remaining = None if maximum is None else max(0, maximum - len(first))
    rest = None if remaining == 0 else rest
    return Array(tuple(first), rest, max(0, minimum - len(first)), remaining, min(minimum, len(first)))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
