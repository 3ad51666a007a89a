"""The `[[models]]` tables of the TOML file: each is a model of the server, with its own options.

A key of a table is one of `ModelTable`, or an option of its engine, with the same names and values as on the
command line. An invalid value is a `CycloptsError` that names the file, the line and the key.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict
from msgspec import Meta, Struct

from antiphon.core.located import file, file_or_name, toml_file, with_absolute_paths
from antiphon.engines.engine import EngineOptions
from antiphon.engines.registry import engine_for, options_of, owners_of

PARSING: dict[str, Any] = {
    "default_parameter": Parameter(negative=()),
    "result_action": "return_value",
    "exit_on_error": False,
    "print_error": False,
    "suppress_keyboard_interrupt": False,
}
"""Settings of the parser: `cli.main` prints errors, and sets the exit codes."""

_Name = Annotated[str, Meta(min_length=1)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Count = Annotated[int, Meta(ge=1)]


class SamplingTable(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The default sampling parameters of a model: fields of `Sampling`."""

    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: _Share | None = None
    typical_p: _Share | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1)] | None = None
    max_tokens: _Count | None = None
    min_tokens: _Count | None = None
    seed: int | None = None
    skip_special_tokens: bool | None = None


ContentFormat = Literal["auto", "string", "openai"]
"""How a chat template gets contents: as it needs them, as texts, or as lists of parts."""


def read_sampling(given: Iterable[str]) -> dict[str, Any]:
    """Sampling parameters, each NAME=VALUE. Raises ValueError."""
    try:
        return _given(msgspec.convert(read_variables(given), SamplingTable))
    except msgspec.ValidationError as error:
        known = ", ".join(SamplingTable.__struct_fields__)
        raise ValueError(f"{error}. There are the sampling parameters {known}.") from error


def read_variables(given: Iterable[str]) -> dict[str, Any]:
    """Variables, each NAME=VALUE: JSON, or a text. Raises ValueError."""
    found: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise ValueError(f"it is written NAME=VALUE, not '{each}'.")
        try:
            found[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[name] = value
    return found


def _given(table: SamplingTable) -> dict[str, Any]:
    """The parameters that a table sets."""
    return {name: value for name, value in msgspec.structs.asdict(table).items() if value is not None}


class ModelTable(Struct, forbid_unknown_fields=True):
    """The keys of a table except the options of its engine.

    `name` and `aliases` are the names for clients; one with a `*` is a pattern. Without `engine`, it is
    derived from `model`. `sampling` and `variables` of the chat template are for requests that do not set
    them; those of `force_sampling` and `force_variables` hold for every request. `adapters` are LoRA
    adapters, each with the path of its file; clients use them as models. `replicas` are several engines
    with the same model: URLs, or tables of options.
    """

    name: _Name
    aliases: tuple[_Name, ...] = ()
    engine: str | None = None
    dialect: str | None = None
    reasoning_tags: tuple[_Name, _Name] | None = None
    chat_template: str | None = None
    chat_template_content_format: ContentFormat | None = None
    sampling: SamplingTable = msgspec.field(default_factory=SamplingTable)
    variables: dict[str, Any] = {}
    force_sampling: SamplingTable = msgspec.field(default_factory=SamplingTable)
    force_variables: dict[str, Any] = {}
    adapters: dict[_Name, str] = {}
    replicas: tuple[str | dict[str, Any], ...] = ()


@dataclass(frozen=True)
class ModelSettings:
    """A model of the server. `engines` are the options of its engine, or of each of its replicas."""

    names: tuple[str, ...]
    engines: tuple[EngineOptions, ...]
    dialect: str | None = None
    chat_template: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    force_sampling: Mapping[str, Any] = field(default_factory=dict)
    force_variables: Mapping[str, Any] = field(default_factory=dict)
    content_format: ContentFormat | None = None
    reasoning_tags: tuple[str, str] | None = None


def read_tables(path: str, text: str, tables: Any) -> tuple[ModelSettings, ...]:
    """The models of the file at `path`, whose `text` is known to be TOML. Raises CycloptsError."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise CycloptsError(msg=f"{path}: models must be tables. Write [[models]] above each.")
    places = _KeyPositions(path, text)
    models = tuple(_Table(places, number, table).settings() for number, table in enumerate(tables))
    _check_names(places, models)
    return models


def _check_names(places: "_KeyPositions", models: Sequence[ModelSettings]) -> None:
    owners: dict[str, str] = {}
    for number, model in enumerate(models):
        for name in (*model.names, *model.adapters):
            if name in owners:
                why = f'"{name}" is a name of the model "{owners[name]}" already. Choose another.'
                raise places.error(number, "name" if name == model.names[0] else "aliases", why)
            owners[name] = model.names[0]


class _Table:
    """One table."""

    def __init__(self, places: "_KeyPositions", number: int, table: Mapping[str, Any]) -> None:
        self._places = places
        self._number = number
        self._folder = Path(places.path).absolute().parent
        given = {key.replace("-", "_"): value for key, value in table.items()}
        own = set(ModelTable.__struct_fields__)
        self._own = {key: value for key, value in given.items() if key in own}
        self._rest = {key: value for key, value in given.items() if key not in own}

    def settings(self) -> ModelSettings:
        try:
            table = msgspec.convert(self._own, ModelTable)
        except msgspec.ValidationError as error:
            raise self._invalid(str(error)) from error
        if not table.replicas:
            engines = [self._engine(table.engine, self._rest)]
        else:
            engines = [self._replica(table, replica) for replica in table.replicas]
        return ModelSettings(
            names=(table.name, *table.aliases),
            engines=tuple(engines),
            dialect=table.dialect and toml_file(table.dialect, self._folder),
            chat_template=table.chat_template and file_or_name(table.chat_template, self._folder),
            sampling=_given(table.sampling),
            variables=table.variables,
            adapters={name: file(path, self._folder) for name, path in table.adapters.items()},
            force_sampling=_given(table.force_sampling),
            force_variables=table.force_variables,
            content_format=table.chat_template_content_format,
            reasoning_tags=table.reasoning_tags,
        )

    def _replica(self, table: ModelTable, replica: str | dict[str, Any]) -> EngineOptions:
        given = {"model": replica} if isinstance(replica, str) else replica
        options = {**self._rest, **{key.replace("-", "_"): value for key, value in given.items()}}
        return self._engine(options.pop("engine", table.engine), options)

    def _engine(self, name: str | None, given: Mapping[str, Any]) -> EngineOptions:
        """The options of the engine. Raises CycloptsError."""
        model = given.get("model")
        if isinstance(model, str):
            model = file_or_name(model, self._folder)
        engine = name or engine_for(model if isinstance(model, str) else None)
        try:
            options = options_of(engine)
        except ValueError as error:
            raise self._places.error(self._number, "engine" if name else "model", str(error)) from error
        known = {each.replace("-", "_") for each in options.__dataclass_fields__} - {"_"}  # type: ignore[attr-defined]
        for key in given:
            if key not in known:
                raise self._unknown(key, known, engine)
        found: list[EngineOptions] = []
        app = App(
            config=(Dict(with_absolute_paths(given, options, self._folder), source=self._places.path),),
            version_flags=(),
            **PARSING,
        )

        def keep(options: Any) -> None:
            found.append(options)

        keep.__annotations__["options"] = Annotated[options, Parameter(name="*")]
        with suppress(TypeError):  # as in `config.command`
            keep.__defaults__ = (options(),)
        app.default(keep)
        try:
            app([])
        except CycloptsError as error:
            why = str(error)
            for words in (" from ", " provided by "):
                why = why.replace(words + self._places.path, "")
            blamed = [key for key in given if f"[{key}]" in why or f"--{key.replace('_', '-')}" in why]
            raise self._places.error(self._number, blamed[0] if blamed else "model", why) from error
        return found[0]

    def _unknown(self, key: str, known: Iterable[str], engine: str) -> CycloptsError:
        if owners := owners_of(key):
            why = f"is an option of the engine {owners[0]}, and this is {engine}. Leave it out."
            return self._places.error(self._number, key, why)
        close = difflib.get_close_matches(key, [*known, *ModelTable.__struct_fields__], n=1)
        hint = f" Did you mean {close[0]}?" if close else " docs/models.md lists them."
        return self._places.error(self._number, key, f"there is no such key.{hint}")

    def _invalid(self, message: str) -> CycloptsError:
        """The error of a key of ours."""
        what, _, where = message.partition(" - at `$")
        path = [
            each for each in re.split(r"[.\[\]`]+", where) if each and not each.isdigit() and each != "..."
        ]
        if missing := re.search(r"required field `(\w+)`", what):
            return self._places.error(self._number, missing[1], f'is missing. Write {missing[1]} = "…".')
        if unknown := re.search(r"unknown field `(\w+)`", what):
            known = SamplingTable.__struct_fields__
            close = difflib.get_close_matches(unknown[1], known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(known)}."
            return self._places.error(self._number, unknown[1], f"there is no such key of {path[-1]}. {hint}")
        return self._places.error(self._number, path[-1] if path else "name", f"{what}.")


class _KeyPositions:
    """The lines of the keys of the tables, which `tomllib` does not report."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self._lines = text.splitlines()
        self._starts = [
            number for number, line in enumerate(self._lines) if re.match(r"\s*\[\[\s*models\s*\]\]", line)
        ]

    def error(self, number: int, key: str, why: str) -> CycloptsError:
        """The error for a key of the table with this number."""
        line = self._line(number, key)
        place = f"{self.path}, line {line}" if line else f"{self.path}, table {number + 1} of [[models]]"
        return CycloptsError(msg=f"{place}: {key}: {why}")

    def _line(self, number: int, key: str) -> int | None:
        """The line of a key, or that of its table's beginning; None for tables that are written inline."""
        if number >= len(self._starts):
            return None
        first = self._starts[number]
        last = self._starts[number + 1] if number + 1 < len(self._starts) else len(self._lines)
        name = re.escape(key).replace("_", "[-_]")
        spelled = re.compile(rf"(?:^|[\s{{,.\[])[\"']?{name}[\"']?\s*(?:=|\.|\])")
        found = (line for line in range(first, last) if spelled.search(self._lines[line]))
        return next(found, first) + 1
