"""The `[[models]]` tables of the TOML file: each is a model of the server, with its own options.

A key of a table is one of `ModelTable`, or an option of its engine, with the same names and values as on the
command line. An invalid value is a `CycloptsError` that names the file, the line and the key.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, CycloptsError, Parameter, Token
from cyclopts.config import Dict
from cyclopts.types import PositiveInt
from msgspec import Meta, Struct

from antiphon.core.located import Located, file, file_or_name, toml_file, with_absolute_paths
from antiphon.core.options import COMMON_MODEL, DECISIONS, LIMITS, MODEL
from antiphon.engines.engine import EngineOptions
from antiphon.engines.registry import engine_for, options_of, owners_of
from antiphon.option_types import PARSING

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
    variables: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"It is written NAME=VALUE, not '{text}'.")
        try:
            variables[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            variables[name] = value
    return variables


def _given(table: SamplingTable) -> dict[str, Any]:
    """The parameters that a table sets."""
    return {name: value for name, value in msgspec.structs.asdict(table).items() if value is not None}


class KeepLoaded(Struct, frozen=True):
    """How many models are loaded at a time, and how many bytes they may take; None for any number.

    Models on other servers, which take no memory here, do not count.
    """

    models: int | None = None
    memory: int | None = None

    def allows(self, sizes: Sequence[int]) -> bool:
        """Whether models of these sizes may be loaded at the same time. A single one always may."""
        return len(sizes) <= 1 or (
            (self.models is None or len(sizes) <= self.models)
            and (self.memory is None or sum(sizes) <= self.memory)
        )


KEEP_ALL = KeepLoaded()


def read_keep_loaded(given: Iterable[str]) -> KeepLoaded:
    """A number of models, or of bytes. Raises ValueError."""
    written = _SIZE.fullmatch("".join(given))
    if written is None:
        raise ValueError("Give a number of models, as in 2, or of bytes, as in 24GiB.")
    number, unit = int(written["number"]), written["unit"]
    if unit is None:
        return KeepLoaded(models=number)
    return KeepLoaded(memory=number * (1024 if "i" in unit else 1000) ** _UNITS[unit[0]])


_SIZE = re.compile(r"(?P<number>[1-9]\d*)\s*(?P<unit>[KMGT]i?B)?")
_UNITS = {"K": 1, "M": 2, "G": 3, "T": 4}


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
    decision_prefill: str | None = None
    decision_orders: _Count | None = None
    calibration: _Name | None = None
    adapters: dict[_Name, str] = {}
    replicas: tuple[str | dict[str, Any], ...] = ()


def read_by(read: Callable[[Sequence[str]], object], *, repeated: bool = True) -> Parameter:
    """How the value of an option is made of its texts, of which one that may be `repeated` has several."""

    def convert(_type: object, tokens: Sequence[Token]) -> object:
        texts = [token.value for token in tokens]
        try:
            return read(texts)
        except ValueError as error:
            message = f'Invalid value "{" ".join(texts)}" for {place_of(tokens[0])}. {error}'
            raise CycloptsError(msg=message) from error

    return Parameter(
        converter=convert,
        n_tokens=-1 if repeated else 1,
        env_var_split=lambda _type, text, **_: text.split() if repeated else [text],
        accepts_keys=False,
        metavar="STR..." if repeated else "STR",
        show_default=False,
    )


def place_of(token: Token) -> str:
    """The option that a text is of, and where it was read if that is not the command line."""
    return f"{token.keyword}{'' if token.source in {'', 'cli'} else f' provided by {token.source}'}"


def is_date(_type: object, value: str | None) -> None:
    """Raise ValueError if it is none."""
    if value is not None:
        try:
            date.fromisoformat(value)
        except ValueError:
            raise ValueError("A date is written 2026-11-21.") from None


def are_tags(_type: object, given: tuple[str, str] | None) -> None:
    """Raise ValueError if a tag is empty."""
    if given is not None and not all(tag.strip() for tag in given):
        raise ValueError("A tag of reasoning is empty. Write both: --reasoning-tags '<think>' '</think>'.")


@dataclass(frozen=True)
class ModelSettings:
    """The options of a model of the server. A [[models]] table changes them for its own model."""

    _: KW_ONLY

    engines: Annotated[tuple[EngineOptions, ...], Parameter(parse=False)] = ()
    """The options of its engine, or of each of its replicas."""

    adapters: Annotated[Mapping[str, str], Parameter(parse=False)] = field(default_factory=dict)
    """The paths of its LoRA adapters by their names."""

    max_tokens: Annotated[PositiveInt | None, LIMITS] = None
    """The maximum number of tokens of an answer, for requests that do not set one. Without it, all that fit
    into the context."""

    model_name: Annotated[tuple[str, ...], Parameter(show_default=False), COMMON_MODEL] = ()
    """A name that clients may use for the model; repeat it for aliases. Answers have the
    one that was requested. Without any, the model's own name. With a `*` it is a pattern:
    `claude-*` takes all names of Claude models."""

    dialect: Annotated[str | None, Located(toml_file), MODEL] = None
    """The format of the model's reasoning and tool calls: a name, or A+B, the reasoning of A with
    the calls of B; FILE.toml; or the full name of a module (docs/dialects.md). Without one, chosen
    from the chat template."""

    reasoning_tags: Annotated[tuple[str, str] | None, Parameter(validator=are_tags), MODEL] = None
    """The texts before and after the model's reasoning, START END, if these alone differ from the
    dialect's."""

    chat_template: Annotated[Path | None, Located(file_or_name), MODEL] = None
    """A Jinja chat template to use instead of the model's own: a file, or chatml, which is built in."""

    chat_template_content_format: Annotated[ContentFormat, MODEL] = "auto"
    """How message contents are passed to the chat template: string, as texts; openai, as lists of parts;
    auto, as the template needs them."""

    sampling: Annotated[Mapping[str, Any], read_by(read_sampling), MODEL] = field(default_factory=dict)
    """A sampling parameter for requests that do not set it, NAME=VALUE, as in temperature=0.6; repeat it
    for several. docs/models.md lists them."""

    force_sampling: Annotated[Mapping[str, Any], read_by(read_sampling), MODEL] = field(default_factory=dict)
    """The same for every request. It overrides what the request sets."""

    variable: Annotated[Mapping[str, Any], read_by(read_variables), MODEL] = field(default_factory=dict)
    """A variable of the chat template for requests that do not set it, NAME=VALUE, as in
    enable_thinking=false; repeat it for several."""

    force_variable: Annotated[Mapping[str, Any], read_by(read_variables), MODEL] = field(default_factory=dict)
    """The same for every request. It overrides what the request sets."""

    date: Annotated[str | None, Parameter(validator=is_date), MODEL] = None
    """The date in prompts, 2026-11-21, if the model's format has one. Without it,
    that of the start. It stays the same while the server runs, so that prompts stay cached."""

    exclude_tools_when_tool_choice_none: Annotated[bool, MODEL] = False
    """If a request has tool_choice none, leave its tools out of the prompt, and hide a call that
    the model writes nevertheless. Without it, they stay in the prompt, and such a call is text."""

    decision_prefill: Annotated[str | None, DECISIONS] = None
    """The text that begins the model's answer to a question of a decision, which its label follows; it may be
    empty. Without it, several are tried, and the one that gives labels the highest probability is used
    (docs/models.md)."""

    decision_orders: Annotated[PositiveInt | None, DECISIONS] = None
    """In how many orders of its options a choice of a decision is asked, if the request does not set it.
    Without it, two; all rotations of at most four options."""

    calibration: Annotated[Path | None, Located(file), DECISIONS] = None
    """The file of antiphon calibrate with the temperatures of the model's decisions, or a decision.json."""

    @property
    def default_sampling(self) -> Mapping[str, Any]:
        """The sampling parameters of requests that do not set them."""
        return {**({} if self.max_tokens is None else {"max_tokens": self.max_tokens}), **self.sampling}


def read_tables(path: str, text: str, tables: Any, server: ModelSettings) -> tuple[ModelSettings, ...]:
    """The models of the file at `path`, whose `text` is known to be TOML: changes of those of the `server`.

    Raises CycloptsError.
    """
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise CycloptsError(msg=f"{path}: models must be tables. Write [[models]] above each.")
    places = _KeyPositions(path, text)
    models = tuple(_Table(places, number, table).settings(server) for number, table in enumerate(tables))
    _check_names(places, models)
    return models


def _check_names(places: "_KeyPositions", models: Sequence[ModelSettings]) -> None:
    owners: dict[str, str] = {}
    for number, model in enumerate(models):
        for name in (*model.model_name, *model.adapters):
            if name in owners:
                why = f'"{name}" is a name of the model "{owners[name]}" already. Choose another.'
                raise places.error(number, "name" if name == model.model_name[0] else "aliases", why)
            owners[name] = model.model_name[0]


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

    def settings(self, server: ModelSettings) -> ModelSettings:
        try:
            table = msgspec.convert(self._own, ModelTable)
        except msgspec.ValidationError as error:
            raise self._invalid(str(error)) from error
        if not table.replicas:
            engines = [self._engine(table.engine, self._rest)]
        else:
            engines = [self._replica(table, replica) for replica in table.replicas]
        return replace(
            server,
            engines=tuple(engines),
            adapters={name: file(path, self._folder) for name, path in table.adapters.items()},
            model_name=(table.name, *table.aliases),
            dialect=table.dialect and toml_file(table.dialect, self._folder),
            reasoning_tags=table.reasoning_tags,
            chat_template=Path(file_or_name(table.chat_template, self._folder))
            if table.chat_template
            else None,
            chat_template_content_format=table.chat_template_content_format
            or server.chat_template_content_format,
            decision_prefill=server.decision_prefill
            if table.decision_prefill is None
            else table.decision_prefill,
            decision_orders=table.decision_orders or server.decision_orders,
            calibration=Path(file(table.calibration, self._folder)) if table.calibration else None,
            sampling={**server.sampling, **_given(table.sampling)},
            variable={**server.variable, **table.variables},
            force_sampling={**server.force_sampling, **_given(table.force_sampling)},
            force_variable={**server.force_variable, **table.force_variables},
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
        engine = name or engine_for(model if isinstance(model, str) else None, given)
        try:
            options = options_of(engine)
        except ValueError as error:
            raise self._places.error(self._number, "engine" if name else "model", str(error)) from error
        known = {field.replace("-", "_") for field in options.__dataclass_fields__} - {"_"}  # type: ignore[attr-defined]
        for key in given:
            if key not in known:
                raise self._unknown(key, known, engine)
        candidates: list[EngineOptions] = []
        app = App(
            config=(Dict(with_absolute_paths(given, options, self._folder), source=self._places.path),),
            version_flags=(),
            **PARSING,
        )

        def keep(options: Any) -> None:
            candidates.append(options)

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
        return candidates[0]

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
            name for name in re.split(r"[.\[\]`]+", where) if name and not name.isdigit() and name != "..."
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
        lines = (line for line in range(first, last) if spelled.search(self._lines[line]))
        return next(lines, first) + 1
