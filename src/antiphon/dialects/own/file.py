"""Reads a dialect from a TOML file: `--dialect FILE`.

    name = "gale"

    [reasoning]
    start = "<musing>"
    end = "</musing>"

    [calls]
    format = "json"
    start = "<use>"
    end = "</use>"

`[calls]` is a common format (`call_formats.py`); in its place, `[states.NAME]` tables are the states of any
grammar (`states.py`), with `start`, `text` and `tokens` in `[grammar]`. `base` names a dialect whose parts
are taken where the file has none, and `replace` has other texts for markers of it. Whatever is wrong is an
EngineError that names the line and the remedy.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct
from msgspec.structs import fields
from msgspec.structs import replace as replaced

from antiphon.core.errors import EngineError
from antiphon.core.grammar import Grammar, ReasoningMarkers
from antiphon.decode.ids import IdRule, kimi_call_id, mistral_call_id, openai_call_id
from antiphon.dialects.call_formats import (
    CallFormat,
    JsonFormat,
    Marker,
    NameAndJsonFormat,
    PythonFormat,
    TagsFormat,
)
from antiphon.dialects.dialect import Dialect, RendererMaker
from antiphon.dialects.own.states import InvalidStateError, faults, from_table, parser_texts
from antiphon.render.harmony import HarmonyRenderer
from antiphon.render.tool_prompt import ToolPrompt

IDS: Mapping[str, IdRule] = {"openai": openai_call_id, "mistral": mistral_call_id, "kimi": kimi_call_id}
"""The rules for ids of calls, by their names in files."""
RENDERERS: Mapping[str, RendererMaker] = {"harmony": HarmonyRenderer}
"""The renderers of prompts that need more than a chat template, by their names in files."""
MAX_FILE = 1024 * 1024
"""Bytes of the largest file."""

_Texts = Marker | tuple[Marker, ...]
_FORMATS: Mapping[str, type[Struct]] = {
    str(form.__struct_config__.tag): form
    for form in (JsonFormat, NameAndJsonFormat, TagsFormat, PythonFormat)
}


class ReasoningTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The tags of reasoning. `again` are those that open it after text, too, by default all of `start`.

    `calls`: a call may be inside. `habits` are tags that the model writes for those in `start`.
    """

    start: _Texts
    end: _Texts
    again: _Texts | None = None
    calls: bool = True
    habits: _Texts = ()

    def markers(self) -> ReasoningMarkers:
        """The same as a part of a dialect."""
        start = _all(self.start)
        return ReasoningMarkers(
            start,
            _all(self.end),
            start if self.again is None else _all(self.again),
            self.calls,
            _all(self.habits),
        )


class GrammarTable(Struct, frozen=True, forbid_unknown_fields=True):
    """What a grammar has besides its states."""

    start: str = "text"
    text: str = "text"
    tokens: tuple[str, ...] = ()


class ToolPromptTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The templates of a `ToolPrompt`."""

    system: str
    call: str
    result: str


class DialectTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a file. Tables are read one by one, so that errors name their lines."""

    name: Marker | None = None
    base: str | None = None
    replace: dict[Marker, Marker] = {}
    ids: str | None = None
    answer_start: str | None = None
    call_start: str | None = None
    suffix: str | None = None
    renderer: str | None = None
    reasoning: dict[str, Any] | None = None
    calls: dict[str, Any] | None = None
    grammar: dict[str, Any] = {}
    states: dict[str, Any] = {}
    tool_prompt: dict[str, Any] | None = None


def read(path: str, find: Callable[[str], Dialect]) -> Dialect:
    """The dialect of a file. `find` finds the one that it is based on. Raises EngineError."""
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(MAX_FILE + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise EngineError(f"Cannot read the dialect {path}: {why}.") from error
    if len(content) > MAX_FILE:
        raise EngineError(f"The dialect {path} has more than {MAX_FILE} bytes.")
    return parse(path, text, find)


def parse(path: str, text: str, find: Callable[[str], Dialect]) -> Dialect:
    """The dialect of a file's text. Raises EngineError."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise EngineError(f"{path} is not TOML: {error}.") from error
    return _DialectFile(path, text, data, find).dialect()


class _DialectFile:
    """One file."""

    def __init__(self, path: str, text: str, data: Mapping[str, Any], find: Callable[[str], Dialect]) -> None:
        self._path = path
        self._lines = text.splitlines()
        self._find = find
        self._table = self._convert(data, DialectTable, ())

    def dialect(self) -> Dialect:
        table, base = self._table, self._base()
        properties: dict[str, Any] = {"names": (table.name or Path(self._path).stem,)}
        for key, choices in (("ids", IDS), ("renderer", RENDERERS)):
            if (name := getattr(table, key)) is not None:
                if name not in choices:
                    self._fail((key,), f"there is no '{name}'. Use one of: {', '.join(choices)}.")
                properties[key] = choices[name]
        properties |= {
            key: value
            for key in ("answer_start", "call_start", "suffix")
            if (value := getattr(table, key)) is not None
        }
        if table.reasoning is not None:
            properties["reasoning"] = self._convert(table.reasoning, ReasoningTable, ("reasoning",)).markers()
        if table.tool_prompt is not None:
            prompt = self._convert(table.tool_prompt, ToolPromptTable, ("tool_prompt",))
            properties["tool_prompt"] = ToolPrompt(prompt.system, prompt.call, prompt.result)
        return replaced(base, **properties, **self._calls(properties.get("reasoning")))

    def _base(self) -> Dialect:
        table = self._table
        if table.base is None:
            if table.replace:
                self._fail(
                    ("replace",), "there is no base whose markers it could replace. Name one with base."
                )
            return Dialect(("",))
        try:
            base = self._find(table.base)
        except EngineError as error:
            self._fail(("base",), error.message)
        if not table.replace:
            return base
        for marker in table.replace:
            if not any(marker in text for text in base.grammar.markers):
                listed = ", ".join(sorted(text.strip() for text in base.grammar.markers))
                self._fail(("replace", marker), f"{table.base} has no such marker. It has: {listed}.")
            if any(marker in text for text in parser_texts(base.grammar)):
                why = f"it is inside of a header of {table.base}. Write the grammar with [states] instead."
                self._fail(("replace", marker), why)
        return self._replaced(base)

    def _replaced(self, base: Dialect) -> Dialect:
        """The base with other markers, in its texts, too."""

        def rename(text: str) -> str:
            return _replace_all(text, self._table.replace)

        prompt = base.tool_prompt
        return replaced(
            base.map_markers(rename),
            answer_start=base.answer_start and rename(base.answer_start),
            tool_prompt=prompt
            and ToolPrompt(
                rename(prompt.system),
                rename(prompt.call) if isinstance(prompt.call, str) else prompt.call,
                rename(prompt.result),
            ),
        )

    def _calls(self, reasoning: ReasoningMarkers | None) -> dict[str, Any]:
        """The grammar of calls, if the file has one."""
        table = self._table
        if table.calls is not None and table.states:
            self._fail(("calls",), "a file has either [calls] or [states]. Leave one of them out.")
        if table.calls is not None:
            form = self._call_format(table.calls)
            return {"calls": form.grammar(), "call_format": form}
        if not table.states:
            if table.grammar:
                self._fail(("grammar",), "it needs [states.NAME] tables. Add them, or leave it out.")
            return {}
        states = {}
        for name, state in table.states.items():
            try:
                states[name] = from_table(state)
            except InvalidStateError as error:
                self._fail(("states", name, *([error.key] if error.key else [])), str(error))
        more = self._convert(table.grammar, GrammarTable, ("grammar",))
        grammar = Grammar(states, more.start, more.text, more.tokens)
        for where, key, why in faults(grammar):
            place = ("grammar",) if where is None else ("states", where)
            self._fail((*place, *([key] if key else [])), why)
        return {"calls": grammar, "call_format": None}

    def _call_format(self, table: dict[str, Any]) -> CallFormat:
        name = str(table.get("format"))
        if name not in _FORMATS:
            self._fail(("calls", "format"), f"it is one of: {', '.join(_FORMATS)}.")
        form: CallFormat = self._convert(table, _FORMATS[name], ("calls",))
        return form

    def _convert(self, data: Any, type_: Any, place: tuple[str, ...]) -> Any:
        try:
            return msgspec.convert(data, type_)
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at `$")
            path = [
                part
                for part in re.split(r"[.\[\]`]+", where)
                if part and part != "..." and not part.isdigit()
            ]
            keys = [field.encode_name for field in fields(type_)]
            if unknown := re.search(r"unknown field `(.*)`", what):
                close = difflib.get_close_matches(unknown[1], keys, n=1)
                hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(keys)}."
                self._fail((*place, unknown[1]), f"there is no such key. {hint}")
            if missing := re.search(r"required field `(.*)`", what):
                self._fail((*place, missing[1]), f'it is missing. Write {missing[1]} = "…".')
            self._fail((*place, *path), f"{what}.")

    def _fail(self, place: tuple[str, ...], why: str) -> NoReturn:
        line = _line(self._lines, place)
        where = f"{self._path}, line {line}" if line else self._path
        raise EngineError(f"{where}: {'.'.join(place)}: {why}")


def _all(texts: _Texts) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else texts


def _replace_all(marker: str, texts: Mapping[str, str]) -> str:
    """The marker with the longest of `texts` in it replaced first, and each only once."""
    if not texts:
        return marker
    longest = sorted(texts, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest)), lambda match: texts[match[0]], marker)


def _line(lines: Iterable[str], place: tuple[str, ...]) -> int | None:
    """The line of a key, or else that of the innermost table around it that has a line of its own."""
    nearest: int | None = None
    table: tuple[str, ...] = ()
    depth = 0
    for number, line in enumerate(lines, 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$", line):
            table = _path(header[1])
            path = table
        elif key := re.match(
            r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""", line
        ):
            path = (*table, *_path(key[1]))
        else:
            continue
        shared = min(len(path), len(place))
        if place[:shared] == path[:shared] and shared > depth:
            nearest, depth = number, shared
    return nearest


def _path(dotted: str) -> tuple[str, ...]:
    """The parts of a dotted key."""
    return tuple(part.strip("\"'") for part in re.findall(r"""[\w-]+|"[^"]*"|'[^']*'""", dotted))
