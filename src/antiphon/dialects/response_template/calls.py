"""Builds the states of a grammar that read the calls of a response template.

Three formats are supported:

* JSON with name and arguments, or an array of such;
* a name in the opening pattern, then the arguments as JSON, plain or with bare keys and
  delimited strings;
* a name in the opening pattern, then an element for each argument.

The `transform` of the field says where the name comes from.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from antiphon.core.grammar import (
    ArgumentKey,
    BraceArguments,
    CallHeader,
    JsonArguments,
    JsonCalls,
    Key,
    KeyParser,
    KeySpelling,
    Name,
    NameParser,
    Span,
    SpanKind,
    SpelledParser,
    State,
    Trim,
    Value,
    unclosed,
)
from antiphon.decode.headers import plain_key, plain_name
from antiphon.dialects.response_template.fields import Field, Markers
from antiphon.dialects.response_template.patterns import (
    Alternative,
    PatternPart,
    PatternPiece,
    UnsupportedPatternError,
    capture_between,
)

_INEXACT = (PatternPart.CAPTURE, PatternPart.OTHER)
_PLACEHOLDER = re.compile(r"\{(\w+)(?:\.(\w+))?\}")
_LOOKAHEAD = re.compile(r"\|(?:\\s\*)?\(\?=([^()|]*)\)(?=[|)])")
"""An alternative of a group, not the first, that is a lookahead without groups of its own."""
_TAG = re.compile(r"<([\w:.-]+)[\s=>]?")
_TYPES = {"text": None, "json": "guess", "int": "guess", "float": "guess", "bool": "guess"}
"""The parser that the template names → the type of the value, see `ArgumentKey`."""


class _HeaderPattern(NamedTuple):
    """The text between two markers: `find` finds a name in it, `spelling` is how models write it."""

    find: Callable[[str], str | None]
    spelling: str | None


class _CallSource(NamedTuple):
    """The sources of the parts of a call: a `group` of the pattern for the name, or JSON keys for all."""

    group: str = ""
    name: str = "name"
    arguments: str = "arguments"
    call_id: str = ""


class _CallStates(NamedTuple):
    """The states that read a call.

    `then` is the first of them. `on` and `peek` lead there from a name without an end marker.
    """

    states: Mapping[str, State]
    then: str
    on: Mapping[str, str] = {}
    peek: Mapping[str, str] = {}


class Calls:
    """The calls of one template. `opens` are the markers that start them in text."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._source = _call_source(field)
        self._call_states = _call_states(field, self._source)
        self._headers: list[_HeaderPattern] = []
        self._name_ends = Markers()
        self._bare = False  # a name may be followed by its arguments without a marker between
        self._inner = Markers()  # the second and later ones of several opening markers in a row
        self.opens = Markers()
        for alternative in field.opens:
            self._open([piece for piece in alternative if piece.part is not PatternPart.START])

    def states(self, outside: Mapping[str, str], default_state: str) -> dict[str, State]:
        """All states of calls. `outside` are the markers of text outside, `default_state` its state."""
        ends = self._ends(default_state)
        states: dict[str, State] = {**self._call_states.states}
        for name, state in self._call_states.states.items():
            if isinstance(state, Span):
                states[name] = Span(SpanKind.CALL, on={**self.opens, **ends, **state.on})
        if self._inner:
            states["opening"] = Span(SpanKind.OPENING, on=self._inner)
        if self._source.group:
            on, peek = (self._call_states.on, self._call_states.peek) if self._bare else ({}, {})
            if self._bare and self._field.content == "xml-inline":  # a call may have no arguments
                on = {**ends, **on}
            states["name"] = Name(
                on={**self._name_ends, **on}, parse=_name_form(self._headers), peek=peek, words=8
            )
        states["called"] = Span(SpanKind.MARKUP, on={**outside, **ends}, otherwise=default_state)
        return states

    def _open(self, pieces: Sequence[PatternPiece]) -> None:
        """Add one alternative of the opening pattern: consecutive markers, then the name if it has one."""
        inexact = next((at for at, piece in enumerate(pieces) if piece.part in _INEXACT), len(pieces))
        lead = [piece for piece in pieces[:inexact] if piece.part is PatternPart.LITERAL]
        if not lead or bool(self._source.group) != (inexact < len(pieces)):
            self._field.reject("has an opening pattern that is not just markers and a name")
        if self._source.group:
            self._add_name([lead[-1], *pieces[inexact:]])
        target = "name" if self._source.group else self._call_states.then
        *before, last = (self._field.marker(piece) for piece in lead)
        self.opens.add(self._field, before[:1], "opening")
        self._inner.add(self._field, before[1:], "opening")
        (self._inner if before else self.opens).add(self._field, [last], target)

    def _add_name(self, pieces: Sequence[PatternPiece]) -> None:
        """Add one way to write the name after a marker: up to another marker, or to the arguments."""
        solid = [piece for piece in pieces if piece.part is not PatternPart.SPACE]
        self._headers.append(_header_pattern(self._field, pieces, self._source.group, "NAME"))
        if solid[-1].part is PatternPart.LITERAL:
            self._name_ends.add(self._field, [self._field.marker(solid[-1])], self._call_states.then)
        else:
            self._bare = True

    def _ends(self, default_state: str) -> Markers:
        """The markers after a call. With several in a row, only the last one ends the markup."""
        chains = [list(chain) for chain in self._field.chains(self._field.closes, maximum=3)]
        inner = dict.fromkeys(marker for chain in chains for marker in chain[:-1])
        last = [chain[-1] for chain in chains if chain[-1] not in inner]
        # The pattern may leave out the closing tags of elements that it opens.
        tags = filter(None, map(_TAG.match, (*self.opens, *self._inner)))
        unclosed = [close for tag in tags if (close := f"</{tag[1]}>") not in (*inner, *last)]
        ends = Markers().add(self._field, (*inner, *unclosed), "called")
        return ends.add(self._field, last, default_state)


def _call_source(field: Field) -> _CallSource:
    """Where the `transform` takes the parts of a call from."""
    transform = field.get("transform")
    function = transform.get("function") if isinstance(transform, dict) else None
    if function == "{content}" and not field.get("transform_each", False):
        return _CallSource()
    if not isinstance(transform, dict) or not isinstance(function, dict):
        field.reject("has no `transform` that produces functions")
    name, arguments, call_id = (
        _placeholder(field, text)
        for text in (function.get("name"), function.get("arguments"), transform.get("id"))
    )
    if arguments == ("content", "") and name[0] not in ("", "content") and not name[1]:
        return _CallSource(group=name[0])
    if name[1] and arguments[1]:
        return _CallSource("", name[1], arguments[1], call_id[1])
    return field.reject("has a `transform` that is not supported")


def _placeholder(field: Field, text: Any) -> tuple[str, str]:
    """The field and key of a `{field.key}` in a transform; only a key if it is for each call of a list."""
    match = _PLACEHOLDER.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return "", ""
    if field.get("transform_each", False):
        return "content", match[1] if match[2] is None else ""
    return match[1], match[2] or ""


def _call_states(field: Field, source: _CallSource) -> _CallStates:
    """The states that read the calls."""
    strings = field.arguments.get("string_delims") or field.arguments.get("unquoted_keys")
    if field.content == "json" and not source.group and not strings:
        ids = (source.call_id,) if source.call_id else ()
        call = JsonCalls("called", name=(source.name,), arguments=(source.arguments,), ids=ids)
        return _CallStates({"call": call}, "call")
    if field.content == "json" and source.group and not strings:
        return _CallStates({"arguments": JsonArguments("called")}, "arguments", peek={"{": "arguments"})
    if field.content == "json" and source.group:
        begin = Span(SpanKind.CALL, on={"{": "braces"})
        return _CallStates({"arguments": begin, "braces": _braces(field)}, "arguments", on={"{": "braces"})
    if field.content == "xml-inline" and source.group:
        elements = _elements(field)
        arguments = elements["arguments"]
        assert isinstance(arguments, Span)
        return _CallStates(elements, "arguments", on=arguments.on)
    return field.reject(f"has calls with `content` `{field.content}`, which is not supported")


def _braces(field: Field) -> BraceArguments:
    """Arguments with bare keys and delimited strings."""
    match field.arguments:
        case {"unquoted_keys": True, "string_delims": [[str(quote), str(end)]]} if quote and quote == end:
            return BraceArguments("called", quote, quoted="string")
    return field.reject("has JSON with bare keys or delimited strings in a way that is not supported")


def _elements(field: Field) -> Mapping[str, State]:
    """Arguments as elements, one for each."""
    parser = field.arguments.get("value_parser") or {"name": "text", "args": {"strip": False}}
    name = parser.get("name", "text") if isinstance(parser, dict) else None
    if name not in _TYPES or field.arguments.get("merge_duplicates"):
        field.reject("has a `value_parser` or `merge_duplicates` that is not supported")
    pattern = field.arguments.get("tag_pattern")
    ahead = _LOOKAHEAD.search(pattern) if isinstance(pattern, str) else None
    if isinstance(pattern, str) and ahead is not None:  # a value may end where the next element begins
        pattern = pattern.replace(ahead[0], "", 1)
    elements = [_element(field, way) for way in field.pattern(pattern)]
    if ahead is not None and {_only(field, ahead[1])} != {element.tag for element in elements}:
        field.reject("has a `tag_pattern` with a lookahead that is not the beginning of an element")
    tags, separators, closes = Markers(), Markers(), Markers()
    for element in elements:
        tags.add(field, [element.tag], "key")
        separators.add(field, [element.separator], "value")
        closes.add(field, [element.close], "arguments")
    trims = any(element.trims for element in elements) or _strips(parser)
    return {
        "arguments": Span(SpanKind.CALL, on=tags),
        "key": Key(on=separators, parse=_key_form([element.head for element in elements], _TYPES[name])),
        "value": Value(
            on=closes,
            trim=Trim.NEWLINE if trims else Trim.NOTHING,
            habits=unclosed(tags) if ahead is not None else {},
        ),
    }


def _only(field: Field, pattern: str) -> str | None:
    """The marker that a pattern matches, if it is nothing else."""
    match field.pattern(pattern):
        case [(PatternPiece(PatternPart.LITERAL, _, marker),)]:
            return marker
    return None


class _Element(NamedTuple):
    """The markers of an argument's element, the pattern of its tag, and whether its value is trimmed."""

    tag: str
    separator: str
    close: str
    head: _HeaderPattern
    trims: bool


def _element(field: Field, alternative: Alternative) -> _Element:
    """`<tag KEY>VALUE</tag>`, as the `tag_pattern` has it."""
    pieces = [piece for piece in alternative if piece.part is not PatternPart.START]
    value = next(
        (at for at, piece in enumerate(pieces) if piece[::2] == (PatternPart.CAPTURE, "value")), None
    )
    head = pieces[:value]
    while head and head[-1].part is PatternPart.SPACE:
        head.pop()
    close = [
        piece for piece in pieces[len(head) :] if piece.part not in (PatternPart.SPACE, PatternPart.CAPTURE)
    ]
    literals = bool(head and close) and {head[0].part, head[-1].part, close[0].part} == {PatternPart.LITERAL}
    if value is None or not literals or len(close) != 1 or len(head) < 3:
        field.reject("has a `tag_pattern` that is not an element with a `key` and a `value`")
    touches = head[-1].text[-1].isspace() or close[0].text[0].isspace()
    trims = touches or any(piece.part is PatternPart.SPACE for piece in pieces[len(head) :])
    tag, separator, end = map(field.marker, (head[0], head[-1], close[0]))
    return _Element(tag, separator, end, _header_pattern(field, head, "key", "KEY"), trims)


def _strips(parser: Mapping[str, Any]) -> bool:
    arguments = parser.get("args")
    return not isinstance(arguments, dict) or arguments.get("strip", True) is True


def _header_pattern(
    field: Field, pieces: Sequence[PatternPiece], group: str, placeholder: str
) -> _HeaderPattern:
    """The pattern of the text between the first and the last piece, where these are markers."""
    if not any(piece.part is PatternPart.CAPTURE and piece.text == group for piece in pieces):
        field.reject(f"has no group '{group}' in its pattern")
    pieces = pieces[: len(pieces) - (pieces[-1].part is PatternPart.SPACE)]
    after = pieces[-1].text.lstrip() if pieces[-1].part is PatternPart.LITERAL else ""
    try:
        find = capture_between(pieces, pieces[0].text.rstrip(), after, group)
    except UnsupportedPatternError as error:
        field.reject(f"has a pattern that is not supported: {error}")
    inner = pieces[1:-1] if after else pieces[1:]
    spelling = "".join(
        {PatternPart.LITERAL: piece.text, PatternPart.CAPTURE: placeholder}.get(piece.part, "")
        for piece in inner
    )
    # A pattern may require a space before a word implicitly: `<call\b[^>]*?\bname=`.
    ways = (way for way in (spelling, f" {spelling}") if find(way.replace(placeholder, "f")) == "f")
    return _HeaderPattern(find, next(ways, None))


def _name_form(headers: Sequence[_HeaderPattern]) -> NameParser:
    def parse(text: str) -> CallHeader | None:
        name = _first(headers, text)
        return plain_name(name) if name else None

    written = headers[0].spelling
    return parse if written is None else SpelledParser(parse, (written,))


def _key_form(heads: Sequence[_HeaderPattern], type_: str | None) -> KeyParser:
    def parse(text: str) -> ArgumentKey | None:
        key = _first(heads, text)
        keyed = plain_key(key) if key else None
        return keyed and ArgumentKey(keyed.key, type_)

    written = heads[0].spelling
    return parse if written is None else SpelledParser(parse, (KeySpelling(written),))


def _first(ways: Sequence[_HeaderPattern], text: str) -> str | None:
    return next(filter(None, (way.find(text) for way in ways)), None)
