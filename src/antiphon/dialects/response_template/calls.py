"""How the calls of a response template are read: as states of a grammar.

Three forms are known:

* JSON that holds name and arguments, or an array of such;
* a name that is part of what opens the call, then the arguments as JSON, plain or with
  bare keys and marked strings;
* a name that is part of what opens the call, then an element for each argument.

The `transform` of the field says where the name comes from.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from antiphon.core.grammar import (
    BraceArguments,
    JsonArguments,
    JsonCalls,
    Key,
    Keyed,
    KeyForm,
    KeySpelling,
    Kind,
    Name,
    Named,
    NameForm,
    Span,
    Spelled,
    State,
    Trim,
    Value,
)
from antiphon.decode.headers import plain, plain_key
from antiphon.dialects.response_template.fields import Field, Markers
from antiphon.dialects.response_template.patterns import (
    Alternative,
    Part,
    Piece,
    UnknownPatternError,
    captured,
)

_LOOSE = (Part.CAPTURE, Part.OTHER)
_PLACE = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
_TAG = re.compile(r"<([\w:.-]+)[\s=>]?")
_TYPES = {"text": None, "json": "guess", "int": "guess", "float": "guess", "bool": "guess"}
"""What a value is (see `Keyed`), by the parser that the template names."""


class _Between(NamedTuple):
    """What stands between two markers: `find` finds a name in it, `spelled` writes one, for `place`."""

    find: Callable[[str], str | None]
    spelled: str | None


class _Source(NamedTuple):
    """Where things come from: the name from a `group` of the pattern, or all from keys of the JSON."""

    group: str = ""
    name: str = "name"
    arguments: str = "arguments"
    call_id: str = ""


class _Reading(NamedTuple):
    """The states that read a call, and where they are entered.

    `then` is the first of them. `on` and `peek` lead there from a name that no marker ends.
    """

    states: Mapping[str, State]
    then: str
    on: Mapping[str, str] = {}
    peek: Mapping[str, str] = {}


class Calls:
    """The calls of one template. `opens` are the markers that lead from text to them."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._source = _source(field)
        self._reading = _reading(field, self._source)
        self._headers: list[_Between] = []
        self._name_ends = Markers()
        self._bare = False  # a name may stand before its arguments with no marker between
        self._inner = Markers()  # from the first of several markers in a row to the next
        self.opens = Markers()
        for alternative in field.opens:
            self._open([piece for piece in alternative if piece.part is not Part.START])

    def states(self, outside: Mapping[str, str], home: str) -> dict[str, State]:
        """All states of calls. `outside` are the markers of text outside of them, `home` is its state."""
        ends = self._ends(home)
        states: dict[str, State] = {**self._reading.states}
        for name, state in self._reading.states.items():
            if isinstance(state, Span):
                states[name] = Span(Kind.CALL, on={**self.opens, **ends, **state.on})
        if self._inner:
            states["opening"] = Span(Kind.OPENING, on=self._inner)
        if self._source.group:
            on, peek = (self._reading.on, self._reading.peek) if self._bare else ({}, {})
            states["name"] = Name(on={**self._name_ends, **on}, form=_name_form(self._headers), peek=peek)
        states["called"] = Span(Kind.MARKUP, on={**outside, **ends}, otherwise=home)
        return states

    def _open(self, pieces: Sequence[Piece]) -> None:
        """One way to open a call: markers in a row, and then the name if it stands there."""
        loose = next((at for at, piece in enumerate(pieces) if piece.part in _LOOSE), len(pieces))
        lead = [piece for piece in pieces[:loose] if piece.part is Part.LITERAL]
        if not lead or bool(self._source.group) != (loose < len(pieces)):
            self._field.refuse("has calls that open with something else than markers and a name")
        if self._source.group:
            self._add_name([lead[-1], *pieces[loose:]])
        target = "name" if self._source.group else self._reading.then
        *before, last = (self._field.marker(piece) for piece in lead)
        self.opens.add(self._field, before[:1], "opening")
        self._inner.add(self._field, before[1:], "opening")
        (self._inner if before else self.opens).add(self._field, [last], target)

    def _add_name(self, pieces: Sequence[Piece]) -> None:
        """One way in which the name stands behind a marker: up to another one, or to the arguments."""
        solid = [piece for piece in pieces if piece.part is not Part.SPACE]
        self._headers.append(_between(self._field, pieces, self._source.group, "NAME"))
        if solid[-1].part is Part.LITERAL:
            self._name_ends.add(self._field, [self._field.marker(solid[-1])], self._reading.then)
        elif self._reading.on or self._reading.peek:
            self._bare = True
        else:
            self._field.refuse("has calls whose name no marker ends")

    def _ends(self, home: str) -> Markers:
        """The markers behind a call. Before the last of several, the call is over, but not its markup."""
        chains = [list(chain) for chain in self._field.chains(self._field.closes, most=3)]
        inner = dict.fromkeys(marker for chain in chains for marker in chain[:-1])
        last = [chain[-1] for chain in chains if chain[-1] not in inner]
        # Elements that a template opens it may forget to close.
        tags = filter(None, map(_TAG.match, (*self.opens, *self._inner)))
        forgotten = [close for tag in tags if (close := f"</{tag[1]}>") not in (*inner, *last)]
        ends = Markers().add(self._field, (*inner, *forgotten), "called")
        return ends.add(self._field, last, home)


def _source(field: Field) -> _Source:
    """What the `transform` says."""
    transform = field.get("transform")
    function = transform.get("function") if isinstance(transform, dict) else None
    if function == "{content}" and not field.get("transform_each", False):
        return _Source()
    if not isinstance(transform, dict) or not isinstance(function, dict):
        field.refuse("has no `transform` that makes functions of its calls")
    name, arguments, call_id = (
        _place(field, text) for text in (function.get("name"), function.get("arguments"), transform.get("id"))
    )
    if arguments == ("content", "") and name[0] != "content" and not name[1]:
        return _Source(group=name[0])
    if name[1] and arguments[1]:
        return _Source("", name[1], arguments[1], call_id[1])
    return field.refuse("has a `transform` that is not understood")


def _place(field: Field, text: Any) -> tuple[str, str]:
    """What a `{place}` of a transform names, and the key in it; of each call of a list, only the key."""
    found = _PLACE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return "", ""
    if field.get("transform_each", False):
        return "content", found[1] if found[2] is None else ""
    return found[1], found[2] or ""


def _reading(field: Field, source: _Source) -> _Reading:
    """The states that read the calls."""
    strings = field.arguments.get("string_delims") or field.arguments.get("unquoted_keys")
    if field.content == "json" and not source.group and not strings:
        ids = (source.call_id,) if source.call_id else ()
        call = JsonCalls("called", name=(source.name,), arguments=(source.arguments,), ids=ids)
        return _Reading({"call": call}, "call")
    if field.content == "json" and source.group and not strings:
        return _Reading({"arguments": JsonArguments("called")}, "arguments", peek={"{": "arguments"})
    if field.content == "json" and source.group:
        begin = Span(Kind.CALL, on={"{": "braces"})
        return _Reading({"arguments": begin, "braces": _braces(field)}, "arguments", on={"{": "braces"})
    if field.content == "xml-inline" and source.group:
        return _Reading(_elements(field), "arguments")
    return field.refuse(f"has calls that are read as `{field.content}`, which is not known here")


def _braces(field: Field) -> BraceArguments:
    """Arguments with bare keys and strings between marks of their own."""
    match field.arguments:
        case {"unquoted_keys": True, "string_delims": [[str(quote), str(end)]]} if quote and quote == end:
            return BraceArguments("called", quote, quoted="string")
    return field.refuse("has JSON with bare keys or marked strings, but not both in a known way")


def _elements(field: Field) -> Mapping[str, State]:
    """Arguments as elements, one for each."""
    parser = field.arguments.get("value_parser") or {"name": "text", "args": {"strip": False}}
    name = parser.get("name", "text") if isinstance(parser, dict) else None
    if name not in _TYPES or field.arguments.get("merge_duplicates"):
        field.refuse("has elements whose values are put together in a way that is not known here")
    elements = [_element(field, each) for each in field.pattern(field.arguments.get("tag_pattern"))]
    tags, separators, closes = Markers(), Markers(), Markers()
    for element in elements:
        tags.add(field, [element.tag], "key")
        separators.add(field, [element.separator], "value")
        closes.add(field, [element.close], "arguments")
    trims = any(element.trims for element in elements) or _strips(parser)
    return {
        "arguments": Span(Kind.CALL, on=tags),
        "key": Key(on=separators, form=_key_form([each.head for each in elements], _TYPES[name])),
        "value": Value(on=closes, trim=Trim.NEWLINE if trims else Trim.NOTHING),
    }


class _Element(NamedTuple):
    """The markers of an argument's element, what is in its tag, and whether its value is trimmed."""

    tag: str
    separator: str
    close: str
    head: _Between
    trims: bool


def _element(field: Field, alternative: Alternative) -> _Element:
    """`<tag KEY>VALUE</tag>`, as the `tag_pattern` has it."""
    pieces = [piece for piece in alternative if piece.part is not Part.START]
    value = next((at for at, piece in enumerate(pieces) if piece[::2] == (Part.CAPTURE, "value")), None)
    head = pieces[:value]
    while head and head[-1].part is Part.SPACE:
        head.pop()
    close = [piece for piece in pieces[len(head) :] if piece.part not in (Part.SPACE, Part.CAPTURE)]
    literals = bool(head and close) and {head[0].part, head[-1].part, close[0].part} == {Part.LITERAL}
    if value is None or not literals or len(close) != 1 or len(head) < 3:
        field.refuse("has a `tag_pattern` that is no element with a `key` and a `value`")
    touches = head[-1].text[-1].isspace() or close[0].text[0].isspace()
    trims = touches or any(piece.part is Part.SPACE for piece in pieces[len(head) :])
    tag, separator, end = map(field.marker, (head[0], head[-1], close[0]))
    return _Element(tag, separator, end, _between(field, head, "key", "KEY"), trims)


def _strips(parser: Mapping[str, Any]) -> bool:
    arguments = parser.get("args")
    return not isinstance(arguments, dict) or arguments.get("strip", True) is True


def _between(field: Field, pieces: Sequence[Piece], group: str, place: str) -> _Between:
    """What stands between the first and the last of these pieces, where these are markers of a table."""
    if not any(piece.part is Part.CAPTURE and piece.text == group for piece in pieces):
        field.refuse(f"has no group '{group}' in its pattern")
    pieces = pieces[: len(pieces) - (pieces[-1].part is Part.SPACE)]
    after = pieces[-1].text.lstrip() if pieces[-1].part is Part.LITERAL else ""
    try:
        find = captured(pieces, pieces[0].text.rstrip(), after, group)
    except UnknownPatternError as error:
        field.refuse(f"has a pattern that is not understood: {error}")
    inner = pieces[1:-1] if after else pieces[1:]
    plainly = "".join({Part.LITERAL: piece.text, Part.CAPTURE: place}.get(piece.part, "") for piece in inner)
    # A pattern may ask for a space before a word without saying so: `<call\b[^>]*?\bname=`.
    ways = (way for way in (plainly, f" {plainly}") if find(way.replace(place, "f")) == "f")
    return _Between(find, next(ways, None))


def _name_form(headers: Sequence[_Between]) -> NameForm:
    def read(text: str) -> Named | None:
        found = _first(headers, text)
        return plain(found) if found else None

    written = headers[0].spelled
    return read if written is None else Spelled(read, (written,))


def _key_form(heads: Sequence[_Between], type_: str | None) -> KeyForm:
    def read(text: str) -> Keyed | None:
        found = _first(heads, text)
        keyed = plain_key(found) if found else None
        return keyed and Keyed(keyed.key, type_)

    written = heads[0].spelled
    return read if written is None else Spelled(read, (KeySpelling(written),))


def _first(ways: Sequence[_Between], text: str) -> str | None:
    return next(filter(None, (way.find(text) for way in ways)), None)
