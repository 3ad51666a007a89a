"""Writes the arguments of one call as the text of a JSON object, as they are read.

Strings go out as they come. A value of another type goes out when it is whole,
because only then is it certain what it is; a value that may be a string or
something else goes out as soon as it is certain to be a string.
"""

from collections.abc import Callable, Mapping

import msgspec

from antiphon.core.grammar import Keyed
from antiphon.decode.arguments.types import Schema, allowed, as_json, coerce

MAX_VALUE = 256 * 1024
"""Characters of a value that may wait for its end; a longer one is a string."""

_STRING = frozenset({"string"})


class ObjectWriter:
    """One call's arguments. Every method returns the text to emit next."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._count = 0
        self._value: _Value | None = None

    def key(self, keyed: Keyed) -> str:
        """An argument begins."""
        before = "{" if not self._count else ", "
        self._count += 1
        self._value = _Value(self._types(keyed))
        return f"{before}{_encode(keyed.key).decode()}: "

    def text(self, text: str) -> str:
        """More of the argument's value."""
        assert self._value is not None
        return self._value.feed(text)

    def end_value(self) -> str:
        """The argument's value is whole."""
        value, self._value = self._value, None
        return value.finish() if value else ""

    def end(self) -> str:
        """The object is whole, and so is its last value."""
        return self.end_value() + "}" if self._count else "{}"

    def _types(self, keyed: Keyed) -> frozenset[str] | None:
        """The types that the value may have. None: the format says that it is JSON."""
        if keyed.type is not None:
            return _STRING if keyed.type == "string" else None
        properties = self._schema.get("properties")
        schema = properties.get(keyed.key) if isinstance(properties, Mapping) else None
        return allowed(schema, self._schema) or _STRING


class _Value:
    """The text of one value, on its way to JSON."""

    def __init__(self, types: frozenset[str] | None) -> None:
        self._types = types
        self._held: list[str] = []
        self._size = 0
        self._streams = types == _STRING
        self._begun = False

    def feed(self, text: str) -> str:
        if self._streams:
            return self._more(text)
        self._held.append(text)
        self._size += len(text)
        if self._size <= MAX_VALUE and not self._is_surely_text():
            return ""
        self._streams = True
        return self._more("".join(self._held))

    def finish(self) -> str:
        if self._streams:
            return self._more("") + '"'
        text = "".join(self._held)
        return as_json(text) if self._types is None else coerce(text, self._types)

    def _more(self, text: str) -> str:
        quote, self._begun = "" if self._begun else '"', True
        return quote + _encode(text)[1:-1].decode()

    def _is_surely_text(self) -> bool:
        """Whether what was read can only be a string, of all that is allowed."""
        if self._types is None or "string" not in self._types or self._size > _DECIDED:
            return False
        begun = "".join(self._held).strip().lower()
        return bool(begun) and not any(_MAY_BE[type_](begun) for type_ in self._types if type_ in _MAY_BE)


_DECIDED = 64
"""Characters after which a value that still may be no string is held to its end."""

_encode = msgspec.json.Encoder().encode

_MAY_BE: dict[str, Callable[[str], bool]] = {
    "null": lambda begun: "null".startswith(begun) or "none".startswith(begun),
    "integer": lambda begun: set(begun) <= set("0123456789+-"),
    "number": lambda begun: set(begun) <= set("0123456789+-.e"),
    "boolean": lambda begun: "true".startswith(begun) or "false".startswith(begun),
    "object": lambda begun: begun.startswith("{"),
    "array": lambda begun: begun.startswith("["),
}
"""Whether text, stripped and in small letters, may be the beginning of a value of a type."""
