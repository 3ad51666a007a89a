"""Common formats of calls, each as the few texts in which models differ: the short form of a grammar.

| `format` | a call |
|---|---|
| `json` | `START {"name": …, "arguments": {…}} END`, or an array of such |
| `name_and_json` | `START name SEPARATOR {…} END` |
| `tags` | `START name KEY_START key KEY_END VALUE_START value VALUE_END … END`, and more tags |
| `python` | `START [f(a=1), g()] END` |

In all of them, `group_start` and `group_end` may stand around all calls of an answer. Each format makes a
grammar. Space between tags is free, closing tags may be missing at the end of an answer.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta, Struct

from antiphon.core.grammar import (
    Grammar,
    JsonArguments,
    JsonCalls,
    Key,
    KeyParser,
    Markers,
    Name,
    PythonCalls,
    Span,
    SpanKind,
    State,
    Trim,
    Value,
)
from antiphon.decode.headers import plain_key, plain_name, quoted_key, quoted_name, typed_key

Texts = str | tuple[str, ...]
Marker = Annotated[str, Meta(min_length=1)]


class _Grouped(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="format"):
    """What all formats have: tags around each call, and around all calls."""

    start: Marker
    end: str = ""
    group_start: str = ""
    group_end: str = ""

    @property
    def _group_close(self) -> Markers:
        """The marker by which the group ends."""
        return _to("text", self.group_end) if self.group_start else {}

    @property
    def _close(self) -> Markers:
        """The markers by which a call ends, and the group."""
        return {**_to("called" if self.group_start else "text", self.end), **self._group_close}

    def _grammar(self, to: str, inside: Mapping[str, State], more: Markers = MappingProxyType({})) -> Grammar:
        """The states around calls, which the state `to` reads. `more` are markers between two calls."""
        call, group = {self.start: to}, _to("group", self.group_start)
        states: dict[str, State] = {"text": Span(SpanKind.TEXT, on={**group, **call})}
        if group:
            states["group"] = Span(SpanKind.OPENING, on={**call, **self._group_close})
        called = Span(SpanKind.MARKUP, on={**call, **more, **self._close, **group})
        return Grammar({**states, **inside, "called": called})


class JsonFormat(_Grouped, frozen=True, tag="json"):
    """One JSON value. `name`, `arguments` and `id` are its keys; of several that are listed, any."""

    name: Texts = "name"
    arguments: Texts = "arguments"
    id: Texts = ()

    def grammar(self) -> Grammar:
        """The grammar of such calls."""
        call = JsonCalls("called", _texts(self.name), _texts(self.arguments), _texts(self.id))
        return self._grammar("call", {"call": call})


class NameAndJsonFormat(_Grouped, frozen=True, kw_only=True, tag="name_and_json"):
    """A name, a separator, and the arguments as a JSON object."""

    separator: Marker

    def grammar(self) -> Grammar:
        """The grammar of such calls."""
        name = Name(on={self.separator: "arguments"}, parse=plain_name)
        return self._grammar("name", {"name": name, "arguments": JsonArguments("called")})


class PythonFormat(_Grouped, frozen=True, tag="python"):
    """Python calls in a list."""

    def grammar(self) -> Grammar:
        """The grammar of such calls."""
        return self._grammar("calls", {"calls": PythonCalls("called")})


class TagsFormat(_Grouped, frozen=True, kw_only=True, tag="tags"):
    """A name, keys and values, between tags.

        GROUP_START
        START NAME_START name NAME_END
        KEY_START key KEY_END VALUE_START value VALUE_END
        ARGUMENTS_END END
        GROUP_END

    Only `start`, `key_start`, `key_end`, `value_end` and `end` are needed. `quotes`: names and keys are in
    quotes. `newlines`: one newline on each side of a value belongs to its tags. If the key is an attribute
    with another one beside it that states the type, `key_attribute` and `type_attribute` are their names, and
    the value of the latter is `text_type` where the value is text.
    """

    key_start: Marker
    key_end: Marker
    value_end: Marker
    value_start: str = ""
    name_start: str = ""
    name_end: str = ""
    arguments_end: str = ""
    quotes: bool = False
    newlines: bool = False
    key_attribute: str = ""
    type_attribute: str = ""
    text_type: str = "true"

    def grammar(self) -> Grammar:
        """The grammar of such calls."""
        ends = {**_to("called", self.arguments_end), **self._close}
        key, named = {self.key_start: "key"}, _to("name", self.name_start)
        start = "opening" if named else "name"
        parse_name, parse_key = (quoted_name, quoted_key) if self.quotes else (plain_name, plain_key)
        states: dict[str, State] = {
            "name": Name(on={**(_to("arguments", self.name_end) or key), **ends}, parse=parse_name),
            "arguments": Span(SpanKind.CALL, on={**key, **ends, self.start: start}),
            "key": Key(on=self._after_key(), parse=self._typed_key() or parse_key),
            "value": Value(
                on={self.value_end: "arguments"}, trim=Trim.NEWLINE if self.newlines else Trim.NOTHING
            ),
        }
        if self.value_start:
            states["keyed"] = Span(SpanKind.CALL, on={self.value_start: "value", **key, **ends})
        if named:
            states["opening"] = Span(SpanKind.OPENING, on=named)
        return self._grammar(start, states, named if self.arguments_end else {})

    def _after_key(self) -> Markers:
        if not self.value_start:
            return {self.key_end: "value"}
        return {self.key_end: "keyed", self.value_start: "value"}

    def _typed_key(self) -> KeyParser | None:
        if not self.type_attribute:
            return None
        return typed_key(self.key_attribute or "name", self.type_attribute, self.text_type)


CallFormat = JsonFormat | NameAndJsonFormat | TagsFormat | PythonFormat


def _to(state: str, marker: str) -> Markers:
    return {marker: state} if marker else {}


def _texts(value: Texts) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value
