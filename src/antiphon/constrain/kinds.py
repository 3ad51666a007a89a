"""Questions about shapes: which JSON types they are of, and which of them a format cannot tell apart."""

from collections.abc import Mapping

from antiphon.constrain.numbers import NUMBER
from antiphon.constrain.shape import (
    ANY_OBJECT,
    ANYTHING,
    Anything,
    Array,
    Constant,
    Named,
    Number,
    Object,
    Shape,
    Text,
    Union,
    union,
)
from antiphon.constrain.values import wide_type_of

ANY_VALUE: tuple[Shape, ...] = (
    ANY_OBJECT,
    Array((), ANYTHING),
    Text(),
    Number(NUMBER),
    Constant(True),
    Constant(False),
    Constant(None),
)
"""The shapes of any value."""


def of_type(shape: Shape, type_: str | None, named: Mapping[str, Shape]) -> Shape:
    """What of a shape is of a type: JSON's name of one, "json" for all but strings, None for any."""
    if type_ is None:
        return shape
    kinds = ((each, type_name(each)) for each in plain(shape, named))
    return union(*(each for each, kind in kinds if kind == type_ or (type_ == "json" and kind != "string")))


def plain(shape: Shape, named: Mapping[str, Shape]) -> list[Shape]:
    """The shapes of one type each that a shape may be. What refers to itself is followed once."""
    found: list[Shape] = []
    todo, seen = [shape], set[str]()
    while todo:
        each = todo.pop(0)
        if isinstance(each, Union | Anything):
            todo = [*(each.options if isinstance(each, Union) else ANY_VALUE), *todo]
        elif not isinstance(each, Named):
            found.append(each)
        elif each.name not in seen:
            seen.add(each.name)
            todo.insert(0, named[each.name])
    return found


def type_name(shape: Shape) -> str:
    """JSON's name of the type of a shape that has one."""
    return wide_type_of(shape.value) if isinstance(shape, Constant) else _TYPE_NAMES[type(shape)]


_TYPE_NAMES: dict[type[Shape], str] = {Text: "string", Number: "number", Array: "array", Object: "object"}


def objects(shape: Shape, named: Mapping[str, Shape]) -> list[Object]:
    """The objects that a shape may be."""
    return [each for each in plain(shape, named) if isinstance(each, Object)]


def is_free(shape: Shape, named: Mapping[str, Shape]) -> bool:
    """Whether any text may be written: a string of any kind, alone or beside types that need not fit."""
    for _ in range(len(named) + 1):
        if not isinstance(shape, Named):
            break
        shape = named[shape.name]
    options = shape.options if isinstance(shape, Union) else (shape,)
    return any(option == Text() or isinstance(option, Anything) for option in options)


def is_risky(shape: Union) -> bool:
    """Whether what is written as a string may be read as a value of another type, and not fit."""
    strings = [each for each in shape.options if isinstance(each, Text | Named | Anything)]
    plain = (Constant(None), Constant(True), Constant(False), Number(NUMBER))
    others = [
        each for each in shape.options if each not in strings and each not in plain and not _is_text(each)
    ]
    return bool(strings) and bool(others)


def _is_text(shape: Shape) -> bool:
    return isinstance(shape, Constant) and isinstance(shape.value, str)
