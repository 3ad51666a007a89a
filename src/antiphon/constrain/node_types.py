"""The JSON types of schema nodes, and those that a format cannot distinguish."""

from collections.abc import Mapping

from antiphon.constrain.json_values import wide_type_of
from antiphon.constrain.numbers import NUMBER
from antiphon.constrain.schema_ir import (
    ANY_OBJECT,
    ANY_VALUE,
    AnyValue,
    Array,
    Const,
    DefinitionReference,
    Number,
    Object,
    SchemaNode,
    String,
    Union,
    union,
)

ANY_VALUE_NODES: tuple[SchemaNode, ...] = (
    ANY_OBJECT,
    Array((), ANY_VALUE),
    String(),
    Number(NUMBER),
    Const(True),
    Const(False),
    Const(None),
)
"""The schema nodes of any value."""


def of_type(node: SchemaNode, type_: str | None, definitions: Mapping[str, SchemaNode]) -> SchemaNode:
    """The part of a schema node with a type: a JSON type, "json" for all but strings, None for any."""
    if type_ is None:
        return node
    kinds = ((option, type_name(option)) for option in single_types(node, definitions))
    return union(*(node for node, kind in kinds if kind == type_ or (type_ == "json" and kind != "string")))


def single_types(node: SchemaNode, definitions: Mapping[str, SchemaNode]) -> list[SchemaNode]:
    """The alternatives of a schema node, each of one type. Recursive references are followed once."""
    alternatives: list[SchemaNode] = []
    todo, seen = [node], set[str]()
    while todo:
        option = todo.pop(0)
        if isinstance(option, Union | AnyValue):
            todo = [*(option.options if isinstance(option, Union) else ANY_VALUE_NODES), *todo]
        elif not isinstance(option, DefinitionReference):
            alternatives.append(option)
        elif option.name not in seen:
            seen.add(option.name)
            todo.insert(0, definitions[option.name])
    return alternatives


def type_name(node: SchemaNode) -> str:
    """The JSON type of a schema node with a single type."""
    return wide_type_of(node.value) if isinstance(node, Const) else _TYPE_NAMES[type(node)]


_TYPE_NAMES: dict[type[SchemaNode], str] = {
    String: "string",
    Number: "number",
    Array: "array",
    Object: "object",
}


def object_nodes(node: SchemaNode, definitions: Mapping[str, SchemaNode]) -> list[Object]:
    """The objects that a schema node may be."""
    return [option for option in single_types(node, definitions) if isinstance(option, Object)]


def accepts_any_text(node: SchemaNode, definitions: Mapping[str, SchemaNode]) -> bool:
    """Whether any text may be written: any string, alone or with types that need not match."""
    for _ in range(len(definitions) + 1):
        if not isinstance(node, DefinitionReference):
            break
        node = definitions[node.name]
    options = node.options if isinstance(node, Union) else (node,)
    return any(option == String() or isinstance(option, AnyValue) for option in options)


def is_ambiguous_union(node: Union) -> bool:
    """Whether a written string may be read as a value of another type that does not match."""
    strings = [
        option for option in node.options if isinstance(option, String | DefinitionReference | AnyValue)
    ]
    single_types = (Const(None), Const(True), Const(False), Number(NUMBER))
    others = [
        option
        for option in node.options
        if option not in strings
        and option not in single_types
        and not (isinstance(option, Const) and isinstance(option.value, str))
    ]
    return bool(strings) and bool(others)
