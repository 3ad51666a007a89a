"""The intermediate representation of JSON Schemas: merged, by type, without a way to write values.

`json_schema` compiles schemas into it, `value_syntax` compiles it into grammars.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.constrain.grammar_ir import ANY_CHAR, Expr, repeat

FREE_TEXT = repeat(ANY_CHAR)
"""The text of an unrestricted string."""


class Const(Struct, frozen=True):
    """This value. `value` is JSON: a text, number, boolean, None, list or mapping."""

    value: Any


class String(Struct, frozen=True):
    """A string; `body` is its text between the quotes, before escaping."""

    body: Expr = FREE_TEXT


class Number(Struct, frozen=True):
    """A number; `digits` is its expression, the same in every syntax."""

    digits: Expr


class Array(Struct, frozen=True):
    """An array: first these values, then `minimum` to `maximum` more that are `rest`; without it, no more.

    At least `whole` of the first values must be there.
    """

    first: tuple["SchemaNode", ...] = ()
    rest: "SchemaNode | None" = None
    minimum: int = 0
    maximum: int | None = None
    whole: int = 0


class Property(Struct, frozen=True):
    """A member of an object."""

    name: str
    node: "SchemaNode"
    required: bool


class Object(Struct, frozen=True):
    """An object: its members in this order, then `minimum` to `maximum` others, with keys that match `keys`.

    The names of members are not keys of others.
    """

    members: tuple[Property, ...] = ()
    others: "SchemaNode | None" = None
    keys: Expr = FREE_TEXT
    minimum: int = 0
    maximum: int | None = None


class Union(Struct, frozen=True):
    """One of these; if there are none, nothing matches."""

    options: tuple["SchemaNode", ...]


class DefinitionReference(Struct, frozen=True):
    """A reference to a definition."""

    name: str


class AnyValue(Struct, frozen=True):
    """Any JSON value."""


SchemaNode = Const | String | Number | Array | Object | Union | DefinitionReference | AnyValue

NEVER = Union(())
ANY_VALUE = AnyValue()
ANY_OBJECT = Object(others=ANY_VALUE)


class SchemaIR(Struct, frozen=True):
    """A schema's root node, and the definitions that nodes refer to."""

    node: SchemaNode
    definitions: Mapping[str, SchemaNode] = {}


def union(*options: SchemaNode) -> SchemaNode:
    """One of these, flattened."""
    flat: list[SchemaNode] = []
    for option in options:
        flat += option.options if isinstance(option, Union) else (option,)
    return flat[0] if len(flat) == 1 else Union(tuple(flat))
