"""Shapes: what a JSON value may be, independent of how a model family writes values.

`json_schema` makes shapes of schemas, `notation` makes forms of shapes.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.constrain.form import ANY, Form, repeat

FREE_TEXT = repeat(ANY)
"""The text of a string of which nothing is known."""


class Constant(Struct, frozen=True):
    """This value. `value` is JSON: a text, number, boolean, None, list or mapping."""

    value: Any


class Text(Struct, frozen=True):
    """A string; `body` says what stands between its quotes, before anything is escaped."""

    body: Form = FREE_TEXT


class Number(Struct, frozen=True):
    """A number; `digits` is its form, the same in every notation."""

    digits: Form


class Array(Struct, frozen=True):
    """An array: first these values, then `least` to `most` more that are `rest`; without it, no more.

    At least `whole` of the first values must be there.
    """

    first: tuple["Shape", ...] = ()
    rest: "Shape | None" = None
    least: int = 0
    most: int | None = None
    whole: int = 0


class Member(Struct, frozen=True):
    """A member of an object."""

    name: str
    shape: "Shape"
    required: bool


class Object(Struct, frozen=True):
    """An object: its members in this order, then `least` to `most` others, with keys that look like `keys`.

    The names of members are no keys of others.
    """

    members: tuple[Member, ...] = ()
    others: "Shape | None" = None
    keys: Form = FREE_TEXT
    least: int = 0
    most: int | None = None


class Union(Struct, frozen=True):
    """One of these; none, if nothing fits."""

    options: tuple["Shape", ...]


class Named(Struct, frozen=True):
    """What the shape of that name is."""

    name: str


class Anything(Struct, frozen=True):
    """Any JSON value."""


Shape = Constant | Text | Number | Array | Object | Union | Named | Anything

NEVER = Union(())
ANYTHING = Anything()
ANY_OBJECT = Object(others=ANYTHING)


class Shapes(Struct, frozen=True):
    """A shape, and the named ones that it and they refer to."""

    shape: Shape
    named: Mapping[str, Shape] = {}


def union(*options: Shape) -> Shape:
    """One of these, flat."""
    flat: list[Shape] = []
    for option in options:
        flat += option.options if isinstance(option, Union) else (option,)
    return flat[0] if len(flat) == 1 else Union(tuple(flat))
