"""The sources of option values: the command line, the environment, a TOML file.

The command line has precedence over the environment, that over the file, and that over the default in
`config.Settings`. The options of an engine have the same sources: the engine is determined first, then
`command` has its options.

An invalid value is a `CycloptsError`, one line for people.
"""

import inspect
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_type_hints

from cyclopts import (
    App,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    Parameter,
    UnknownOptionError,
    ValidationError,
)
from cyclopts.config import Dict, Env

from antiphon.config import MCP_SERVERS, MODELS, Settings
from antiphon.core.located import with_absolute_paths
from antiphon.core.nearest import did_you_mean
from antiphon.core.options import COMMON_ENGINE, COMMON_TITLE, ENGINE, TOOLS
from antiphon.engines.engine import EngineOptions
from antiphon.engines.registry import DEFAULT as DEFAULT_ENGINE
from antiphon.engines.registry import engine_for, names, options_of, owners_of
from antiphon.model_tables import ModelSettings, place_of, read_tables
from antiphon.option_types import PARSING, is_url, why_of
from antiphon.toolkits.registry import find
from antiphon.toolkits.registry import names as tool_names
from antiphon.toolkits.toolkit import Toolkit
from antiphon.tools.mcp.tables import read_servers


class Environment(Env):
    """Fills in missing options from `ANTIPHON_…` variables.

    A variable that is set but empty is refused: an `ANTIPHON_API_KEY` whose secret is missing must not leave
    the server open.
    """

    def __call__(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        """Read the variables; raises CycloptsError for an empty one."""
        for option in _keys(arguments):
            name = self.prefix + option.upper()
            if not os.environ.get(name, "set").strip():
                raise CycloptsError(msg=f"{name} is set but empty. Unset it, or give it a value.")
        super().__call__(app, commands, arguments)


class ConfigFile:
    """The TOML file of the option `config`, read once. Its `tables` are no options: models, MCP servers."""

    def __init__(self) -> None:
        self.path = ""
        self.text = ""
        self.tables: dict[str, Any] = {}
        self._values: dict[str, Any] = {}

    def source(self, *options: type, partial: bool = False) -> Callable[..., None]:
        """A source of the parser, which fills in options that are still missing.

        `options` declare them, those of the engine and of tools, too. If these are not known yet, `partial`,
        other keys are ignored. It raises CycloptsError for invalid content.
        """

        def fill(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
            for token in arguments["--config"].tokens:
                self._read(token.value)
            known = _keys(arguments) - {"config"}
            for key in () if partial else self._values:
                if key.replace("-", "_") not in known:
                    raise CycloptsError(msg=_unknown(key.replace("-", "_"), known, self.path))
            values = {key: value for key, value in self._values.items() if value != []}  # it sets nothing
            for table in options:
                values = with_absolute_paths(values, table, Path(self.path).absolute().parent)
            Dict(values, source=self.path, use_commands_as_keys=False, allow_unknown=partial)(
                app, commands, arguments
            )

        return fill

    def _read(self, path: str) -> None:
        """Read the file, unless that was done before. Raises CycloptsError."""
        if self.path:
            return
        try:
            self.text = Path(path).read_text(encoding="utf-8")
            self._values = tomllib.loads(self.text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise CycloptsError(msg=f"Cannot read {path}: {why_of(error)}.") from error
        self.path = path
        self.tables = {key: self._values.pop(key) for key in (MODELS, MCP_SERVERS) if key in self._values}

    @property
    def names(self) -> Iterable[str]:
        """The names in the file."""
        return self._values


def _keys(arguments: ArgumentCollection) -> set[str]:
    """The names of all options in a file."""
    return {
        name.removeprefix("--").replace("-", "_")
        for option in arguments
        if option.parse
        for name in option.names
    }


_ENVIRONMENT = Environment("ANTIPHON_", command=False)


def command(
    tokens: Sequence[str],
    run: Callable[[Settings], None],
    help: str | None,  # noqa: A002
    name_of_command: str = "antiphon serve",
) -> App:
    """The command that calls `run` with the settings. It has the options of engine and tools in `tokens`."""
    file = ConfigFile()
    name, chosen = _chosen(tokens, file)
    options, toolkits = options_of(name), _toolkits(chosen)
    choice = Parameter(help=f"What runs the model: {', '.join(names())}, or the module of another engine.")

    def serve(engine_options: Any, settings: Any, engine: Any, tool: Any, **of_tools: Any) -> None:
        tools = {name: of_tools.get(_keyword(name)) or kit.options() for name, kit in toolkits.items()}
        run(_with_tables(replace(settings, engine=engine_options, tools=tools), file, engine))

    of_engine = _table("engine_options", options, group=ENGINE.group)
    keywords = [
        of_engine.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD),  # for the model
        _table("settings", Settings),
        _option("engine", Annotated[str, choice, COMMON_ENGINE], DEFAULT_ENGINE),
        _option("tool", Annotated[tuple[str, ...], _TOOL, TOOLS], ()),
    ]
    whole = HELP_ALL in tokens
    return _app(
        serve,
        keywords,
        file,
        options,
        toolkits,
        name=name_of_command,
        usage=f"Usage: {name_of_command} [MODEL] [OPTIONS]\n",
        help=help,
        help_flags=("--help", "-h", HELP_ALL),
        help_formatter=_HelpFormatter(whole=whole),
        help_epilogue=_WHERE_OTHERS.format(engine=name, all=HELP_ALL),
    )


HELP_ALL = "--help-all"
"""The option that prints every option by its group; --help prints the common ones."""


_WHERE_OTHERS = """\
The options of the engine {engine} are among these. Others have their own: --engine NAME {all}

All options, by group: antiphon serve {all}"""


class _HelpFormatter:
    """Prints all panels of the help but the short one, or only that one."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        from cyclopts.help.formatters import DefaultFormatter  # noqa: PLC0415 - only for help

        if panel.format == "parameter" and (panel.title == COMMON_TITLE) != self._whole:
            DefaultFormatter()(console, options, panel)


def _app(  # noqa: PLR0913 - the parts of a command
    function: Callable[..., Any],
    keywords: Sequence[inspect.Parameter],
    file: ConfigFile,
    options: type[EngineOptions],
    toolkits: Mapping[str, Toolkit],
    *,
    partial: bool = False,
    **settings: Any,
) -> App:
    """The command whose function has these keywords and the options of tools, from all sources.

    Raises CycloptsError if a tool has an option that others have.
    """
    taken = _fields(Settings) | _fields(ModelSettings) | {"tool"} | (set() if partial else _fields(options))
    of_tools = []
    for name, toolkit in toolkits.items():
        own = _fields(toolkit.options)
        if both := sorted(taken & own):
            option = both[0].replace("_", "-")
            raise CycloptsError(msg=f"The tool {name} has an option --{option}, which others have.")
        taken |= own
        of_tools += [_table(_keyword(name), toolkit.options, group=TOOLS.group)] if own else []
    tables = [Settings, ModelSettings, options, *(toolkit.options for toolkit in toolkits.values())]
    sources = (_ENVIRONMENT, file.source(*tables, partial=partial))
    app = App(config=sources, version_flags=(), **settings, **PARSING)

    def call(*positional: Any, **given: Any) -> Any:
        return function(**defaults | dict(zip(defaults, positional, strict=False)) | given)

    # cyclopts reads the options from the signature: these are known only now.
    options_of_all = [*keywords, *of_tools]
    defaults = {option.name: option.default for option in options_of_all}
    call.__signature__ = inspect.Signature(options_of_all)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in options_of_all}
    app.default(call)
    return app


def _option(name: str, type_: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=type_)


def _table(name: str, table: type, **settings: Any) -> inspect.Parameter:
    """Options whose fields are those of a table. Without a default, if one of them has none."""
    default: Any = inspect.Parameter.empty
    with suppress(TypeError):
        default = table()
    return _option(name, Annotated[table, Parameter(name="*", **settings)], default)


def _keyword(toolkit: str) -> str:
    return f"tool_{toolkit.encode().hex()}"  # a name of Python, another one for each tool


def explained(error: CycloptsError, tokens: Sequence[str]) -> CycloptsError:
    """An error of the command, with further explanations."""
    if isinstance(error, UnknownOptionError):
        option = error.token.keyword or error.token.value
        owners = owners_of(option.removeprefix("--").replace("-", "_"))
        if owners:
            chosen, _ = _chosen(tokens, ConfigFile())
            why = f"{option} is an option of the engine {owners[0]}, and this is {chosen}."
            return CycloptsError(msg=f"{why} Leave it out, or choose the other: --engine {owners[0]}.")
        if hint := did_you_mean(option, ("--help", HELP_ALL)):
            return CycloptsError(msg=f"Unknown option: {option}.{hint}")
    if isinstance(error, CoercionError) and error.msg and error.argument is not None:
        for token in error.argument.tokens[:1]:  # as of a wrong number of texts: the message has no name
            return CycloptsError(msg=f"{place_of(token)}: {error.msg}")
    if isinstance(error, ValidationError) and error.argument is not None:
        given = error.argument.value
        if isinstance(given, tuple):  # a repeated option
            error.value = " ".join(map(str, given))
    return error


_TOOL = Parameter(
    help="The module of a tool of another package, as in my_package.my_tool; repeat it for several.",
    show_default=False,
)


def _chosen(tokens: Sequence[str], file: ConfigFile) -> tuple[str, Sequence[str]]:
    """The names of the engine, the chosen one or that for the model, and of tools. Raises CycloptsError."""
    engine, model, tools, unused = _partly_parsed(tokens, file, ())
    if tools:  # then their options are known, too, which are not the model
        engine, model, tools, unused = _partly_parsed(tokens, file, tools)
    name = engine or engine_for(model or _positional(unused), _set(unused, file))
    try:
        options_of(name)
    except ValueError as error:
        raise CycloptsError(msg=str(error)) from error
    return name, tools


def _set(unused: Sequence[str], file: ConfigFile) -> set[str]:
    """The names of options that are set: of engines on the command line, of all in the file and outside."""
    words = (token.partition("=")[0].removeprefix("--") for token in unused if token.startswith("--"))
    variables = (
        name.removeprefix("ANTIPHON_").lower() for name in os.environ if name.startswith("ANTIPHON_")
    )
    return {name.replace("-", "_") for name in (*words, *file.names, *variables)}


def _partly_parsed(
    tokens: Sequence[str], file: ConfigFile, known_tools: Sequence[str]
) -> tuple[str, str, Sequence[str], Sequence[str]]:
    """The engine, the model and the tools in tokens, and unknown tokens: those for engine and other tools."""
    toolkits = _toolkits(known_tools)

    def choose(model: str, engine: str, tool: Sequence[str], **_: Any) -> tuple[str, str, Sequence[str]]:
        return engine, model, tool

    keywords = [
        _option("model", str, ""),
        _option("engine", str, ""),
        _option("tool", tuple[str, ...], ()),
        _table("settings", Settings),
    ]
    app = _app(choose, keywords, file, options_of(DEFAULT_ENGINE), toolkits, partial=True, help_flags=())
    try:
        call, bound, unused, _ = app.parse_known_args(tokens)
    except CycloptsError as error:
        error.verbose = False  # as where all options are known
        raise
    return (*call(*bound.args, **bound.kwargs), unused)


def _toolkits(chosen: Sequence[str]) -> dict[str, Toolkit]:
    """The toolkits of this package, and those of the chosen modules, by name. Raises CycloptsError."""
    toolkits = {name: find(name) for name in tool_names()}
    for name in chosen:
        if name in tool_names():
            raise CycloptsError(
                msg=f"The tool {name} comes with Antiphon: --tool is for tools of other packages."
            )
        try:
            toolkits[name] = find(name)
        except ValueError as error:
            raise CycloptsError(msg=str(error)) from error
    return toolkits


def _fields(table: type) -> set[str]:
    return {field.name for field in fields(cast(Any, table))}


def _positional(unused: Sequence[str]) -> str | None:
    """The model among unknown tokens, the others being options of an engine, and their values."""
    urls = [value for value in unused if is_url(value)]
    alone = [
        value
        for before, value in pairwise(["", *unused])
        if not value.startswith("-") and (not before.startswith("--") or "=" in before)
    ]
    return next(iter([*urls, *alone]), None)


def _with_tables(settings: Settings, file: ConfigFile, engine: str) -> Settings:
    """The settings with the tables of the file. Raises CycloptsError."""
    if (tables := file.tables.get(MODELS)) is not None:
        _check_unset(settings, file.path, engine)
        models = read_tables(file.path, file.text, tables, settings.model)
        settings = replace(settings, models=models)
    try:
        return replace(settings, mcp_servers=read_servers(file.tables.get(MCP_SERVERS, ())))
    except ValueError as error:
        raise CycloptsError(msg=f"{file.path}: {error}") from error


def _check_unset(settings: Settings, path: str, engine: str) -> None:
    """Refuse options of a single model beside tables of models. Raises CycloptsError."""
    default = Settings()
    single = ["model_name", "dialect", "reasoning_tags", "chat_template", "calibration"]
    given = [
        f"--{name.replace('_', '-')}"
        for name in single
        if getattr(settings.model, name) != getattr(default.model, name)
    ]
    if engine != DEFAULT_ENGINE or settings.engine != default.engine:
        given.append("the model and the options of its engine")
    if given:
        raise CycloptsError(msg=f"{path} has [[models]], so give {given[0]} there, in the table of a model.")


def _unknown(key: str, known: set[str], path: str) -> str:
    if owners := owners_of(key):
        return f'"{key}" in {path} is an option of the engine {owners[0]}, which is not chosen. Leave it out.'
    return f'Unknown option "{key}" in {path}.{did_you_mean(key, known)}'


_OTHERS = re.compile(r"ANTIPHON_(URL$|TEST_|SERVICE_|PORT_\d+_)")
"""Variables that are not for the server: of `antiphon chat`, of tests, of Kubernetes for a service."""


def unread_variables(settings: Settings) -> Iterator[str]:
    """A warning for each `ANTIPHON_…` variable that is not an option of the server."""
    read = variables(settings)
    for name in sorted(os.environ):
        if name.startswith("ANTIPHON_") and name not in read and not _OTHERS.match(name):
            owners = owners_of(name.removeprefix("ANTIPHON_").lower())
            why = f"is an option of the engine {owners[0]}" if owners else "is the variable of no option"
            yield f"{name} {why}: it is not read.{'' if owners else did_you_mean(name, read)}"


def variables(settings: Settings) -> set[str]:
    """The `ANTIPHON_…` variables of the options of a server with these settings."""
    names = option_names(*settings.option_tables, type(settings.engine)) | {"engine", "tool"}
    return {f"ANTIPHON_{name.upper()}" for name in names}


def option_names(*tables: type) -> set[str]:
    """The names of the options that these tables declare."""
    hints = [item for table in tables for item in get_type_hints(table, include_extras=True).items()]
    return {name for name, hint in hints if not any(map(_is_unparsed, get_args(hint)))} - {"_"}


def _is_unparsed(mark: Any) -> bool:
    """Not an option: made of tables, or a table of options itself."""
    return isinstance(mark, Parameter) and (mark.parse is False or mark.name == ("*",))
