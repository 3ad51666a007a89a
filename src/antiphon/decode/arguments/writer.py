"""Writes the arguments of one call as the text of a JSON object, streamed.

Strings are streamed. A value of another type is written when it is complete, because only then its type is
known; a value that may be a string or another type is streamed as soon as it can only be a string. Arguments
that are wrapped again, `{"arguments": {…}}`, are written when they are complete.

An array of elements is written value by value, or when another argument begins. If more elements of it
follow after that, the whole array is written again at the end: of members with the same name, JSON parsers
take the last.
"""

from collections.abc import Callable, Mapping

import msgspec

from antiphon.core.grammar import ArgumentKey
from antiphon.decode.arguments.elements import Element, Repeated, element_json, lists
from antiphon.decode.arguments.types import (
    LITERALS,
    Schema,
    allowed,
    argument,
    argument_names,
    as_json,
    coerce,
    members,
)

MAX_VALUE = 256 * 1024
"""Characters of a value that are held back until its end; a longer one is treated as a string."""

WRAPPERS = frozenset({"arguments", "input"})
"""Keys in which models wrap all arguments. Ignored if the tool has an argument of that name."""

_STRING = frozenset({"string"})
_BYTE_LEVEL = {ord("Ġ"): " ", ord("Ċ"): "\n"}
"""How byte-level vocabularies spell space and line breaks. MiniCPM5 writes them so now and then."""
_UNKNOWN: dict[str | None, frozenset[str] | None] = {
    None: _STRING,
    "byte_level": _STRING,
    "literal": LITERALS,
    "guess": None,
}
"""The possible types of a value if the schema states none, by the type of its `ArgumentKey`."""
_OBJECT = frozenset({"object", "string"})


class ObjectWriter:
    """The arguments of one call. Every method returns the JSON text to emit next."""

    def __init__(self, schema: Schema) -> None:
        self.names = argument_names(schema)
        self._schema = schema
        self._count = 0
        self._value: _Value | None = None
        self._list: Repeated | None = None  # the open argument that may be an array
        self._lists: dict[str, Repeated] = {}  # all of them by name
        self._again: dict[str, Repeated] = {}  # those with elements after they were written
        self._replacements: Mapping[int, str] = {}  # characters to replace in the value
        self._wrapper = ""  # the key of a value that may contain all arguments

    def key(self, keyed: ArgumentKey) -> str:
        """Start an argument, after the end of an open one."""
        before = self._end_list() if self._value is None else self.end_value()
        self._replacements = _BYTE_LEVEL if keyed.type == "byte_level" else {}
        if keyed.type not in ("string", "written") and not self._count and self._may_wrap(keyed.key):
            self._wrapper = keyed.key
            self._value = _Value(_OBJECT if keyed.type is None else None)
            return before
        self._value = None if keyed.type == "written" else _Value(self._types(keyed))
        return before + self._begin(keyed.key)

    def text(self, text: str) -> str:
        """Add text to the argument's value."""
        assert self._value is not None
        encoded = self._value.feed(text.translate(self._replacements) if self._replacements else text)
        # A value that is streamed is a string, so it cannot contain the arguments.
        return self._unwrap(None) + encoded if self._wrapper and encoded else encoded

    def end_value(self) -> str:
        """Complete the argument's value."""
        assert self._value is not None
        value, self._value = self._value.finish(), None
        return self._unwrap(value) if self._wrapper else value

    def end(self) -> str:
        """Complete the object, and an open value."""
        value = self._end_list() if self._value is None else self.end_value()
        value += "".join(self._begin(name) + again.whole() for name, again in self._again.items())
        return value + ("}" if self._count else "{}")

    def takes_text(self, key: str) -> bool:
        """Whether the schema says that the argument is a string."""
        return allowed(argument(self._schema, key), self._schema) == _STRING

    def may_be_text(self, key: str) -> bool:
        """Whether the argument may be a string, for all that the schema says."""
        types = allowed(argument(self._schema, key), self._schema)
        return not types or "string" in types

    def takes_list(self, key: str) -> bool:
        """Whether the schema says that the argument is an array, and its values are not."""
        return lists(argument(self._schema, key), self._schema)

    def element(self, element: Element) -> str:
        """Add an argument from an element."""
        schema = argument(self._schema, element.name)
        types = allowed(schema, self._schema)
        if types and "array" not in types:
            return self._end_list() + self._begin(element.name) + element_json(element, schema, self._schema)
        before, repeated = self._repeated(element.name)
        return before + self._write(repeated, repeated.add(element))

    def list_value(self, name: str, element: Element) -> str:
        """Add a value to an array argument, see `takes_list`."""
        before, repeated = self._repeated(name)
        return before + self._write(repeated, repeated.add_value(element))

    def _repeated(self, name: str) -> tuple[str, Repeated]:
        """The text that ends the previous argument, and this one, continued or started."""
        if name in self._lists:
            return "", self._lists[name]
        before = self._end_list()
        self._list = self._lists[name] = Repeated(name, argument(self._schema, name), self._schema)
        return before, self._list

    def _write(self, repeated: Repeated, more: str) -> str:
        """The text of an argument that may be an array, unless it will be written again."""
        if repeated is not self._list:
            self._again[repeated.name] = repeated
            return ""
        return self._begin(repeated.name) + more if more.startswith("[") else more

    def _end_list(self) -> str:
        """End the open argument that may be an array."""
        repeated, self._list = self._list, None
        if repeated is None:
            return ""
        rest = repeated.end()
        return rest if rest == "]" else self._begin(repeated.name) + rest

    def _begin(self, key: str) -> str:
        before = "{" if not self._count else ", "
        self._count += 1
        return f"{before}{_encode(key).decode()}: "

    def _may_wrap(self, key: str) -> bool:
        return key in WRAPPERS and bool(self.names) and key not in self.names

    def _unwrap(self, value: str | None) -> str:
        """Write the wrapped arguments of `value`, or `value` itself if it does not contain them."""
        key, self._wrapper = self._wrapper, ""
        inner = members(value or "")
        if inner is None or not inner.keys() <= self.names:
            return self._begin(key) + (value or "")
        return "".join(self._begin(name) + text for name, text in inner.items())

    def _types(self, keyed: ArgumentKey) -> frozenset[str] | None:
        """The types that the value may have. None: JSON."""
        if keyed.type not in _UNKNOWN:
            return _STRING if keyed.type == "string" else None
        return allowed(argument(self._schema, keyed.key), self._schema) or _UNKNOWN[keyed.type]


class _Value:
    """The text of one value, converted to JSON."""

    def __init__(self, types: frozenset[str] | None) -> None:
        self._types = types
        self._held: list[str] = []
        self._size = 0
        self._streams = types == _STRING
        self._opened = False

    def feed(self, text: str) -> str:
        if self._streams:
            return self._encode_more(text)
        undecided = self._size < _TYPE_PREFIX
        self._held.append(text)
        self._size += len(text)
        if self._size <= MAX_VALUE and not (undecided and self._must_be_text()):
            return ""
        self._streams = True
        return self._encode_more("".join(self._held))

    def finish(self) -> str:
        if self._streams:
            return self._encode_more("") + '"'
        text = "".join(self._held)
        return as_json(text) if self._types is None else coerce(text, self._types)

    def _encode_more(self, text: str) -> str:
        quote, self._opened = "" if self._opened else '"', True
        return quote + _encode(text)[1:-1].decode()

    def _must_be_text(self) -> bool:
        """Whether the text so far can only be a string, of all allowed types."""
        if self._types is None or "string" not in self._types:
            return False
        start = "".join(self._held)[:_TYPE_PREFIX].strip().lower()
        return bool(start) and not any(_POSSIBLE[type_](start) for type_ in self._types if type_ in _POSSIBLE)


_TYPE_PREFIX = 64
"""Characters after which a value that may still be another type is held back to its end."""

_encode = msgspec.json.Encoder().encode

_POSSIBLE: dict[str, Callable[[str], bool]] = {
    "null": lambda start: "null".startswith(start) or "none".startswith(start),
    "integer": lambda start: set(start) <= set("0123456789+-."),
    "number": lambda start: set(start) <= set("0123456789+-.e"),
    "boolean": lambda start: "true".startswith(start) or "false".startswith(start),
    "object": lambda start: start.startswith("{"),
    "array": lambda start: start.startswith("["),
}
"""Whether text, stripped and in lower case, may be the start of a value of a type."""
