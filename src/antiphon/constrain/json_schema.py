"""JSON Schema → shapes: what fits the shape fits the schema.

The other way round it need not hold: an object whose schema lists properties
and says nothing about others has no others, and properties come in the
schema's order. What a shape cannot say is collected in `missed`, each with its
place, so that nothing is let through unseen.

Strategy: references and `allOf` are merged into one plain schema first
(`merging`); alternatives multiply out; what is left is read type by type.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from antiphon.constrain.bounds import bound, down, up
from antiphon.constrain.form import ANY, EMPTY, NOTHING, Chars, Form, Language, Literal, Repeat, repeat
from antiphon.constrain.formats import form_of
from antiphon.constrain.lengths import length
from antiphon.constrain.matcher import matches
from antiphon.constrain.merging import (
    ANNOTATIONS,
    Schema,
    TooLarge,
    disjoint,
    merged,
    resolved,
    types_of,
)
from antiphon.constrain.notation import Json
from antiphon.constrain.numbers import integers, numbers
from antiphon.constrain.readings import undecided
from antiphon.constrain.regex import UnsupportedRegexError, searched
from antiphon.constrain.shape import (
    ANYTHING,
    FREE_TEXT,
    NEVER,
    Array,
    Constant,
    Member,
    Named,
    Number,
    Object,
    Shape,
    Shapes,
    Text,
    union,
)
from antiphon.constrain.values import all_types_of, type_of, within

MAX_REPEAT = 500
"""The highest count of characters or items that is enforced: engines write counts out."""
MAX_DEPTH = 64
"""How deep schemas are nested."""
MAX_SCHEMAS = 4000
"""Schemas in one schema, alternatives multiplied out."""

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
_OTHERS = {"type", "enum", "const", "anyOf", "oneOf", "nullable"}
_KNOWN = _STRINGS | _NUMBERS | _ARRAYS | _OBJECTS | _OTHERS | ANNOTATIONS


class SchemaReader:
    """Reads one schema. `missed` has what its shape does not hold, as (pointer, what)."""

    def __init__(self, root: Schema | bool) -> None:
        self._root = root
        self._named: dict[str, Shape] = {}
        self._count = 0
        self._depth = 0
        self.missed: list[tuple[str, str]] = []

    def read(self) -> Shapes:
        """The shape of the whole schema. Raises `TooLarge`."""
        shape = self._shape(self._root, "")
        return Shapes(shape, self._named)

    def _shape(self, schema: Any, at: str) -> Shape:
        """The shape of a schema at this place."""
        self._count += 1
        if self._count > MAX_SCHEMAS:
            raise TooLarge
        if isinstance(schema, bool) or not isinstance(schema, Mapping):
            return ANYTHING if schema is True else NEVER if schema is False else self._miss(at, "no schema")
        if self._depth >= MAX_DEPTH:
            return self._miss(at, f"schemas nested deeper than {MAX_DEPTH}")
        self._depth += 1
        reference = schema.get("$ref")
        if isinstance(reference, str) and not schema.keys() - ANNOTATIONS - {"$ref"}:
            found = self._referred(reference, at)
        else:
            found = self._plain(schema, at)
        self._depth -= 1
        return found

    def _referred(self, reference: str, at: str) -> Shape:
        """A reference becomes a name, so that a schema may refer to itself."""
        target = resolved(reference, self._root)
        if target is None:
            return self._miss(at, f"$ref: there is no '{reference}' in the schema")
        if reference not in self._named:
            self._named[reference] = ANYTHING  # stands there while what it refers to is read
            depth, self._depth = self._depth, 0
            self._named[reference] = self._shape(target, reference.removeprefix("#"))
            self._depth = depth
        return Named(reference)

    def _plain(self, schema: Schema, at: str) -> Shape:
        """A schema with `$ref` and `allOf` merged into it."""
        plain, conflicts = merged(schema, self._root)
        self.missed += ((at, conflict) for conflict in conflicts)
        if not isinstance(plain, Mapping):
            return ANYTHING if plain is True else NEVER
        for keyword in _ALTERNATIVES:
            if keyword in plain:
                return self._alternatives(plain, keyword, at)
        for keyword in sorted(plain.keys() - _KNOWN):
            self.missed.append((at, f"{keyword}: it cannot be enforced"))
        if "enum" in plain or "const" in plain:
            return self._constants(plain, at)
        return self._typed(plain, at)

    def _alternatives(self, schema: Schema, keyword: str, at: str) -> Shape:
        rest = {key: value for key, value in schema.items() if key != keyword}
        options = schema[keyword]
        if not isinstance(options, list) or not options:
            return self._miss(at, f"{keyword}: it must be a list of schemas")
        if keyword == "oneOf" and not disjoint(options, self._root):
            self.missed.append((at, "oneOf: more than one of its schemas may fit"))
        if not rest.keys() - ANNOTATIONS:
            return union(*(self._shape(each, f"{at}/{keyword}/{i}") for i, each in enumerate(options)))
        return union(
            *(self._shape({"allOf": [rest, each]}, f"{at}/{keyword}/{i}") for i, each in enumerate(options))
        )

    def _constants(self, schema: Schema, at: str) -> Shape:
        """The values listed, as far as the rest of the schema allows them."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(values, list):
            return self._miss(at, "enum: it must be a list")
        allowed = schema.get("enum", values)
        types = types_of(schema)
        kept = [v for v in values if within(v, allowed) and (types is None or all_types_of(v) & types)]
        rest = {
            k: v for k, v in schema.items() if k not in {"enum", "const", "type", "nullable"} | ANNOTATIONS
        }
        if rest:
            kept = [value for value in kept if self._fits(value, rest, at)]
        return union(*map(Constant, kept))

    def _fits(self, value: Any, rest: Schema, at: str) -> bool:
        """Whether a listed value fits the other keywords; of containers that is not known."""
        if isinstance(value, dict | list):
            self.missed.append((at, "enum: other keywords beside it, for objects and arrays"))
            return True
        if not rest.keys() & _KEYWORDS.get(type_of(value), set()):
            return True
        shape = self._typed({**rest, "type": type_of(value)}, at)
        if isinstance(shape, Text):
            return matches(Language(shape.body), value)
        return isinstance(shape, Number) and matches(Language(shape.digits), f"{Decimal(repr(value)):f}")

    def _typed(self, schema: Schema, at: str) -> Shape:
        """One shape for each type; those that the schema has keywords for, if it names none."""
        types = types_of(schema)
        if types is None:
            spoken = {type_ for type_, keywords in _KEYWORDS.items() if schema.keys() & keywords}
            if not spoken:
                return ANYTHING
            types = frozenset(spoken - ({"integer"} if "number" in spoken else set()))
        if schema.get("nullable") is True:
            types = types | {"null"}
        return union(*(self._of_type(type_, schema, at) for type_ in _TYPES if type_ in types))

    def _of_type(self, type_: str, schema: Schema, at: str) -> Shape:
        if type_ == "null":
            return Constant(None)
        if type_ == "boolean":
            return union(Constant(True), Constant(False))
        if type_ == "string":
            return self._string(schema, at)
        if type_ == "array":
            return self._array(schema, at)
        return self._object(schema, at) if type_ == "object" else self._number(type_, schema, at)

    # Numbers

    def _number(self, type_: str, schema: Schema, at: str) -> Shape:
        def miss(what: str) -> None:
            self.missed.append((at, what))

        low, open_low = bound(schema, "minimum", "exclusiveMinimum", max, miss)
        high, open_high = bound(schema, "maximum", "exclusiveMaximum", min, miss)
        step = schema.get("multipleOf")
        if type_ == "number" and step == 1:
            type_, step = "integer", None
        if step is not None and not (type_ == "integer" and step == 1):
            self.missed.append((at, "multipleOf: it cannot be enforced"))
        if type_ == "number":
            digits = numbers(low, high, open_low, open_high)
        else:
            digits = integers(
                None if low is None else up(low, open_low), None if high is None else down(high, open_high)
            )
        return NEVER if digits == NOTHING else Number(digits)

    # Strings

    def _string(self, schema: Schema, at: str) -> Shape:
        body = self._pattern(schema, at)
        least, most = self._count_of(schema, "minLength", at) or 0, self._count_of(schema, "maxLength", at)
        if most is not None and most < least:
            return NEVER
        if body is None:
            return Text(repeat(ANY, least, most))
        if isinstance(body, Repeat) and isinstance(body.form, Chars):
            least = max(least, body.least)
            most = body.most if most is None else most if body.most is None else min(most, body.most)
            return NEVER if most is not None and most < least else Text(repeat(body.form, least, most))
        shortest, longest = length(body)
        if shortest < least or (most is not None and (longest is None or longest > most)):
            self.missed.append((at, "minLength, maxLength: they cannot be enforced beside pattern or format"))
        return Text(body)

    def _pattern(self, schema: Schema, at: str) -> Form | None:
        """What `pattern` or `format` asks for."""
        pattern, format_ = schema.get("pattern"), schema.get("format")
        if isinstance(pattern, str):
            if format_ is not None:
                self.missed.append((at, f"format: '{format_}' cannot be enforced beside pattern"))
            try:
                return searched(pattern)
            except UnsupportedRegexError as why:
                self.missed.append((at, f"pattern: {why} cannot be enforced"))
                return None
        if format_ is None:
            return None
        form = form_of(format_) if isinstance(format_, str) else None
        if form is None:
            self.missed.append((at, f"format: '{format_}' cannot be enforced"))
        return form

    def _count_of(self, schema: Schema, keyword: str, at: str) -> int | None:
        """A count that engines can enforce."""
        count = schema.get(keyword)
        if count is None:
            return None
        if isinstance(count, bool) or not isinstance(count, int | float) or count < 0:
            self.missed.append((at, f"{keyword}: it must be a whole number"))
            return None
        if count > MAX_REPEAT:
            self.missed.append((at, f"{keyword}: more than {MAX_REPEAT} cannot be enforced"))
            return None
        return int(count)

    # Arrays

    def _array(self, schema: Schema, at: str) -> Shape:
        for keyword in sorted(schema.keys() & {"contains", "minContains", "maxContains"}):
            self.missed.append((at, f"{keyword}: it cannot be enforced"))
        least, most = self._count_of(schema, "minItems", at) or 0, self._count_of(schema, "maxItems", at)
        if schema.get("uniqueItems") is True and most not in (0, 1):
            self.missed.append((at, "uniqueItems: it cannot be enforced"))
        prefix, rest = schema.get("prefixItems"), schema.get("items", True)
        if isinstance(rest, list):  # as drafts before 2020-12 wrote it
            prefix, rest = rest, schema.get("additionalItems", True)
        if "items" not in schema and schema.get("unevaluatedItems") is False:
            rest = False
        first = [self._shape(each, f"{at}/prefixItems/{i}") for i, each in enumerate(prefix or ())]
        # After a fixed beginning, models write nothing more unless the schema speaks of it.
        closed = bool(first) and "items" not in schema and least <= len(first)
        more = NEVER if closed else self._shape(rest, f"{at}/items")
        return _counted(first, more, least, most)

    # Objects

    def _object(self, schema: Schema, at: str) -> Shape:
        properties, patterns = schema.get("properties") or {}, schema.get("patternProperties") or {}
        if not isinstance(properties, Mapping) or not isinstance(patterns, Mapping):
            return self._miss(at, "properties, patternProperties: they must be objects")
        if "propertyNames" in schema:
            self.missed.append((at, "propertyNames: it cannot be enforced"))
        required = [name for name in schema.get("required") or () if isinstance(name, str)]
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties", True))
        members = dict(self._members(properties, required, patterns, others, at))
        if any(member.required and member.shape == NEVER for member in members.values()):
            return NEVER
        shape, keys = self._others(schema, properties, patterns, others, at)
        kept = tuple(member for member in members.values() if member.shape != NEVER)
        return self._sized(Object(kept, None if shape == NEVER else shape, keys), schema, at)

    def _members(
        self, properties: Schema, required: list[str], patterns: Schema, others: Any, at: str
    ) -> Iterator[tuple[str, Member]]:
        """The properties listed, and those that are only required."""
        for name in dict.fromkeys([*properties, *required]):
            place = f"{at}/properties/{_escaped(name)}"
            given = properties.get(name, True)
            also = [value for pattern, value in patterns.items() if self._found(pattern, name)]
            if name not in properties and not also:
                given, place = others, f"{at}/additionalProperties"
            shape = self._shape({"allOf": [given, *also]} if also else given, place)
            yield name, Member(name, shape, name in required)

    def _found(self, pattern: str, name: str) -> bool:
        try:
            return matches(Language(searched(pattern)), name)
        except UnsupportedRegexError:
            return False  # reported where others are read

    def _others(
        self, schema: Schema, properties: Schema, patterns: Schema, others: Any, at: str
    ) -> tuple[Shape, Form]:
        """Members that are not listed: what they are, and what their keys look like."""
        if patterns:
            return self._patterned(properties, patterns, at)
        speaks = "additionalProperties" in schema or "unevaluatedProperties" in schema
        if not speaks and properties:
            return NEVER, FREE_TEXT
        return self._shape(others, f"{at}/additionalProperties"), FREE_TEXT

    def _patterned(self, properties: Schema, patterns: Schema, at: str) -> tuple[Shape, Form]:
        (pattern, schema), *more = patterns.items()
        if more or any(self._found(pattern, name) for name in properties):
            self.missed.append(
                (at, "patternProperties: only one pattern, and for other keys than those listed")
            )
            return NEVER, FREE_TEXT
        try:
            return self._shape(schema, f"{at}/patternProperties/{_escaped(pattern)}"), searched(pattern)
        except UnsupportedRegexError as why:
            self.missed.append((at, f"patternProperties: {why} cannot be enforced"))
            return NEVER, FREE_TEXT

    def _sized(self, shape: Object, schema: Schema, at: str) -> Shape:
        """The object with its number of members bounded, as far as that can be said."""
        least, most = (
            self._count_of(schema, "minProperties", at) or 0,
            self._count_of(schema, "maxProperties", at),
        )
        required = sum(member.required for member in shape.members)
        if most is not None and most < max(least, required):
            return NEVER
        if shape.members:
            if least > required or (most is not None and (len(shape.members) > most or shape.others)):
                self.missed.append(
                    (at, "minProperties, maxProperties: they cannot be enforced beside properties")
                )
            return shape
        if least > 1:
            self.missed.append((at, "minProperties: a key may be written twice"))
        if shape.others is None:
            return NEVER if least else shape
        return Object((), shape.others, shape.keys, least, most)

    def _miss(self, at: str, what: str) -> Shape:
        """This part cannot be enforced: anything may stand there."""
        self.missed.append((at, what))
        return ANYTHING


def read(schema: Schema | bool) -> tuple[Shapes, list[tuple[str, str]]]:
    """The shapes of a schema, and what they do not hold. Raises `TooLarge`."""
    reader = SchemaReader(schema)
    shapes = reader.read()
    for reference in _tangled(shapes):
        shapes = Shapes(shapes.shape, {**shapes.named, reference: ANYTHING})
        what = "alternatives that hold themselves begin alike: let a constant that differs come first"
        reader.missed.append((reference.removeprefix("#"), what))
    return shapes, list(dict.fromkeys(reader.missed))


class _Tight(Json):
    """JSON without space, which would keep who looks for what is hard to read busy."""

    after_key, comma, gap = Literal(":"), Literal(","), EMPTY


def _tangled(shapes: Shapes) -> list[str]:
    """The references to what holds itself in so many ways that no engine could follow."""
    rules: dict[str, Form] = {}
    notation = _Tight(rules, "", shapes.named)
    notation.form(shapes.shape)
    hard = set(undecided(rules)) if shapes.named else set()
    return [reference for reference in shapes.named if notation.rule_of(reference) in hard]


def _counted(first: list[Shape], more: Shape, least: int, most: int | None) -> Shape:
    """An array of `least` to `most` values."""
    if most is not None and most < least:
        return NEVER
    possible = next((at for at, shape in enumerate(first) if shape == NEVER), len(first))
    first = first[: possible if most is None else min(possible, most)]
    rest = None if more == NEVER or possible < len(first) else more
    if rest is None and least > len(first):
        return NEVER
    left = None if most is None else max(0, most - len(first))
    rest = None if left == 0 else rest
    return Array(tuple(first), rest, max(0, least - len(first)), left, min(least, len(first)))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
