"""JSON values: their types and equality."""

from collections.abc import Iterable, Mapping
from typing import Any

_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (Mapping, "object"),
)


def type_of(value: Any) -> str:
    """JSON Schema's narrowest name of a value's type."""
    return "null" if value is None else next(name for type_, name in _NAMES if isinstance(value, type_))


def wide_type_of(value: Any) -> str:
    """The type of a value, with integers as numbers."""
    name = type_of(value)
    return "number" if name == "integer" else name


def all_types_of(value: Any) -> set[str]:
    """All types of a value: an integer is also a number, and a number without a fraction an integer."""
    name = type_of(value)
    whole = name == "integer" or (name == "number" and float(value).is_integer())
    return {name, "number", "integer"} if whole else {name}


def same(value: Any, other: Any) -> bool:
    """JSON's equality: true is not 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def within(value: Any, values: Iterable[Any]) -> bool:
    """Whether one of the values is equal."""
    return any(same(value, other) for other in values)
