"""The states of a grammar as tables, and back: the long form of a grammar, for what no common format covers.

Each state is a table whose `kind` says what it reads; its other keys are the fields of the type in
`core/grammar.py`. Fields that have their default are left out. A parser is its name in `decode/headers.py`,
or a table with that name as `by`, and its arguments.
"""

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from types import UnionType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo, fields

from antiphon.core.grammar import (
    BraceArguments,
    Check,
    ElementArgument,
    Grammar,
    Header,
    HeaderSpellings,
    JsonArguments,
    JsonCalls,
    Key,
    KeyedCalls,
    Lookahead,
    Name,
    ParserSource,
    PythonCalls,
    Span,
    SpanKind,
    SpelledParser,
    State,
    TextArguments,
    Value,
)
from antiphon.decode import headers

KINDS: Mapping[str, type[State]] = {
    **{kind.name.lower(): Span for kind in SpanKind},
    "header": Header,
    "name": Name,
    "json_calls": JsonCalls,
    "keyed_calls": KeyedCalls,
    "python_calls": PythonCalls,
    "key": Key,
    "value": Value,
    "lookahead": Lookahead,
    "element": ElementArgument,
    "text_arguments": TextArguments,
    "json_arguments": JsonArguments,
    "brace_arguments": BraceArguments,
}
"""The kinds of states, by their names in files. A span's kind is one of `SpanKind`."""

_NAMES = {type_: name for name, type_ in KINDS.items()}
_MARKERS = ("on", "first", "peek", "again", "unclosed", "glued")
_STATES = ("then", "otherwise")


class UnwritableError(Exception):
    """The grammar has a part that no file can hold. The message names it."""


class InvalidStateError(Exception):
    """A table is no state. `key` is the one that is wrong, None for the table itself."""

    def __init__(self, why: str, key: str | None = None) -> None:
        super().__init__(why)
        self.key = key


def to_table(state: State) -> dict[str, Any]:
    """The table of a state. Raises UnwritableError."""
    kind = state.kind.name.lower() if isinstance(state, Span) else _NAMES[type(state)]
    return {"kind": kind, **_changed(state, _fields(type(state)))}


def _changed(value: Struct, infos: Iterable[FieldInfo]) -> dict[str, Any]:
    """The fields without their default."""
    pairs = ((field, getattr(value, field.name)) for field in infos)
    return {field.name: _to_plain(part) for field, part in pairs if field.required or part != _default(field)}


def from_table(table: Any) -> State:
    """The state of a table. Raises InvalidStateError."""
    if not isinstance(table, dict):
        raise InvalidStateError("A state is a table.")
    table = dict(table)
    kind = table.pop("kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidStateError(f"The kind of a state is one of: {', '.join(KINDS)}.", "kind")
    type_ = KINDS[kind]
    infos = {field.name: field for field in _fields(type_)}
    values: dict[str, Any] = {"kind": SpanKind[kind.upper()]} if type_ is Span else {}
    for key, value in table.items():
        if key not in infos:
            raise InvalidStateError(f"A state of the kind {kind} has only: {', '.join(infos)}.", key)
        values[key] = _from_plain(infos[key].type, value, key)
    missing = next((field.name for field in infos.values() if field.required and field.name not in table), "")
    if missing:
        raise InvalidStateError(f"A state of the kind {kind} needs {missing}.")
    return type_(**values)


def faults(grammar: Grammar) -> Iterator[tuple[str | None, str | None, str]]:
    """What makes a grammar unusable: the state, the key, and what is wrong."""
    for role in ("start", "text"):
        if (name := getattr(grammar, role)) not in grammar.states:
            yield None, role, f"there is no state '{name}'. Name one of: {', '.join(grammar.states)}."
    text = grammar.states.get(grammar.text)
    if text is not None and not (isinstance(text, Span) and text.kind is SpanKind.TEXT):
        yield grammar.text, "kind", "the state of plain text has the kind text."
    for name, state in grammar.states.items():
        yield from ((name, key, why) for key, why in _state_faults(state, grammar.states))


def _state_faults(state: State, states: Mapping[str, State]) -> Iterator[tuple[str, str]]:
    for key, marker, to in _leads(state):
        if not marker:
            yield key, "a marker is empty."
        elif key == "peek" and len(marker) > 1:
            yield key, f"'{marker}' is longer than one character. Write it in `first`."
        if to not in states:
            yield key, f"there is no state '{to}'. Add a table [states.{to}]."
        elif key == "then" and not isinstance(states[to], Span):
            yield key, f"the state '{to}' reads no text between markers; `then` needs one that does."
    if isinstance(state, Name | Key | Value) and not state.on:
        yield "on", "no marker ends it."


def parser_texts(grammar: Grammar) -> Iterator[str]:
    """The texts among the arguments of this grammar's parsers."""
    for state in grammar.states.values():
        for parser in (getattr(state, "parse", None), getattr(state, "route", None)):
            if isinstance(parser, SpelledParser) and parser.source is not None:
                yield from (text for text in parser.source.arguments.values() if isinstance(text, str))


def _leads(state: State) -> Iterator[tuple[str, str, str]]:
    """Key, marker and state of all that leads from this state."""
    for key in _MARKERS:
        for marker, to in getattr(state, key, {}).items():
            yield key, marker, to
    for key in _STATES:
        if (to := getattr(state, key, None)) is not None:
            yield key, key, to
    if isinstance(state, Header) and isinstance(state.route, SpelledParser):
        header_spellings: HeaderSpellings = state.route.spellings
        for spelling in header_spellings.spellings:
            yield "route", spelling.text, spelling.to


def _fields(type_: type[State]) -> list[FieldInfo]:
    return [field for field in fields(type_) if not (type_ is Span and field.name == "kind")]


def _default(field: FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _to_plain(value: Any) -> Any:
    plain: Any
    match value:
        case Enum():
            plain = value.name.lower()
        case SpelledParser() | Check() if value.source is not None:
            plain = _source_table(value.source)
        case tuple() | list():
            plain = [_to_plain(item) for item in value]
        case Mapping():
            plain = {key: _to_plain(member) for key, member in value.items()}
        case Struct():
            plain = _changed(value, fields(value))
        case str() | bool() | int():
            plain = value
        case _:
            plain = _function_name(value)
    return plain


def _function_name(function: Any) -> str:
    name = getattr(function, "__name__", "")
    if name and getattr(headers, name, None) is function:
        return str(name)
    raise UnwritableError(f"{getattr(function, '__qualname__', type(function).__name__)} is a program")


def _source_table(source: ParserSource) -> Any:
    if not source.arguments:
        return source.name
    arguments = {key.rstrip("_"): _to_plain(argument) for key, argument in source.arguments.items()}
    return {"by": source.name, **arguments}


def _from_plain(type_: Any, value: Any, key: str) -> Any:
    if _is_callable(type_):
        return _parser(type_, value, key)
    enums = [
        part for part in (type_, *typing.get_args(type_)) if isinstance(part, type) and issubclass(part, Enum)
    ]
    if enums:
        names = {member.name.lower(): member for member in enums[0]}
        if value not in names:
            raise InvalidStateError(f"It is one of: {', '.join(names)}.", key)
        return names[value]
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise InvalidStateError(f"{error}.", key) from None


def _is_callable(type_: Any) -> bool:
    origin = typing.get_origin(type_)
    if origin in (typing.Union, UnionType):
        return any(map(_is_callable, typing.get_args(type_)))
    return origin is Callable or origin is typing.get_origin(Callable[[str], str])


def _parser(type_: Any, value: Any, key: str) -> Any:
    """The parser with this name, or made with these arguments. Raises InvalidStateError."""
    arguments = dict(value) if isinstance(value, dict) else {"by": value}
    name = arguments.pop("by", None)
    parser = getattr(headers, name, None) if isinstance(name, str) and not name.startswith("_") else None
    if hasattr(parser, "__wrapped__"):
        parser = _make_parser(name, parser, arguments, key)
    elif arguments:
        raise InvalidStateError(f"The parser {name} takes no arguments.", key)
    parse = parser.parse if isinstance(parser, SpelledParser | Check) else parser
    hints = typing.get_type_hints(parse) if inspect.isfunction(parse) else {}
    if hints.get("return") != typing.get_args(type_)[-1]:
        raise InvalidStateError(f"There is no parser '{name}' for it. docs/dialects.md lists them.", key)
    return parser


def _make_parser(name: str, make: Any, arguments: Mapping[str, Any], key: str) -> Any:
    """The parser that this function makes."""
    parameters = inspect.signature(make).parameters
    spelled = {parameter.rstrip("_"): parameter for parameter in parameters}
    keywords = {spelled.get(argument, argument): value for argument, value in arguments.items()}
    several = next((spec.name for spec in parameters.values() if spec.kind is spec.VAR_POSITIONAL), "")
    try:
        return make(*keywords.pop(several, ()), **keywords)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidStateError(f"The parser {name} takes other arguments: {error}.", key) from None
