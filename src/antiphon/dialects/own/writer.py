"""Writes a dialect as the text of a file that `file.py` reads."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import structs

from antiphon.core.grammar import Grammar, ReasoningMarkers
from antiphon.dialects.dialect import TEXT, Dialect
from antiphon.dialects.own.file import IDS, RENDERERS
from antiphon.dialects.own.states import UnwritableError, to_table

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 110
"""Characters of the longest line, where a value can be broken."""


def to_toml(dialect: Dialect) -> str:
    """The text of the dialect's file. Raises UnwritableError if it has a part that no file can hold."""
    return "\n\n".join("\n".join(lines) for lines in _tables(dialect)) + "\n"


def _tables(dialect: Dialect) -> Iterator[Iterator[str]]:
    top = {
        "name": dialect.names[0],
        "ids": _name_of(dialect.ids, IDS) if dialect.ids is not IDS["openai"] else None,
        "answer_start": dialect.answer_start,
        "call_start": dialect.call_start,
        "suffix": dialect.suffix,
        "renderer": dialect.renderer and _name_of(dialect.renderer, RENDERERS),
    }
    yield _pairs({key: value for key, value in top.items() if value is not None})
    if dialect.reasoning is not None:
        yield _table("reasoning", _reasoning(dialect.reasoning))
    if dialect.call_format is not None:
        yield _table("calls", msgspec.to_builtins(dialect.call_format))
    elif dialect.calls != TEXT:
        yield from _grammar(dialect.calls)
    if dialect.tool_prompt is not None:
        if not isinstance(dialect.tool_prompt.call, str):
            raise UnwritableError("the calls of its tool prompt are written by a program")
        yield _table("tool_prompt", structs.asdict(dialect.tool_prompt))


def _name_of(value: object, choices: Mapping[str, object]) -> str:
    for name, choice in choices.items():
        if choice is value:
            return name
    raise UnwritableError(f"{getattr(value, '__qualname__', value)} is a program")


def _reasoning(markers: ReasoningMarkers) -> dict[str, Any]:
    table: dict[str, Any] = {"start": _one_or_all(markers.opens), "end": _one_or_all(markers.closes)}
    if markers.reopens != markers.opens:
        table["again"] = list(markers.reopens)
    if markers.habits:
        table["habits"] = _one_or_all(markers.habits)
    return table if markers.calls else {**table, "calls": False}


def _one_or_all(texts: tuple[str, ...]) -> Any:
    return texts[0] if len(texts) == 1 else list(texts)


def _grammar(grammar: Grammar) -> Iterator[Iterator[str]]:
    default = Grammar({})
    names = {key: getattr(grammar, key) for key in ("start", "text", "tokens")}
    changed = {key: value for key, value in names.items() if value != getattr(default, key)}
    if changed:
        yield _table("grammar", changed)
    for name, state in grammar.states.items():
        yield _table(f"states.{_key(name)}", to_table(state))


def _table(name: str, pairs: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{name}]"
    yield from _pairs(pairs)


def _pairs(pairs: Mapping[str, Any]) -> Iterator[str]:
    for key, value in pairs.items():
        line = f"{_key(key)} = {_value(value)}"
        if len(line) <= _WIDTH or not isinstance(value, Mapping):
            yield line
        else:  # an inline table cannot be broken, a table with dotted keys can
            for inner, member in value.items():
                yield f"{_key(key)}.{_key(inner)} = {_value(member)}"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return _text(value)
        case Mapping():
            return "{ " + ", ".join(f"{_key(key)} = {_value(member)}" for key, member in value.items()) + " }"
        case _:
            return "[" + ", ".join(map(_value, value)) + "]"


def _text(text: str) -> str:
    """A string: several lines as such, one with quotes in single quotes."""
    plain = text.replace("\n", " ").isprintable()
    if plain and "\n" in text.strip("\n") and "'''" not in text and not text.endswith("'"):
        return f"'''\n{text}'''"
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
