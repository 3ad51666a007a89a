"""Writes the arguments of one call as the text of a JSON object, as they are read.

Strings go out as they come. A value of another type goes out when it is whole,
because only then is it certain what it is; a value that may be a string or
something else goes out as soon as it is certain to be a string. Arguments that
are wrapped once more, `{"arguments": {…}}`, go out when they are whole.

An array of elements goes out value by value, or when another argument begins. One
that goes on even after that is written again at the end, whole: of members with
the same name, those who read JSON take the last.
"""

from collections.abc import Callable, Mapping

import msgspec

from antiphon.core.grammar import Keyed
from antiphon.decode.arguments.types import (
    LITERALS,
    Schema,
    allowed,
    argument,
    as_json,
    coerce,
    declared,
    members,
)
from antiphon.decode.arguments.xml_tree import Element, Repeated, lists, written

MAX_VALUE = 256 * 1024
"""Characters of a value that may wait for its end; a longer one is a string."""

WRAPPERS = frozenset({"arguments", "input"})
"""Names under which models wrap all arguments once more. Only where the tool has no argument of that name."""

_STRING = frozenset({"string"})
_SIGNS = {ord("Ġ"): " ", ord("Ċ"): "\n"}
"""How byte-level vocabularies write space and line breaks."""
_UNKNOWN: dict[str | None, frozenset[str] | None] = {
    None: _STRING,
    "signs": _STRING,
    "literal": LITERALS,
    "guess": None,
}
"""What a value is of which the schema says nothing, by what the format says."""
_OBJECT = frozenset({"object", "string"})


class ObjectWriter:
    """One call's arguments. Every method returns the text to emit next."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._count = 0
        self._value: _Value | None = None
        self._list: Repeated | None = None  # the argument that may be an array, and may go on
        self._lists: dict[str, Repeated] = {}  # all of them by name
        self._again: dict[str, Repeated] = {}  # those that went on after they were written
        self._spelling: Mapping[int, str] = {}  # signs in the value, and what they stand for
        self._wrapper = ""  # the key of a value that may hold all arguments

    def key(self, keyed: Keyed) -> str:
        """An argument begins, and one that is open is whole."""
        before = self._end_list() if self._value is None else self.end_value()
        self._spelling = _SIGNS if keyed.type == "signs" else {}
        if keyed.type not in ("string", "written") and not self._count and self._may_wrap(keyed.key):
            self._wrapper = keyed.key
            self._value = _Value(_OBJECT if keyed.type is None else None)
            return before
        self._value = None if keyed.type == "written" else _Value(self._types(keyed))
        return before + self._begin(keyed.key)

    def text(self, text: str) -> str:
        """More of the argument's value."""
        assert self._value is not None
        begun = self._value.feed(text.translate(self._spelling) if self._spelling else text)
        # A value that streams is no object: it is an argument like any.
        return self._unwrap(None) + begun if self._wrapper and begun else begun

    def end_value(self) -> str:
        """The argument's value is whole."""
        assert self._value is not None
        value, self._value = self._value.finish(), None
        return self._unwrap(value) if self._wrapper else value

    def end(self) -> str:
        """The object is whole, and so is the value that is open."""
        value = self._end_list() if self._value is None else self.end_value()
        value += "".join(self._begin(name) + again.whole() for name, again in self._again.items())
        return value + ("}" if self._count else "{}")

    def takes_text(self, key: str) -> bool:
        """The schema says that the argument is a string."""
        return allowed(argument(self._schema, key), self._schema) == _STRING

    def takes_list(self, key: str) -> bool:
        """The schema says that the argument is an array, and that its values are none."""
        return lists(argument(self._schema, key), self._schema)

    def element(self, element: Element) -> str:
        """An argument that was read as an element."""
        schema = argument(self._schema, element.name)
        types = allowed(schema, self._schema)
        if types and "array" not in types:
            return self._end_list() + self._begin(element.name) + written(element, schema, self._schema)
        before, repeated = self._repeated(element.name)
        return before + self._write(repeated, repeated.add(element))

    def list_value(self, name: str, element: Element) -> str:
        """A value of an argument that is an array, see `takes_list`."""
        before, repeated = self._repeated(name)
        return before + self._write(repeated, repeated.add_value(element))

    def _repeated(self, name: str) -> tuple[str, Repeated]:
        """The argument that goes on or begins, and the text that ends the one before."""
        if name in self._lists:
            return "", self._lists[name]
        before = self._end_list()
        self._list = self._lists[name] = Repeated(name, argument(self._schema, name), self._schema)
        return before, self._list

    def _write(self, repeated: Repeated, more: str) -> str:
        """More of an argument that may be an array, unless it is to be written again."""
        if repeated is not self._list:
            self._again[repeated.name] = repeated
            return ""
        return self._begin(repeated.name) + more if more.startswith("[") else more

    def _end_list(self) -> str:
        """The argument that may be an array is over."""
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
        return key in WRAPPERS and bool(names := declared(self._schema)) and key not in names

    def _unwrap(self, value: str | None) -> str:
        """What may wrap all arguments is whole, or surely does not."""
        key, self._wrapper = self._wrapper, ""
        inner = members(value or "")
        if inner is None or not inner.keys() <= declared(self._schema):
            return self._begin(key) + (value or "")
        return "".join(self._begin(name) + text for name, text in inner.items())

    def _types(self, keyed: Keyed) -> frozenset[str] | None:
        """The types that the value may have. None: it is JSON."""
        if keyed.type not in _UNKNOWN:
            return _STRING if keyed.type == "string" else None
        return allowed(argument(self._schema, keyed.key), self._schema) or _UNKNOWN[keyed.type]


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
        undecided = self._size < _DECIDED
        self._held.append(text)
        self._size += len(text)
        if self._size <= MAX_VALUE and not (undecided and self._is_surely_text()):
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
        if self._types is None or "string" not in self._types:
            return False
        begun = "".join(self._held)[:_DECIDED].strip().lower()
        return bool(begun) and not any(_MAY_BE[type_](begun) for type_ in self._types if type_ in _MAY_BE)


_DECIDED = 64
"""Characters after which a value that still may be no string is held to its end."""

_encode = msgspec.json.Encoder().encode

_MAY_BE: dict[str, Callable[[str], bool]] = {
    "null": lambda begun: "null".startswith(begun) or "none".startswith(begun),
    "integer": lambda begun: set(begun) <= set("0123456789+-."),
    "number": lambda begun: set(begun) <= set("0123456789+-.e"),
    "boolean": lambda begun: "true".startswith(begun) or "false".startswith(begun),
    "object": lambda begun: begun.startswith("{"),
    "array": lambda begun: begun.startswith("["),
}
"""Whether text, stripped and in small letters, may be the beginning of a value of a type."""
