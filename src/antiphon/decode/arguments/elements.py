"""Nested elements → JSON: `<options><a>1</a></options>` is `{"options": {"a": 1}}`.

Nested elements are the members of an object. Repeated names, and elements called `item`, are the values of
an array. The tool's schema decides ambiguous cases, and states the type of a leaf. Text next to elements is
the member `$text`.

An argument that may be an array is complete when another begins: until then, an element of the same name may
follow. If the schema says that it is an array, and its values are not, each value is complete when its
element ends.

Attributes are not supported, and the position of text between elements is lost.
"""

import json
from collections.abc import Sequence
from typing import Any

from antiphon.decode.arguments.types import Schema, allowed, argument, coerce, items

MAX_ELEMENTS = 128
"""The deepest nesting of elements. Deeper tags are text."""

TEXT = "$text"
ITEM = "item"


class Element:
    """An element: its name, text and nested elements."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text: list[str] = []
        self.elements: list[Element] = []


def element_json(element: Element, schema: Any, root: Schema) -> str:
    """The contents of an element as JSON. Its `schema` is None if unknown; `root` resolves references."""
    types = allowed(schema, root)
    if not element.elements:
        return _leaf("".join(element.text), types, schema, root)
    list_like = all(child.name == ITEM for child in element.elements)
    if "array" in types - {"object"} and (list_like or "object" not in types):
        return _array(element.elements, schema, root)
    return _array(element.elements, None, root) if list_like and not types else _object(element, schema, root)


def merged_json(elements: Sequence[Element], schema: Any, root: Schema) -> str:
    """Elements of one name as JSON: an array, unless there is only one."""
    return element_json(elements[0], schema, root) if len(elements) == 1 else _array(elements, schema, root)


def lists(schema: Any, root: Schema) -> bool:
    """Whether nested elements are the values of an array, and not arrays themselves."""
    types, item_types = allowed(schema, root), allowed(items(schema, root), root)
    return "array" in types and "object" not in types and bool(item_types) and "array" not in item_types


class Repeated:
    """The elements of an argument that may be an array. Methods return the JSON text that is final."""

    def __init__(self, name: str, schema: Any, root: Schema) -> None:
        self.name = name
        self._schema = schema
        self._root = root
        self._elements: list[Element] = []
        self._values: list[str] = []

    def add(self, element: Element) -> str:
        """Add an element. It is final only if the argument is known to be an array."""
        if not self._values:
            self._elements.append(element)
            return ""
        return self.add_value(element) if "".join(element.text).strip() else ""

    def add_value(self, element: Element) -> str:
        """Add a value of an array, see `lists`."""
        item_schema, before = items(self._schema, self._root), ", " if self._values else "["
        values = [element_json(value, item_schema, self._root) for value in (*self._elements, element)]
        self._elements.clear()
        self._values += values
        return before + ", ".join(values)

    def end(self) -> str:
        """End the argument: the whole text, or the end of the array."""
        return "]" if self._values else merged_json(self._elements, self._schema, self._root)

    def whole(self) -> str:
        """The whole text."""
        return f"[{', '.join(self._values)}]" if self._values else self.end()


def _array(elements: Sequence[Element], schema: Any, root: Schema) -> str:
    item_schema = items(schema, root)
    return f"[{', '.join(element_json(element, item_schema, root) for element in elements)}]"


def _object(element: Element, schema: Any, root: Schema) -> str:
    groups: dict[str, list[Element]] = {}
    for child in element.elements:
        groups.setdefault(child.name, []).append(child)
    members = {name: merged_json(group, argument(schema, name, root), root) for name, group in groups.items()}
    if text := "".join(element.text).strip():
        members[TEXT] = json.dumps(text, ensure_ascii=False)
    written_members = [f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in members.items()]
    return "{" + ", ".join(written_members) + "}"


def _leaf(text: str, types: frozenset[str], schema: Any, root: Schema) -> str:
    """The text of a leaf as JSON. Where an array is expected, text is its only value, and no text is none."""
    if not text.strip() and types and "string" not in types:
        for type_, empty in (("object", "{}"), ("array", "[]"), ("null", "null")):
            if type_ in types:
                return empty
    value = coerce(text, types)
    if value.startswith('"') and "array" in types and "string" not in types:
        return f"[{coerce(text, allowed(items(schema, root), root))}]"
    return value
