"""All dialects by name: those that are assigned in the modules of this package, and those of users."""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

from antiphon import dialects
from antiphon.core.errors import EngineError
from antiphon.core.nearest import did_you_mean
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.own import file
from antiphon.dialects.response_template import builder as hf


def _assigned() -> list[Dialect]:
    """Every dialect that a module of this package assigns, once, by canonical name."""
    names = [module.name for module in iter_modules(dialects.__path__)]
    modules = [import_module(f"{dialects.__name__}.{name}") for name in names if name not in _NOT_FAMILIES]
    assigned = [value for module in modules for value in vars(module).values() if isinstance(value, Dialect)]
    by_name = {dialect.names[0]: dialect for dialect in assigned}
    return [by_name[name] for name in sorted(by_name)]


SUFFIX = ".toml"
"""The suffix of a file with a dialect."""

_NOT_FAMILIES = frozenset({"dialect", "registry", "detection", "own", "response_template"})

DIALECTS: tuple[Dialect, ...] = tuple(_assigned())

BY_NAME = {name: dialect for dialect in DIALECTS for name in dialect.names}


def check(name: str) -> None:
    """Raise EngineError if there is no dialect of that name. Whether a model supports `hf` is not checked."""
    for part in name.split("+"):
        if part not in hf.NAMES:
            load(part)


def load(name: str, template: str | None = None) -> Dialect:
    """The dialect that a user names: as for `find`, or a file, or the full name of a module.

    Raises EngineError.
    """
    return _combined(name, lambda part: _load(part, template))


def find(name: str, template: str | None = None) -> Dialect:
    """The dialect of that name, or `A+B`: the reasoning of A with the calls of B.

    `template` is the model's `response_template`, from which `hf` is built. Raises
    EngineError with a list of all names.
    """
    return _combined(name, lambda part: _find(part, template))


def _combined(name: str, find_part: Callable[[str], Dialect]) -> Dialect:
    reasoning, plus, calls = name.partition("+")
    return _combined(calls, find_part).with_reasoning_of(find_part(reasoning)) if plus else find_part(name)


def _find(name: str, template: str | None) -> Dialect:
    if name in hf.NAMES:
        return hf.build(template)
    if name not in BY_NAME:
        names = ", ".join(sorted((*BY_NAME, *hf.NAMES)))
        hint = did_you_mean(name, (*BY_NAME, *hf.NAMES))
        raise EngineError(
            f"There is no dialect '{name}'.{hint} Use one of: {names}. Or a file: FILE{SUFFIX}."
        )
    return BY_NAME[name]


def _load(name: str, template: str | None) -> Dialect:
    if name.endswith(SUFFIX):
        return file.read(name, find)
    if "." in name and name not in BY_NAME:
        return _of_module(name)
    return _find(name, template)


def _of_module(name: str) -> Dialect:
    """The value of `DIALECT` in a module. Raises EngineError."""
    try:
        dialect = getattr(import_module(name), "DIALECT", None)
    except ImportError as error:
        raise EngineError(f"The dialect {name} cannot be imported: {error}.") from error
    if not isinstance(dialect, Dialect):
        raise EngineError(f"The module {name} has no dialect. Assign it: DIALECT = Dialect(…).")
    return dialect
