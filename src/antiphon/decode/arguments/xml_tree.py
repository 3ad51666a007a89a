"""Nested elements → JSON: `<options><a>1</a></options>` is `{"options": {"a": 1}}`.

Elements in an element are the members of an object. Repeated names, and
elements called `item`, are the values of an array. The tool's schema decides
where both could be meant, and says what the text of a leaf is. Text beside
elements is the member `$text`.

An argument that may be an array is whole when another begins: until then, an
element of the same name may follow. Of an array whose values are surely no arrays,
each value is certain when its element ends.

It does not know attributes, and text between two elements loses its place.
"""

import json
from collections.abc import Sequence
from typing import Any

from antiphon.decode.arguments.types import Schema, allowed, argument, coerce, items

MAX_ELEMENTS = 128
"""How deep elements are nested. Deeper tags are text."""

TEXT = "$text"
ITEM = "item"


class Element:
    """A name, and the text and elements in it."""

    __slots__ = ("elements", "name", "text")

    def __init__(self, name: str) -> None:
        self.name = name
        self.text: list[str] = []
        self.elements: list[Element] = []


def written(element: Element, schema: Any, root: Schema) -> str:
    """What is in the element, as JSON. `schema` is its own, None if unknown; `root` what that refers to."""
    types = allowed(schema, root)
    if not element.elements:
        return _leaf("".join(element.text), types, schema, root)
    list_like = all(each.name == ITEM for each in element.elements)
    if "array" in types - {"object"} and (list_like or "object" not in types):
        return _array(element.elements, schema, root)
    return _array(element.elements, None, root) if list_like and not types else _object(element, schema, root)


def together(elements: Sequence[Element], schema: Any, root: Schema) -> str:
    """Elements of one name: an array, unless there is one only."""
    return written(elements[0], schema, root) if len(elements) == 1 else _array(elements, schema, root)


def lists(schema: Any, root: Schema) -> bool:
    """Elements in an element are surely the values of an array, and no arrays themselves."""
    types, each = allowed(schema, root), allowed(items(schema, root), root)
    return "array" in types and "object" not in types and bool(each) and "array" not in each


class Repeated:
    """The elements of an argument that may be an array. What is certain of it comes back as text."""

    def __init__(self, name: str, schema: Any, root: Schema) -> None:
        self.name = name
        self._schema = schema
        self._root = root
        self._elements: list[Element] = []
        self._values: list[str] = []

    def add(self, element: Element) -> str:
        """One more element: nothing is certain, unless it is an array already."""
        if not self._values:
            self._elements.append(element)
            return ""
        return self.add_value(element) if "".join(element.text).strip() else ""

    def add_value(self, element: Element) -> str:
        """One more value of the array that it surely is, see `lists`."""
        each, before = items(self._schema, self._root), ", " if self._values else "["
        found = [written(value, each, self._root) for value in (*self._elements, element)]
        self._elements.clear()
        self._values += found
        return before + ", ".join(found)

    def end(self) -> str:
        """No more elements come for now: all of it, or the end of the array."""
        return "]" if self._values else together(self._elements, self._schema, self._root)

    def whole(self) -> str:
        """All of it."""
        return f"[{', '.join(self._values)}]" if self._values else self.end()


def _array(elements: Sequence[Element], schema: Any, root: Schema) -> str:
    each = items(schema, root)
    return f"[{', '.join(written(element, each, root) for element in elements)}]"


def _object(element: Element, schema: Any, root: Schema) -> str:
    groups: dict[str, list[Element]] = {}
    for each in element.elements:
        groups.setdefault(each.name, []).append(each)
    members = {name: together(group, argument(schema, name, root), root) for name, group in groups.items()}
    if text := "".join(element.text).strip():
        members[TEXT] = json.dumps(text, ensure_ascii=False)
    written_members = [f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in members.items()]
    return "{" + ", ".join(written_members) + "}"


def _leaf(text: str, types: frozenset[str], schema: Any, root: Schema) -> str:
    """Text alone. An array may have one value, which stands for itself, or none."""
    if not text.strip() and types and "string" not in types:
        for type_, empty in (("object", "{}"), ("array", "[]"), ("null", "null")):
            if type_ in types:
                return empty
    value = coerce(text, types)
    if value.startswith('"') and "array" in types and "string" not in types:
        return f"[{coerce(text, allowed(items(schema, root), root))}]"
    return value
